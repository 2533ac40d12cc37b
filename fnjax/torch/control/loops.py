"""Loops: run in Python while their condition is known, and as a JAX loop from the iteration on where it is traced."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch._autograd.captured import is_node
from fnjax.torch._autograd.graph import Mode, Node, Value, get_mode, set_mode, watch
from fnjax.torch._dtypes import DTYPES, result_type
from fnjax.torch._random import Stream
from fnjax.torch._tensor import Tensor, make
from fnjax.torch.control.branches import NUMBERS, are_equal, if_, to_bool
from fnjax.torch.control.effects import describe_place
from fnjax.torch.control.expressions import TracedRange, and_, not_
from fnjax.torch.control.iterators import Shared, is_shared
from fnjax.torch.control.journal import Journal, note_storage
from fnjax.torch.control.places import CELL, GLOBALS, TENSOR, UNBOUND, Content, Globals, Kind
from fnjax.torch.control.state import State
from fnjax.torch.deferred.aliases import Merged, list_roots
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import describe
from fnjax.torch.deferred.number import WIDE, Number, kinds_of, make_number
from fnjax.torch.host.recording import HostValue
from fnjax.torch.loading.errors import NotSupported


def is_traced_range(items: Any) -> bool:
    """Return whether items are those of a range with a traced bound."""
    return type(items) is TracedRange


Test = Callable[[], Any]


def while_(decided: Any, test: Test, body: Callable[[], Any], state: Test, broken: Test | None) -> None:
    """Run a while loop, as a JAX loop from the iteration on whose test is traced.

    Args:
        decided: the traced test, where it has been evaluated already; or None.
        test: the condition.
        body: an iteration.
        state: the variables that both write (`_Variables`).
        broken: returns the flag that says that the loop is over; None if there is none.
    """

    def ask() -> Any:
        return to_bool(test() if broken is None else and_(not_(broken()), test))

    def run() -> None:  # the test belongs to the iteration before it: it may write to variables, too
        nonlocal decided
        body()
        decided = ask()

    decided = ask() if decided is None else decided
    while decided is True:
        run()
    if decided is not False:
        _traced_while(lambda: decided, run, _Variables(state, lambda: decided))


def for_(iterable: Any, body: Callable[[Any], Any], state: Test, broken: Test | None) -> None:
    """Run a for loop; from the iteration on where a traced flag may end it, it becomes a JAX loop.

    Args:
        iterable: the items.
        body: an iteration.
        state: the variables that it writes (`_Variables`).
        broken: returns the flag that says that the loop is over; None if there is none.
    """
    if is_traced_range(iterable):
        _count(iterable, body, state, broken)
        return
    items, nothing, is_held = iter(iterable), object(), type(iterable) is Shared
    is_over: Test = broken or (lambda: False)
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
    if isinstance(rest, range) and len(rest) > 4:
        _count(rest, body, state, broken)
        return
    for item in rest:
        if_(is_over(), lambda: None, functools.partial(body, item))


def _list_rest(items: Any) -> Any:
    """Return the items that remain, a range's as a range."""
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

    _traced_while(test, run, _Variables(state, lambda: at))


