"""PyTorch's errors for arguments that its operations refuse and JAX's take: empty tensors, zero divisors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fnjax.torch._tensor import Tensor, is_known

_Values = Mapping[str, Any]


def _check_divisor(name: str, values: _Values) -> None:
    """Refuse an integer zero as a divisor, where it is known: what is traced gives numbers without meaning."""
    x, y = values["input"], values["other"]
    if name == "div" and not values.get("rounding_mode"):
        return
    if any(v.dtype.kind != "int" if isinstance(v, Tensor) else not isinstance(v, int) for v in (x, y)):
        return
    zero = is_known(y.array) and bool(np.any(np.asarray(y.array) == 0)) if isinstance(y, Tensor) else y == 0
    if zero and (not isinstance(x, Tensor) or x.layout.size):
        raise RuntimeError("ZeroDivisionError")


def _check_not_empty(name: str, values: _Values) -> None:
    """Refuse a reduction that has no result for no elements."""
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


_CHECKS: dict[str, Callable[[str, _Values], None]] = {
    **dict.fromkeys(("floor_divide", "remainder", "fmod", "div"), _check_divisor),
    **dict.fromkeys(("max", "min", "amax", "amin", "argmax", "argmin", "aminmax"), _check_not_empty),
    **dict.fromkeys(("median", "nanmedian", "kthvalue", "mode"), _check_not_empty),
    **dict.fromkeys(("quantile", "nanquantile"), _check_quantile),
}


def check_values(name: str, values: _Values) -> None:
    """Raise PyTorch's error for arguments that an operation refuses.

    Args:
        name: the operation, without its module.
        values: all parameters, with their defaults.
    """
    check = _CHECKS.get(name)
    if check is not None:
        check(name, values)
