"""Matrix product of two blocks; leading axes (grid, loops) become batches or rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values.affine import leading
from fnjax.triton.values.arithmetic import cast, where
from fnjax.triton.values.shapes import trans
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Guarded, Tensor, canonical
from fnjax.triton.values.types import TypeLike, as_type, bfloat16, constexpr, float16, float32, float64, int32


def dot(
    input: Tensor,
    other: Tensor,
    acc: Tensor | None = None,
    input_precision: object = None,
    allow_tf32: object = None,
    max_num_imprecise_acc: object = None,
    out_dtype: TypeLike = float32,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
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
    guards = [t.mask for t in (a, b) if isinstance(t, Guarded)]
    a, b = (t.inner if isinstance(t, Guarded) else t for t in (a, b))
    summed = int32 if a.dtype.is_int() else float64 if a.dtype == float64 else float32
    wide = summed if a.dtype.is_int() or a.dtype.is_fp8() else a.dtype
    x, y = (t.filled().astype(canonical(wide)) for t in (a, b))
    result = Tensor(product(x, y, canonical(summed)), summed, (*a.shape[:-1], b.shape[-1]))
    if current().vectorized_loops:  # a vectorised loop may contract over its axis
        result.factors = x, y, canonical(summed)
    for mask in guards:
        result = where(mask, result, 0)
    if acc is not None:
        return acc + (result if acc.dtype == summed else cast(result, acc.dtype))
    out = as_type(out_dtype)
    return cast(result, out) if out in (float16, bfloat16) else result


_FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "bf16": "bfloat16", "fp16": "float16"}
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # E2M1, by the lower three bits


def dot_scaled(
    lhs: Tensor,
    lhs_scale: Tensor | None,
    lhs_format: str | constexpr,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    rhs_format: str | constexpr,
    acc: Tensor | None = None,
    fast_math: bool = False,
    lhs_k_pack: bool = True,
    rhs_k_pack: bool = True,
    out_dtype: object = float32,
) -> Tensor:
    """Return the matrix product of two blocks in microscaling formats (OCP MX), computed in float32.

    Args:
        lhs: a block of 4-bit floats in pairs, 8-bit floats, or 16-bit floats.
        lhs_scale: for each row and 32 columns a power of two, as its exponent plus 127; None for none.
        lhs_format: "e2m1", "e4m3", "e5m2", "bf16" or "fp16".
        rhs: likewise.
        rhs_scale: the scales of the columns of `rhs`, one row for each.
        rhs_format: as `lhs_format`.
        acc: is added.
        fast_math: ignored.
        lhs_k_pack: pairs of 4-bit floats are along the contracted axis.
        rhs_k_pack: likewise.
        out_dtype: float32.

    Raises:
        TypeError: the format is not known, or the shapes do not fit.
    """
    x = _scaled(lhs, lhs_scale, lhs_format, 1, 1 if lhs_k_pack else 0)
    y = _scaled(rhs, rhs_scale, rhs_format, 0, 0 if rhs_k_pack else 1)
    if x.shape[-1] != y.shape[-2]:
        raise TypeError(f"tl.dot_scaled of blocks of shape {x.shape[-2:]} and {y.shape[-2:]}")
    result = Tensor(product(x, y, np.dtype("float32")), float32, (x.shape[-2], y.shape[-1]))
    return result if acc is None else acc + result


def _scaled(block: Tensor, scale: Tensor | None, kind: str | constexpr, contracted: int, packed: int) -> jax.Array:
    """Return a block of a microscaling format in float32.

    Args:
        block: the block.
        scale: its scales, or None.
        kind: the format.
        contracted: the axis that is contracted.
        packed: the axis along which pairs of 4-bit floats are packed.
    """
    kind = getattr(kind, "value", kind)
    data = block.filled()
    if kind == "e2m1":
        pairs = jnp.stack([data & 15, (data >> 4) & 15], leading() + packed + 1).astype(jnp.int32)
        sizes = [n * 2 if d == leading() + packed else n for d, n in enumerate(data.shape)]
        pairs = pairs.reshape(sizes)
        wide = jnp.where(pairs < 8, 1, -1) * jnp.asarray(_FP4)[pairs & 7]
    elif kind in _FORMATS:
        target = jnp.dtype(_FORMATS[kind])
        wide = (data if data.dtype == target else lax.bitcast_convert_type(data, target)).astype(jnp.float32)
    else:
        raise TypeError(f"tl.dot_scaled knows e2m1, {', '.join(_FORMATS)}, not {kind}")
    if scale is None:
        return wide
    exponents = scale.filled().astype(jnp.int32) - 127
    factors = jnp.where(exponents == 128, jnp.nan, jnp.ldexp(jnp.float32(1), exponents))
    factors = jnp.repeat(factors, wide.shape[leading() + contracted] // scale.shape[1], leading() + 1)
    return wide * (factors if contracted else jnp.swapaxes(factors, -1, -2))


def product(x: jax.Array, y: jax.Array, kind: np.dtype[Any], over: int | None = None) -> jax.Array:
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
    of_x, of_y = ([d for d in range(rank - 2) if d >= leading() or a.shape[d] > 1] for a in (x, y))
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
