"""Expressions that need the bool or the number of a value, which may be traced: `and`, `not`, `int(x)`, `range(n)`."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import jax.numpy as jnp

from fnjax.torch._autograd.graph import Value
from fnjax.torch._dtypes import result_type
from fnjax.torch._tensor import Tensor, is_known, make
from fnjax.torch.control.branches import if_, negate, run_where, select, to_bool
from fnjax.torch.control.list_entries import get_entry
from fnjax.torch.control.places import UNBOUND
from fnjax.torch.control.raises import refuse_caught
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import AND, OR, Either, find_choice
from fnjax.torch.deferred.filtered import Filtered, Item
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.deferred.number import NUMBERS, Number, cast, kinds_of, number
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.host.recording import HostValue
from fnjax.torch.loading.errors import NotSupported


class TracedRange:
    """Range with a traced bound."""

    def __init__(self, *bounds: Any) -> None:
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]

    def __iter__(self) -> Iterator[Any]:
        raise NotSupported("items of a range with a traced bound", "write `for i in range(n)`")


def and_(value: Any, rest: Callable[[], Any], items: Iterator[Any] | None = None) -> Any:
    """Return `value and rest()`, traced where the value is; then what the rest writes counts only if it is true."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return rest() if decided else value
    other = run_where(decided, rest, value, items)
    return _combine(AND, decided, value, other, other, value)


def or_(value: Any, rest: Callable[[], Any], items: Iterator[Any] | None = None) -> Any:
    """Return `value or rest()`, traced where the value is; then what the rest writes counts only if it is false."""
    decided = to_bool(value)
    if isinstance(decided, bool):
        return value if decided else rest()
    other = run_where(negate(decided), rest, value, items)
    return _combine(OR, decided, value, other, value, other)


def _combine(name: str, decided: Tensor, value: Any, other: Any, yes: Any, no: Any) -> Any:
    """Return `value and other`, or `value or other`: of two bools a bool, else one of the operands."""
    if not (_is_bool(value) and _is_bool(other)):
        return select(decided, yes, no)
    made = Value((jnp.logical_and if name == AND else jnp.logical_or)(decided.array, other.array))
    made.origin = (name, decided.value, other.value)
    return make(made.array, value=made) if Tensor in {type(value), type(other)} else Number(made, [bool])


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


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced tensor or number."""
    return type(value) is Number or (issubclass(type(value), Tensor) and not is_known(value.array))


def _to_number(kind: type, value: Any) -> Any:
    if issubclass(type(value), HostValue) and not value.is_known:
        value = value.to_tensor()
    if not is_traced(value):
        return kind(value)
    if type(value) is Number:
        return value.cast(kind)
    if value.layout.size != 1:
        raise RuntimeError("only one element tensors can be converted to Python scalars")
    return cast(number(value.array.reshape(())), kind)


# Types of values that answer for others, or of which a traced test decides what they are.
_ASKED = frozenset({Either, Number, Tensor, HostValue, Missing})


def _isinstance(value: Any, kinds: Any) -> Any:
    if type(value) not in _ASKED:
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
    if len(args) != 1 or own not in _ASKED:
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


def is_(a: Any, b: Any) -> Any:
    """Return `a is b`; traced where a traced test decides which objects they are."""
    if a is b:
        return True
    if type(a) not in _ASKED and type(b) not in _ASKED:
        return False
    if type(a) is type(b) is Tensor and (a.memory.is_chosen or b.memory.is_chosen):
        raise NotSupported(
            "`is` of tensors of which JAX decides whether they are the same", "decide outside of jax.jit"
        )
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
        NotSupported: a traced test decides which it is.
    """
    for x in value if type(value) in {tuple, list} else (value,):
        if issubclass(type(x), Deferred):
            raise x.refuse("a match statement")
    return value


