"""Distinction of tensors from static values, and splitting of pytrees into arrays and the rest.

JAX sorts the keys of dictionaries and rebuilds containers that hold no array; PyTorch does neither. So users'
containers are flattened here, and nowhere else: in insertion order, and a part without arrays stays the very object.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.ref import AbstractRef, Ref
from jax.tree_util import DictKey, keystr

_NUMPY = (np.ndarray, np.generic)
_REFS = (Ref, AbstractRef)
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type})
_DICTS = frozenset({dict, OrderedDict, defaultdict})


@functools.cache
def concrete_type() -> type:
    """Return the type of JAX's concrete arrays."""
    with jax.ensure_compile_time_eval():  # the first call may be under a trace
        return type(jax.device_put(np.zeros(())))  # jnp.zeros would compile a program


def is_array(value: object) -> bool:
    """Return whether a value is a JAX array, concrete or traced; `isinstance` alone takes 8 µs on a new array."""
    return type(value) is concrete_type() or isinstance(value, jax.Array)


def is_ref(value: Any) -> bool:
    """Return whether a value is a Ref of `jax.new_ref`, traced or not, or the type of one."""
    return type(value.aval if isinstance(value, jax.core.Tracer) else value) in _REFS


def is_tensor(value: object) -> bool:
    """Return whether a value is an operand: a JAX or NumPy array or scalar, a Ref, an object with `__jax_array__`."""
    # On the type: a config's own __getattr__ may return anything for any name.
    if is_array(value) or hasattr(type(value), "__jax_array__") or is_ref(value):
        return True
    if isinstance(value, _NUMPY):
        return _is_jax_dtype(value.dtype)
    # JAX's own numbers have no public type: what a derivative outside jit makes of Python's, which jit makes arrays of.
    return isinstance(value, float | complex) and hasattr(type(value), "aval")


def is_foreign_array(value: object) -> bool:
    """Return whether a value is a NumPy array or scalar whose dtype JAX lacks: text, objects, dates."""
    return isinstance(value, _NUMPY) and not _is_jax_dtype(value.dtype) and not isinstance(value, str | bytes)


@functools.cache
def _is_jax_dtype(dtype: Any) -> bool:
    return dtype in (np.bool_, jax.dtypes.float0) or bool(jnp.issubdtype(dtype, np.number))


def to_tensor(value: Any) -> jax.Array:
    """Return the array of a tensor, as under `jax.jit` (float64 becomes float32 unless x64 is on); a Ref as it is."""
    return value if is_array(value) or is_ref(value) else jnp.asarray(value)


def to_tensors(values: Iterable[Any]) -> list[Any]:
    """Return the arrays of some tensors, see `to_tensor`."""
    array = concrete_type()
    return [x if type(x) is array or isinstance(x, jax.core.Tracer) else to_tensor(x) for x in values]


def new_object(array: Any) -> Any:
    """Return a new object for the same array, at no cost in memory."""
    if is_tracer(array):
        return checkpoint_name(array, "fnjax_output")  # an operation that leaves nothing in the compiled program
    return jax.device_put(array, array.sharding, may_alias=True)


def is_tracer(value: object) -> bool:
    """Return whether a value is a tracer of JAX."""
    return isinstance(value, jax.core.Tracer)


def is_inexact(value: Any) -> bool:
    """Return whether an array (or its type) can have a derivative: by its dtype, and not if it is a Ref."""
    is_a_ref = type(value.aval if isinstance(value, jax.core.Tracer) else value) in _REFS
    return _is_inexact_dtype(value.dtype) and not is_a_ref


@functools.cache  # called four times in each traced call, and takes 3 µs
def _is_inexact_dtype(dtype: Any) -> bool:
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # a PRNG key has no tangents, flax's metadata of fp8 have some
        return bool(jax.core.ShapedArray((), dtype).to_tangent_aval().dtype != jax.dtypes.float0)
    return bool(jnp.issubdtype(dtype, jnp.inexact))


class _Keys(NamedTuple):
    """Outermost level of a dictionary."""

    kind: type[dict[Any, Any]]
    keys: tuple[Any, ...]
    default_factory: Callable[[], Any] | None

    def unflatten(self, children: Iterable[Any]) -> Any:
        """Return a dictionary of children."""
        items = zip(self.keys, children, strict=True)
        return self.kind(items) if self.kind is not defaultdict else defaultdict(self.default_factory, items)


_Path = tuple[Any, ...]  # JAX's keys
_Level = Any  # _Keys, or a treedef whose leaves are the children


def _open(tree: Any) -> tuple[_Level, list[Any]] | None:
    """Return the outermost level of a pytree and its children, or None for a leaf; None is a leaf."""
    kind = type(tree)
    if kind in _PLAIN or is_array(tree):
        return None
    if kind in _DICTS:
        return _Keys(kind, tuple(tree), getattr(tree, "default_factory", None)), list(tree.values())
    children, treedef = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
    return None if len(children) == 1 and children[0] is tree else (treedef, children)


