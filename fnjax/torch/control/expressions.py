"""Expressions that need the bool or the number of a value, which may be traced: `and`, `not`, `int(x)`, `range(n)`."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fnjax.torch._call import run
from fnjax.torch._dtypes import DTYPES
from fnjax.torch._recording import HostValue
from fnjax.torch._tensor import Tensor, is_known, number
from fnjax.torch.control.branches import NUMBERS, conditional, run_where, to_bool
from fnjax.torch.control.either import Either


class TracedRange:
    """Range with a traced bound."""

    def __init__(self, *bounds: Any) -> None:
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]


def and_(*parts: Callable[[], Any]) -> Any:
    """Return `a and b`, traced where a is; then what the rest writes counts only if a is true."""
    for i, part in enumerate(parts):
        value = part()
        if i == len(parts) - 1:
            return value
        decided = to_bool(value)
        if not isinstance(decided, bool):
            other = run_where(decided, functools.partial(and_, *parts[i + 1 :]), value)
            return _combine(jnp.logical_and, decided, value, other, other, value)
        if not decided:
            return value
    return True


def or_(*parts: Callable[[], Any]) -> Any:
    """Return `a or b`, traced where a is; then what the rest writes counts only if a is false."""
    for i, part in enumerate(parts):
        value = part()
        if i == len(parts) - 1:
            return value
        decided = to_bool(value)
        if not isinstance(decided, bool):
            other = run_where(decided.logical_not(), functools.partial(or_, *parts[i + 1 :]), value)
            return _combine(jnp.logical_or, decided, value, other, value, other)
        if decided:
            return value
    return False


def _combine(function: Any, decided: Tensor, value: Any, other: Any, yes: Any, no: Any) -> Any:
    """Return `value and other`, or `value or other`: of two bools a bool, else one of the operands."""
    if isinstance(other, (Tensor, *NUMBERS)) and not (_is_bool(value) and _is_bool(other)):
        return conditional(decided, lambda: yes, lambda: no)
    rest = to_bool(other)
    return number(function(decided.array, rest.array if isinstance(rest, Tensor) else rest))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype.kind == "bool")


def not_(value: Any) -> Any:
    """Return `not value`, a traced bool if the value is traced."""
    decided = to_bool(value)
    return not decided if isinstance(decided, bool) else number(jnp.logical_not(decided.array))


def assert_(test: Any, message: Callable[[], Any]) -> None:
    """Raise AssertionError if a known test is false; a traced one is assumed to be true."""
    decided = to_bool(test)
    if decided is False:
        raise AssertionError(*([message()] if message() is not None else []))


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced tensor or number."""
    return isinstance(value, Tensor) and not is_known(value.array)


def _to_number(kind: type, value: Any) -> Any:
    if isinstance(value, HostValue) and not value.is_known:
        value = value.to_tensor()
    if not is_traced(value):
        return kind(value)
    if kind is int and value.number and value.dtype.kind == "int":
        return value
    if value.layout.size != 1:
        raise RuntimeError("only one element tensors can be converted to Python scalars")
    array = value.array.reshape(())
    own = {int: DTYPES["int64"], float: DTYPES["float64"], bool: DTYPES["bool"]}[kind]
    return number(
        array != 0
        if kind is bool
        else jnp.trunc(array).astype(own.array)
        if kind is int and value.dtype.kind == "float"
        else array.astype(own.array)
    )


def _isinstance(value: Any, kinds: Any) -> bool:
    if isinstance(value, HostValue):
        return isinstance(value.sample, kinds)
    if isinstance(value, Either):
        return isinstance(value.first, kinds)  # both are tensors
    if isinstance(value, Tensor) and value.number:
        return issubclass(value.dtype.number, kinds)
    return isinstance(value, kinds)


def _extreme(function: Any, name: str) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        values: list[Any] = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not any(map(is_traced, values)):
            return function(values, **kwargs)
        return functools.reduce(
            lambda a, b: conditional(b > a if name == "max" else b < a, lambda: b, lambda: a), values
        )

    return choose


def _sort(values: Any, *, key: Any = None, reverse: bool = False) -> Any:
    values = list(values)
    if key is not None or not any(map(is_traced, values)):
        return sorted(values, key=key, reverse=reverse)
    if all(isinstance(v, Tensor) and not v.number for v in values):
        return list(run("torch.stack", (values,), {}).sort(descending=reverse)[0].unbind())
    found = jnp.sort(jnp.stack([v.array.reshape(()) if isinstance(v, Tensor) else jnp.asarray(v) for v in values]))
    return [number(x) for x in (found[::-1] if reverse else found)]


def builtin(function: Any, name: str) -> Any:
    """Return the replacement of a builtin: itself for known values, a function of tensors for traced ones."""
    if function is not getattr(builtins, name):
        return function
    return _BUILTINS.get(name, function)


_BUILTINS: dict[str, Any] = {
    "int": lambda *args, **kwargs: _to_number(int, *args) if len(args) == 1 and not kwargs else int(*args, **kwargs),
    "float": lambda *args: _to_number(float, *args) if args else 0.0,
    "bool": lambda *args: _to_number(bool, *args) if args else False,
    "range": lambda *bounds: TracedRange(*bounds) if any(map(is_traced, bounds)) else range(*bounds),
    "isinstance": _isinstance,
    "max": _extreme(max, "max"),
    "min": _extreme(min, "min"),
    "sorted": _sort,
    "any": lambda values: or_(*[lambda v=v: v for v in values]) if values is not None else False,
    "all": lambda values: and_(*[lambda v=v: v for v in values]),
    "round": lambda x, *digits: x.round() if is_traced(x) and not digits else round(x, *digits),
}
