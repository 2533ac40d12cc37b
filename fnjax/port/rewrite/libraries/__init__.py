"""Calls of other libraries, of layers and of distributions."""