def in_(value: Any, container: Any) -> Any:
    """Return `value in container`; traced where a traced test decides on them."""
    if type(container) is Either:
        return container.map(lambda x: in_(value, x), "in")
    if type(value) is Either:
        return value.map(lambda x: in_(x, container), "in")
    if type(value) is Number and isinstance(container, (tuple, list, set, frozenset, range, dict)):
        return _any(value == x for x in container)
    try:
        return value in container
    except NotSupported:
        if type(container) not in {tuple, list}:
            raise
        return _any(value is x or value == x for x in container)


def not_in(value: Any, container: Any) -> Any:
    """Return `value not in container`."""
    found = in_(value, container)
    return not found if type(found) is bool else not_(found)


def select_item(test: Any, make: Callable[[], Any]) -> Item:
    """Return the item of a comprehension whose condition is traced; making it counts where that is true."""
    value = run_where(test, make, UNBOUND)
    return Item(value is not UNBOUND and test, value)


def filtered(items: Iterable[Any], function: Any = None) -> Any:
    """Return the items of a comprehension whose condition may be traced, as Python's own where it never is.

    Args:
        items: the items; an Item where the condition is traced.
        function: what is called with the comprehension as a generator.
    """
    if function is None:
        return Filtered([*_list_items(items)]) if Item in {*map(type, items)} else items
    return Filtered(_list_items(items)) if id(function) in _FOLDS else _iter_known(items)


_readers: dict[int, Any] = {}  # by their ids the frames of generators that a builtin reads item by item


def list_yielded(test: Any, value: Any) -> tuple[Any, ...]:
    """Return the item that a generator yields if a test is true.

    Raises:
        NotSupported: the test is traced, and what reads the generator does not know such items.
    """
    decided = to_bool(test)
    if isinstance(decided, bool):
        return (value,) if decided else ()
    if id(sys._getframe(1)) not in _readers:
        raise NotSupported(
            "an item that a generator yields only if a traced test is true",
            "read the generator by sum(), any(), all(), max(), min() or list(), or yield something in both branches",
        )
    return (Item(decided, value),)


def _read(generator: types.GeneratorType[Any, Any, Any]) -> Iterator[Item]:
    frame = generator.gi_frame
    _readers[id(frame)] = frame
    try:
        yield from _list_items(generator)
    finally:
        del _readers[id(frame)]


