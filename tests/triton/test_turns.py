"""Loops that are run turn by turn, or written out: what they leave behind, and derivatives of what turns read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton


@triton.jit
def even_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Logsumexp: what turns hand on is found by trying."""
    row = tl.program_id(0)
    largest, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row * n + start + tl.arange(0, BLOCK))
        new = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new))
        largest = new
    tl.store(out_ptr + row, largest + tl.log(total))


@triton.jit
def uneven_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Programs have turns of their own number; a name is set in turns only."""
    row = tl.program_id(0)
    total = 1.0
    for i in range(row + 6):
        total = total * tl.load(x_ptr + row * n + i)
        last = total + 1
    tl.store(out_ptr + row, last)


@triton.jit
def while_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, turns = tl.program_id(0), 0
    a = tl.load(x_ptr + row * n)
    while a > 0.1:
        a = a / 2
        turns += 1
        tl.store(out_ptr + row, a)
    tl.store(out_ptr + row, a + turns)


@triton.jit
def nested_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 1.0
    for i in range(6):
        mixed = 1.0
        for j in range(row + 5):
            mixed = mixed * 0.5 + tl.load(x_ptr + row * n + j)
        total = total * mixed + i
        tl.store(out_ptr + row, total)


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize(
    "kernel",
    [while_kernel, *(pytest.param(k, marks=pytest.mark.slow) for k in (even_kernel, uneven_kernel, nested_kernel))],
    ids=lambda k: k.fn.__name__,
)
def test_turns_leave_no_trace(kernel):
    """`jax.checking_leaks` finds nothing after a loop whose types were tried, and the numbers are the same."""
    x = jax.random.uniform(jax.random.key(0), (3, 32))

    def launch(x):
        return kernel[(3,)](x, jnp.empty(3), 32, BLOCK=4)

    def check(f):
        wanted = jax.jit(f)(x)
        jax.clear_caches()
        with jax.checking_leaks():
            found = jax.jit(f)(x)
        np.testing.assert_array_equal(found, wanted)

    check(launch)
    if kernel is not while_kernel:
        check(jax.grad(lambda x: launch(x).sum()))


@triton.jit
def windows_kernel(x_ptr, out_ptr, columns, n, step, BLOCK: tl.constexpr, STORED: tl.constexpr):
    """A product of sums of windows; what turns read lies apart, side by side, over one another, or over the end."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    product = 1.0
    for i in range(3):
        at = i * step + (2 * BLOCK if step < 0 else 0) + lanes
        product = product * tl.sum(tl.load(x_ptr + row * columns + at, mask=at < n, other=0.5))
        if STORED:
            tl.store(x_ptr + row * columns + at, product, mask=at < n)
    tl.store(out_ptr + row, product)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("step", [4, 6, 3, -4, 0])
@pytest.mark.parametrize("n", [12, pytest.param(9, marks=pytest.mark.slow)])
def test_turns_that_are_written_out_read_windows(n, step, stored):
    """Values and gradients are those of slices, wherever the windows of turns lie and whatever turns write."""
    columns, rows, block = 16, 3, 4

    def launch(x):
        found = windows_kernel[(rows,)](x, jnp.empty(rows), columns, n, step, BLOCK=block, STORED=stored)
        return found[-1]

    def twin(x):
        product = jnp.ones(rows)
        for i in range(3):
            at = i * step + (2 * block if step < 0 else 0) + np.arange(block)
            inside = at < n
            window = jnp.where(inside, x[:, np.minimum(at, columns - 1)], 0.5)
            product = product * window.sum(1)
            if stored:
                x = x.at[:, at[inside]].set(jnp.broadcast_to(product[:, None], (rows, inside.sum())))
        return product

    x = jax.random.uniform(jax.random.key(1), (rows, columns), minval=0.5)
    found, wanted = (jax.jit(jax.value_and_grad(lambda x, f=f: f(x).sum()))(x) for f in (launch, twin))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@triton.jit
