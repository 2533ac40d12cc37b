"""Atomics on rows whose numbers are loaded: by rows where a block is inside of one row, else by elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from tests.triton.test_axes import equations, numbers


@triton.jit
def rows_kernel(index_ptr, x_ptr, out_ptr, length, first, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds to columns of rows whose numbers are loaded; rows of negative numbers are left out."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.load(index_ptr + at)
    for start in range(0, columns, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at[:, None] * columns + lanes[None, :], mask=lanes[None, :] < columns, other=0.0)
        mask = (lanes[None, :] < columns) & (row[:, None] >= 0)
        tl.atomic_add(out_ptr + row[:, None] * length + first + lanes[None, :], x, mask=mask)


@pytest.mark.parametrize(
    ("length", "first", "columns", "size", "is_by_rows"),
    [(10, 0, 10, 50, True), (10, 2, 7, 50, True), (10, 6, 7, 50, False), (10, 0, 7, 53, False)],
    ids=["whole rows", "columns of rows", "into the next row", "an incomplete last row"],
)
def test_atomics_by_rows(length, first, columns, size, is_by_rows):
    """One update for each row where all are in one row; numbers outside of memory are dropped."""
    index, x = jnp.array([3, 0, 3, -2, 4, 9], jnp.int32), numbers(6, columns)
    launch = jax.jit(lambda x: rows_kernel[(3,)](index, x, jnp.zeros(size), length, first, columns, ROWS=2, BLOCK=4))
    wanted = np.zeros(200, np.float32)
    for row, values in zip(index, x, strict=True):
        if row >= 0:
            wanted[row * length + first : row * length + first + columns] += values
    np.testing.assert_allclose(launch(x), wanted[:size], rtol=0, atol=1e-6)
    updates = [e for e in equations(jax.make_jaxpr(launch)(x).jaxpr) if e.primitive.name == "scatter-add"]
    assert [e.invars[2].aval.shape for e in updates] == (
        [(6, columns)] if is_by_rows else [(6 * (-(-columns // 4) * 4),)]
    )
