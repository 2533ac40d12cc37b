"""A file as it is written: its tree, its names, its classes and functions, before anything is looked at."""
