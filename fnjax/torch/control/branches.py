"""Branches at run time: Python's own where a test is a concrete bool, both branches where it is traced."""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnjax.torch.control.paths import PATH, Path
from fnjax.torch.control.state.effects import check_kept, merge_places
from fnjax.torch.control.state.places import CELL, UNBOUND, Content
from fnjax.torch.control.state.state import State
from fnjax.torch.deferred.aliases import find_shared, merge_memory
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either, assume, assuming, find_choice, find_truth, note_choice, resolve
from fnjax.torch.deferred.filtered import Filtered
from fnjax.torch.deferred.number import NUMBERS, Number, find_dtype, kinds_of
from fnjax.torch.deferred.origins import BRANCH, NOT
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.calls import choose
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import dtype, result_type
from fnjax.torch.memory.layout import are_same
from fnjax.torch.memory.strides import strides_of
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.gradient_mode import Mode, set_mode
from fnjax.torch.recording.graph import Branch, Value, compute, note_conditional
from fnjax.torch.recording.journal import Journal, next_serial, note_storage
from fnjax.torch.recording.raises import is_raised, refuse_caught
from fnjax.torch.recording.rng import Stream


class _Start(NamedTuple):
    """State before two branches are traced.

    Attributes:
        serial: the serial number of the first storage that the branches make.
        shared: the ids of storages that a branch assigned to several variables.
        state: the state that the branches reach; None for values that were evaluated before.
        made: for each new container of a branch, by its id: the other branch's container, and the merged one.
        fork: see Either; None for values that were evaluated before.
    """

    serial: int
    shared: set[int]
    state: State | None
    made: dict[int, tuple[Any, Any]]
    fork: Callable[[NotSupported], BaseException] | None = None

    def is_new(self, a: Any, b: Any) -> bool:
        """Return whether two containers are new, so that no alias is lost if they are copied, and have equal keys."""
        if self.state is None or a in self.state or b in self.state:
            return False
        return not isinstance(a, dict) or [*a] == [*b]


def returned(state: Callable[[], Any], flag: Any) -> Any:
    """Return the value that a function returns: None if no return was executed.

    Args:
        state: a function that closes over the variable with the value.
        flag: whether a return was executed; traced if only one of two branches returns.
    """
    (cell,) = state.__closure__ or ()
    (value,), decided = CELL.read(cell).values, to_bool(flag)
    if value is UNBOUND or decided is False:
        return None
    return value if decided is True else _merge(decided, value, None, "what a function returns")


def as_tensor(value: Any) -> Any:
    """Return a traced value of NumPy as a tensor; other values unchanged."""
    is_host = issubclass(type(value), HostValue) and not value.is_known  # isinstance reads __class__ of objects
    return value.to_tensor() if is_host else value


def to_bool(value: Any) -> bool | Tensor:
    """Return the truth of a value: a bool, or a boolean tensor if it is traced and no branch around it decides it."""
    if value is True or value is False:
        return value
    if type(value) is Either:
        value = value.map(to_bool, "the truth")
    value = as_tensor(value)
    if type(value) is Filtered:
        value = value.count()
    if type(value) is Number:
        value = value.to_operand()
    if not issubclass(type(value), Tensor) or is_known(value.array) or value.layout.size != 1:
        method = getattr(type(value), "__bool__", None)
        return to_bool(method(value)) if type(method) is types.FunctionType else bool(value)
    value = value if value.ndim == 0 else value.reshape(())
    value = value if value.dtype.kind == "bool" else value != 0
    truth = find_truth(value.value)
    return value if truth is None else truth


def negate(test: Tensor | Number) -> Number:
    """Return `not test` for a traced bool."""
    value = Value(jnp.logical_not(test.array))
    value.origin = (NOT, test.value)
    return Number(value, [bool])


# ---------------------------------------------------------------------------------- branches


