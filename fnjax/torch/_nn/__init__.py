"""`torch.nn`: modules, their containers and layers, on JAX arrays."""
