"""Layers of torch.nn."""
