"""Builtins for values that may be traced: `int(x)`, `range(n)`, `isinstance`."""

from __future__ import annotations

from typing import Any

from fnjax.torch.control.branches import as_tensor
from fnjax.torch.control.expressions import ASKED, TracedRange
from fnjax.torch.control.folds import FOLDS
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either, find_choice
from fnjax.torch.deferred.filtered import Filtered
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.deferred.number import Number, cast, is_traced, number
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.tensor import Tensor


def _to_number(kind: type, value: Any) -> Any:
    value = as_tensor(value)
    if not is_traced(value):
        return kind(value)
    if type(value) is Number:
        return value.cast(kind)
    if value.layout.size != 1:
        raise RuntimeError("only one element tensors can be converted to Python scalars")
    return cast(number(value.array.reshape(())), kind)


def _isinstance(value: Any, kinds: Any) -> Any:
    if type(value) not in ASKED:
        return isinstance(value, kinds)
    value = find_choice(value)
    own = type(value)
    if own is HostValue:
        return isinstance(value.sample, kinds)
    if own is Either:
        return value.map(lambda x: _isinstance(x, kinds), "isinstance()")
    if own is Number:
        return value.ask(lambda kind: issubclass(kind, kinds))
    if own is Missing:
        raise value.refuse()
    return isinstance(value, kinds)


def _callable(value: Any) -> Any:
    if type(value) is Either:
        return value.map(_callable, "callable()")
    return callable(value) and not issubclass(type(value), Deferred)


def _type(*args: Any, **kwargs: Any) -> Any:
    own: Any = type(*args, **kwargs)
    if len(args) != 1 or own not in ASKED:
        return args[0].__class__ if own in {Selection, Filtered} else own
    value = find_choice(args[0])
    own = type(value)
    if own is HostValue:
        return type(value.sample)
    if own is Either:
        return value.map(_type, "type()")
    if own is Number:
        return value.kind
    if own is Missing:
        raise value.refuse()
    return own


def _id(value: Any) -> int:
    if issubclass(type(value), Tensor) and value.memory.is_chosen:
        raise NotSupported("id() of a tensor of which JAX decides which it is", "decide outside of jax.jit")
    if type(value) in {Either, Number}:
        raise value.refuse("id()")
    return id(value)


def builtin(function: Any) -> Any:
    """Return the replacement of a builtin: it calls the builtin, or for traced values a function of tensors."""
    return _BUILTINS.get(id(function), function)


_BUILTINS: dict[int, Any] = {
    id(int): lambda *args, **kwargs: _to_number(int, *args) if len(args) == 1 and not kwargs else int(*args, **kwargs),
    id(float): lambda *args: _to_number(float, *args) if len(args) == 1 else float(*args),
    id(bool): lambda *args: _to_number(bool, *args) if len(args) == 1 else bool(*args),
    id(range): lambda *bounds: TracedRange(*bounds) if any(map(is_traced, bounds)) else range(*bounds),
    id(isinstance): _isinstance,
    id(type): _type,
    id(id): _id,
    id(callable): _callable,
} | FOLDS
