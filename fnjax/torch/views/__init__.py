"""Views and indexing: what shares memory, and what is written through it."""
