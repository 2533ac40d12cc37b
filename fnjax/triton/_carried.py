"""What a loop hands from turn to turn: the tensors that a value is made of, as arrays or as forms that move evenly."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._jax.jax_internals import varying
from fnjax._jax.one_way import one_way
from fnjax.triton import _types as types
from fnjax.triton._forms import LEAD, Form
from fnjax.triton._memory import Choice, Pointer
from fnjax.triton._state import KernelError
from fnjax.triton._tensor import Tensor
from fnjax.triton._values import as_tensor, of_form


@dataclasses.dataclass
class Carried:
    """How a part of a name's value goes from turn to turn: as an array of a type, or moving by `step` each turn."""

    dtype: types.dtype
    shape: tuple
    data: tuple  # the array's shape
    step: Form | None = None


def leaves(value):
    """The tensors that a value is made of; numbers of Python's are such tensors too."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, bool | int | float | np.number):
        return [as_tensor(value)]
    if isinstance(value, Pointer):
        return [value.offset]
    if isinstance(value, Choice):
        return [value.truth, *leaves(value.yes), *leaves(value.no)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    if hasattr(value, "parts"):
        return [leaf for item in value.parts() for leaf in leaves(item)]
    return []


def rebuilt(value, given):
    """The value with other tensors, taken from an iterator."""
    if isinstance(value, Tensor | bool | int | float | np.number):
        return next(given)
    if isinstance(value, Pointer):
        return Pointer(value.buffer, value.element, next(given))
    if isinstance(value, Choice):
        return Choice(next(given), rebuilt(value.yes, given), rebuilt(value.no, given))
    if isinstance(value, tuple | list):
        return type(value)(rebuilt(item, given) for item in value)
    if hasattr(value, "parts"):
        return value.replaced([rebuilt(item, given) for item in value.parts()])
    return value


def skeleton(value):
    """What of a value a loop does not carry: it must stay as it is."""
    if isinstance(value, Tensor | bool | int | float | np.number):
        return "number"
    if isinstance(value, Pointer):
        return ("pointer", value.buffer)
    if isinstance(value, Choice):
        return (skeleton(value.yes), skeleton(value.no))
    if isinstance(value, tuple | list):
        return tuple(map(skeleton, value))
    if hasattr(value, "parts"):
        return (type(value).__name__, *map(skeleton, value.parts()))
    return value


def assigned(statements):
    """Names that statements set, in their order."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


def widened(spec, leaf):
    """What an earlier trace found, for another start."""
    if spec.step is not None:
        return dataclasses.replace(spec) if leaf.form is not None else Carried(leaf.dtype, leaf.shape, full_shape(leaf))
    rank = len(spec.shape)
    data = np.broadcast_shapes(wide(spec.data, rank), wide(full_shape(leaf), rank))
    return dataclasses.replace(spec, data=data)


def of_sym(count, factor):
    return Form(np.zeros((1,) * LEAD, np.int64), syms=((count, int(factor)),))


def counted(count, factor):
    return Tensor(jnp.asarray(count.value * factor).reshape((1,) * LEAD), types.int32, ())


def advanced(leaf, spec, count):
    """A leaf that moves evenly, as turn `count` finds it."""
    step = int(spec.step.base.flat[0])
    return of_form(leaf.form.plus(of_sym(count, step)) if step else leaf.form, leaf.dtype)


def equal(a, b):
    return (
        a.strides == b.strides
        and dict(a.syms) == dict(b.syms)
        and np.broadcast_shapes(a.base.shape, b.base.shape) is not None
        and bool((a.base == b.base).all())
    )


def ranked(data, rank):
    return data.reshape(data.shape[:LEAD] + (1,) * (LEAD + rank - data.ndim) + data.shape[LEAD:])


def wide(shape, rank):
    return shape[:LEAD] + (1,) * (LEAD + rank - len(shape)) + shape[LEAD:]


def full_shape(leaf):
    """The shape of a leaf's array."""
    if leaf.form is not None:
        return leaf.form.spread
    return tuple(leaf.data.shape)


def alike(arrays, buffers):
    """Arrays that a loop carries: inside of shard_map all vary where any buffer does, at its start and after a turn."""
    on = frozenset().union(*(varying(jax.typeof(x)) for x in (*arrays, *buffers)))
    missing = [tuple(on - varying(jax.typeof(x))) for x in arrays]
    return [lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(arrays, missing, strict=True)]


def forward_only(carry, source, node):
    """What a loop of unknown length leaves; reverse mode through it is an error that names it."""
    word, remedy = "while", ""
    if isinstance(node, ast.For):
        word, remedy = "for", ", or give the bound as a number of Python's (under jax.jit: static_argnums)"
    text = (
        f"kernel {source.name}, line {node.lineno} of {source.file}: Reverse-mode differentiation does not work "
        f"through this `{word}`: how often it turns is known when it runs only. Launch the kernel in the forward of a "
        f"fnjax.Function that has a backward{remedy}. jax.jvp works."
    )
    arrays, structure = jax.tree.flatten(carry)
    return jax.tree.unflatten(structure, one_way(arrays, KernelError, text))
