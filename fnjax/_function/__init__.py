"""One call of a Function: PyTorch's interface on the outside, flat arrays on the inside."""
