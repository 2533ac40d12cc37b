"""Atomics on rows whose numbers are loaded: by rows where a block is inside of one row, else by elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from tests.triton.test_axes import equations, numbers


@triton.jit
def rows_kernel(
    index_ptr, x_ptr, out_ptr, length, first, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, SLANTED: tl.constexpr
):
    """Adds to columns of rows whose numbers are loaded; the first `first` numbers and row 4 are left out."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.load(index_ptr + at)
    for start in range(0, columns, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at[:, None] * columns + lanes[None, :], mask=lanes[None, :] < columns, other=0.0)
        mask = (lanes[None, :] < columns) & (row[:, None] != 4) & (at[:, None] >= first)
        if SLANTED:
            mask = mask & (lanes[None, :] > row[:, None])
        tl.atomic_add(out_ptr + row[:, None] * length + first + lanes[None, :], x, mask=mask)


@pytest.mark.parametrize(
    ("length", "first", "columns", "size", "slanted", "is_by_rows"),
    [
        (10, 0, 10, 50, False, True),
        (10, 2, 7, 50, False, True),
        (10, 6, 7, 50, False, False),
        (10, 0, 7, 53, False, False),
        (10, 0, 10, 50, True, False),
    ],
    ids=["whole rows", "columns of rows", "into the next row", "an incomplete last row", "other columns of each row"],
)
def test_atomics_by_rows(length, first, columns, size, slanted, is_by_rows):
    """One update for each row where all are in one row; numbers outside of memory are dropped."""
    index, x = jnp.array([1, 0, 3, -2, 4, 9, 3, 3], jnp.int32), numbers(8, columns)

    def launch(x):
        options = {"ROWS": 2, "BLOCK": 4, "SLANTED": slanted}
        return rows_kernel[(4,)](index, x, jnp.zeros(size), length, first, columns, **options)

    wanted = np.zeros(200, np.float32)
    for row, values in list(zip(np.asarray(index), x, strict=True))[first:]:
        if row not in (-2, 4):
            own = np.where(np.arange(columns) > row, values, 0) if slanted else values
            wanted[row * length + first : row * length + first + columns] += own
    np.testing.assert_allclose(jax.jit(launch)(x), wanted[:size], rtol=0, atol=1e-6)
    updates = [e for e in equations(jax.make_jaxpr(launch)(x).jaxpr) if e.primitive.name == "scatter-add"]
    assert [e.invars[2].aval.shape for e in updates] == (
        [(8, columns)] if is_by_rows else [(8 * (-(-columns // 4) * 4),)]
    )


@triton.jit
def wrapped_kernel(index_ptr, out_ptr, LENGTH: tl.constexpr):
    row = tl.load(index_ptr + tl.program_id(0))
    tl.atomic_add(out_ptr + (row * LENGTH).to(tl.int16) + tl.arange(0, 4), 1.0)


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_a_product_of_16_bits_wraps(kind):
    """Row 6554 of length 10 begins at 4, whether the product has 16 bits or is converted to them."""
    index = np.array([6554, 1], kind)
    found = wrapped_kernel[(2,)](jnp.asarray(index), jnp.zeros(20), LENGTH=10)
    wanted = np.zeros(20)
    for start in (index.astype(np.int32) * 10).astype(np.int16):
        wanted[start : start + 4] += 1
    np.testing.assert_array_equal(found, wanted)
