"""PyTorch source run as it is, on JAX arrays."""
