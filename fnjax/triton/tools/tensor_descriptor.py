"""`triton.tools.tensor_descriptor`: descriptors that are made outside of kernels."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass
class TensorDescriptor:
    """An array with the block of it that a kernel loads and stores at a time: `kernel[grid](descriptor, ...)`.

    The kernel reads and writes it by `descriptor.load([row, column])` and `descriptor.store([row, column], block)`. Of
    one that is stored to the launch gives the array back, as of an array. A `pre_hook` of a configuration may
    set `block_shape`, as in Triton.

    Unlike Triton, what a GPU demands of addresses and strides (multiples of 16 bytes) is not demanded here.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fnjax.triton.tools.tensor_descriptor import TensorDescriptor
        >>> TensorDescriptor.from_tensor(jnp.zeros((6, 8)), [4, 4]).strides
        [8, 1]

    Args:
        base: the array.
        shape: how far it reaches, along each axis.
        strides: how many elements of the array lie between neighbours along each axis; the last one is 1.
        block_shape: the block's sizes.
        padding: what is loaded from outside: "zero" or "nan".

    Raises:
        ValueError: shape, strides and block_shape differ in length, or the last stride is not 1.
    """

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"

    def __post_init__(self):
        if not len(self.shape) == len(self.strides) == len(self.block_shape) >= 1:
            raise ValueError(
                "shape, strides and block_shape of a TensorDescriptor differ in length: "
                f"{self.shape}, {self.strides}, {self.block_shape}"
            )
        if self.strides[-1] != 1:
            raise ValueError(f"the last stride of a TensorDescriptor must be 1, not {self.strides[-1]}")

    @staticmethod
    def from_tensor(tensor: Any, block_shape: list[int], padding: str = "zero") -> "TensorDescriptor":
        """A descriptor of a whole array."""
        shape = list(tensor.shape)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return TensorDescriptor(tensor, shape, strides, block_shape, padding)

    def facts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """All but the array."""
        return tuple(self.shape), tuple(self.strides), tuple(self.block_shape), self.padding
