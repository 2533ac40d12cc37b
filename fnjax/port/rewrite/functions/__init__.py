"""Functions and classes, and what is around them."""