class _Branch(NamedTuple):
    """Result of a branch that was run speculatively: its effects were undone.

    Attributes:
        result: the result of its closure.
        storages: the storages that it wrote to, by their ids, with their values at its end.
        places: the other state that it changed (State.list_changes).
        error: the exception that a `raise` or `assert` in it raised, or None.
    """

    result: Any
    storages: Mapping[int, tuple[Any, Value]]
    places: Mapping[int, Content]
    error: Exception | None


_NOT_RUN = _Branch(None, {}, {}, None)
_NOT_TAKEN = _NOT_RUN._replace(error=Exception())


def _speculate(run: Callable[[], Any], test: Tensor | Number, truth: bool, state: State, draws: Stream) -> _Branch:
    """Run the branch of a test that is assumed to be true or false, and undo its effects."""
    result: Any = None
    error = None
    with Journal(state=state) as journal, assuming(test.value, truth), Branch(test.value, truth):
        try:
            with draws.resume():
                result = resolve(run())
        except Exception as e:  # a branch that raises is not taken
            if not is_raised(e):
                if not isinstance(e, NotSupported):
                    refuse_caught(e)
                raise
            error = e
        finally:
            storages, places = journal.take_back(), state.list_changes()
            state.restore(places)
            places = {i: Content(c.keys, [*map(resolve, c.values)]) for i, c in places.items()}
    return _Branch(result, storages, places, error)


def _run_both(
    test: Tensor | Number, yes: Callable[[], Any], no: Callable[[], Any] | None, items: Iterator[Any] | None = None
) -> tuple[_Branch, _Branch, _Start]:
    """Run two branches, merge their effects, and return both, and the state before them.

    Args:
        test: the condition.
        yes: the closure if it is true.
        no: the closure if it is false; None for one that does nothing.
        items: an iterator that may advance, since nothing reads it later.
    """
    path = PATH.get() or Path()
    key = path.count()
    truth = path.known.get(key)
    if truth is not None:
        assume(test.value, truth)
        with path.enter(key, truth):
            run = yes if truth else no
            taken = _Branch(None if run is None else run(), {}, {}, None)
        start = _Start(next_serial(), set(), None, {})
        return (taken, _NOT_TAKEN, start) if truth else (_NOT_TAKEN, taken, start)
    state, serial, draws = State([yes, no], items), next_serial(), Stream()
    with path.enter(key, True):
        first = _speculate(yes, test, True, state, draws)
    with path.enter(key, False):
        second = _NOT_RUN if no is None else _speculate(no, test, False, state, draws)
    if first.error is not None and second.error is not None:
        raise first.error
    start = _Start(
        serial, _find_shared(first) | _find_shared(second), state, {}, functools.partial(path.fork_later, test, key)
    )
    error = first.error or second.error
    if error is not None:  # of `if ...: raise` or an assertion: the other branch is taken
        refuse_caught(error)
    try:
        _merge_branches(test, first, second, start, state)
    except NotSupported as error:
        raise path.fork(test, key, error) from error
    return first, second, start


def _merge_branches(test: Tensor | Number, first: _Branch, second: _Branch, start: _Start, state: State) -> None:
    """Write the merged effects of two branches."""
    if first.error is not None or second.error is not None:
        check_kept(state, {**first.places, **second.places})
        taken = second if second.error is None else first
        _write(taken.storages)
        state.put(taken.places)
    else:
        _merge_storages(test, first.storages, second.storages, start)
        merge_places(state, first.places, second.places, lambda a, b, name: _merge(test, a, b, name, start))


def _find_shared(branch: _Branch) -> set[int]:
    return find_shared([branch.result, *(v for content in branch.places.values() for v in content.values)])