class _Variables:
    """Variables of a loop: those that its closures write, and what else an iteration changes.

    Args:
        written: a function that reads the former. It is not called: its cells are the variables.
        own: another one, of variables that no source has.
    """

    def __init__(self, written: Callable[[], Any], own: Callable[[], Any]) -> None:
        code = written.__code__
        cells = [*(own.__closure__ or ()), *(written.__closure__ or ())]
        self._places: list[tuple[Any, Kind, Any]] = [(cell, CELL, "") for cell in cells]
        self._places += [(Globals(written.__globals__, [n]), GLOBALS, n) for n in code.co_names]
        names = [*own.__code__.co_freevars, *code.co_freevars, *code.co_names]
        self.names = [n if "__fnjax_" not in n else "what a function returns" for n in names]

    def read(self) -> list[Any]:
        """Return the values; one without a value reads as UNBOUND."""
        return [kind.read(owner).find(key) for owner, kind, key in self._places]

    def write(self, values: Sequence[Any]) -> None:
        """Set the values."""
        for (owner, kind, key), value in zip(self._places, values, strict=False):
            assert kind.write is not None
            kind.write(owner, kind.read(owner).replace(key, value))

    def add(self, state: State, changed: Mapping[int, Content]) -> bool:
        """Add what an iteration has changed; return whether there is any that was not known.

        Raises:
            NotSupported: it cannot be a loop's carry: a list that grows, an iterator.
        """
        known = {(id(owner), key) for owner, _, key in self._places}
        known |= {(id(owner.space), key) for owner, kind, key in self._places if kind is GLOBALS}
        count = len(self._places)
        for i, after in changed.items():
            place = state.places[i]
            owner, kind, before = place
            space = owner.space if kind is GLOBALS else owner
            is_kept = kind.write is not None and kind.is_merged and kind is not TENSOR
            if not is_kept or [*before.keys] != [*after.keys]:
                raise NotSupported(
                    f"{describe_place(state, place)} is changed in a loop that ends on a traced value",
                    "assign new values to variables instead, or give the loop a fixed number of iterations",
                )
            for key, x, y in zip(before.keys, before.values, after.values, strict=True):
                if x is not y and (id(space), key) not in known:
                    self._places.append((owner, kind, key))
                    self.names.append(state.name(owner) + kind.label(key))
        return len(self._places) > count


Place = tuple[int, int]  # the index of a variable, and of a leaf
_OLDER = "older"  # memory from before the loop that belongs to none of its variables


