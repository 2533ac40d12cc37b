"""torch.masked: reductions and normalisations of the elements that a mask selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fnjax._torch_ops.registry import known
from fnjax.torch.functions.composites import iinfo
from fnjax.torch.functions.methods import to
from fnjax.torch.memory.dtypes import DTYPES, as_dtype, default_dtype, dtype
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import find_function


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    return find_function(f"torch.{name}")(*args, **kwargs)


def _limit(own: dtype, sign: int) -> Any:
    if own.kind == "int":
        return iinfo(own).max if sign > 0 else iinfo(own).min
    return sign * np.inf


def _fill(x: Tensor, mask: Tensor | None, value: Any) -> Tensor:
    """Return a tensor with one value where the mask is false."""
    return x if mask is None else _call("where", mask, x, value)


def _count(x: Tensor, mask: Tensor | None, dim: Any, keepdim: bool) -> Any:
    ones = _call("ones_like", x, dtype=dtype("int64"))
    return _call("sum", _fill(ones, mask, 0), dim, keepdim)


def _make_reduction(name: str, fill: Callable[[dtype], Any]) -> None:
    @known(f"torch.masked.{name}")
    def reduce(
        input: Tensor,
        dim: Any = None,
        *,
        keepdim: bool = False,
        dtype: Any = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        filled = _fill(input, mask, fill(input.dtype))
        dims = tuple(range(input.ndim)) if dim is None or dim == () else dim
        if name == "prod":
            dims = (dims,) if isinstance(dims, int) else dims
            whole = input.dtype.kind in {"bool", "int"}
            found = to(filled, dtype if dtype is not None else DTYPES["int64"] if whole else input.dtype)
            for d in sorted((d % max(input.ndim, 1) for d in dims), reverse=True):
                found = found.prod(d, keepdim)
            return found
        found = _call(name, filled, dim if name.startswith("arg") else dims, keepdim)
        own = None if name == "sum" else input.dtype  # the sum of small integers is large
        return to(found, own if dtype is None else dtype)


for _name, _of in {
    "sum": lambda own: 0,
    "prod": lambda own: 1,
    "amax": lambda own: _limit(own, -1),
    "amin": lambda own: _limit(own, 1),
    "argmax": lambda own: _limit(own, -1),
    "argmin": lambda own: _limit(own, 1),
    "logsumexp": lambda own: _limit(own, -1),
}.items():
    _make_reduction(_name, _of)


def _make_along(name: str, fill: Callable[[dtype], Any]) -> None:
    @known(f"torch.masked.{name}")
    def along(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
        place = "nn.functional.softmin" if name == "softmin" else name
        return _call(place, _fill(input, mask, fill(input.dtype)), dim, dtype=input.dtype if dtype is None else dtype)


for _name, _of in {
    "cumsum": lambda own: 0,
    "cumprod": lambda own: 1,
    "softmax": lambda own: _limit(own, -1),
    "log_softmax": lambda own: _limit(own, -1),
    "softmin": lambda own: _limit(own, 1),
}.items():
    _make_along(_name, _of)


@known("torch.masked.mean")
def mean(
    input: Tensor,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the mean of the elements that a mask selects."""
    own = input.dtype if dtype is None else as_dtype(dtype)
    if own.kind not in {"float", "complex"}:
        raise ValueError(f"mean(): Could not infer output dtype. Got: {own}")
    return _call("sum", _fill(input, mask, 0), dim, keepdim, dtype=own) / _count(input, mask, dim, keepdim)


@known("torch.masked.median")
def median(
    input: Tensor,
    dim: int = -1,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the lower median of the elements that a mask selects."""
    wide = input if input.dtype.kind == "float" else to(input, default_dtype())
    found = _call("nanmedian", _fill(wide, mask, np.nan), dim, keepdim)[0]
    return found if wide is input else to(found, input.dtype if dtype is None else dtype)


@known("torch.masked.norm")
def norm(
    input: Tensor,
    ord: float = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the norm of the elements that a mask selects."""
    filled = _fill(input, mask, np.inf if ord == -np.inf else 0)
    dims = tuple(range(input.ndim)) if dim is None or dim == () else dim
    return _call("linalg.vector_norm", filled, ord, dims, keepdim, dtype=dtype)


@known("torch.masked.normalize")
def normalize(
    input: Tensor,
    ord: float,
    dim: int,
    *,
    eps: float = 1e-12,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the elements that a mask selects, divided by their norm."""
    length = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _fill(input, mask, 0) / _call("clamp_min", length, eps)


@known("torch.masked.logaddexp")
def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: Any = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """Return the logarithm of the sum of exponentials of the elements that two masks select."""
    both = _fill(input, input_mask, -np.inf), _fill(other, other_mask, -np.inf)
    return to(_call("logaddexp", *both), input.dtype if dtype is None else dtype)


def _make_spread(name: str) -> None:
    @known(f"torch.masked.{name}")
    def spread(
        input: Tensor,
        dim: Any = None,
        unbiased: bool | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
        dtype: Any = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        own = as_dtype(dtype) if dtype is not None else input.dtype
        own = own if own.kind in {"float", "complex"} else default_dtype()
        less = correction if correction is not None else 1 if unbiased is None else int(unbiased)
        count = _count(input, mask, dim, True)
        middle = _call("sum", _fill(input, mask, 0), dim, True, dtype=own) / count
        off = _fill(to(input, own) - middle, mask, 0)
        total = _call("sum", off * off.conj(), dim, keepdim, dtype=own)
        kept = count if keepdim else _count(input, mask, dim, False)
        found = total / _call("clamp_min", to(kept, own.to_real()) - less, 0)
        return to(found.sqrt() if name == "std" else found, own)


for _name in ("std", "var"):
    _make_spread(_name)
