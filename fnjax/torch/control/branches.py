"""Branches where they run: Python's where a test is known, both branches where it is traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnjax.torch._autograd.graph import Value, compute
from fnjax.torch._dtypes import DTYPES, dtype, result_type
from fnjax.torch._tensor import Tensor, is_known, make
from fnjax.torch.control.journal import TAKEN_BACK, Journal, is_in_branch, next_serial, note_context, note_storage
from fnjax.torch.control.raises import is_raised, refuse_caught
from fnjax.torch.deferred.aliases import find_shared, merge_memory
from fnjax.torch.deferred.either import NOT, Either, assuming, note_choice, resolve
from fnjax.torch.deferred.number import WIDE, Number, kinds_of
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.host.calls import choose
from fnjax.torch.host.recording import HostValue
from fnjax.torch.loading.errors import NotSupported

NUMBERS = (bool, int, float, complex)
UNBOUND = object()  # in place of the value of a variable that has none
BRANCH = "branch"  # of a value's origin, before the test and the values of both branches


class _Start(NamedTuple):
    """State before two branches are traced.

    Attributes:
        serial: the serial number of the first storage that the branches make.
        shared: the ids of storages that a branch assigned to several variables.
    """

    serial: int
    shared: set[int]


class Variables:
    """Variables of a function that its closures write; one without a value reads as UNBOUND.

    Args:
        state: a function that reads them. It is not called: its cells are the variables.
        own: another one, of variables that no source has.
    """

    def __init__(self, state: Callable[[], Any], own: Callable[[], Any] = lambda: None) -> None:
        code = state.__code__
        self._cells = [*(own.__closure__ or ()), *(state.__closure__ or ())]
        self._globals, self._global_names = state.__globals__, code.co_names
        names = [*own.__code__.co_freevars, *code.co_freevars, *code.co_names]
        self.names = [n if "__fnjax_" not in n else "what a function returns" for n in names]

    def read(self) -> list[Any]:
        """Return the values."""
        found = []
        for cell in self._cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:  # the cell is empty
                found.append(UNBOUND)
        return found + [self._globals.get(name, UNBOUND) for name in self._global_names]

    def write(self, values: Sequence[Any]) -> None:
        """Set the values."""
        for cell, value in zip(self._cells, values, strict=False):
            if value is not UNBOUND:
                cell.cell_contents = value
            else:
                del cell.cell_contents
        for name, value in zip(self._global_names, values[len(self._cells) :], strict=True):
            if value is not UNBOUND:
                self._globals[name] = value
            else:
                self._globals.pop(name, None)


def returned(state: Callable[[], Any], flag: Any) -> Any:
    """Return the value that a function returns: None if no return was executed.

    Args:
        state: the variable that a return has set.
        flag: whether a return was executed; traced if only one of two branches returns.
    """
    (value,), decided = Variables(state).read(), to_bool(flag)
    if value is UNBOUND or decided is False:
        return None
    return value if decided is True else _merge(decided, value, None, "what a function returns")


def to_bool(value: Any) -> bool | Tensor:
    """Return whether a value is true; a boolean tensor where it is traced."""
    if value is True or value is False:
        return value
    if type(value) is Either:
        value = value.map(to_bool, "the truth")
    if issubclass(type(value), HostValue) and not value.is_known:  # isinstance asks objects for their __class__
        value = value.to_tensor()
    if type(value) is Number:
        value = value.to_operand()
    if not issubclass(type(value), Tensor) or is_known(value.array) or value.layout.size != 1:
        return bool(value)
    value = value if value.ndim == 0 else value.reshape(())
    return value if value.dtype.kind == "bool" else value != 0


def negate(test: Tensor | Number) -> Number:
    """Return `not test`, of a traced bool."""
    value = Value(jnp.logical_not(test.array))
    value.origin = (NOT, test.value)
    return Number(value, [bool])


def guard(changed: Any) -> Any:
    """Return an object that is changed.

    Raises:
        NotSupported: a branch that may not be taken changes it, in a way that cannot be undone.

    Tensors and ctx are taken back (journal).
    """
    if is_in_branch() and not isinstance(changed, (Tensor, *TAKEN_BACK)):
        raise NotSupported(
            f"a {type(changed).__name__} is changed in a branch or loop that depends on a traced value",
            "assign a new value to a variable instead, or decide outside of jax.jit",
        )
    return changed


# ---------------------------------------------------------------------------------- branches


def _speculate(run: Callable[[], Any]) -> tuple[Any, Any, Exception | None]:
    """Run a branch and undo its writes; return its result, the writes, and the exception that it raised, or None."""
    error = None
    result = None
    with Journal() as journal:
        try:
            result = run()
        except Exception as e:  # a branch that raises is not taken
            if not is_raised(e):
                raise
            error = e
    return result, journal.take_back(), error


def if_(test: Any, yes: Callable[[], Any], no: Callable[[], Any], state: Callable[[], Any] = lambda: ()) -> Any:
    """Run one of two closures; if the test is traced, run both and select between their results and what they write.

    Args:
        test: the condition.
        yes: the closure if it is true.
        no: the closure if it is false.
        state: the variables that the closures write (`Variables`).
    """
    decided = to_bool(test)
    if isinstance(decided, bool):
        return yes() if decided else no()
    variables, start = Variables(state), next_serial()
    before = variables.read()

    def run(branch: Callable[[], Any], truth: bool) -> list[Any]:
        with assuming(decided.value, truth):
            return [*map(resolve, (branch(), *variables.read()))]

    first, wrote_first, failed = _speculate(lambda: run(yes, True))
    variables.write(before)
    second, wrote_second, failed_too = _speculate(lambda: run(no, False))
    variables.write(before)
    if failed is not None and failed_too is not None:
        raise failed
    if failed is not None or failed_too is not None:  # an `if ...: raise`, an assertion: the way that does not raise
        refuse_caught(failed or failed_too)  # type: ignore[arg-type] # one of them is an exception
        _redo(wrote_first if failed is None else wrote_second)
        merged = first if failed is None else second
    else:
        _merge_writes(decided, wrote_first, wrote_second)
        entry = _Start(start, find_shared(first) | find_shared(second))
        names = ["a conditional expression", *variables.names]
        merged = [_merge(decided, a, b, name, entry) for a, b, name in zip(first, second, names, strict=True)]
    variables.write(merged[1:])
    return merged[0]


Either.choose = staticmethod(if_)


def select(test: Any, value: Any, other: Any) -> Any:
    """Return `value if test else other`, both of which have been evaluated."""
    return if_(test, lambda: value, lambda: other)


def run_where(test: Tensor | Number, run: Callable[[], Any], otherwise: Any) -> Any:
    """Return `run()`, whose writes count where a traced test is true; `otherwise` if it raises."""
    result, written, error = _speculate(run)
    if error is not None:
        refuse_caught(error)
        return otherwise
    _merge_writes(test, written, ({}, {}))
    return result


def _redo(written: Any) -> None:
    storages, contexts = written
    for storage, value in storages.values():
        note_storage(storage)
        storage.value = value
        storage.version += 1
    for ctx, after in contexts.values():
        note_context(ctx)
        vars(ctx).clear()
        vars(ctx).update(after)


def _merge_writes(test: Tensor | Number, first: Any, second: Any) -> None:
    for key in first[0].keys() | second[0].keys():
        storage = (first[0].get(key) or second[0][key])[0]
        a, b = (side[0][key][1] if key in side[0] else storage.value for side in (first, second))
        note_storage(storage)
        storage.value = _choose(test, a, b)
        storage.version += 1
    for key in first[1].keys() | second[1].keys():
        ctx = (first[1].get(key) or second[1][key])[0]
        a, b = (side[1][key][1] if key in side[1] else dict(vars(ctx)) for side in (first, second))
        note_context(ctx)
        merged = {k: _merge(test, a.get(k, UNBOUND), b.get(k, UNBOUND), f"ctx.{k}") for k in {**a, **b} if k != "_own"}
        merged["_own"] = ctx.merge(a["_own"], b["_own"], lambda x, y: _merge(test, x, y, "a saved tensor"))
        vars(ctx).clear()
        vars(ctx).update(merged)


def are_one(a: Value, b: Value) -> Any:
    """Return whether two values are one object, as branches have assigned them: a bool, traced where a test says so."""
    if a is b:
        return True
    for x, y in ((a, b), (b, a)):
        if x.origin is not None and x.origin[0] == BRANCH:
            _, test, *sides = x.origin
            same = y.origin is not None and y.origin[:2] == x.origin[:2]
            yes, no = (are_one(s, y.origin[2 + i] if same else y) for i, s in enumerate(sides))  # type: ignore[index]
            if yes is no is False:
                return False
            return jnp.where(test.array != 0, yes, no)
    return False


def _choose(test: Tensor | Number, a: Value, b: Value) -> Value:
    if a is b:
        return a
    return compute(lambda t, x, y: (jnp.where(t, x, y),), [test.value, a, b], "WhereBackward")[0]


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
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        made = [_merge(test, x, y, f"{name}[{i}]", start) for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return type(a)(*made) if hasattr(a, "_fields") else type(a)(made)
    if type(a) is type(b) and isinstance(a, dict) and a.keys() == b.keys():
        return {k: _merge(test, a[k], b[k], f"{name}[{k!r}]", start) for k in a}
    if type(a) is type(b) and isinstance(a, Hashable) and are_equal(a, b):
        return a
    return Either(name, test, a, b)


def are_equal(a: Any, b: Any) -> bool:
    """Return `a == b`; False where that raises."""
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - objects that cannot be compared are different
        return False


def _merge_numbers(test: Tensor | Number, a: Any, b: Any) -> Any:
    kinds = kinds_of(a) | kinds_of(b)
    own = DTYPES[WIDE[max(kinds, key=NUMBERS.index)]]
    values = [_value_of(x, own, ()) for x in (a, b)]
    chosen = Value(jnp.where(test.array, *(v.array.astype(own.array) for v in values)))
    chosen.origin = (BRANCH, test.value, *values)
    return Number(chosen, kinds)


def _value_of(x: Any, own: dtype, shape: Sequence[int]) -> Value:
    return x.value if isinstance(x, (Tensor, Number)) else Value(jnp.full(shape, x, own.array))


def _merge_tensors(test: Tensor | Number, a: Any, b: Any, name: str, start: _Start | None = None) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.memory is b.memory and a.part == b.part and a.layout.shape == b.layout.shape:
            same = a.layout.strides == b.layout.strides and a.layout.ctypes.data == b.layout.ctypes.data
            if same:
                return a
        if a.shape != b.shape or a.dtype is not b.dtype:
            return Either(name, test, a, b)
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    numbers = [kinds_of(x) for x in (a, b) if not isinstance(x, Tensor)]
    own = result_type([(t.dtype, t.ndim) for t in tensors], itertools.chain(*numbers))
    if own is not tensors[0].dtype:
        return Either(name, test, a, b)
    values = [_value_of(x, own, tensors[0].shape) for x in (a, b)]
    chosen = compute(
        lambda t, x, y: (jnp.where(t, x.astype(own.array), y.astype(own.array)),),
        [test.value, *values],
        "WhereBackward",
    )[0]
    chosen.origin = (BRANCH, test.value, *values)
    made = None if start is None else merge_memory(chosen, own, test, a, b, start.serial, start.shared)
    made = make(chosen.array, own, value=chosen) if made is None else made
    if len(tensors) == 1:
        note_choice(made, Either(name, test, a, b))
    return made