def if_(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Run one of two closures; if the test is traced, run both and merge their results and effects.

    Args:
        test: the condition.
        yes: the closure if it is true.
        no: the closure if it is false.
    """
    decided = to_bool(test)
    if isinstance(decided, bool):
        return yes() if decided else no()
    first, second, start = _run_both(decided, yes, no)
    if first.error is not None or second.error is not None:
        return first.result if first.error is None else second.result
    return _merge(decided, first.result, second.result, "a conditional expression", start)


Either.choose = staticmethod(if_)


def select(test: Any, value: Any, other: Any) -> Any:
    """Return `value if test else other`, both of which have been evaluated."""
    decided = to_bool(test)
    if isinstance(decided, bool):
        return value if decided else other
    return _merge(decided, value, other, "a conditional expression", _Start(next_serial(), set(), None, {}))


def run_where(test: Tensor | Number, run: Callable[[], Any], otherwise: Any, items: Iterator[Any] | None = None) -> Any:
    """Return `run()`, whose effects are kept where a traced test is true; `otherwise` if it raises.

    Args:
        test: the condition.
        run: the function.
        otherwise: the result if `run` raises.
        items: an iterator that only `run` reads.
    """
    branch, _, _ = _run_both(test, run, None, items)
    return otherwise if branch.error is not None else branch.result


def _write(storages: Mapping[int, tuple[Any, Value]]) -> None:
    for storage, value in storages.values():
        note_storage(storage)
        storage.value = value
        storage.version += 1


def _merge_storages(
    test: Tensor | Number,
    first: Mapping[int, tuple[Any, Value]],
    second: Mapping[int, tuple[Any, Value]],
    start: _Start,
) -> None:
    for key in first.keys() | second.keys():
        storage = (first.get(key) or second[key])[0]
        a, b = (side[key][1] if key in side else storage.value for side in (first, second))
        _write({key: (storage, a if a is b else _choose(test, a, b, start))})


def _choose(test: Tensor | Number, a: Value, b: Value, start: _Start | None = None, dtype: Any = None) -> Value:
    """Return the selected one of two values, with its history, which does not depend on the gradient mode."""
    dtype = a.array.dtype if dtype is None else dtype
    note_conditional([a, b], math.inf if start is None else start.serial)

    def run(test: Any, x: Any, y: Any) -> tuple[Any]:
        return (jnp.where(test, x.astype(dtype), y.astype(dtype)),)

    with set_mode(Mode(enabled=True)):
        chosen = compute(run, [test.value, a, b], "WhereBackward")[0]
    # It is a leaf if both values are of one leaf: `w.add_(1)` in a branch under no_grad.
    is_one = a.leaf is b.leaf and all(v.requires_grad and v.node is None for v in (a, b))
    return Value(chosen.array, requires_grad=True, leaf=a.leaf) if is_one else chosen


def _merge(test: Tensor | Number, a: Any, b: Any, name: str, start: _Start | None = None) -> Any:
    """Return the value of a variable after two branches."""
    if a is b or b is UNBOUND:
        return a
    if a is UNBOUND:
        return b
    if isinstance(a, HostValue) or isinstance(b, HostValue):
        return choose(test, a, b, name)
    if isinstance(a, bool) and isinstance(b, bool):
        return a if a is b else Number(test.value, [bool]) if a else negate(test)
    if type(a) is type(b) is Selection and a.fits is b.fits and a.is_like(b):
        return Selection(_merge_tensors(test, a.whole, b.whole, name), _choose(test, a.mask, b.mask), a.at, a.fits)
    numbers = (Number, *NUMBERS)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return a if type(a) is type(b) in NUMBERS and a == b else _merge_numbers(test, a, b)
    kinds = (Tensor, *numbers)
    if Selection not in {type(a), type(b)} and isinstance(a, kinds) and isinstance(b, kinds):
        return _merge_tensors(test, a, b, name, start)
    is_one = type(a) is type(b) and not isinstance(a, kinds)
    if is_one and isinstance(a, tuple) and len(a) == len(b):
        made = [_merge(test, x, y, f"{name}[{i}]", start) for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return type(a)(*made) if hasattr(a, "_fields") else type(a)(made)
    if is_one and type(a) in {list, dict} and len(a) == len(b) and start is not None and start.is_new(a, b):
        return _merge_made(test, a, b, name, start)
    if is_one and isinstance(a, Hashable) and are_equal(a, b):
        return a
    return Either(name, test, a, b, None if start is None else start.fork)


def _merge_made(test: Tensor | Number, a: Any, b: Any, name: str, start: _Start) -> Any:
    """Return the merged container of two containers, each new in its branch."""
    known, other = start.made.get(id(a)), start.made.get(id(b))
    if known is not None and other is not None and known[0] is b and other[0] is a:
        return known[1]
    if known is not None or other is not None:
        raise NotSupported(
            f"{name} is the {type(a).__name__} of another variable, too, after one of two branches, and JAX decides "
            "which is taken",
            "make a list for each variable",
        )
    made = a.copy()
    start.made[id(a)], start.made[id(b)] = (b, made), (a, made)
    for k in range(len(a)) if isinstance(a, list) else a:
        made[k] = _merge(test, a[k], b[k], f"{name}[{k!r}]", start)
    return made


def are_equal(a: Any, b: Any) -> bool:
    """Return `a == b`; False where that raises, or is not known."""
    if isinstance(a, Deferred) or isinstance(b, Deferred):
        return False
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - objects that cannot be compared are different
        return False


def _merge_numbers(test: Tensor | Number, a: Any, b: Any) -> Any:
    kinds = kinds_of(a) | kinds_of(b)
    own = find_dtype(kinds)
    values = [_value_of(x, own, ()) for x in (a, b)]
    chosen = Value(jnp.where(test.array, *(v.array.astype(own.array) for v in values)))
    chosen.origin = _list_sides(test, (a, b), values)
    return Number(chosen, kinds)


def _value_of(x: Any, own: dtype, shape: Sequence[int]) -> Value:
    if isinstance(x, (Tensor, Number)):
        return x.value
    return Value(jnp.full(shape, x, own.array))


def _list_sides(test: Tensor | Number, sides: Sequence[Any], values: Sequence[Value]) -> tuple[Any, ...]:
    """Return the origin of a value that a test selects from two; a concrete bool is in it as it is."""
    return BRANCH, test.value, *(x if type(x) is bool else v for x, v in zip(sides, values, strict=True))


def _merge_tensors(test: Tensor | Number, a: Any, b: Any, name: str, start: _Start | None = None) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype is not b.dtype:
            return Either(name, test, a, b, None if start is None else start.fork)
        if (a.memory, a.part, a._detached) == (b.memory, b.part, b._detached) and are_same(a.layout, b.layout):
            one = Tensor.over(a.memory, a.layout, a.dtype, a.part, detached=a._detached)
            one.sides = (test.value, a, b)
            return one
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    numbers = [kinds_of(x) for x in (a, b) if not isinstance(x, Tensor)]
    own = result_type([(t.dtype, t.ndim) for t in tensors], itertools.chain(*numbers))
    if own is not tensors[0].dtype:
        return Either(name, test, a, b, None if start is None else start.fork)
    values = [_value_of(x, own, tensors[0].shape) for x in (a, b)]
    chosen = _choose(test, values[0], values[1], start, own.array)
    chosen.origin = _list_sides(test, (a, b), values)
    layouts = {strides_of(t.layout) for t in tensors}
    strides = layouts.pop() if len(layouts) == 1 else None
    made = None if start is None else merge_memory(chosen, own, test, a, b, start.serial, start.shared, strides)
    if made is None:
        made = make(chosen, own, strides=strides)
        grads = [x.grad if isinstance(x, Tensor) else None for x in (a, b)]
        if any(g is not None for g in grads):
            made.grad = _merge(test, grads[0], grads[1], f"{name}.grad", start)
    if len(tensors) == 2:
        made.sides = (test.value, a, b)
    if len(tensors) == 1 or any(find_choice(t) is not t for t in tensors):
        note_choice(made, Either(name, test, a, b))
    return made
