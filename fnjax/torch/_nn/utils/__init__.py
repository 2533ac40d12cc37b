"""torch.nn.init and torch.nn.utils."""
