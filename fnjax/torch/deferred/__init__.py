"""Values that are not known while JAX traces, and stand-ins for missing names and modules."""
