"""Autograd of PyTorch source: what is recorded, and what torch.autograd.Function does with it."""
