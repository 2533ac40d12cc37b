"""Interfaces to JAX: views between arrays and tensors, custom operators, torch.distributed."""
