"""Builtins over items that traced tests may select: `sum`, `any`, `max`, `sorted`, `in`, comprehensions."""

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

from fnjax._primitives.jax_internals import is_staged
from fnjax.torch.control.branches import if_, negate, run_where, select, to_bool
from fnjax.torch.control.expressions import and_, not_, or_
from fnjax.torch.control.list_entries import get_entry
from fnjax.torch.control.state.places import UNBOUND
from fnjax.torch.deferred.either import Either
from fnjax.torch.deferred.filtered import Filtered, Item
from fnjax.torch.deferred.list_iterator import END, ListIterator
from fnjax.torch.deferred.number import NUMBERS, Number, is_traced, kinds_of, number
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import result_type
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.journal import is_in_loop
from fnjax.torch.recording.raises import refuse_caught


def in_(value: Any, container: Any) -> Any:
    """Return `value in container`: a traced bool if traced values are compared."""
    if type(container) is Either:
        return container.map(lambda x: in_(value, x), "in")
    if type(value) is Either:
        return value.map(lambda x: in_(x, container), "in")
    if type(value) is Number and isinstance(container, (tuple, list, set, frozenset, range, dict)):
        return _decide((value == x for x in container), True)
    try:
        return value in container
    except NotSupported:
        if type(container) not in {tuple, list}:
            raise
        return _decide((value is x or value == x for x in container), True)


def not_in(value: Any, container: Any) -> Any:
    """Return `value not in container`."""
    found = in_(value, container)
    return not found if type(found) is bool else not_(found)


_readers: dict[int, Any] = {}  # by their ids the frames of generators that a builtin reads item by item


