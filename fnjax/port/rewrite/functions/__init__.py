"""Functions and classes, and what stands around them."""
