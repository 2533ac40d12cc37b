"""The matrix product of two blocks, with the grid's axes as batches or rows."""

import jax.numpy as jnp
from jax import lax

from fnjax.triton._forms import LEAD
from fnjax.triton._shapes import trans
from fnjax.triton._tensor import Tensor, canonical
from fnjax.triton._types import as_type, bfloat16, float16, float32, float64, int32
from fnjax.triton._values import cast


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
    """The matrix product of two blocks, summed in float32 (whole numbers in int32), plus `acc`."""
    a, b = (trans(x) if t else x for x, t in ((input, trans_a), (other, trans_b)))
    if a.dtype != b.dtype and not (a.dtype.is_fp8() and b.dtype.is_fp8()):
        raise TypeError(f"tl.dot takes two blocks of one type, not {a.dtype} and {b.dtype}: convert one with .to()")
    if a.ndim != b.ndim or a.ndim not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise TypeError(f"tl.dot of blocks of shape {a.shape} and {b.shape}")
    summed = int32 if a.dtype.is_int() else float64 if a.dtype == float64 else float32
    wide = summed if a.dtype.is_int() or a.dtype.is_fp8() else a.dtype
    x, y = a.array().astype(canonical(wide)), b.array().astype(canonical(wide))
    x, y = _ranked(x, a.shape), _ranked(y, b.shape)
    batch = a.ndim - 2
    lead = x.shape[:LEAD]
    both = [d for d in range(LEAD) if x.shape[d] == y.shape[d] != 1]
    x = x.reshape([x.shape[d] for d in range(x.ndim) if d >= LEAD or x.shape[d] > 1])
    only_x = [d for d in range(LEAD) if lead[d] > 1 and d not in both]
    only_y = [d for d in range(LEAD) if y.shape[d] > 1 and d not in both]
    y_lead = [d for d in range(LEAD) if y.shape[d] > 1]
    y = y.reshape([y.shape[d] for d in range(y.ndim) if d >= LEAD or y.shape[d] > 1])
    x_lead = [d for d in range(LEAD) if lead[d] > 1]
    nx, ny = len(x_lead), len(y_lead)
    contract = ((nx + batch + 1,), (ny + batch,))
    batched = (
        (*(x_lead.index(d) for d in both), *range(nx, nx + batch)),
        (*(y_lead.index(d) for d in both), *range(ny, ny + batch)),
    )
    found = lax.dot_general(x, y, (contract, batched), precision="highest", preferred_element_type=canonical(summed))
    # Now: both, batch, only_x, m, only_y, n.
    order = {("lead", d): i for i, d in enumerate(both)}
    at = len(both) + batch
    order |= {("lead", d): at + i for i, d in enumerate(only_x)}
    m = at + len(only_x)
    order |= {("lead", d): m + 1 + i for i, d in enumerate(only_y)}
    leads = [d for d in range(LEAD) if ("lead", d) in order]
    found = found.transpose([*(order["lead", d] for d in leads), *range(len(both), at), m, found.ndim - 1])
    shape = (*a.shape[:-1], b.shape[-1])
    sizes = [found.shape[leads.index(d)] if d in leads else 1 for d in range(LEAD)]
    result = Tensor(found.reshape(*sizes, *shape), summed, shape)
    if acc is not None:
        return (result if acc.dtype == summed else cast(result, acc.dtype)) + acc
    out = as_type(out_dtype)
    return cast(result, out) if out in (float16, bfloat16) else result


def _ranked(data, shape):
    data = data.reshape(data.shape[:LEAD] + (1,) * (LEAD + len(shape) - data.ndim) + data.shape[LEAD:])
    return jnp.broadcast_to(data, data.shape[:LEAD] + tuple(shape))