def list_yielded(test: Any, value: Any) -> tuple[Any, ...]:
    """Return the item that a generator yields if a test is true.

    Raises:
        NotSupported: the test is traced, and the generator is not read by a builtin that takes such items.
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


def _read(generator: Any) -> Iterator[Item]:
    frame = generator.gi_frame
    _readers[id(frame)] = frame
    try:
        yield from map(_as_item, generator)
    finally:
        del _readers[id(frame)]


def select_item(test: Any, make: Callable[[], Any]) -> Item:
    """Return the item of a comprehension whose condition is traced; the effects of `make` are kept where it is true."""
    value = run_where(test, make, UNBOUND)
    return Item(value is not UNBOUND and test, value)


def filtered(items: Iterable[Any], function: Any = None) -> Any:
    """Return the items of a comprehension: a Filtered if its condition was traced, else Python's list or generator.

    Args:
        items: the items; an Item where the condition is traced.
        function: the builtin that is called with the comprehension as a generator; None for a list comprehension.
    """
    if function is None:
        return Filtered([*list_items(items)]) if Item in {*map(type, items)} else items
    return Filtered(list_items(items)) if id(function) in _TAKING_ITEMS else _iter_known(items)


def collect(found: Any, items: Any) -> Any:
    """Return a dict or set of the items of a comprehension, which traced tests may select."""
    if type(items) is not Filtered:
        found.update(items)
        return found
    put = found.add if type(found) is set else lambda item: operator.setitem(found, *item)
    for test, item in items.items:
        if_(test, partial(put, item), lambda: None)
    return found


def is_selected(values: Any) -> bool:
    """Return whether traced tests may select the items of a list, iterator or generator."""
    if type(values) is types.GeneratorType:
        return list_yielded.__name__ in values.gi_code.co_names
    return type(values) is Filtered or (type(values) is ListIterator and values.is_traced)


def list_items(values: Iterable[Any]) -> Iterator[Item]:
    """Return the items of a list or generator as Items, each with its test."""
    if type(values) is Filtered:
        values = values.items
    elif type(values) is ListIterator and values.is_traced:
        at, values.at = values.at, END
        values = [Item(at <= i, x) for i, x in enumerate(values.items)]
    elif is_selected(values):
        return _read(values)
    return map(_as_item, values)


def _as_item(value: Any) -> Item:
    return value if type(value) is Item else Item(True, value)


def _iter_known(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if type(item) is Item:
            raise Filtered([item]).refuse("iteration")
        yield item


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builtin of an iterable that takes also an Either of two lists, and items that traced tests select."""

    def fold(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is Either:
            return args[0].map(lambda x: function(x, **kwargs), "iteration")
        if args and is_selected(args[0]):
            args = Filtered(list_items(args[0])), *args[1:]
        return function(*args, **kwargs)

    return fold


def _collect(*args: Any) -> Any:
    if not args or type(args[0]) is not Filtered:
        return list(*args)
    items = [*args[0].items]
    return [i.value for i in items] if all(i.test is True for i in items) else Filtered(items)


def _len(values: Any, /) -> Any:
    return values.size(0) if type(values) is Selection else values.count() if type(values) is Filtered else len(values)


def iter_(*args: Any) -> Any:
    """Return `iter(x)`; for a list while JAX traces, a ListIterator, whose position branches may merge."""
    is_list = len(args) == 1 and type(args[0]) in {list, tuple}
    return ListIterator(args[0]) if is_list and is_staged() else iter(*args)


def read_item(items: ListIterator) -> Any:
    """Return the next item of an iterator that has not ended."""
    at, items.at = items.at, items.at + 1
    items.most = END if is_in_loop() else items.most + 1
    return get_entry(items.items, at)


def _read_next(items: ListIterator, *default: Any) -> Any:
    if not items.is_traced:
        return next(items, *default)
    at, count = items.at, len(items.items)
    if items.most < count and not is_in_loop():
        return read_item(items)
    if not default:
        refuse_caught(StopIteration())
    items.most = count
    items.at = at + (at < count)
    return select(at < count, get_entry(items.items, at), *default) if count else default[0]


def _next(items: Any, /, *default: Any) -> Any:
    if type(items) is ListIterator:
        return _read_next(items, *default)
    if type(items) is not Filtered:
        return next(items, *default)
    rest = iter(items.items)
    item = next(rest, None)
    if item is None and not default:
        raise items.refuse("next() without a default")
    if item is None or item.test is True:
        return default[0] if item is None else item.value
    after = run_where(negate(item.test), lambda: _next(Filtered(rest), *default), item.value, rest)
    return select(item.test, item.value, after)


def _identity(value: Any) -> Any:
    return value


def _sum(values: Any, /, start: Any = 0) -> Any:
    if type(values) is not Filtered:
        return sum(values, start)
    for test, value in values.items:
        start = if_(test, partial(operator.add, start, value), partial(_identity, start))
    return start


def _extreme(function: Any, is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def find(best: Item, new: Item) -> Item:
        """Return the better one of two items, each a value and its key."""
        if best.test is False:
            return new
        better = and_(new.test, lambda: or_(not_(best.test), lambda: is_better(new.value[1], best.value[1])))
        return Item(or_(best.test, lambda: new.test), select(better, new.value, best.value))

    def choose(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        items = [*list_items(args[0] if len(args) == 1 else args)]
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


def _decide(values: Any, end: bool) -> Any:
    """Return `any(values)` or `all(values)`; read items up to the first with the concrete truth `end`."""
    other = not end
    items = (select(t, v, other) for t, v in values.items) if type(values) is Filtered else iter(values)
    for value in items:
        decided: Any = to_bool(value)
        if decided is end:
            return end
        if decided is not other:
            decided = Number(decided.value, [bool])
            return (or_ if end else and_)(decided, lambda: _decide(items, end), items)
    return other


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


def sort(values: Any) -> Any:
    """Return the method `values.sort`; for a list, one that sorts items that may be traced."""
    return partial(_sort_list, values) if type(values) is list and is_staged() else values.sort


def _sort_list(values: list[Any], **kwargs: Any) -> None:
    if any(map(is_traced, values)) or kwargs.get("key"):
        values[:] = _sort(values, **kwargs)
    else:
        values.sort(**kwargs)


def _stack(numbers: Sequence[Any]) -> Any:
    """Return the array of numbers, which may be tensors of one element."""
    tensors = [x.dtype for x in numbers if isinstance(x, Tensor)]
    own = result_type([(d, 0) for d in tensors], chain(*(kinds_of(x) for x in numbers if not isinstance(x, Tensor))))
    arrays = [x.array.reshape(()) if isinstance(x, (Tensor, Number)) else x for x in numbers]
    return jnp.stack([jnp.asarray(a, own.array) for a in arrays])


# By the ids of builtins their replacements.
FOLDS: dict[int, Any] = {
    id(len): _fold(_len),
    id(max): _fold(_extreme(max, operator.gt)),
    id(min): _fold(_extreme(min, operator.lt)),
    id(sorted): _sort,
    id(any): _fold(partial(_decide, end=True)),
    id(all): _fold(partial(_decide, end=False)),
    id(sum): _fold(_sum),
    id(list): _fold(_collect),
    id(next): _next,
    id(iter): iter_,
}
_TAKING_ITEMS = frozenset(map(id, (sum, any, all, max, min, list, next)))  # builtins whose replacements take Items
