"""Views and indexing, and writes through them."""
