"""NumPy and SciPy on the host: recorded calls, the values that they give, and the modules of loaded files."""
