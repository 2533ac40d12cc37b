"""Trees of Python's syntax, which loading and the porter read and make."""
