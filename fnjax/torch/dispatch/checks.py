"""PyTorch's errors for arguments that its operations refuse and JAX's take: empty tensors, zero divisors, indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from fnjax.torch.memory.tensor import Tensor, is_known
from fnjax.torch.views.indexing import OUT_OF_RANGE, check_indices

_Values = Mapping[str, Any]


def _check_divisor(name: str, values: _Values) -> None:
    """Raise PyTorch's error for a concrete integer zero as a divisor; a traced one gives undefined numbers."""
    x, y = values["input"], values["other"]
    if name == "div" and not values.get("rounding_mode"):
        return
    if any(v.dtype.kind != "int" if isinstance(v, Tensor) else not isinstance(v, int) for v in (x, y)):
        return
    zero = is_known(y.array) and bool(np.any(np.asarray(y.array) == 0)) if isinstance(y, Tensor) else y == 0
    if zero and (not isinstance(x, Tensor) or x.layout.size):
        raise RuntimeError("ZeroDivisionError")


def _check_not_empty(name: str, values: _Values) -> None:
    """Raise PyTorch's error for a reduction of no elements that has no neutral element."""
    x, dim = values["input"], values.get("dim")
    if not isinstance(x, Tensor) or x.layout.size:
        return
    if dim is None or isinstance(values.get("other"), Tensor):
        if "other" in values or name in {"median", "nanmedian"}:
            return
        if name == "aminmax":
            what = "cannot compute aminmax over an empty dimension as the operation has no identity."
            raise RuntimeError(f"aminmax(): {what}")
        what = f"{name}(): Expected reduction dim to be specified for input.numel() == 0."
        if name.startswith("arg"):
            raise IndexError(what)
        raise RuntimeError(f"{what} Specify the reduction dim with the 'dim' argument.")
    for axis in dim if isinstance(dim, (tuple, list)) else (dim,):
        if x.layout.ndim and -x.layout.ndim <= axis < x.layout.ndim and x.layout.shape[axis] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {axis % x.layout.ndim} to have non-zero size.")


def _check_quantile(name: str, values: _Values) -> None:
    if not math.prod(values["input"].layout.shape):
        raise RuntimeError(f"{name}() input tensor must be non-empty")


class _Range(NamedTuple):
    """Range that PyTorch checks concrete indices of an operation for.

    Attributes:
        indices: the parameter that has the indices.
        tensor: the parameter whose size is their upper bound.
        axis: the axis of that size, or the parameter that names it; None for the number of all elements.
        error: PyTorch's exception.
        lowest: the least index; None for minus the size.
        text: the exception's text.
    """

    indices: str
    tensor: str
    axis: str | int | None
    error: type[Exception]
    lowest: int | None = 0
    text: str = OUT_OF_RANGE


_OUT_OF_ALL = "out of range: tried to access index {index} on a tensor of {size} elements."
_CLASSES = _Range("target", "input", 1, IndexError, text="Target {index} is out of bounds.")
_RANGES = {
    **dict.fromkeys(("index_select", "index_copy", "index_reduce"), _Range("index", "input", "dim", IndexError)),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce", "index_add"),
        _Range("index", "input", "dim", RuntimeError),
    ),
    "index_fill": _Range("index", "input", "dim", IndexError, None),
    "take": _Range("index", "input", None, IndexError, None, _OUT_OF_ALL),
    "embedding": _Range("input", "weight", 0, IndexError),
    "embedding_bag": _Range("input", "weight", 0, RuntimeError),
    "nll_loss": _CLASSES,
    "cross_entropy": _CLASSES,
    "multi_margin_loss": _CLASSES._replace(error=RuntimeError, text="target out of range"),
}


def _check_range(name: str, values: _Values) -> None:
    """Raise PyTorch's exception for concrete indices that are out of range."""
    own = _RANGES.get(name)
    if own is None:
        return
    tensor, index = values.get(own.tensor), values.get(own.indices)
    if not isinstance(tensor, Tensor) or not isinstance(index, Tensor) or index.dtype.is_floating_point:
        return  # such as probabilities of classes
    axis = values.get(own.axis) if isinstance(own.axis, str) else own.axis
    shape = tensor.layout.shape if own.axis is not None else (tensor.layout.size,)
    if not shape or type(axis) not in {int, NoneType}:
        return
    size = shape[min(axis or 0, len(shape) - 1)]
    lowest = -size if own.lowest is None else own.lowest
    check_indices(index, size, lowest, own.error, own.text, axis, values.get("ignore_index"))


_CHECKS: dict[str, Callable[[str, _Values], None]] = {
    **dict.fromkeys(("floor_divide", "remainder", "fmod", "div"), _check_divisor),
    **dict.fromkeys(("max", "min", "amax", "amin", "argmax", "argmin", "aminmax"), _check_not_empty),
    **dict.fromkeys(("median", "nanmedian", "kthvalue", "mode"), _check_not_empty),
    **dict.fromkeys(("quantile", "nanquantile"), _check_quantile),
}


def reads_elements(name: str) -> bool:
    """Return whether the checks of an operation depend on the elements of tensors, not on dtypes and shapes alone."""
    return name in _RANGES or _CHECKS.get(name) is _check_divisor


def check_values(name: str, values: _Values) -> None:
    """Raise PyTorch's error for arguments that an operation refuses.

    Args:
        name: the operation, without its module.
        values: all parameters, with their defaults.
    """
    _check_range(name, values)
    check = _CHECKS.get(name)
    if check is not None:
        check(name, values)
