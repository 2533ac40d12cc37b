"""Loops: run by Python while their condition is concrete, then as nested branches or as a JAX loop."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._primitives.forward_only import forbid_transpose
from fnjax.torch.control.bounded_loops import while_loop
from fnjax.torch.control.branches import if_, to_bool
from fnjax.torch.control.carry import Carry, is_leaf
from fnjax.torch.control.expressions import TracedRange, and_, not_, or_
from fnjax.torch.control.folds import is_selected, list_items, read_item
from fnjax.torch.control.iterators import Shared, is_shared, runs_code
from fnjax.torch.control.paths import PATH, Path
from fnjax.torch.control.state.effects import check_kept
from fnjax.torch.control.state.places import CELL
from fnjax.torch.control.state.state import State
from fnjax.torch.control.variables import Variables
from fnjax.torch.deferred.either import assume
from fnjax.torch.deferred.filtered import Item
from fnjax.torch.deferred.list_iterator import ListIterator
from fnjax.torch.deferred.number import Number
from fnjax.torch.errors import NotSupported, find_line
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import Mode, get_mode, set_mode
from fnjax.torch.recording.graph import Node, Value, watch
from fnjax.torch.recording.journal import Journal, next_serial
from fnjax.torch.recording.rng import Stream

Test = Callable[[], Any]


def while_(decided: Any, test: Test, body: Callable[[], Any], state: Test, broken: Test | None) -> None:
    """Run a while loop; from the first traced test on, as nested branches, or as a JAX loop.

    Args:
        decided: the traced test, if it has been evaluated already; or None.
        test: evaluates the condition.
        body: runs an iteration.
        state: a function that closes over the variables that both write (`Variables`).
        broken: returns the flag that a `break` sets; None if there is no `break`.
    """

    def ask() -> Any:
        return to_bool(test() if broken is None else and_(not_(broken()), test))

    def run() -> None:  # the test belongs to the iteration before it: it may write to variables, too
        nonlocal decided
        body()
        decided = ask()

    decided = ask() if decided is None else decided
    path = PATH.get() or Path()
    while decided is not False:
        if decided is not True:
            key = path.count()
            if key not in path.known:
                break
            assume(decided.value, path.known[key])
            if not path.known[key]:
                return
        run()
    else:
        return
    before = State([test, body])
    with setting(PATH, None):
        try:
            _unroll(decided, body, ask, state, _UNROLLED, next_serial() + _LARGE)
        except (_TooLong, NotSupported):
            first = decided
            try:
                check_kept(before, before.list_changes())  # an iterator has advanced
                _traced_while(lambda: decided, run, Variables(state, lambda: decided))
            except NotSupported as error:
                raise path.fork(first, key, error) from error


_UNROLLED = 10  # iterations at most
_LARGE = 300  # serial numbers, of nodes and storages that they make: JAX compiles some ten equations for each


class _TooLong(BaseException):  # which no handler of the source catches
    """Signal that a loop is not known to end after a few iterations, so that it is not unrolled."""


def _unroll(decided: Any, body: Callable[[], Any], ask: Test, state: Test, left: int, end: int) -> None:
    """Run the iterations of a loop as branches, each nested in the branch of the previous iteration.

    Variables that JAX does not trace stay concrete, as n in `while n < 3 and x.sum() > 0`.

    Raises:
        _TooLong: the loop is not known to end after `left` iterations, or before the serial number `end`.
    """

    def run() -> None:
        going: Any = True
        for rest in reversed(range(left)):
            before = _list_known(state)
            body()
            going = ask()
            if going is False:
                return
            if rest == 0 or next_serial() > end or _list_known(state) == before:
                raise _TooLong
            if going is not True:
                _unroll(going, body, ask, state, rest, end)
                return

    if_(decided, run, lambda: None)


def _list_known(state: Test) -> list[Any]:
    """Return the concrete numbers and the lengths of containers in variables: a loop may end on these."""
    values = [content for cell in state.__closure__ or () for content in CELL.read(cell).values]
    sized = (list, deque, set, dict)
    return [x if type(x) in {int, bool, float} else len(x) if type(x) in sized else None for x in values]


def for_(iterable: Any, body: Callable[[Any], Any], state: Test, broken: Test | None) -> None:
    """Run a for loop; from the first iteration after which a traced flag may end it, as branches or as a JAX loop.

    Args:
        iterable: the items.
        body: runs an iteration for an item.
        state: a function that closes over the variables that the body writes (`Variables`).
        broken: returns the flag that a `break` sets; None if there is no `break`.
    """
    if type(iterable) is TracedRange:
        _count(iterable, body, state, broken)
        return
    is_over: Test = broken or (lambda: False)
    if type(iterable) is ListIterator:
        for _ in iterable.items:
            is_end = or_(is_over(), lambda: iterable.at >= len(iterable.items))
            if_(is_end, lambda: None, lambda: body(read_item(iterable)))
        return
    if is_selected(iterable):
        iterable, body = list_items(iterable), functools.partial(_run_selected, body)
    items, nothing, is_held = iter(iterable), object(), type(iterable) is Shared
    while (over := to_bool(is_over())) is False and (item := next(items, nothing)) is not nothing:
        body(item)
    if isinstance(over, bool):
        return
    if is_held or is_shared(items):
        raise NotSupported(
            "an iterator that a variable holds, in a loop that ends on a traced value: what it has left is not known",
            "iterate over a list",
        )
    rest = _list_rest(items)
    if isinstance(rest, range) and len(rest) > _UNROLLED:
        _count(rest, body, state, broken)
        return
    if not runs_code(rest):
        for item in rest:
            if_(is_over(), lambda: None, functools.partial(body, item))
        return

    def go_on() -> None:
        item = next(rest, nothing)
        if item is not nothing:
            body(item)
            and_(not_(is_over()), go_on, rest)

    and_(not_(over), go_on, rest)  # what is not read must not run


def _run_selected(body: Callable[[Any], Any], item: Item) -> None:
    if_(item.test, functools.partial(body, item.value), lambda: None)


def _list_rest(items: Any) -> Any:
    """Return the remaining items of an iterator; for an iterator of a range, as a range."""
    if type(items) not in _RANGES:
        return items
    reduced: Any = items.__reduce__()
    _, (over,), state = reduced
    return over[state or 0 :]


_RANGES = {type(iter(range(2))), type(iter(range(2**70)))}


def _count(over: TracedRange | range, body: Callable[[Any], Any], state: Test, broken: Test | None) -> None:
    """Run a loop over a range as a while loop."""
    step, stop = over.step, over.stop
    at = over.start

    def test() -> Any:
        goes_on = at < stop if isinstance(step, (Tensor, Number)) or step > 0 else at > stop
        return goes_on if broken is None else and_(not_(broken()), lambda: goes_on)

    def run() -> None:
        nonlocal at
        body(at)
        at = at + step

    _traced_while(test, run, Variables(state, lambda: at), len(over) if isinstance(over, range) else None)


def _traced_while(test: Test, body: Test, variables: Variables, most: int | None = None) -> None:
    """Run a loop as jax.lax.while_loop, which carries its variables and the other state that an iteration changes.

    Args:
        test: evaluates whether there is another iteration.
        body: runs an iteration.
        variables: the variables that both write.
        most: a bound of the number of iterations, if one is known.
    """
    result = variables.read()
    carry = Carry(result, variables.names)

    def run(arrays: Sequence[Any], found: dict[str, Any]) -> list[Any]:
        iteration, *arrays = arrays
        with Journal(state=state, is_loop=True) as journal, draws.resume(iteration=iteration):
            try:
                entered = carry.enter(arrays)
                variables.write(entered)
                shallow = [copy.copy(v) if issubclass(type(v), (list, dict)) else None for v in entered]
                body()
                after = variables.read()
                found |= {"changed": state.list_changes(), "state": after, "entered": entered, "start": journal.start}
                found["written"] = [s for s, _ in journal.storages.values()]
                tensors = [x for x in jax.tree.leaves(entered, is_leaf=is_leaf) if isinstance(x, Tensor)]
                found["touched"] = {id(x) for x in tensors if x.memory.version}
                _check_containers(entered, shallow, variables.names)
                return [iteration + 1, *carry.leave(after)]
            finally:
                journal.take_back()
                state.restore(state.list_changes())

    def ask(arrays: Sequence[Any]) -> Any:
        with Journal() as journal:
            variables.write(carry.enter(arrays[1:]))
            decided = to_bool(test())
        journal.take_back()
        return jnp.asarray(decided.array if isinstance(decided, Tensor) else decided)

    mode, draws = get_mode(), Stream()
    leaves = [leaf.value for leaves in carry.leaves for leaf in leaves if isinstance(leaf, Tensor)]
    try:
        with watch() as read, set_mode(Mode(enabled=False, constant=mode.constant)):
            state = State([test, body])
            while True:  # until dtypes, written storages and aliases do not change any more
                found: dict[str, Any] = {}
                first = [tree.unflatten(leaves) for tree, leaves in zip(carry.trees, carry.leaves, strict=True)]
                start = [jnp.int32(0), *carry.leave(first)]
                jax.eval_shape(lambda *a, found=found: _explore(run, a, found), *start)
                if variables.add(state, found["changed"]) or variables.split(found["entered"], found["state"]):
                    result = variables.read()
                    carry = Carry(result, variables.names)
                elif not carry.update(found):
                    break
            where = find_line()
            end = while_loop(ask, lambda a: run(a, {}), start, most, lambda x: forbid_transpose(x, _make_error, where))
        result = carry.enter(end[1:], end[0])
    finally:
        variables.write(result)
    if mode.enabled:  # JAX differentiates the loop as it can; PyTorch's autograd in the source cannot
        parents = [v for v in (*leaves, *read) if v.requires_grad]
        if parents:
            made = [x.memory.roots[0] for x in jax.tree.leaves(result, is_leaf=is_leaf) if isinstance(x, Tensor)]
            _refuse_gradients(
                [s for s in {*made, *carry.storages} if jnp.issubdtype(s.value.array, jnp.inexact)], parents
            )


def _check_containers(entered: Sequence[Any], before: Sequence[Any], names: Sequence[str]) -> None:
    """Check that no list or dict is both assigned to a variable and changed in place: the loop carries copies.

    Raises:
        NotSupported: a list or dict is.
    """
    for now, old, name in zip(entered, before, names, strict=True):
        if old is not None and [*map(id, _list(now))] != [*map(id, _list(old))]:
            raise NotSupported(
                f"{name}, a {type(now).__name__}, is changed in place and assigned anew in a loop that ends on a "
                "traced value",
                "only assign it anew",
            )


def _list(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else container


def _make_error(where: str) -> NotSupported:
    return NotSupported(
        f"a gradient of a loop that ends on a traced value, and may run more than {_UNROLLED} iterations",
        "bound its iterations by a known n of at most 1000: `for i in range(n)` with `break`, or `while i < n and ...`",
        where,
    )


def _refuse_gradients(storages: Iterable[Any], parents: Sequence[Value]) -> None:
    """Make torch.autograd.grad raise for the results of a loop that ended on a traced value."""
    where = find_line()

    def refuse(*_: Any) -> tuple[Any, ...]:
        raise _make_error(where)

    for storage in storages:
        array = storage.value.array
        if jnp.issubdtype(array.dtype, jnp.inexact):
            storage.value = Value(array, Node(refuse, parents, "WhileBackward"), requires_grad=True)


def _explore(run: Callable[..., Any], arrays: Sequence[Any], found: dict[str, Any]) -> Any:
    """Run a body to find the storages that it writes to; the types of its variables may not be final yet."""
    try:
        return run(arrays, found)
    except (TypeError, ValueError, AttributeError, NotSupported):
        if "state" not in found:
            raise
        return []