class _Carry:
    """Carry of a loop: its variables and storages as arrays.

    Attributes:
        storages: the storages that the body writes to.
        shared: the leaves that may share memory with others; these must not be written to.
        moved: those that hold, after some iteration, memory from before the loop.
        first: those whose memory from before the loop is held then.
    """

    def __init__(self, values: Sequence[Any], names: Sequence[str]) -> None:
        self.names, self.values, self.storages = names, values, list[Any]()
        flat = [jax.tree.flatten(v, is_leaf=_is_leaf) for v in values]
        self.trees: list[Any] = [tree for _, tree in flat]
        self.leaves = [leaves for leaves, _ in flat]
        # Of each leaf its dtype and whether it is a Python number; None where it is carried as the object that it is.
        self.kinds = [[_kind_of(leaf) for leaf in leaves] for leaves in self.leaves]
        self.shared, self.moved, self.first = set[Place](), set[Place](), set[Place]()
        self._find_shared(self.leaves)

    def enter(self, arrays: Sequence[Any]) -> list[Any]:
        """Replace the arrays of the variables and storages."""
        given = iter(arrays)
        full = []
        for at, (tree, leaves, kinds) in enumerate(zip(self.trees, self.leaves, self.kinds, strict=True)):
            made = [
                leaf if kind is None else _make_of(kind, next(given)) for leaf, kind in zip(leaves, kinds, strict=True)
            ]
            for i, leaf in enumerate(made):
                if (at, i) in self.shared and isinstance(leaf, Tensor):
                    leaf.memory.shared = (
                        f"a write to {self.names[at]}, which may share memory in a loop that ends on a traced value"
                    )
            full.append(tree.unflatten(made))
        self.write(given)
        return full

    def write(self, arrays: Any) -> None:
        """Replace the arrays of the storages."""
        for storage, array in zip(self.storages, arrays, strict=False):
            note_storage(storage)
            storage.value = Value(array)
            storage.version += 1

    def leave(self, state: Sequence[Any]) -> list[Any]:
        """Return the arrays of the variables and storages."""
        arrays = []
        for value, kinds in zip(state, self.kinds, strict=True):
            leaves = jax.tree.leaves(value, is_leaf=_is_leaf)
            if len(leaves) != len(kinds):
                leaves = [UNBOUND] * len(kinds)
            for leaf, kind in zip(leaves, kinds, strict=True):
                if kind is not None:
                    array = leaf.array if isinstance(leaf, (Tensor, Number)) else jnp.asarray(leaf)
                    arrays.append(array.astype(kind[0].array))
        return [*arrays, *(s.value.array for s in self.storages)]

    def _find_shared(
        self, leaves: Sequence[Sequence[Any]], entered: Sequence[Sequence[Any]] = (), start: int = 0
    ) -> bool:
        """Note the leaves that share memory, or to which iterations move memory that others have: `b = c; c = a`.

        Args:
            leaves: those of the variables before the loop, or after an iteration.
            entered: those with which this iteration began.
            start: the serial number of the first storage that it made.

        Returns:
            Whether any is new that shares memory.
        """
        places = {
            (at, i): leaf
            for at, row in enumerate(leaves)
            for i, leaf in enumerate(row)
            if isinstance(leaf, Tensor) and self.kinds[at][i] is not None
        }
        owners = {
            id(leaf.memory): (at, i)
            for at, row in enumerate(entered)
            for i, leaf in enumerate(row)
            if (at, i) in places and isinstance(leaf, Tensor)
        }
        found = set[Place]()
        sources: dict[Place, list[Any]] = {p: [] for p in places}
        for p, leaf in places.items():
            for root in list_roots(leaf.memory):
                if root.serial < start:
                    found.add(p)
                    root.shared = f"a write to what {self.names[p[0]]} became in a loop that ends on a traced value"
                sources[p].append(owners.get(id(root), _OLDER if root.serial < start else id(root)))
        held: dict[Place, set[Any]] = {p: {p} for p in places}  # by its place the memory that a leaf began with
        self.moved, self.first = set(), set()
        for step in range(len(places) + 2):
            held = {
                p: set[Any]().union(
                    *(held[s] if isinstance(s, tuple) else [s if s is _OLDER else f"{step} {s}"] for s in given)
                )
                for p, given in sources.items()
            }
            self.moved |= {p for p, given in held.items() if any(x is _OLDER or isinstance(x, tuple) for x in given)}
            self.first |= {x for given in held.values() for x in given if isinstance(x, tuple)}
            found |= {p for p in held for q in held if p != q and held[p] & held[q]}
        is_new = not found <= self.shared
        self.shared |= found
        return is_new

    def share_first(self, result: Sequence[Any], iterations: Any) -> None:
        """Let the leaves of the result share the memory that they had before the loop where it ran no iteration.

        Where an iteration may have moved such memory, it is not written to any more.
        """
        text = "a write to what {} became in a loop that ends on a traced value, which may share memory"
        for at, value in enumerate(result):
            leaves = jax.tree.leaves(value, is_leaf=_is_leaf)
            for i, (leaf, kind) in enumerate(zip(leaves, self.kinds[at], strict=False)):
                first = self.leaves[at][i]
                if kind is None or not isinstance(leaf, Tensor) or self.values[at] is UNBOUND or leaf is first:
                    continue
                if (at, i) in self.moved | self.shared:
                    leaf.memory.shared = text.format(self.names[at])
                elif isinstance(first, Tensor) and (first.dtype, first.layout.shape) == (leaf.dtype, leaf.layout.shape):
                    leaf.memory = Merged(leaf.memory.value, [(first, Value(iterations == 0))])
                    leaf.layout = leaf.memory.layout
        for at, i in self.first:
            first = self.leaves[at][i]
            if isinstance(first, Tensor) and self.values[at] is not UNBOUND:
                for root in list_roots(first.memory):
                    root.shared = text.format(self.names[at])

    def _check_written(self, entered: Sequence[Any], state: Sequence[Any]) -> set[Place]:
        """Add the storages that the body writes to in place to the carry; return which leaves these are.

        Raises:
            NotSupported: a variable is written to in place, and then assigned a tensor with other memory.
        """
        found = set[Place]()
        for at, (value, after) in enumerate(zip(entered, state, strict=True)):
            pairs = zip(*(jax.tree.leaves(v, is_leaf=_is_leaf) for v in (value, after)), strict=False)
            for i, (leaf, new) in enumerate(pairs):
                original = self.leaves[at][i]
                if not isinstance(leaf, Tensor) or not isinstance(original, Tensor) or self.kinds[at][i] is None:
                    continue
                if not leaf.memory.version or self.values[at] is UNBOUND:
                    continue
                if not isinstance(new, Tensor) or new.memory is not leaf.memory:
                    raise NotSupported(
                        f"{self.names[at]} is written in place and then given other memory, in a loop that ends on a "
                        "traced value",
                        "write x = x + y in place of x.add_(y)",
                    )
                self.kinds[at][i] = None
                found.add((at, i))
                self.storages.append(original.memory)
        return found

    def update(self, state: Sequence[Any], written: Sequence[Any], entered: Sequence[Any], start: int) -> bool:
        """Update the carry by the result of a run of the body; return whether it changed."""
        objects = self._check_written(entered, state)
        changed = bool(objects)
        for at, (value, name) in enumerate(zip(state, self.names, strict=True)):
            leaves: list[Any]
            tree: Any
            leaves, tree = jax.tree.flatten(value, is_leaf=_is_leaf)
            if self.values[at] is UNBOUND and self.leaves[at] == [UNBOUND] and value is not UNBOUND:
                # It is not read before it is set, so zeros will do.
                self.trees[at], self.kinds[at] = tree, [_kind_of(leaf) for leaf in leaves]
                self.leaves[at] = [_zeros_of(leaf) for leaf in leaves]
                changed = True
                continue
            if tree != self.trees[at]:
                raise NotSupported(f"{name} becomes {describe(value)} in a loop that ends on a traced value")
            for i, (before, after) in enumerate(zip(self.leaves[at], leaves, strict=True)):
                changed |= (at, i) not in objects and self._update_leaf(at, i, before, after, name)
        for storage in written:
            if all(storage is not s for s in self.storages):
                self.storages.append(storage)
                changed = True
                for leaves, kinds in zip(self.leaves, self.kinds, strict=True):
                    for i, leaf in enumerate(leaves):
                        if isinstance(leaf, Tensor) and leaf.memory is storage:
                            kinds[i] = None  # the same object in each iteration: its storage is carried
        leaves = [jax.tree.leaves(value, is_leaf=_is_leaf) for value in state]
        if all(len(a) == len(b) for a, b in zip(leaves, self.kinds, strict=True)):
            before = [jax.tree.leaves(value, is_leaf=_is_leaf) for value in entered]
            changed |= self._find_shared(leaves, before, start)
        return changed

    def _update_leaf(self, at: int, i: int, before: Any, after: Any, name: str) -> bool:
        kind, new = self.kinds[at][i], _kind_of(after)
        if kind is None:
            if after is not before and not are_equal(after, before):
                raise NotSupported(f"{name} becomes {describe(after)} in a loop that ends on a traced value")
            return False
        if new is None:
            raise NotSupported(f"{name} becomes {describe(after)} in a loop that ends on a traced value")
        if isinstance(before, Tensor) and isinstance(after, Tensor) and after.shape != before.shape:
            raise NotSupported(
                f"{name} has the shape {tuple(before.shape)} before a loop that ends on a traced value, and "
                f"{tuple(after.shape)} after an iteration"
            )
        if kind[1] and new[1]:
            joined = _kind_of_number(kind[1] | new[1])
        else:
            joined = (kind[0] if new[0] is kind[0] else result_type([(new[0], 1), (kind[0], 1)])), frozenset[type]()
        self.kinds[at][i] = joined
        return joined != kind