def extremes_kernel(x_ptr, max_ptr, min_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    kept = tl.arange(0, COLUMNS if AXIS == 0 else ROWS)
    tl.store(max_ptr + kept, tl.max(x, axis=AXIS))
    tl.store(min_ptr + kept, tl.min(x, axis=AXIS))


def extremes(x, axis):
    kept = x.shape[1 - axis]
    return extremes_kernel[(1,)](x, jnp.empty(kept, x.dtype), jnp.empty(kept, x.dtype), *x.shape, AXIS=axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("columns", [1, 4, 8, 64])
def test_extremes_pass_over_nan(columns, axis):
    """NaN comes out where there is nothing else, as of NumPy's fmax; infinities are numbers."""
    x = np.random.default_rng(0).standard_normal((8, columns)).astype(np.float32)
    x[0], x[1], x[2] = np.nan, -np.inf, np.inf
    x[3, ::2], x[4, 0], x[1, -1] = np.nan, np.nan, np.nan
    for found, wanted in zip(extremes(x, axis), (np.fmax, np.fmin), strict=True):
        np.testing.assert_array_equal(found, wanted.reduce(x, axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("columns", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 64))])
def test_extremes_share_their_derivative(columns, axis):
    """Equal elements have equal parts of it, as in JAX; where all are NaN it is zero, in reverse and forward mode."""
    x = jnp.asarray(np.random.default_rng(1).integers(0, 3, (8, columns)), jnp.float32)

    def weighted(both):
        return sum((y * (1 + k + jnp.arange(y.size))).sum() for k, y in enumerate(both))

    def twin(x):
        return weighted((x.max(axis), x.min(axis)))

    found = jax.jit(jax.grad(lambda x: weighted(extremes(x, axis))))(x)
    np.testing.assert_allclose(found, jax.grad(twin)(x), rtol=1e-6)
    tangent = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    ours = jax.jvp(lambda x: weighted(extremes(x, axis)), (x,), (tangent,))[1]
    np.testing.assert_allclose(ours, jax.jvp(twin, (x,), (tangent,))[1], rtol=1e-4, atol=1e-4)
    empty = jax.grad(lambda x: weighted(extremes(x, axis)))(jnp.full_like(x, jnp.nan))
    np.testing.assert_array_equal(empty, 0)


def test_extremes_have_second_derivatives():
    """JAX has none of a reduction with a function of its own."""
    x = jnp.asarray(np.random.default_rng(2).standard_normal((4, 8)), jnp.float32)

    def products(f):
        loss = lambda x: sum((y**3).sum() for y in f(x))
        return jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (jnp.cos(x),)))(x)

    found = products(lambda x: extremes(x, 1))
    for ours, theirs in zip(found, products(lambda x: (x.max(1), x.min(1))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@triton.jit
def resized_kernel(x_ptr, out_ptr):
    """The block pointer of the next iteration has another size."""
    block = tl.make_block_ptr(x_ptr, (8,), (1,), (0,), (8,), (0,))
    total = tl.zeros((8,), tl.float32)
    for i in range(6):
        total = 0.5 * total + tl.load(block, boundary_check=(0,))
        block = tl.make_block_ptr(x_ptr, (7 - i,), (1,), (0,), (8,), (0,))
    tl.store(out_ptr + tl.arange(0, 8), total)


def test_a_loop_that_changes_the_size_of_a_block_pointer_is_refused():
    """Only base and offsets of a block pointer are carried: with the size before the loop, the sum would be wrong."""
    with pytest.raises(triton.KernelError, match="block changes its kind between the iterations of a loop"):
        jax.eval_shape(resized_kernel[(1,)], jnp.ones(8), jnp.zeros(8))


@triton.jit
def selected_rows_kernel(x_ptr, y_ptr, out_ptr, flag):
    """The rows of a block pointer whose base is selected from two arrays; the loop is vectorised."""
    base = tl.where(flag > 0, x_ptr, y_ptr)
    block = tl.make_block_ptr(base, (8, 4), (4, 1), (0, 0), (1, 4), (1, 0))
    total = tl.zeros((1, 4), tl.float32)
    for _ in range(8):
        total += tl.load(block)
        block = tl.advance(block, (1, 0))
    tl.store(out_ptr + tl.arange(0, 4)[None, :], total)


def test_a_block_pointer_into_one_of_two_arrays_is_used_in_a_loop():
    """Its base, a selection between two pointers, gets the axis of a vectorised loop as a pointer does."""
    x = jnp.arange(32, dtype=jnp.float32)
    for flag, chosen in ((1, x), (0, jnp.cos(x))):
        found = selected_rows_kernel[(1,)](x, jnp.cos(x), jnp.zeros(4, jnp.float32), jnp.int32(flag))
        np.testing.assert_allclose(found, chosen.reshape(8, 4).sum(0), rtol=1e-6)


@triton.jit
def three_loops_kernel(x_ptr, weight_ptr, out_ptr, BLOCK: tl.constexpr):
    """The middle loop is vectorised once the outer one is found not to be, in which the inner one was traced before."""
    row, total = tl.program_id(0), 0.0
    weight = tl.load(weight_ptr + tl.arange(0, BLOCK))
    for i in range(2):
        own = 0.0
        for j in range(5):
            h = tl.zeros((BLOCK,), tl.float32)
            for k in range(6):
                h = tl.exp(-h * h) + tl.load(x_ptr + ((row * 2 + i) * 5 + j) * 6 + k) * weight
            own += tl.sum(h, 0)
        total = (total + own) * 0.5
    tl.store(out_ptr + row, total)


def test_what_an_inner_loop_carries_depends_on_the_loops_around():
    """Types that a trace in a vectorised loop of two iterations has found are no start for one of five."""
    x, weight = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 2, 5, 6), (4096,)]))
    found = three_loops_kernel[(3,)](x, weight, jnp.zeros(3), BLOCK=4096)
    h = jnp.zeros((3, 2, 5, 4096))
    for k in range(6):
        h = jnp.exp(-h * h) + x[..., k, None] * weight
    own = h.sum((2, 3))
    np.testing.assert_allclose(found, (own[:, 0] * 0.5 + own[:, 1]) * 0.5, rtol=1e-5)
