"""Functions, methods and operators of torch that are not lines of the table."""