def _is_leaf(value: Any) -> bool:
    return is_node(value) or isinstance(value, (HostValue, Deferred)) or value is UNBOUND or value is None


def _kind_of(leaf: Any) -> tuple[Any, frozenset[type]] | None:
    """Return the dtype of a leaf, and of a number the types of which it may be; None of other objects."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, frozenset()
    return _kind_of_number(kinds_of(leaf)) if isinstance(leaf, (Number, *NUMBERS)) else None


def _kind_of_number(kinds: frozenset[type]) -> tuple[Any, frozenset[type]]:
    return DTYPES[WIDE[max(kinds, key=NUMBERS.index)]], kinds


def _make_of(kind: tuple[Any, frozenset[type]], array: Any) -> Any:
    return make_number(Value(array), kind[1]) if kind[1] else make(array, kind[0])


def _zeros_of(leaf: Any) -> Any:
    kind = _kind_of(leaf)
    return (
        leaf
        if kind is None
        else _make_of(kind, jnp.zeros(leaf.shape if isinstance(leaf, Tensor) else (), kind[0].array))
    )


def _traced_while(test: Test, body: Test, variables: _Variables) -> None:
    """Run a loop as jax.lax.while_loop: variables, and what else an iteration changes, are carried."""
    result = variables.read()
    carry = _Carry(result, variables.names)

    def run(arrays: Sequence[Any], found: dict[str, Any]) -> list[Any]:
        iteration, *arrays = arrays
        with Journal(state=state, is_loop=True) as journal, draws.resume(iteration=iteration):
            try:
                entered = carry.enter(arrays)
                variables.write(entered)
                shallow = [copy.copy(v) if isinstance(v, (list, dict)) else None for v in entered]
                body()
                after = variables.read()
                found |= {"changed": state.list_changes(), "state": after, "entered": entered, "start": journal.start}
                found["written"] = [s for s, _ in journal.storages.values()]
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
            for _ in range(8):  # until dtypes and what is written are known
                found: dict[str, Any] = {}
                first = [tree.unflatten(leaves) for tree, leaves in zip(carry.trees, carry.leaves, strict=True)]
                start = [jnp.int32(0), *carry.leave(first)]
                jax.eval_shape(lambda *a, found=found: _explore(run, a, found), *start)
                if variables.add(state, found["changed"]):
                    result = variables.read()
                    carry = _Carry(result, variables.names)
                elif not carry.update(found["state"], found["written"], found["entered"], found["start"]):
                    break
            end = jax.lax.while_loop(ask, lambda a: run(a, {}), start)
        result = carry.enter(end[1:])
    finally:
        variables.write(result)
    if mode.enabled:  # JAX differentiates the loop as it can; PyTorch's autograd in the source cannot
        parents = [v for v in (*leaves, *read) if v.requires_grad]
        for leaf in jax.tree.leaves(result, is_leaf=_is_leaf) if parents else ():
            if isinstance(leaf, Tensor) and leaf.dtype.kind in {"float", "complex"}:
                _refuse_gradients(leaf, leaves)
    carry.share_first(result, end[0])


def _check_containers(entered: Sequence[Any], before: Sequence[Any], names: Sequence[str]) -> None:
    """Check that no list or dict that a variable is assigned is changed in place, too: the loop carries copies.

    Raises:
        NotSupported: one is.
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


def _refuse_gradients(tensor: Tensor, parents: Sequence[Value]) -> None:
    """Make torch.autograd.grad raise where it comes to a loop that ended on a traced value."""

    def refuse(*_: Any) -> tuple[Any, ...]:
        raise NotSupported(
            "torch.autograd through a loop that ends on a traced value", "write it with a fixed number of iterations"
        )

    for storage in list_roots(tensor.memory):
        storage.value = Value(storage.value.array, Node(refuse, parents, "WhileBackward"), requires_grad=True)
        storage.version += 1


def _explore(run: Callable[..., Any], arrays: Sequence[Any], found: dict[str, Any]) -> Any:
    """Run a body to find the storages that it writes to; the types of its variables may not be final yet."""
    try:
        return run(arrays, found)
    except (TypeError, ValueError, AttributeError):
        if "state" not in found:
            raise
        return []
