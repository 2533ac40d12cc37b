"""`triton.tools`, as far as launches need it."""
