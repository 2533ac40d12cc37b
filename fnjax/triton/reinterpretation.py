"""`triton.reinterpret`: arrays with their bits read as another type."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnjax.triton.values.tensor import canonical
from fnjax.triton.values.types import TypeLike, as_type, pointer_type


def reinterpret(tensor: Any, dtype: TypeLike) -> Any:
    """Return an array with its bits read as another type of the same width.

    Args:
        tensor: an array, or a tensor of fnjax.torch.
        dtype: a type of triton.language, such as `tl.float8e5`.

    Raises:
        TypeError: the widths differ, or it is the type of a pointer.
    """
    own = as_type(dtype)
    if isinstance(own, pointer_type):
        raise TypeError(f"triton.reinterpret reads elements, not {own}: a kernel makes that of a pointer with .to(...)")
    kind = canonical(own)
    if hasattr(type(tensor), "__triton_launch__"):  # a tensor of fnjax.torch, which has its own view of bits
        return tensor.view(kind)
    array = jnp.asarray(tensor)
    if array.dtype.itemsize != kind.itemsize:
        raise TypeError(f"triton.reinterpret needs types of one width, not {array.dtype} and {kind}")
    return jax.lax.bitcast_convert_type(array, kind)
