"""Expressions that need the truth of a value, which may be traced: `and`, `not`, `is`, assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from fnjax.torch.control.branches import as_tensor, negate, run_where, select, to_bool
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either, find_choice
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.deferred.number import NUMBERS, Number
from fnjax.torch.deferred.origins import AND, OR, are_one
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.raises import refuse_caught


class TracedRange:
    """Range with a traced bound."""

    def __init__(self, *bounds: Any) -> None:
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]

    def __iter__(self) -> Iterator[Any]:
        raise NotSupported("items of a range with a traced bound", "write `for i in range(n)`")


def and_(value: Any, rest: Callable[[], Any], items: Iterator[Any] | None = None) -> Any:
    """Return `value and rest()`; if the value is traced, the effects of `rest` are kept only where it is true."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return rest() if decided else value
    other = run_where(decided, rest, value, items)
    return _combine(AND, decided, value, other, other, value)


def or_(value: Any, rest: Callable[[], Any], items: Iterator[Any] | None = None) -> Any:
    """Return `value or rest()`; if the value is traced, the effects of `rest` are kept only where it is false."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return value if decided else rest()
    other = run_where(negate(decided), rest, value, items)
    return _combine(OR, decided, value, other, value, other)


def _combine(name: str, decided: Tensor, value: Any, other: Any, yes: Any, no: Any) -> Any:
    """Return `value and other`, or `value or other`: a bool for two bools, else one of the operands."""
    second = as_tensor(other)
    if not (_is_bool(as_tensor(value)) and _is_bool(second)):
        return select(decided, yes, no)
    made = Value((jnp.logical_and if name == AND else jnp.logical_or)(decided.array, second.array))
    made.origin = (name, decided.value, second.value)
    return make(made) if Tensor in {type(value), type(other)} else Number(made, [bool])


def _is_bool(value: Any) -> bool:
    return isinstance(value, (Tensor, Number)) and value.dtype.kind == "bool" and value.array.ndim == 0


def not_(value: Any) -> Any:
    """Return `not value`, a traced bool if the value is traced."""
    decided = to_bool(value)
    return not decided if isinstance(decided, bool) else negate(decided)


def assume(value: Any) -> bool:
    """Return whether an asserted value is true; a traced one is assumed to be."""
    decided = to_bool(value)
    if not isinstance(decided, bool):
        refuse_caught(AssertionError())
    return decided is not False


# Types of values that answer for others, or of which a traced test decides what they are.
ASKED = frozenset({Either, Number, Tensor, HostValue, Missing})


def is_(a: Any, b: Any) -> Any:
    """Return `a is b`: a traced bool if a traced test decides which objects they are."""
    if a is b:
        return True
    a, b = find_choice(a), find_choice(b)
    if type(a) not in ASKED and type(b) not in ASKED:
        return False
    if type(a) is type(b) is Tensor:
        found = are_one(a, b)
        return found if type(found) is bool else Number(Value(found), [bool])
    if type(a) is Either:
        return a.map(lambda x: is_(x, b), "is")
    if type(b) is Either:
        return is_(b, a)
    for x, other in ((a, b), (b, a)):
        if type(x) is Number and type(other) is bool:
            is_bool = x.ask(lambda kind: kind is bool)
            return is_bool and (x if other else negate(x))
        if type(x) is Number and isinstance(other, (Number, *NUMBERS)):
            raise x.refuse("`is`")
    return False


def is_not(a: Any, b: Any) -> Any:
    """Return `a is not b`."""
    found = is_(a, b)
    return not found if type(found) is bool else not_(found)


def known(value: Any) -> Any:
    """Return the value that a match statement compares.

    Raises:
        NotSupported: a traced test decides which value it is.
    """
    for x in value if type(value) in {tuple, list} else (value,):
        if issubclass(type(x), Deferred):
            raise x.refuse("a match statement")
    return value
