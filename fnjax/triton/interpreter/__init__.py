"""Interpretation of a kernel's source: statements, loops, and how loops become JAX operations."""
