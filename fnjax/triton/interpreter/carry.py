"""Carried values of loops: the tensors that a value consists of, as arrays or as affine values with a constant step."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._primitives.jax_internals import varying
from fnjax.triton.interpreter.forward_only import forbid_transpose
from fnjax.triton.values import types
from fnjax.triton.values.affine import LEAD, Affine
from fnjax.triton.values.arithmetic import as_tensor, of_affine
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.memory import Pointer, SelectedPointer
from fnjax.triton.values.tensor import Tensor


@dataclasses.dataclass
class Carried:
    """Type of one carried leaf: an array, or an affine value that grows by `step` in each iteration.

    Attributes:
        dtype: the type.
        shape: the block's shape.
        data: the array's shape.
        step: an affine expression; "unknown" before the first iteration is traced; None for an array.
    """

    dtype: types.dtype
    shape: tuple
    data: tuple  # the array's shape
    step: Affine | None = None


def leaves(value):
    """Return the tensors that a value consists of; Python numbers become tensors."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, bool | int | float | np.number):
        return [as_tensor(value)]
    if isinstance(value, Pointer):
        return [value.offset]
    if isinstance(value, SelectedPointer):
        return [value.mask, *leaves(value.yes), *leaves(value.no)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    if hasattr(value, "parts"):
        return [leaf for item in value.parts() for leaf in leaves(item)]
    return []


def rebuilt(value, given):
    """Return the value with its tensors replaced by those of an iterator: the inverse of `leaves`."""
    if isinstance(value, Tensor | bool | int | float | np.number):
        return next(given)
    if isinstance(value, Pointer):
        return value.at(next(given))
    if isinstance(value, SelectedPointer):
        return SelectedPointer(next(given), rebuilt(value.yes, given), rebuilt(value.no, given))
    if isinstance(value, tuple | list):
        items = [rebuilt(item, given) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if hasattr(value, "parts"):
        return value.replaced([rebuilt(item, given) for item in value.parts()])
    return value


def skeleton(value):
    """Return the structure of a value without its tensors; a loop must not change it."""
    if isinstance(value, Tensor | bool | int | float | np.number):
        return "number"
    if isinstance(value, Pointer):
        return ("pointer", value.buffer)
    if isinstance(value, SelectedPointer):
        return (skeleton(value.yes), skeleton(value.no))
    if isinstance(value, tuple | list):
        return tuple(map(skeleton, value))
    if hasattr(value, "parts"):
        return (type(value).__name__, *map(skeleton, value.parts()))
    return value


def assigned(statements):
    """Return the names that statements set, in their order."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


def widened(spec, leaf):
    """Return the type of a leaf from an earlier trace, widened to include the leaf's present value."""
    if spec.step is not None:
        steps = leaf.affine is not None
        return dataclasses.replace(spec) if steps else Carried(leaf.dtype, leaf.shape, full_shape(leaf))
    rank = len(spec.shape)
    data = np.broadcast_shapes(wide(spec.data, rank), wide(full_shape(leaf), rank))
    return dataclasses.replace(spec, data=data)


def of_variable(count, factor):
    """Return loop variable · factor as an affine expression."""
    return Affine(np.zeros((1,) * LEAD, np.int64), terms=((count, int(factor)),))


def counted(count, factor):
    """Return loop variable · factor as a scalar tensor, for loops whose number of iterations is unknown."""
    return Tensor(jnp.asarray(count.value * factor).reshape((1,) * LEAD), types.int32, ())


def advanced(leaf, spec, count):
    """Return the value in iteration `count` of an affine leaf with a constant step."""
    step = int(spec.step.base.flat[0])
    return of_affine(leaf.affine.plus(of_variable(count, step)) if step else leaf.affine, leaf.dtype)


def equal(a, b):
    """Return True where two affine expressions are the same."""
    return (
        a.strides == b.strides
        and dict(a.terms) == dict(b.terms)
        and np.broadcast_shapes(a.base.shape, b.base.shape) is not None
        and bool((a.base == b.base).all())
    )


def ranked(data, rank):
    """Return an array whose block has `rank` axes."""
    return data.reshape(data.shape[:LEAD] + (1,) * (LEAD + rank - data.ndim) + data.shape[LEAD:])


def wide(shape, rank):
    """Return the shape of an array whose block has `rank` axes."""
    return shape[:LEAD] + (1,) * (LEAD + rank - len(shape)) + shape[LEAD:]


def full_shape(leaf):
    """Return the shape of a leaf's array."""
    if leaf.affine is not None:
        return leaf.affine.array_shape
    return tuple(leaf.data.shape)


def alike(arrays, buffers):
    """Return arrays that are device-varying wherever one of them or of the buffers is, as a loop's carry must be.

    This matters inside of shard_map only: the carry must have one type before the loop and after each iteration.
    """
    on = frozenset().union(*(varying(jax.typeof(x)) for x in (*arrays, *buffers)))
    missing = [tuple(on - varying(jax.typeof(x))) for x in arrays]
    return [lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(arrays, missing, strict=True)]


def forward_only(carry, source, node):
    """Return the results of a loop with an unknown number of iterations, which only forward mode can differentiate.

    Reverse mode through them raises a KernelError that names the loop.
    """
    word, remedy = "while", ""
    if isinstance(node, ast.For):
        word, remedy = "for", ", or give the bound as a number of Python's (under jax.jit: static_argnums)"
    text = (
        f"kernel {source.name}, line {node.lineno} of {source.file}: Reverse-mode differentiation does not work "
        f"through this `{word}`: how often it turns is known when it runs only. Launch the kernel in the forward of a "
        f"fnjax.Function that has a backward{remedy}. jax.jvp works."
    )
    arrays, structure = jax.tree.flatten(carry)
    return jax.tree.unflatten(structure, forbid_transpose(arrays, KernelError, text))
