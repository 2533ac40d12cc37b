"""Carry of a loop that ends on a traced value: its variables, and the storages that it writes to, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch.control.branches import are_equal
from fnjax.torch.control.state.places import UNBOUND
from fnjax.torch.deferred.aliases import Merged, are_aliases, find_place, list_places
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import describe
from fnjax.torch.deferred.filtered import Filtered
from fnjax.torch.deferred.number import NUMBERS, Number, find_dtype, kinds_of, make_number
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import result_type
from fnjax.torch.memory.strides import Strides, strides_of
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.journal import note_storage

_SHARED = "a write to {}, which may share memory in a loop that ends on a traced value"
LeafIndex = tuple[int, int]  # the index of a variable, and of a leaf of its value


class Carry:
    """Carry of a loop: its variables and storages as arrays.

    Attributes:
        storages: the storages that the body writes to.
        aliases: for leaves, the older tensors and other leaves whose memory they may share; a bool for each pair is
            carried as well.
        shared: the leaves that may share a part of their memory, and must not be written to.
    """

    def __init__(self, values: Sequence[Any], names: Sequence[str]) -> None:
        self.names, self.values, self.storages = names, values, list[Any]()
        flat = [jax.tree.flatten(v, is_leaf=is_leaf) for v in values]
        self.trees: list[Any] = [tree for _, tree in flat]
        self.leaves = [leaves for leaves, _ in flat]
        # Of each leaf its dtype, a number's types, and strides; None where it is carried as the object that it is.
        self.kinds = [[_kind_of(leaf) for leaf in leaves] for leaves in self.leaves]
        self.aliases, self.shared = dict[LeafIndex, list[Tensor | LeafIndex]](), set[LeafIndex]()

    def enter(self, arrays: Sequence[Any], iterations: Any = None) -> list[Any]:
        """Replace the arrays of the variables and storages.

        Args:
            arrays: the arrays at the start of an iteration, or at the end of the loop.
            iterations: at the end, the number of iterations: if it is 0, variables share memory as before the loop.
        """
        given = iter(arrays)
        values = [[kind and next(given) for kind in kinds] for kinds in self.kinds]
        flags = [(p, source, next(given)) for p, sources in self.aliases.items() for source in sources]
        self.write(given)
        made = [
            [x if k is None else _make_of(k, v) for x, k, v in zip(leaves, kinds, row, strict=True)]
            for leaves, kinds, row in zip(self.leaves, self.kinds, values, strict=True)
        ]
        for at, i in self._list_tensors(made):
            leaf, first = made[at][i], self.leaves[at][i]
            sides = [
                (made[source[0]][source[1]] if isinstance(source, tuple) else source, Value(flag))
                for p, source, flag in flags
                if p == (at, i)
            ]
            if iterations is not None and isinstance(first, Tensor) and self.values[at] is not UNBOUND:
                sides.append((first, Value(iterations == 0)))
            if sides:
                leaf.memory = Merged(leaf.memory.value, sides, strides_of(leaf.layout))
                leaf.layout = leaf.memory.layout
            if (at, i) in self.shared:
                leaf.memory.shared = _SHARED.format(self.names[at])
            leaf.sides = ()
        return [tree.unflatten(row) for tree, row in zip(self.trees, made, strict=True)]

    def _list_tensors(self, leaves: Sequence[Sequence[Any]]) -> list[LeafIndex]:
        """Return the indices of the tensors that are carried."""
        return [
            (at, i)
            for at, row in enumerate(leaves)
            for i, leaf in enumerate(row)
            if isinstance(leaf, Tensor) and self.kinds[at][i] is not None
        ]

    def write(self, arrays: Any) -> None:
        """Replace the arrays of the storages."""
        for storage, array in zip(self.storages, arrays, strict=False):
            note_storage(storage)
            storage.value = Value(array)
            storage.version += 1

    def leave(self, state: Sequence[Any]) -> list[Any]:
        """Return the arrays of the variables and storages."""
        rows = [jax.tree.leaves(value, is_leaf=is_leaf) for value in state]
        rows = [
            row if len(row) == len(kinds) else [UNBOUND] * len(kinds)
            for row, kinds in zip(rows, self.kinds, strict=True)
        ]
        arrays = [
            (leaf.array if isinstance(leaf, (Tensor, Number)) else np.asarray(leaf)).astype(kind[0].array)
            for row, kinds in zip(rows, self.kinds, strict=True)
            for leaf, kind in zip(row, kinds, strict=True)
            if kind is not None
        ]
        flags = []
        for (at, i), sources in self.aliases.items():
            for source in sources:
                leaf, other = rows[at][i], rows[source[0]][source[1]] if isinstance(source, tuple) else source
                both = isinstance(leaf, Tensor) and isinstance(other, Tensor)
                flags.append(jnp.asarray(both and are_aliases(leaf, other), bool))
        return [*arrays, *flags, *(s.value.array for s in self.storages)]

    def _find_aliases(self, leaves: Sequence[Sequence[Any]], entered: Sequence[Sequence[Any]], start: int) -> None:
        """Record which memory the leaves may share after an iteration: that of older tensors, or of other leaves.

        Args:
            leaves: the leaves after the iteration.
            entered: the leaves at its start.
            start: the serial number of the first storage that the iteration made.
        """
        owners = {id(entered[at][i].memory.roots[0]): (at, i) for at, i in self._list_tensors(entered)}
        found = dict[int, tuple[LeafIndex, Tensor]]()  # by memory that is not older a leaf that has it, and how
        for p in self._list_tensors(leaves):
            for tensor, _ in list_places(leaves[p[0]][p[1]]):
                for root in tensor.memory.roots:
                    owner = owners.get(id(root))
                    if owner is not None:
                        first = self._find_first(owner)
                        self._add_alias(owner, first)
                        if owner in self.shared or tensor.layout is not entered[owner[0]][owner[1]].layout:
                            self._share(p, first, *self.aliases.get(owner, ()))
                    elif root.serial < start:
                        if root is tensor.memory:
                            self._add_alias(p, tensor)
                        else:
                            self._share(p, tensor)
                        continue
                    other, place = found.setdefault(id(root), (p, tensor))
                    if find_place(place) != find_place(tensor):
                        self._share(p)
                        self._share(other)
                    elif other != p:
                        self._add_alias(p, other)
        for p in self._list_tensors(self.leaves):
            first = self._find_first(p)
            if any(root is s for root in first.memory.roots for s in self.storages):
                self._add_alias(p, first)

    def _find_first(self, index: LeafIndex) -> Any:
        return self.leaves[index[0]][index[1]]

    def _add_alias(self, index: LeafIndex, source: Any) -> None:
        """Record that a leaf may share the memory of an older tensor, or of another leaf; ignore other objects."""
        known = self.aliases.setdefault(index, [])
        if isinstance(source, tuple) and source not in known:
            known.append(source)
        elif isinstance(source, Tensor):
            key = find_place(source)
            if all(isinstance(s, tuple) or find_place(s) != key for s in known):
                known.append(source)

    def _share(self, index: LeafIndex, *sources: Any) -> None:
        """Refuse writes to a leaf that may share a part of the memory of older tensors, and to these tensors."""
        self.shared.add(index)
        for source in sources:
            for root in source.memory.roots if isinstance(source, Tensor) else ():
                root.shared = _SHARED.format(self.names[index[0]])

    def _check_written(
        self, leaves: Sequence[Sequence[Any]], entered: Sequence[Sequence[Any]], touched: set[int]
    ) -> set[LeafIndex]:
        """Record to which leaves from before the loop an iteration writes in place.

        Returns:
            The leaves that are the same object in each iteration: their storage is carried, not the leaf.
        """
        found = set[LeafIndex]()
        for at, i in self._list_tensors(entered):
            leaf, first = entered[at][i], self.leaves[at][i]
            if not isinstance(first, Tensor) or self.values[at] is UNBOUND:
                continue
            is_written = id(leaf) in touched or any(root is s for root in first.memory.roots for s in self.storages)
            if is_written and leaves[at][i] is leaf:
                found.add((at, i))
                self.kinds[at][i] = None
                self.aliases.pop((at, i), None)
                self._add_storages(first.memory.roots)
            elif is_written:
                self._add_alias((at, i), first)
        return found

    def update(self, found: Mapping[str, Any]) -> bool:
        """Update the carry by a trace of the body; return whether the carry changed.

        Args:
            found: by these keys: `entered`, the variables at the start of the body, and `state`, those at its end;
                `written`, the storages that it wrote; `touched`, the ids of variables that were written to; `start`,
                the serial number at its start.
        """
        state: Sequence[Any] = found["state"]
        after, before = ([jax.tree.leaves(v, is_leaf=is_leaf) for v in values] for values in (state, found["entered"]))
        count = self._count()
        self._add_storages(found["written"])
        is_like = all(len(a) == len(b) == len(k) for a, b, k in zip(after, before, self.kinds, strict=True))
        objects = self._check_written(after, before, found["touched"]) if is_like else set()
        changed = bool(objects)
        for at, (value, name) in enumerate(zip(state, self.names, strict=True)):
            leaves: list[Any]
            tree: Any
            leaves, tree = jax.tree.flatten(value, is_leaf=is_leaf)
            if self.values[at] is UNBOUND and self.leaves[at] == [UNBOUND] and value is not UNBOUND:
                # It is not read before it is set, so zeros will do.
                self.trees[at], self.kinds[at] = tree, [_kind_of(leaf) for leaf in leaves]
                self.leaves[at] = [make_zeros(leaf) for leaf in leaves]
                changed = True
                continue
            if tree != self.trees[at]:
                raise NotSupported(f"{name} becomes {describe(value)} in a loop that ends on a traced value")
            for i, (old, new) in enumerate(zip(self.leaves[at], leaves, strict=True)):
                changed |= (at, i) not in objects and self._update_leaf(at, i, old, new, name)
        if is_like:
            self._find_aliases(after, before, found["start"])
        return changed or self._count() > count

    def _count(self) -> int:
        """Return the number of storages and aliases that were found; it only grows, so that the fixpoint is reached."""
        return len(self.storages) + len(self.shared) + sum(map(len, self.aliases.values()))

    def _add_storages(self, storages: Iterable[Any]) -> None:
        """Add storages to those that the body writes to."""
        self.storages += [storage for storage in storages if all(storage is not s for s in self.storages)]

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
    """Return whether a value is a leaf of the carry: a tensor, a number, or an object that is carried by reference."""
    is_deferred = isinstance(value, (HostValue, Deferred)) and type(value) is not Filtered
    return is_node(value) or is_deferred or value is UNBOUND or value is None


_Kind = tuple[Any, frozenset[type], Strides | None]


def _kind_of(leaf: Any) -> _Kind | None:
    """Return a leaf's dtype, the types that a number may have, and the strides; None for other objects."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, frozenset(), strides_of(leaf.layout)
    return _kind_of_number(kinds_of(leaf)) if isinstance(leaf, (Number, *NUMBERS)) else None


def _kind_of_number(kinds: frozenset[type]) -> _Kind:
    return find_dtype(kinds), kinds, None


def _make_of(kind: _Kind, array: Any) -> Any:
    return make_number(Value(array), kind[1]) if kind[1] else make(array, kind[0], strides=kind[2])


def make_zeros(leaf: Any) -> Any:
    """Return zeros in place of a tensor or number; other leaves unchanged."""
    kind = _kind_of(leaf)
    return (
        leaf
        if kind is None
        else _make_of(kind, jnp.zeros(leaf.shape if isinstance(leaf, Tensor) else (), kind[0].array))
    )
