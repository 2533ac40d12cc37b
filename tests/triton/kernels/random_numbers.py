"""Philox, bit for bit."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def rand_kernel(out_ptr, n, seed, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.rand(seed, lanes), mask=lanes < n)


@triton.jit
def rounds_kernel(out_ptr, seed, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + lanes, tl.rand(seed, lanes, n_rounds=7))


@triton.jit
def randn_kernel(out_ptr, n, seed, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.randn(seed, lanes), mask=lanes < n)


@triton.jit
def randint_kernel(out_ptr, four_ptr, seed, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + lanes, tl.randint(seed, lanes))
    a, b, c, d = tl.randint4x(seed, lanes + 1000)
    tl.store(four_ptr + lanes, a)
    tl.store(four_ptr + N + lanes, b)
    tl.store(four_ptr + 2 * N + lanes, c)
    tl.store(four_ptr + 3 * N + lanes, d)


@triton.jit
def four_kernel(out_ptr, seed, N: tl.constexpr):
    lanes = tl.arange(0, N)
    a, b, c, d = tl.rand4x(seed, lanes)
    tl.store(out_ptr + lanes, a)
    tl.store(out_ptr + N + lanes, b)
    a, b, c, d = tl.randn4x(seed, lanes)
    tl.store(out_ptr + 2 * N + lanes, c)
    tl.store(out_ptr + 3 * N + lanes, d)


@triton.jit
def philox_kernel(out_ptr, seed, N: tl.constexpr):
    lanes = tl.arange(0, N)
    counter = lanes.to(tl.uint32)
    a, b, c, d = tl.philox(seed, counter, counter + 1, counter * 0, counter * 0 + 7)
    tl.store(out_ptr + lanes, a)
    tl.store(out_ptr + N + lanes, b)
    tl.store(out_ptr + 2 * N + lanes, c)
    tl.store(out_ptr + 3 * N + lanes, d)


@triton.jit
def seeded_kernel(seed_ptr, out_ptr, N: tl.constexpr):
    """A seed for each program, loaded; offsets in 64 bits."""
    pid = tl.program_id(0)
    seed = tl.load(seed_ptr + pid)
    lanes = tl.arange(0, N)
    tl.store(out_ptr + pid * N + lanes, tl.rand(seed, (pid * N + lanes).to(tl.int64)))


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask)
    keep = tl.rand(seed, lanes) > p
    tl.store(out_ptr + lanes, tl.where(keep, x / (1 - p), 0.0), mask=mask)