def _children(level: _Level, tree: Any) -> list[Any] | None:
    """Return the children of a pytree in the order of a level, or None if its own level is another one."""
    opened = _open(tree)
    if opened is None:
        return None
    other, children = opened
    if isinstance(level, _Keys) and isinstance(other, _Keys):
        same = level.kind is other.kind and len(level.keys) == len(other.keys) and all(k in tree for k in level.keys)
        return [tree[k] for k in level.keys] if same else None
    return children if type(level) is type(other) and level == other else None


def iter_leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of a pytree, None not among them."""
    pending = [tree]
    while pending:
        subtree = pending.pop()
        opened = _open(subtree)
        if opened is not None:
            pending += reversed(opened[1])
        elif subtree is not None:
            yield subtree


def items_of_unknown_container(leaf: Any) -> list[Any]:
    """Return the items of a leaf that is a container to Python and not to JAX: a subclass of dict or list, a deque."""
    if isinstance(leaf, dict):
        return list(leaf.values())
    return list(leaf) if isinstance(leaf, list | tuple | set | frozenset | deque) else []


def has_leaf(tree: object, pick: Callable[[Any], bool]) -> bool:
    """Return whether `pick` holds for a leaf of a container, or for a single leaf."""
    return type(tree) not in _PLAIN and any(map(pick, iter_leaves(tree)))


def leaves_with_path(tree: Any) -> list[tuple[_Path, Any]]:
    """Return the leaves of a pytree with their paths, like `jax.tree.leaves_with_path`."""
    opened = _open(tree)
    if opened is None:
        return [] if tree is None else [((), tree)]
    level, children = opened
    paths: list[_Path] = (
        [(DictKey(key),) for key in level.keys]
        if isinstance(level, _Keys)
        else [path for path, _ in jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is not tree)]
    )
    return [
        (path + rest, leaf)
        for path, child in zip(paths, children, strict=True)
        for rest, leaf in leaves_with_path(child)
    ]


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree with their paths: `.weight`, `[0].bias`; the path of a single array is empty."""
    return [
        ("".join(f"[{k.idx}]" if hasattr(k, "idx") else "." + keystr((k,), simple=True) for k in path), leaf)
        for path, leaf in leaves_with_path(tree)
    ]


class _Star:
    def __repr__(self) -> str:
        return "*"


_KEPT, _STAR = object(), _Star()


class Split(NamedTuple):
    """Pytree without its arrays.

    Attributes:
        n_arrays: how many arrays were split off.
        level: its outermost level; None for an array, and for a part without arrays.
        parts: its children.
        static: a part without arrays, the very object.
    """

    n_arrays: int
    level: _Level | None = None
    parts: tuple[Split, ...] = ()
    static: Any = None

    def fill(self, arrays: Iterable[Any], other_leaves: Any = _KEPT) -> Any:
        """Return the pytree with `arrays` in their places; `other_leaves`, if passed, replaces all others."""
        values = iter(arrays)
        if self.level is not None:
            return self.level.unflatten([part.fill(values, other_leaves) for part in self.parts])
        if self.n_arrays:
            return next(values)
        return self.static if other_leaves is _KEPT else map_leaves(lambda _: other_leaves, self.static)

    def match(self, tree: Any) -> list[Any] | None:
        """Return the leaves of another pytree at the positions of the arrays; None if its structure differs.

        Dictionaries are matched by key. A part without arrays is matched by None, too.
        """
        if self.level is None and self.n_arrays:
            return [tree] if _open(tree) is None else None
        if self.level is None:
            leaves, structure = split(self.static)
            same = structure.match(tree) is not None if leaves else structure == split(tree)[1]
            return [] if same or tree is None else None
        children = _children(self.level, tree)
        if children is None:
            return None
        matched = [part.match(child) for part, child in zip(self.parts, children, strict=True)]
        return None if None in matched else [leaf for leaves in matched for leaf in leaves or ()]

    def __str__(self) -> str:
        """Return the structure for messages, with `*` in place of all leaves: `{'w': *, 'b': [*, *]}`."""
        try:
            return repr(self.fill(itertools.repeat(_STAR), _STAR))
        except Exception:  # noqa: BLE001 - a user's class may hold arrays only
            return str(self.level)


ARRAY = Split(1)  # an array by itself


def split(tree: Any, pick: Callable[[Any], bool] = lambda _: True) -> tuple[list[Any], Split]:
    """Return the leaves of `tree` that `pick` accepts (all by default), and the tree without them."""
    if is_array(tree) and pick(tree):  # the usual case
        return [tree], ARRAY
    picked: list[Any] = []
    return picked, _split(tree, pick, picked)


def _split(tree: Any, pick: Callable[[Any], bool], picked: list[Any]) -> Split:
    opened = _open(tree)
    if opened is not None:
        n, (level, children) = len(picked), opened
        parts = tuple([_split(child, pick, picked) for child in children])
        if len(picked) > n:
            return Split(len(picked) - n, level, parts)
    elif pick(tree):
        picked.append(tree)
        return ARRAY
    return Split(0, static=tree)


def map_leaves(fun: Callable[[Any], Any], tree: Any, pick: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return a pytree with `fun` applied to the leaves that `pick` accepts, None among them."""
    picked, rest = split(tree, pick)
    return rest.fill(map(fun, picked))
