"""Matrix product of two blocks; leading axes (grid, loops) become batches or rows."""

import jax.numpy as jnp
from jax import lax

from fnjax.triton.values.affine import LEAD
from fnjax.triton.values.arithmetic import cast
from fnjax.triton.values.shapes import trans
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor, canonical
from fnjax.triton.values.types import as_type, bfloat16, float16, float32, float64, int32


def dot(
    input,
    other,
    acc=None,
    input_precision=None,
    allow_tf32=None,
    max_num_imprecise_acc=None,
    out_dtype=float32,
    trans_a=False,
    trans_b=False,
):
    """Return the matrix product of two blocks, plus `acc`.

    It is accumulated in float32; of integers in int32, of float64 in float64.

    Raises:
        TypeError: the blocks differ in type, or their shapes do not fit.
    """
    a, b = (trans(x) if t else x for x, t in ((input, trans_a), (other, trans_b)))
    if a.dtype != b.dtype and not (a.dtype.is_fp8() and b.dtype.is_fp8()):
        raise TypeError(f"tl.dot takes two blocks of one type, not {a.dtype} and {b.dtype}: convert one with .to()")
    if a.ndim != b.ndim or a.ndim not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise TypeError(f"tl.dot of blocks of shape {a.shape} and {b.shape}")
    summed = int32 if a.dtype.is_int() else float64 if a.dtype == float64 else float32
    wide = summed if a.dtype.is_int() or a.dtype.is_fp8() else a.dtype
    x, y = a.array().astype(canonical(wide)), b.array().astype(canonical(wide))
    x, y = _ranked(x, a.shape), _ranked(y, b.shape)
    result = Tensor(product(x, y, canonical(summed)), summed, (*a.shape[:-1], b.shape[-1]))
    if current().vectorized_loops:  # a vectorised loop may contract over its axis
        result.factors = x, y, canonical(summed)
    if acc is not None:
        return acc + (result if acc.dtype == summed else cast(result, acc.dtype))
    out = as_type(out_dtype)
    return cast(result, out) if out in (float16, bfloat16) else result


def product(x, y, kind, over=None):
    """Return the product over the last two axes of two arrays; leading axes are batches or rows.

    The operands keep their order: swapped ones would give another layout, and cost a transposition.

    Args:
        x: the left operand, leading axes first.
        y: the right operand.
        kind: the dtype of the result.
        over: a leading axis to contract as well, or None.
    """
    if over is not None and 1 in (x.shape[over], y.shape[over]):
        x, y = x.astype(kind).sum(over, keepdims=True), y.astype(kind).sum(over, keepdims=True)
    rank = x.ndim
    of_x, of_y = ([d for d in range(rank - 2) if d >= LEAD or a.shape[d] > 1] for a in (x, y))
    shared = [d for d in of_x if d in of_y and d != over]
    summed = [d for d in of_x if d in of_y and d == over]
    rows, columns = ([d for d in one if d not in other] for one, other in ((of_x, of_y), (of_y, of_x)))
    x, y = (
        x.reshape([*(x.shape[d] for d in of_x), *x.shape[-2:]]),
        y.reshape([*(y.shape[d] for d in of_y), *y.shape[-2:]]),
    )
    contract = ([*map(of_x.index, summed), len(of_x) + 1], [*map(of_y.index, summed), len(of_y)])
    batch = (list(map(of_x.index, shared)), list(map(of_y.index, shared)))
    found = lax.dot_general(x, y, (contract, batch), precision="highest", preferred_element_type=kind)
    order = [*shared, *rows, rank - 2, *columns, rank - 1]
    found = found.transpose(sorted(range(len(order)), key=order.__getitem__))
    sizes = dict(zip(sorted(order), found.shape, strict=True))
    return found.reshape([sizes.get(d, 1) for d in range(rank)])


def _ranked(data, shape):
    """Return an array whose block's axes are all there, in their full size."""
    data = data.reshape(data.shape[:LEAD] + (1,) * (LEAD + len(shape) - data.ndim) + data.shape[LEAD:])
    return jnp.broadcast_to(data, data.shape[:LEAD] + tuple(shape))
