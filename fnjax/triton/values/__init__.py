"""Values of kernels: types, affine expressions, tensors, pointers into memory, and the operations on them."""
