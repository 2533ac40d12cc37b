"""Facts about a value, its memory, and the variables at one point."""
