"""Borders: arrays, custom operators, torch.distributed."""
