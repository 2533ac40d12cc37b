"""Recurrences: loops that read and write memory row after row are scans, whose rows are inputs and outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fnjax.triton.language as tl
from fnjax import triton

B, T, C = 2, 12, 8


@triton.jit
def several_kernel(x_ptr, a_ptr, out_ptr, sum_ptr, T, C, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr):
    """Two carried blocks, and three stores of which two are to one array."""
    row, lanes = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < C
    a = tl.load(a_ptr + lanes, mask=mask, other=0.0)
    h, total = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    pointer = x_ptr + row * T * C + lanes + (T - 1) * C * BACKWARDS
    for i in range(T):
        t = T - 1 - i if BACKWARDS else i
        x = tl.load(pointer, mask=mask, other=0.0)
        h = a * h + x
        total += tl.exp(-h * h)
        tl.store(out_ptr + (row * 2 * T + t) * C + lanes, h, mask=mask)
        tl.store(out_ptr + (row * 2 * T + T + t) * C + lanes, x * h, mask=mask)
        tl.store(sum_ptr + (row * T + t) * C + lanes, total, mask=mask)
        pointer += -C if BACKWARDS else C


def several(x, a, backwards=False, block=16):
    b, t, c = x.shape
    empty = jnp.empty((b, 2, t, c)), jnp.empty((b, t, c))
    grid = triton.cdiv(c, block), b
    return several_kernel[grid](x, a, *empty, t, c, BACKWARDS=backwards, BLOCK=block)


def several_twin(x, a, backwards=False):
    def step(carry, row):
        h, total = carry
        h = a * h + row
        total = total + jnp.exp(-h * h)
        return (h, total), (h, row * h, total)

    start = jnp.zeros_like(x[:, 0]), jnp.zeros_like(x[:, 0])
    _, (h, product, total) = lax.scan(step, start, x.swapaxes(0, 1), reverse=backwards)
    return jnp.stack([h, product], 1).transpose(2, 1, 0, 3), total.swapaxes(0, 1)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_recurrence_is_a_scan(backwards):
    """Values, gradients and memory are those of lax.scan, also where blocks overhang the rows."""
    x, a = jax.random.normal(jax.random.key(0), (2, 300, 40)), jax.random.uniform(jax.random.key(1), (40,))

    def measured(function):
        def loss(x, a):
            both, total = function(x, a, backwards)
            return (both[:, 0] * jnp.cos(both[:, 1])).sum() + total.sum()

        compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(x, a).compile()
        return compiled(x, a), compiled.memory_analysis().temp_size_in_bytes

    found, used = measured(several)
    wanted, needed = measured(several_twin)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)
    assert used < 2 * needed


@triton.jit
def gates_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    """A gated recurrence: the gates are columns of one row."""
    lanes, h = tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(T):
        row = x_ptr + t * 3 * C + lanes
        keep = tl.sigmoid(tl.load(row + C) - h)
        h = keep * h + (1 - keep) * tl.load(row + 2 * C) * tl.load(row)
        tl.store(out_ptr + t * C + lanes, h)


def test_columns_of_one_row_are_not_copied():
    """Values, gradients and the memory of both are those of lax.scan."""
    x = jax.random.normal(jax.random.key(0), (40, 3, 64))

    def twin(x):
        def step(h, row):
            keep = jax.nn.sigmoid(row[1] - h)
            return (keep * h + (1 - keep) * row[2] * row[0],) * 2

        return lax.scan(step, jnp.zeros(64), x)[1]

    def launch(x):
        return gates_kernel[(1,)](x, jnp.empty((40, 64)), 40, C=64)

    def gradient(function):
        return jax.grad(lambda x: jnp.sin(function(x)).sum())

    for pair in ((launch, twin), (gradient(launch), gradient(twin))):
        ours, theirs = (jax.jit(function).lower(x).compile() for function in pair)
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
        used, needed = (compiled.memory_analysis().temp_size_in_bytes for compiled in (ours, theirs))
        assert used < 2 * needed


@triton.jit
def in_place_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(T):
        pointer = x_ptr + (row * T + t) * C + lanes
        h = tl.exp(-h * h) + tl.load(pointer)
        tl.store(pointer, h)
        h += tl.load(pointer)  # of this iteration


@triton.jit
def columns_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(T):
        at = (row * C + lanes) * T + t
        h = tl.exp(-h * h) + tl.load(x_ptr + at)
        tl.store(out_ptr + at, h)


@triton.jit
def nested_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for i in range(T // 6):
        h = h * 0.5 + 1
        for j in range(6):
            at = (row * T + i * 6 + j) * C + lanes
            h = tl.exp(-h * h) + tl.load(x_ptr + at)
            tl.store(out_ptr + at, h)


@triton.jit
def uneven_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    """Each program has its own iterations; neighbours are read under masks, and a mask of values decides on stores."""
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(row, T - 2 * row):
        at = (row * T + t) * C + lanes
        before = tl.load(x_ptr + at - C, mask=(t > 0) & (lanes < 6), other=0.5)
        h = tl.exp(-h * h) + tl.load(x_ptr + at) + before
        tl.store(out_ptr + at, h)
        tl.store(out_ptr + at, 2 * h, mask=h > 1)


@triton.jit
def previous_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    """An iteration reads what the one before has stored."""
    row, lanes = tl.program_id(0), tl.arange(0, C)
    for t in range(1, T):
        h = tl.load(out_ptr + (row * T + t - 1) * C + lanes)
        tl.store(out_ptr + (row * T + t) * C + lanes, tl.exp(-h * h) + tl.load(x_ptr + (row * T + t) * C + lanes))


@triton.jit
def others_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    """An iteration reads what other lanes of it have stored."""
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(T):
        h = tl.exp(-h * h) + tl.load(x_ptr + (row * T + t) * C + lanes)
        tl.store(out_ptr + (row * T + t) * C + lanes, h)
        h += tl.load(out_ptr + (row * T + t) * C + (lanes + 1) % C)


@triton.jit
def overlapping_kernel(x_ptr, out_ptr, T, C: tl.constexpr):
    """Iterations write over one another."""
    row, lanes, h = tl.program_id(0), tl.arange(0, C), tl.zeros((C,), tl.float32)
    for t in range(T):
        h = tl.exp(-h * h) + tl.load(x_ptr + row * T * C + t * 2 + lanes)
        tl.store(out_ptr + row * T * C + t * 2 + lanes, h)
        tl.store(out_ptr + row * T * C + T * C // 2 + lanes, h)


STREAMED = in_place_kernel, columns_kernel, nested_kernel, uneven_kernel
CARRIED = previous_kernel, others_kernel, overlapping_kernel


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", [*STREAMED, *CARRIED], ids=lambda kernel: kernel.fn.__name__)
def test_iterations_may_depend_on_each_other(kernel):
    """Values are those of program after program, gradients those of differences; memory is carried where it must be."""
    x, out, dx, dout = (jax.random.normal(jax.random.key(i), (B, T, C)) for i in range(4))

    def launch(x, out):
        return jax.tree.leaves(kernel[(B,)](x, out, T, C=C))

    checked = jax.tree.leaves(kernel.check[(B,)](x, out, T, C=C).outputs)
    for found, wanted in zip(jax.jit(launch)(x, out), checked, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert (kernel in CARRIED) == any(n >= B * T * C for n in carried_sizes(jax.make_jaxpr(launch)(x, out).jaxpr))
    loss = jax.jit(lambda x, out: sum(jnp.sin(y).sum() for y in launch(x, out)))
    gx, gout = jax.jit(jax.grad(loss, (0, 1)))(x, out)
    difference = (loss(x + 1e-3 * dx, out + 1e-3 * dout) - loss(x - 1e-3 * dx, out - 1e-3 * dout)) / 2e-3
    np.testing.assert_allclose((gx * dx).sum() + (gout * dout).sum(), difference, rtol=1e-2, atol=2e-2)


def carried_sizes(jaxpr):
    """Yield the sizes of what all scans of a program carry: it has the same shape in the body."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if not hasattr(inner, "eqns"):
                continue
            yield from carried_sizes(inner)
            if equation.primitive.name == "scan":
                pairs = zip(equation.outvars, inner.outvars, strict=True)
                yield from (a.aval.size for a, b in pairs if a.aval.shape == b.aval.shape)


