"""torch.nn.Module: parameters, state dicts, hooks, copies, and functional calls."""
