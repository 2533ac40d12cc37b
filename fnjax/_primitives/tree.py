"""Distinction of tensors from static values, and splitting of pytrees into arrays and the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.ref import AbstractRef, Ref
from jax.tree_util import PyTreeDef, keystr, tree_leaves_with_path

_TENSORS = (np.ndarray, np.generic)
_REFS = (Ref, AbstractRef)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


@functools.cache
def concrete_type() -> type:
    """Return the type of JAX's concrete arrays."""
    with jax.ensure_compile_time_eval():  # the first call may be under a trace
        return type(jnp.zeros(()))


def is_array(value: object) -> bool:
    """Return whether a value is a JAX array, concrete or traced; `isinstance` alone takes 8 µs on a new array."""
    return type(value) is concrete_type() or isinstance(value, jax.Array)


def is_ref(value: Any) -> bool:
    """Return whether a value is a Ref of `jax.new_ref`, traced or not, or the type of one."""
    return type(value.aval if isinstance(value, jax.core.Tracer) else value) in _REFS


def is_tensor(value: object) -> bool:
    """Return whether a value is an operand: a JAX or NumPy array or scalar, a Ref, an object with `__jax_array__`."""
    # On the type: a config's own __getattr__ may return anything for any name.
    if is_array(value) or isinstance(value, _TENSORS) or hasattr(type(value), "__jax_array__") or is_ref(value):
        return True
    # JAX's own numbers have no public type: what a derivative outside jit makes of Python's, which jit makes arrays of.
    return isinstance(value, float | complex) and hasattr(type(value), "aval")


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


def flatten(tree: Any) -> tuple[list[Any], PyTreeDef]:
    """Flatten a pytree like `jax.tree.flatten`, with None as a leaf."""
    return jax.tree.flatten(tree, is_leaf=lambda x: x is None)


def has_leaf(tree: object, pick: Callable[[Any], bool]) -> bool:
    """Return whether `pick` holds for a leaf of a container, or for a single leaf."""
    if is_array(tree):
        return pick(tree)
    return not isinstance(tree, _PLAIN) and any(map(pick, jax.tree.leaves(tree)))


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree with their paths: `.weight`, `[0].bias`; the path of a single array is empty."""
    return [
        ("".join(f"[{k.idx}]" if hasattr(k, "idx") else "." + keystr((k,), simple=True) for k in path), leaf)
        for path, leaf in tree_leaves_with_path(tree)
    ]


class _InOrder(dict[Any, Any]):
    """Dictionary that JAX flattens in insertion order and rebuilds as a dict; JAX sorts the keys of a plain dict."""


def _entered(keys: Iterable[Any], values: Iterable[Any]) -> Any:
    return dict(zip(keys, values, strict=True))


jax.tree_util.register_pytree_node(_InOrder, lambda d: (tuple(d.values()), tuple(d)), _entered)


def in_order(tree: Any) -> Any:
    """Return a tree whose dictionaries keep their insertion order when `fill` rebuilds them."""
    if type(tree) is dict:
        return _InOrder((key, in_order(value)) for key, value in tree.items())
    return type(tree)(map(in_order, tree)) if type(tree) in (list, tuple) else tree


HOLE = object()


class Split(NamedTuple):
    """Pytree without its arrays.

    Attributes:
        treedef: the structure, None counting as a leaf.
        rest: the leaves, `HOLE` in place of each array.
    """

    treedef: PyTreeDef
    rest: tuple[Any, ...]

    def fill(self, arrays: Iterable[Any], otherwise: Any = HOLE) -> Any:
        """Return the pytree with `arrays` in the holes; `otherwise`, if given, replaces all other leaves."""
        values = iter(arrays)
        if self is ARRAY:
            return next(values)
        return self.treedef.unflatten(
            next(values) if leaf is HOLE else leaf if otherwise is HOLE else otherwise for leaf in self.rest
        )

    def take(self, tree: Any) -> list[Any] | None:
        """Return the leaves of another pytree at the positions of the arrays; None if its structure differs."""
        leaves, treedef = flatten(tree)
        if treedef != self.treedef:
            return None
        return [leaf for leaf, rest in zip(leaves, self.rest, strict=True) if rest is HOLE]

    @property
    def holes(self) -> int:
        """The number of arrays that were taken out."""
        return sum(leaf is HOLE for leaf in self.rest)


ARRAY = Split(jax.tree.structure(0), (HOLE,))  # an array by itself


def split(tree: Any, pick: Callable[[Any], bool]) -> tuple[list[Any], Split]:
    """Return the leaves of `tree` that `pick` accepts, and the tree without them."""
    if is_array(tree) and pick(tree):  # the usual case, without the costs of a pytree
        return [tree], ARRAY
    leaves, treedef = flatten(tree)
    picked = [pick(leaf) for leaf in leaves]
    taken = [leaf for leaf, p in zip(leaves, picked, strict=True) if p]
    rest = tuple(HOLE if p else leaf for leaf, p in zip(leaves, picked, strict=True))
    return taken, Split(treedef, rest)