@triton.jit
def unknown_kernel(x_ptr, out_ptr, n, C: tl.constexpr):
    lanes, h = tl.arange(0, C), tl.zeros((C,), tl.float32)
    pointer = x_ptr + lanes
    for t in range(n):
        h = tl.exp(-h * h) + tl.load(pointer)
        tl.store(out_ptr + t * C + lanes, h)
        pointer += C


@pytest.mark.parametrize("n", [0, 7, T, T + 3])
def test_the_number_of_iterations_may_be_unknown(n):
    """Rows are updated in place, without a copy of memory, where it is known when it runs; others are dropped."""
    x, out = (jax.random.normal(jax.random.key(i), (T, C)) for i in range(2))
    launch = jax.jit(lambda x, out, n: unknown_kernel[(1,)](x, out, n, C=C))
    assert "scatter" not in launch.lower(x, out, n).as_text()
    _, wanted = lax.scan(lambda h, row: (jnp.exp(-h * h) + row,) * 2, jnp.zeros(C), x)
    np.testing.assert_allclose(launch(x, out, n), jnp.concatenate([wanted[:n], out[n:]]), rtol=1e-6)
    many = jnp.zeros((4000, C))
    memory = launch.lower(many, many, n).compile().memory_analysis()
    assert memory.temp_size_in_bytes < many.nbytes / 10
