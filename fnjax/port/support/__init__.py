"""Functions that a port brings along; they are copied, never imported."""
