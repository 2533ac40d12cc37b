"""torch.nn.Module and its services."""
