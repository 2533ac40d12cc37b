"""Arrays of a call as tensors, and the attributes of a tensor other than its array."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch.memory.dtypes import as_dtype, dtype
from fnjax.torch.memory.strides import Strides, strides_of
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value, is_small


class Kind(NamedTuple):
    """Attributes of a tensor, or a traced number, other than its array; a number's are the types that it may have."""

    dtype: dtype
    requires_grad: bool = False
    numbers: frozenset[type] = frozenset()
    strides: Strides | None = None  # where it is not contiguous


def kind_of(x: Tensor, requires_grad: bool | None = None) -> Kind:
    """Return the kind of a tensor."""
    return Kind(x.dtype, x.requires_grad if requires_grad is None else requires_grad, strides=strides_of(x.layout))


def wrap_array(array: Any, kind: Kind) -> Tensor:
    """Return an array as a tensor of a kind; a leaf if it requires grad."""
    array = array if isinstance(array, jax.Array) else jnp.asarray(array)
    own = kind.dtype if array.dtype == kind.dtype.array else dtype_of(array)
    flag = kind.requires_grad and own.kind in {"float", "complex"}
    strides = kind.strides if array.ndim == len(kind.strides or ()) else None  # not with an axis of vmap
    value = Value(array, requires_grad=flag)
    made = make(value, own, strides=strides)
    value.leaf = made if flag else None
    return made


def dtype_of(array: Any) -> dtype:
    """Return torch's dtype for a caller's array: without 64 bits, JAX's int32 stands for torch's default int64."""
    own = as_dtype(array.dtype)
    return dtype("int64") if own.name == "int32" and own.array == dtype("int64").array else own


def is_array(x: Any) -> bool:
    """Return whether a value is an array of JAX or NumPy."""
    return isinstance(x, (jax.Array, np.ndarray))


def is_constant(x: Any) -> bool:
    """Return whether a tensor is a constant of a call that JAX transforms: a few integers with concrete values."""
    return isinstance(x, Tensor) and x.dtype.kind in {"int", "bool"} and is_small(x.array) and is_transformed()
