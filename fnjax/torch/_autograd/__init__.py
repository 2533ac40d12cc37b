"""Autograd of PyTorch source: recorded operations, torch.autograd.Function, hooks, and torch.func."""
