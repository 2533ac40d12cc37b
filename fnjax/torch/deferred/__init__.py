"""Values that JAX decides when the program runs, and stand-ins for what is not there."""