def _list_items(values: Iterable[Any]) -> Iterator[Item]:
    if type(values) is Filtered:
        values = values.items
    return (x if type(x) is Item else Item(True, x) for x in values)


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builtin of a list, also of one of two lists that a traced test decides on, or a generator's items."""

    def fold(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is Either:
            return args[0].map(lambda x: function(x, **kwargs), "iteration")
        if args and type(args[0]) is types.GeneratorType and list_yielded.__name__ in args[0].gi_code.co_names:
            args = Filtered(_read(args[0])), *args[1:]
        return function(*args, **kwargs)

    return fold


def _iter_known(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if type(item) is Item:
            raise Filtered([item]).refuse("iteration")
        yield item


def _collect(*args: Any) -> Any:
    if not args or type(args[0]) is not Filtered:
        return list(*args)
    items = [*args[0].items]
    return [i.value for i in items] if all(i.test is True for i in items) else Filtered(items)


def _len(values: Any, /) -> Any:
    return values.size(0) if type(values) is Selection else values.count() if type(values) is Filtered else len(values)


def _sum(values: Any, /, start: Any = 0) -> Any:
    if type(values) is not Filtered:
        return sum(values, start)
    for test, value in values.items:
        start = if_(test, partial(operator.add, start, value), lambda start=start: start)
    return start


def _extreme(function: Any, is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def find(best: Item, new: Item) -> Item:
        """Return the better one of two items, each a value and its key."""
        if best.test is False:
            return new
        better = and_(new.test, lambda: or_(not_(best.test), lambda: is_better(new.value[1], best.value[1])))
        return Item(or_(best.test, lambda: new.test), select(better, new.value, best.value))

    def choose(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        items = [*_list_items(args[0] if len(args) == 1 else args)]
        keys = [v if key is None else key(v) if t is True else select_item(t, partial(key, v)).value for t, v in items]
        if not any(map(is_traced, (*keys, *(i.test for i in items)))):
            known = iter(keys)
            by_key = {} if key is None else {"key": lambda _: next(known)}
            return function(*([[i.value for i in items]] if len(args) == 1 else args), **by_key, **kwargs)
        pairs = (Item(i.test, (i.value, k)) for i, k in zip(items, keys, strict=True))
        best = functools.reduce(find, pairs, Item(False, None))
        if "default" in kwargs:
            return select(best.test, best.value[0], kwargs["default"])
        if best.test is not True:
            refuse_caught(ValueError())
        return best.value[0]

    return choose


def _any(values: Any) -> Any:
    items = (select(t, v, False) for t, v in values.items) if type(values) is Filtered else iter(values)
    for value in items:
        decided = to_bool(value)
        if decided is not False:
            return decided if decided is True else or_(Number(decided.value, [bool]), lambda: _any(items), items)
    return False


def _all(values: Any) -> Any:
    items = (select(t, v, True) for t, v in values.items) if type(values) is Filtered else iter(values)
    for value in items:
        decided = to_bool(value)
        if decided is not True:
            return decided if decided is False else and_(Number(decided.value, [bool]), lambda: _all(items), items)
    return True


def _sort(*args: Any, key: Any = None, **kwargs: Any) -> Any:
    if len(args) != 1:
        return sorted(*args, key=key, **kwargs)
    values = list(args[0])
    keys = values if key is None else [*map(key, values)]
    parts = [k if type(k) is tuple else (k,) for k in keys]
    if not any(is_traced(x) for part in parts for x in part):
        known = iter(keys)
        return sorted(values, key=None if key is None else lambda _: next(known), **kwargs)
    if kwargs.get("reverse", False):  # equal ones keep their order
        known = reversed(keys)
        return _sort(values[::-1], key=lambda _: next(known))[::-1]
    if len({*map(len, parts)}) > 1 or not all(isinstance(x, (Tensor, Number, *NUMBERS)) for p in parts for x in p):
        raise NotSupported("sorted() by traced keys that are not of one kind", "make them numbers, or tuples of these")
    order = jnp.lexsort([_stack(column) for column in reversed([*zip(*parts, strict=True)])])
    return [get_entry(values, number(order[i])) for i in range(len(values))]


def _stack(numbers: Sequence[Any]) -> Any:
    """Return the array of numbers, which may be tensors of one element."""
    tensors = [x.dtype for x in numbers if isinstance(x, Tensor)]
    own = result_type([(d, 0) for d in tensors], chain(*(kinds_of(x) for x in numbers if not isinstance(x, Tensor))))
    arrays = [x.array.reshape(()) if isinstance(x, (Tensor, Number)) else x for x in numbers]
    return jnp.stack([jnp.asarray(a, own.array) for a in arrays])


def builtin(function: Any) -> Any:
    """Return the replacement of a builtin, for known values itself and for traced ones a function of tensors."""
    return _BUILTINS.get(id(function), function)


_BUILTINS: dict[int, Any] = {
    id(int): lambda *args, **kwargs: _to_number(int, *args) if len(args) == 1 and not kwargs else int(*args, **kwargs),
    id(float): lambda *args: _to_number(float, *args) if len(args) == 1 else float(*args),
    id(bool): lambda *args: _to_number(bool, *args) if len(args) == 1 else bool(*args),
    id(range): lambda *bounds: TracedRange(*bounds) if any(map(is_traced, bounds)) else range(*bounds),
    id(isinstance): _isinstance,
    id(type): _type,
    id(id): _id,
    id(len): _fold(_len),
    id(callable): _callable,
    id(max): _fold(_extreme(max, operator.gt)),
    id(min): _fold(_extreme(min, operator.lt)),
    id(sorted): _sort,
    id(any): _fold(_any),
    id(all): _fold(_all),
    id(sum): _fold(_sum),
    id(list): _fold(_collect),
}
_FOLDS = frozenset(map(id, (sum, any, all, max, min, list)))  # those that know lists whose items a test selects
