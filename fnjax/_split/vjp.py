"""`split_vjp`: gradients of the inputs first, those of the weights later."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from fnjax._primitives.identity import identify
from fnjax._primitives.jax_internals import open_jaxpr, varying
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import Split, is_inexact, is_ref, is_tensor, named_leaves, split
from fnjax._split import messages
from fnjax._split.control_flow import partition_program
from fnjax._split.partition import Partitioned
from fnjax.errors import describe


def split_vjp(f: Callable[[Any, Any], Any], weights: Any, inputs: Any) -> tuple[Any, BackwardInput, BackwardWeight]:
    """Apply `jax.vjp` with a partitioned backward pass: gradients of the inputs now, those of the weights later.

    A stage of a pipeline sends the gradients of its inputs at once, and computes those of its weights when it would
    wait for others (zero-bubble schedules, https://arxiv.org/abs/2401.10241). No operation is done twice: what both
    parts need, the first computes and passes on. A scan in `f` becomes a scan in each part; a Function is split as
    the operations of its `backward` allow.

    `f` is traced, as under `jax.jit`. All that comes back is a pytree: `jax.jit(partial(split_vjp, f))` is a forward
    pass, and a compiled function may take `backward_input` and a cotangent. `backward_weight` holds no arrays: that of
    one call serves all calls with the same function and shapes, so one `jax.jit(backward_weight)` is compiled once.

    Args:
        f: (weights, inputs) → any pytree of arrays.
        weights: a pytree of arrays of any shapes; leaves that are neither floats nor complex get no gradient.
        inputs: likewise.

    Returns:
        `(output, backward_input, backward_weight)`.
            `backward_input(cotangent)` takes a pytree like the output, with arrays of its shapes and dtypes (None
            for integers), and returns `(grad_inputs, pending)`. `backward_weight(pending)` returns `grad_weights`.
            Gradients are pytrees like `inputs` and `weights`, None in place of integers. `pending` is a pytree of
            arrays whose structure depends on `f` and the shapes alone, under `jax.jit` and without it.

    Raises:
        ArgumentError: for a leaf that is not an array, a cotangent of another structure, shape or dtype than the
            output, and a `pending` of another function.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnjax import split_vjp
        >>> layer = lambda weights, x: jnp.tanh(x @ weights)
        >>> out, backward_input, backward_weight = split_vjp(layer, jnp.eye(2), jnp.ones((3, 2)))
        >>> grad_inputs, pending = backward_input(jnp.ones((3, 2)))  # to be sent to the stage before
        >>> backward_weight(pending).shape, grad_inputs.shape
        ((2, 2), (3, 2))
    """
    arrays, form = [], []
    for name, tree in (("weights", weights), ("inputs", inputs)):
        for path, leaf in named_leaves(tree):
            if not (is_tensor(leaf) or isinstance(leaf, int | float | complex)):
                raise messages.leaf(name, path, leaf)
        leaves, rest = split(jax.tree.map(jnp.asarray, tree), lambda x: x is not None)
        arrays.append(leaves)
        form.append(rest)
    n_weights, values = len(arrays[0]), [*arrays[0], *arrays[1]]
    perturbed = [is_inexact(x) for x in values]
    outputs: list[Any] = []
    parts: list[Partitioned] = []

    def forward(*values: Any) -> Any:
        """Return the leaves of the output and the residuals of backward."""

        def of_perturbed(*perturbed_values: Any) -> Any:
            source = iter(perturbed_values)
            full = [next(source) if m else x for m, x in zip(perturbed, values, strict=True)]
            return f(form[0].fill(full[:n_weights]), form[1].fill(full[n_weights:]))

        out, pullback = jax.vjp(of_perturbed, *(x for x, m in zip(values, perturbed, strict=True) if m))
        structure: Any
        leaves, structure = jax.tree.flatten(out)
        types = [jax.typeof(x) for x in leaves]
        outputs.append((structure, types))

        def backward(*cotangents: Any) -> Any:
            inexact = iter(cotangents)
            filled = [next(inexact) if is_inexact(t) else np.zeros(t.shape, jax.dtypes.float0) for t in types]
            return pullback(structure.unflatten(filled))

        traced_backward = trace("backward", backward, *(t.to_ct_aval() for t in types if is_inexact(t)))
        if any(map(is_ref, traced_backward.closed_over)):
            raise messages.ref()
        n = sum(perturbed[:n_weights])
        in_first = [i >= n for i in range(sum(perturbed))]
        n_inputs = len(open_jaxpr(traced_backward.jaxpr).invars)
        parts.append(partition_program(traced_backward.jaxpr, in_first, [False] * n_inputs))
        return leaves, traced_backward.closed_over

    traced = trace("split_vjp", forward, *values)
    leaves, residuals = traced(traced.closed_over, *values)
    (structure, types), (first, second, pending) = outputs[0], parts[0]
    name = _read_name((traced.jaxpr, first, second), form[0], perturbed[:n_weights])
    backward = _SplitBackward(
        name, first, second, structure, types, pending, form, (perturbed[:n_weights], perturbed[n_weights:])
    )
    return structure.unflatten(leaves), BackwardInput(residuals, backward), BackwardWeight((), backward)


@dataclass(frozen=True, eq=False)
class _SplitBackward:
    """Both parts of a backward pass. Objects that compute the same are equal, so that JAX compiles them once."""

    name: str
    first: Any
    second: Any
    structure: Any  # of the output
    types: Sequence[Any]  # of its leaves
    pending: Sequence[Any]  # the types of the residuals that the first part passes on
    form: Sequence[Split]  # of weights and inputs
    perturbed: Sequence[Sequence[bool]]  # which of their arrays get a gradient

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _SplitBackward) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self.name)

    @functools.cached_property
    def _key(self) -> Any:
        return identify((self.first, self.second)), self.structure, self.types, self.perturbed, tuple(self.form)


class _Arrays:
    """Pytree of arrays and the backward pass that they belong to."""

    def __init__(self, arrays: Sequence[Any], backward: _SplitBackward) -> None:
        self.arrays, self.backward = list(arrays), backward

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(
            cls, lambda self: (self.arrays, self.backward), lambda backward, xs: cls(xs, backward)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.arrays)} arrays of {self.backward.name})"


class BackwardInput(_Arrays):
    """First part of the backward pass, with the residuals of `f`."""

    def __call__(self, cotangent: Any) -> tuple[Any, Pending]:
        backward = self.backward
        cotangents = _check_cotangent(cotangent, backward.structure, backward.types)
        results = jaxpr_as_fun(backward.first)(*self.arrays, *cotangents)
        n = sum(backward.perturbed[1])
        return _merge(backward.form[1], backward.perturbed[1], results[:n]), Pending(results[n:], backward)


class Pending(_Arrays):
    """Residuals from which the gradients of the weights are computed."""


class BackwardWeight(_Arrays):
    """Second part of the backward pass; it holds no arrays."""

    def __call__(self, pending: Any) -> Any:
        if not isinstance(pending, Pending) or pending.backward.name != self.backward.name:
            raise messages.pending(f"what backward_input returned ({self.backward.name})", describe(pending))
        backward = pending.backward  # of the trace that it comes from
        for at, (x, expected) in enumerate(zip(pending.arrays, backward.pending, strict=True)):
            if x.shape != expected.shape or x.dtype != expected.dtype:
                raise messages.pending(f"array {at} of {messages.describe_type(expected)}", messages.describe_type(x))
        return _merge(backward.form[0], backward.perturbed[0], jaxpr_as_fun(backward.second)(*pending.arrays))


def _check_cotangent(cotangent: Any, structure: Any, types: Sequence[Any]) -> list[Any]:
    """Return the arrays of a cotangent without those of integers; raise if it does not match the output."""
    whole = structure.unflatten(range(len(types)))
    expected: Any
    numbers, expected = jax.tree.flatten(whole, is_leaf=lambda x: x is None)
    leaves, got = jax.tree.flatten(cotangent, is_leaf=lambda x: x is None)
    if got != expected:
        raise messages.cotangent_structure(structure, jax.tree.structure(cotangent))
    paths = {i: path for path, i in named_leaves(whole)}
    cotangents = []
    for number, leaf in zip(numbers, leaves, strict=True):
        if number is None:
            if leaf is not None:
                raise messages.cotangent_structure(structure, jax.tree.structure(cotangent))
            continue
        path, want = paths[number], types[number]
        if not is_inexact(want):
            if leaf is not None and getattr(leaf, "dtype", None) != jax.dtypes.float0:
                raise messages.cotangent_leaf(path, "None, as it is of integers", leaf)
            continue
        if not (is_tensor(leaf) or isinstance(leaf, int | float | complex)):
            raise messages.cotangent_leaf(path, want, leaf)
        array = jnp.asarray(leaf, want.dtype) if isinstance(leaf, int | float) else jnp.asarray(leaf)
        axes = varying(want), varying(jax.typeof(array))
        if array.shape != want.shape or array.dtype != want.dtype or axes[1] - axes[0]:
            raise messages.cotangent_leaf(path, want, array)
        cotangents.append(jax.lax.pcast(array, tuple(axes[0] - axes[1]), to="varying") if axes[0] - axes[1] else array)
    return cotangents


def _merge(form: Split, perturbed: Sequence[bool], grads: Sequence[Any]) -> Any:
    source = iter(grads)
    return form.fill([next(source) if m else None for m in perturbed], other_leaves=None)


def _read_name(programs: Sequence[Any], form: Split, perturbed: Sequence[bool]) -> str:
    """Return a name that is the same whenever a function is traced again; other functions usually have other names.

    It is for messages only: programs are not compared by it.
    """
    text = re.sub(r"0x\w+", "", "".join(map(str, programs)) + f"{form} {list(perturbed)}")
    return f"program {hashlib.sha256(text.encode()).hexdigest()[:12]}"
