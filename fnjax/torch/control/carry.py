"""Carry of a loop that ends on a traced value: its variables and the memory that it writes to, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch.control.branches import are_equal
from fnjax.torch.control.state.effects import describe_place
from fnjax.torch.control.state.places import CELL, GLOBALS, TENSOR, UNBOUND, Content, Globals, Kind
from fnjax.torch.control.state.state import State
from fnjax.torch.deferred.aliases import Merged
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import describe
from fnjax.torch.deferred.filtered import Filtered
from fnjax.torch.deferred.number import NUMBERS, Number, find_dtype, kinds_of, make_number
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import result_type
from fnjax.torch.memory.layout import are_same
from fnjax.torch.memory.strides import Strides, strides_of
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.journal import note_storage


class Variables:
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


class Carry:
    """Carry of a loop: its variables and storages as arrays.

    Attributes:
        storages: the storages that the body writes to.
        shared: the leaves that may share memory with others; these must not be written to.
        replaced: those that are written to and then given other memory; a bool of each is carried, too: whether it
            still is that from before the loop.
        moved: those that hold, after some iteration, memory from before the loop.
        first: those whose memory from before the loop is held then.
    """

    def __init__(self, values: Sequence[Any], names: Sequence[str]) -> None:
        self.names, self.values, self.storages = names, values, list[Any]()
        flat = [jax.tree.flatten(v, is_leaf=is_leaf) for v in values]
        self.trees: list[Any] = [tree for _, tree in flat]
        self.leaves = [leaves for leaves, _ in flat]
        # Of each leaf its dtype, a number's types, and strides; None where it is carried as the object that it is.
        self.kinds = [[_kind_of(leaf) for leaf in leaves] for leaves in self.leaves]
        self.shared, self.moved, self.first = set[Place](), set[Place](), set[Place]()
        self.replaced = dict[Place, Tensor]()
        self._find_shared(self.leaves)

    def enter(self, arrays: Sequence[Any]) -> list[Any]:
        """Replace the arrays of the variables and storages."""
        given = iter(arrays)
        values = [[kind and next(given) for kind in kinds] for kinds in self.kinds]
        flags = dict(zip(self.replaced, given, strict=False))
        self.write(given)
        full = []
        for at, (tree, leaves, kinds) in enumerate(zip(self.trees, self.leaves, self.kinds, strict=True)):
            made = [x if k is None else _make_of(k, v) for x, k, v in zip(leaves, kinds, values[at], strict=True)]
            for i, leaf in enumerate(made):
                first = self.replaced.get((at, i))
                if first is not None and (first.dtype, first.layout.shape) != (leaf.dtype, leaf.layout.shape):
                    self._refuse_replaced(at)
                if first is not None:
                    leaf.memory = Merged(leaf.memory.value, [(first, Value(flags[at, i]))], strides_of(leaf.layout))
                    leaf.layout = leaf.memory.layout
                if (at, i) in self.shared and isinstance(leaf, Tensor):
                    leaf.memory.shared = (
                        f"a write to {self.names[at]}, which may share memory in a loop that ends on a traced value"
                    )
                if kinds[i] is not None and isinstance(leaf, Tensor):
                    leaf.sides = ()
            full.append(tree.unflatten(made))
        return full

    def write(self, arrays: Any) -> None:
        """Replace the arrays of the storages."""
        for storage, array in zip(self.storages, arrays, strict=False):
            note_storage(storage)
            storage.value = Value(array)
            storage.version += 1

    def leave(self, state: Sequence[Any]) -> list[Any]:
        """Return the arrays of the variables and storages."""
        arrays, flags = [], dict[Place, Any]()
        for at, (value, kinds) in enumerate(zip(state, self.kinds, strict=True)):
            leaves = jax.tree.leaves(value, is_leaf=is_leaf)
            if len(leaves) != len(kinds):
                leaves = [UNBOUND] * len(kinds)
            for i, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
                if (at, i) in self.replaced:
                    flags[at, i] = _is_kept(leaf, self.replaced[at, i])
                if kind is not None:
                    array = leaf.array if isinstance(leaf, (Tensor, Number)) else np.asarray(leaf)
                    arrays.append(array.astype(kind[0].array))
        return [*arrays, *(flags[p] for p in self.replaced), *(s.value.array for s in self.storages)]

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
            id(leaf.memory.roots[0]): (at, i)
            for at, row in enumerate(entered)
            for i, leaf in enumerate(row)
            if (at, i) in places and isinstance(leaf, Tensor)
        }
        found = set[Place]()
        sources: dict[Place, list[Any]] = {p: [] for p in places}
        for p, leaf in places.items():
            first = [*map(id, self.replaced[p].memory.roots)] if p in self.replaced else []
            for root in leaf.memory.roots:
                if id(root) in first:
                    continue
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
        exact = self.replaced.keys() - self.shared
        self.moved -= exact
        self.first -= {p for p in exact if all(p not in given for q, given in held.items() if p != q)}
        return is_new

    def share_first(self, result: Sequence[Any], iterations: Any) -> None:
        """Let the leaves of the result share the memory that they had before the loop where it ran no iteration.

        Where an iteration may have moved such memory, it is not written to any more.
        """
        text = "a write to what {} became in a loop that ends on a traced value, which may share memory"
        for at, value in enumerate(result):
            leaves = jax.tree.leaves(value, is_leaf=is_leaf)
            for i, (leaf, kind) in enumerate(zip(leaves, self.kinds[at], strict=False)):
                first = self.leaves[at][i]
                is_own = leaf is first or ((at, i) in self.replaced and (at, i) not in self.shared)
                if kind is None or not isinstance(leaf, Tensor) or self.values[at] is UNBOUND or is_own:
                    continue
                if (at, i) in self.moved | self.shared:
                    leaf.memory.shared = text.format(self.names[at])
                elif isinstance(first, Tensor) and (first.dtype, first.layout.shape) == (leaf.dtype, leaf.layout.shape):
                    twin = first, Value(iterations == 0)
                    leaf.memory = Merged(leaf.memory.value, [twin], strides_of(leaf.layout))
                    leaf.layout = leaf.memory.layout
        for at, i in self.first:
            first = self.leaves[at][i]
            if isinstance(first, Tensor) and self.values[at] is not UNBOUND:
                for root in first.memory.roots:
                    root.shared = text.format(self.names[at])

    def _check_written(self, entered: Sequence[Any], state: Sequence[Any]) -> set[Place]:
        """Add the storages that the body writes to in place to the carry; return which leaves these are."""
        found = set[Place]()
        for at, (value, after) in enumerate(zip(entered, state, strict=True)):
            pairs = zip(*(jax.tree.leaves(v, is_leaf=is_leaf) for v in (value, after)), strict=False)
            for i, (leaf, new) in enumerate(pairs):
                original = self.leaves[at][i]
                if not isinstance(leaf, Tensor) or not isinstance(original, Tensor) or self.kinds[at][i] is None:
                    continue
                if (at, i) in self.replaced or self.values[at] is UNBOUND or not leaf.memory.version:
                    continue
                found.add((at, i))
                if isinstance(new, Tensor) and new.memory is leaf.memory:
                    self.kinds[at][i] = None
                else:
                    self.replaced[at, i] = original
                self._add_storages(original.memory.roots)
        return found

    def _refuse_replaced(self, at: int) -> None:
        raise NotSupported(
            f"{self.names[at]} is written in place and then given other memory, in a loop that ends on a traced value",
            "write x = x + y in place of x.add_(y)",
        )

    def update(self, state: Sequence[Any], written: Sequence[Any], entered: Sequence[Any], start: int) -> bool:
        """Update the carry by the result of a run of the body; return whether it changed."""
        objects = self._check_written(entered, state)
        changed = bool(objects)
        for at, (value, name) in enumerate(zip(state, self.names, strict=True)):
            leaves: list[Any]
            tree: Any
            leaves, tree = jax.tree.flatten(value, is_leaf=is_leaf)
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
        changed |= self._add_storages(written)
        for at, (leaves, kinds) in enumerate(zip(self.leaves, self.kinds, strict=True)):
            for i, leaf in enumerate(leaves):
                is_written = isinstance(leaf, Tensor) and any(leaf.memory is s for s in self.storages)
                if is_written and (at, i) not in self.replaced:
                    kinds[i] = None  # the same object in each iteration: its storage is carried
        leaves = [jax.tree.leaves(value, is_leaf=is_leaf) for value in state]
        if all(len(a) == len(b) for a, b in zip(leaves, self.kinds, strict=True)):
            before = [jax.tree.leaves(value, is_leaf=is_leaf) for value in entered]
            changed |= self._find_shared(leaves, before, start)
        return changed

    def _add_storages(self, storages: Iterable[Any]) -> bool:
        """Add storages to those that the body writes to; return whether there is any that was not known."""
        new = [storage for storage in storages if all(storage is not s for s in self.storages)]
        self.storages += new
        return bool(new)

    def _update_leaf(self, at: int, i: int, before: Any, after: Any, name: str) -> bool:
        kind, new = self.kinds[at][i], _kind_of(after)
        if kind is None:
            if after is not before and not are_equal(after, before):
                raise NotSupported(f"{name} becomes {describe(after)} in a loop that ends on a traced value")
            return False
        if new is None:
            raise NotSupported(f"{name} becomes {describe(after)} in a loop that ends on a traced value")
        if bool in kind[1] | new[1] and not (kind[1] and new[1]):  # `is True` would tell which
            raise NotSupported(
                f"{name} is a bool or a tensor in a loop that ends on a traced value",
                "convert the tensor: bool(x.sum() > 0)",
            )
        if isinstance(before, Tensor) and isinstance(after, Tensor) and after.shape != before.shape:
            raise NotSupported(
                f"{name} has the shape {tuple(before.shape)} before a loop that ends on a traced value, and "
                f"{tuple(after.shape)} after an iteration"
            )
        if kind[1] and new[1]:
            joined = _kind_of_number(kind[1] | new[1])
        else:
            # A number that a tensor replaces has the dtype of that, as after a branch.
            own = result_type([(k[0], 1) for k in (new, kind) if not k[1]], kind[1] | new[1])
            if own is not (kind if new[1] else new)[0]:
                raise NotSupported(f"{name} becomes {describe(after)} in a loop that ends on a traced value")
            joined = own, frozenset(), kind[2] if new[2] == kind[2] else None
        self.kinds[at][i] = joined
        return joined != kind


def is_leaf(value: Any) -> bool:
    """Return whether a value is carried as one: a tensor, a number, or an object that stays what it is."""
    is_deferred = isinstance(value, (HostValue, Deferred)) and type(value) is not Filtered
    return is_node(value) or is_deferred or value is UNBOUND or value is None


def _is_kept(leaf: Any, first: Tensor) -> Any:
    """Return whether a variable still has the memory that it had before the loop: an array of one bool."""
    memory = leaf.memory if isinstance(leaf, Tensor) else None
    is_same = memory is first.memory and are_same(leaf.layout, first.layout)
    return jnp.asarray(is_same or (isinstance(memory, Merged) and memory.find_test(first)), bool)


_Kind = tuple[Any, frozenset[type], Strides | None]


def _kind_of(leaf: Any) -> _Kind | None:
    """Return the dtype of a leaf, of a number the types of which it may be, and strides; None of other objects."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, frozenset(), strides_of(leaf.layout)
    return _kind_of_number(kinds_of(leaf)) if isinstance(leaf, (Number, *NUMBERS)) else None


def _kind_of_number(kinds: frozenset[type]) -> _Kind:
    return find_dtype(kinds), kinds, None


def _make_of(kind: _Kind, array: Any) -> Any:
    return make_number(Value(array), kind[1]) if kind[1] else make(array, kind[0], strides=kind[2])


def _zeros_of(leaf: Any) -> Any:
    kind = _kind_of(leaf)
    return (
        leaf
        if kind is None
        else _make_of(kind, jnp.zeros(leaf.shape if isinstance(leaf, Tensor) else (), kind[0].array))
    )
