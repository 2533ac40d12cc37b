"""Loads and atomics of rows whose numbers are loaded: by rows where a block is inside of one row, else by elements."""

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
def read_kernel(
    index_ptr, x_ptr, out_ptr, length, first, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, SLANTED: tl.constexpr
):
    """Copies columns of rows whose numbers are loaded; columns are divided among programs, and row 4 is left out."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index_ptr + at)
    mask = (lanes[None, :] < columns) & (row[:, None] != 4)
    if SLANTED:
        mask = mask & (lanes[None, :] > row[:, None])
    x = tl.load(x_ptr + row[:, None] * length + first + lanes[None, :], mask=mask, other=0.5)
    tl.store(out_ptr + lanes[None, :] * 8 + at[:, None], x, mask=lanes[None, :] < columns)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("length", "first", "columns", "size", "slanted", "is_by_rows"),
    [
        (10, 0, 10, 50, False, True),
        (10, 2, 7, 50, True, True),
        (10, 6, 7, 60, False, False),
        (10, 0, 7, 53, False, False),
    ],
    ids=["whole rows", "columns of rows", "into the next row", "an incomplete last row"],
)
def test_loads_by_rows(length, first, columns, size, slanted, is_by_rows):
    """One slice for each row where all are in one row; values, and gradients, where rows are read twice."""
    index, x = jnp.array([1, 0, 3, 2, 4, 4, 3, 3], jnp.int32), numbers(size)
    lanes = first + np.arange(columns)
    left = (np.asarray(index) != 4)[:, None] & (np.arange(columns) > index[:, None] if slanted else True)

    def launch(x):
        options = {"ROWS": 2, "BLOCK": 4, "SLANTED": slanted}
        return read_kernel[(4, 3)](index, x, jnp.zeros((columns, 8)), length, first, columns, **options)

    def twin(x):
        return jnp.where(left, x[index[:, None] * length + lanes], 0.5).T

    for found, wanted in (
        (launch, twin),
        (jax.grad(lambda x: jnp.sin(launch(x)).sum()), jax.grad(lambda x: jnp.sin(twin(x)).sum())),
    ):
        np.testing.assert_allclose(jax.jit(found)(x), wanted(x), rtol=1e-6, atol=1e-6)
    gathers = [e for e in equations(jax.make_jaxpr(launch)(x).jaxpr) if e.primitive.name == "gather"]
    assert [e.outvars[0].aval.shape for e in gathers] == ([(8, columns)] if is_by_rows else [(3, 4, 2, 4)])


@triton.jit
def wrapped_kernel(index_ptr, out_ptr, LENGTH: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr):
    row = tl.load(index_ptr + tl.program_id(0)).to(FIRST)
    tl.atomic_add(out_ptr + (row * LENGTH).to(LAST) + tl.arange(0, 4), 1.0)


@pytest.mark.parametrize(
    ("first", "last", "row", "length"),
    [
        ("int16", "int16", 6554, 10),
        ("int32", "int16", 6554, 10),
        ("int32", "int32", 2**30 + 1, 4),
        ("int32", "int32", -(2**31), 10),
        ("uint32", "uint32", 2**31 + 1, 10),
        ("int64", "int64", 2**30 + 1, 4),
    ],
)
def test_a_product_wraps(first, last, row, length):
    """The row is where the wrapped product begins; one of 64 bits, which JAX may not have, does not wrap."""
    index = np.array([row, 1], np.uint32 if first == "uint32" else np.int32)
    options = {"LENGTH": length, "FIRST": getattr(tl, first), "LAST": getattr(tl, last)}
    found = wrapped_kernel[(2,)](jnp.asarray(index), jnp.zeros(20), **options)
    wanted = np.zeros(20)
    for start in (index.astype(first) * np.array(length, first)).astype(last):
        wanted[start : start + 4] += 1
    np.testing.assert_array_equal(found, wanted)


@triton.jit
def scattered_kernel(index_ptr, x_ptr, out_ptr, N: tl.constexpr, LOAD: tl.constexpr):
    lanes = tl.arange(0, N)
    at = tl.load(index_ptr + lanes).to(tl.int64) * 4096
    if LOAD:
        tl.store(out_ptr + lanes, tl.load(x_ptr + at))
    else:
        tl.atomic_add(out_ptr + at, tl.load(x_ptr + lanes))


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="with 64 bits there are such addresses")
@pytest.mark.parametrize("load", [True, False])
def test_addresses_beyond_32_bits_are_refused(load):
    """Of an array of 2³² elements, loads and atomics by element say what to do."""
    small, large = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in (8, 2**32))
    given = (large, small) if load else (small, large)
    launch = lambda index, x, out: scattered_kernel[(1,)](index, x, out, N=8, LOAD=load)
    with pytest.raises(triton.KernelError, match=r"array of 4294967296 elements takes 64 bits.*jax_enable_x64"):
        jax.eval_shape(launch, jax.ShapeDtypeStruct((8,), jnp.int32), *given)
