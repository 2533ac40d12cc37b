"""`triton.tools.tensor_descriptor`: descriptors made outside of kernels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


@dataclasses.dataclass
class TensorDescriptor:
    """Array with the block of it that a kernel loads and stores at a time: `kernel[grid](descriptor, ...)`.

    The kernel accesses it by `descriptor.load([row, column])` and `descriptor.store([row, column], block)`. The launch
    returns the array of a descriptor that is stored to. A `pre_hook` of a configuration may set `block_shape`, as in
    Triton.

    Unlike Triton, addresses and strides need not be multiples of 16 bytes, which a GPU demands.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fnjax.triton.tools.tensor_descriptor import TensorDescriptor
        >>> TensorDescriptor.from_tensor(jnp.zeros((6, 8)), [4, 4]).strides
        [8, 1]

    Args:
        base: the array.
        shape: its extent along each axis.
        strides: the distance in elements between neighbours along each axis; the last one is 1.
        block_shape: the block's sizes.
        padding: the value of elements loaded from outside: "zero" or "nan".

    Raises:
        ValueError: shape, strides and block_shape differ in length, or the last stride is not 1.
    """

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.strides) == len(self.block_shape) >= 1:
            raise ValueError(
                "shape, strides and block_shape of a TensorDescriptor differ in length: "
                f"{self.shape}, {self.strides}, {self.block_shape}"
            )
        if self.strides[-1] != 1:
            raise ValueError(f"the last stride of a TensorDescriptor must be 1, not {self.strides[-1]}")

    @staticmethod
    def from_tensor(tensor: Any, block_shape: list[int], padding: str = "zero") -> TensorDescriptor:
        """Return a descriptor of a whole array."""
        shape = list(tensor.shape)
        own = getattr(tensor, "stride", None)  # of fnjax.torch's tensors
        strides = list(own()) if own else [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return TensorDescriptor(tensor, shape, strides, block_shape, padding)

    def facts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """Return everything but the array, as a hashable tuple."""
        return tuple(self.shape), tuple(self.strides), tuple(self.block_shape), self.padding
