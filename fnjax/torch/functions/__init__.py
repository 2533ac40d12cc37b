"""Functions, methods and operators of torch that are no lines of the table."""
