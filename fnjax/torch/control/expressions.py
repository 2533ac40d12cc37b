"""Expressions that need the bool or the number of a value, which may be traced: `and`, `not`, `int(x)`, `range(n)`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp

from fnjax.torch._call import run
from fnjax.torch._dtypes import DTYPES
from fnjax.torch._tensor import Tensor, is_known, number
from fnjax.torch.control.branches import NUMBERS, run_where, select, to_bool
from fnjax.torch.control.raises import refuse_caught
from fnjax.torch.deferred.either import Either
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.host.recording import HostValue
from fnjax.torch.loading.errors import NotSupported


class TracedRange:
    """Range with a traced bound."""

    def __init__(self, *bounds: Any) -> None:
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]

    def __iter__(self) -> Iterator[Any]:
        raise NotSupported("items of a range with a traced bound", "write `for i in range(n)`")


def and_(value: Any, rest: Callable[[], Any]) -> Any:
    """Return `value and rest()`, traced where the value is; then what the rest writes counts only if it is true."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return rest() if decided else value
    other = run_where(decided, rest, value)
    return _combine(jnp.logical_and, decided, value, other, other, value)


def or_(value: Any, rest: Callable[[], Any]) -> Any:
    """Return `value or rest()`, traced where the value is; then what the rest writes counts only if it is false."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return value if decided else rest()
    other = run_where(decided.logical_not(), rest, value)
    return _combine(jnp.logical_or, decided, value, other, value, other)


def _combine(function: Any, decided: Tensor, value: Any, other: Any, yes: Any, no: Any) -> Any:
    """Return `value and other`, or `value or other`: of two bools a bool, else one of the operands."""
    if isinstance(other, (Tensor, *NUMBERS)) and not (_is_bool(value) and _is_bool(other)):
        return select(decided, yes, no)
    rest = to_bool(other)
    return number(function(decided.array, rest.array if isinstance(rest, Tensor) else rest))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype.kind == "bool")


def not_(value: Any) -> Any:
    """Return `not value`, a traced bool if the value is traced."""
    decided = to_bool(value)
    return not decided if isinstance(decided, bool) else number(jnp.logical_not(decided.array))


def assume(value: Any) -> bool:
    """Return whether an asserted value is true; a traced one is assumed to be."""
    decided = to_bool(value)
    if not isinstance(decided, bool):
        refuse_caught(AssertionError())
    return decided is not False


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced tensor or number."""
    return issubclass(type(value), Tensor) and not is_known(value.array)


def _to_number(kind: type, value: Any) -> Any:
    if issubclass(type(value), HostValue) and not value.is_known:
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
    own = type(value)
    if issubclass(own, HostValue):
        return isinstance(value.sample, kinds)
    if issubclass(own, Either):
        return isinstance(value.first, kinds)  # both are tensors
    if issubclass(own, Missing):
        raise value.refuse()
    if issubclass(own, Tensor) and value.number:
        return issubclass(value.dtype.number, kinds)
    return isinstance(value, kinds)


def _extreme(function: Any, is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def choose(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        values: list[Any] = [*args[0]] if len(args) == 1 else [*args]
        keys = values if key is None else [*map(key, values)]
        if not any(map(is_traced, keys)):
            known = iter(keys)
            by_key = {} if key is None else {"key": lambda _: next(known)}
            return function(*([values] if len(args) == 1 else args), **by_key, **kwargs)
        pairs: Any = [(v,) for v in values] if key is None else zip(values, keys, strict=True)
        return functools.reduce(lambda a, b: select(is_better(b[-1], a[-1]), b, a), pairs)[0]

    return choose


def _any(values: Iterable[Any]) -> Any:
    items = iter(values)
    for value in items:
        decided = to_bool(value)
        if decided is not False:
            return decided if decided is True else or_(number(decided.array), lambda: _any(items))
    return False


def _all(values: Iterable[Any]) -> Any:
    items = iter(values)
    for value in items:
        decided = to_bool(value)
        if decided is not True:
            return decided if decided is False else and_(number(decided.array), lambda: _all(items))
    return True


def _round(*args: Any, **kwargs: Any) -> Any:
    if not any(map(is_traced, (*args, *kwargs.values()))):
        return round(*args, **kwargs)
    return _round_traced(*args, **kwargs)


def _round_traced(number: Any, ndigits: Any = None) -> Any:
    return number.round() if ndigits is None else number.round(decimals=ndigits)


def _sort(*args: Any, key: Any = None, **kwargs: Any) -> Any:
    values = list(args[0]) if len(args) == 1 else []
    if key is not None or not any(map(is_traced, values)):
        return sorted(*([values] if len(args) == 1 else args), key=key, **kwargs)
    reverse = kwargs.get("reverse", False)
    if all(isinstance(v, Tensor) and not v.number for v in values):
        return list(run("torch.stack", (values,), {}).sort(descending=reverse)[0].unbind())
    found = jnp.sort(jnp.stack([v.array.reshape(()) if isinstance(v, Tensor) else jnp.asarray(v) for v in values]))
    return [number(x) for x in (found[::-1] if reverse else found)]


def builtin(function: Any) -> Any:
    """Return the replacement of a builtin, for known values itself and for traced ones a function of tensors."""
    return _BUILTINS.get(id(function), function)


_BUILTINS: dict[int, Any] = {
    id(int): lambda *args, **kwargs: _to_number(int, *args) if len(args) == 1 and not kwargs else int(*args, **kwargs),
    id(float): lambda *args: _to_number(float, *args) if len(args) == 1 else float(*args),
    id(bool): lambda *args: _to_number(bool, *args) if len(args) == 1 else bool(*args),
    id(range): lambda *bounds: TracedRange(*bounds) if any(map(is_traced, bounds)) else range(*bounds),
    id(isinstance): _isinstance,
    id(max): _extreme(max, operator.gt),
    id(min): _extreme(min, operator.lt),
    id(sorted): _sort,
    id(any): _any,
    id(all): _all,
    id(round): _round,
}
