"""One call of a Function: where PyTorch's words become arrays."""
