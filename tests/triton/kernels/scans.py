"""Scans, forwards and backwards, with combining functions of one's own."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def cumsum_kernel(x_ptr, out_ptr, back_ptr, product_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.cumsum(x, axis=0))
    tl.store(back_ptr + lanes, tl.cumsum(x, axis=0, reverse=True))
    tl.store(product_ptr + lanes, tl.cumprod(x, axis=0))


@triton.jit
def cumsum_block_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    address = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + address)
    tl.store(out_ptr + address, tl.cumsum(x, axis=1) - tl.cumsum(x, 0))


@triton.jit
def carried_cumsum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Rows longer than a block: the total is carried, from the end to the start as well."""
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + lanes, mask=lanes < n, other=0.0)
        tl.store(out_ptr + row * n + lanes, tl.cumsum(x, axis=0) + total, mask=lanes < n)
        total += tl.sum(x, axis=0)


@triton.jit
def linear(a, x, b, y):
    return a * b, b * x + y


@triton.jit
def recurrence_kernel(a_ptr, x_ptr, out_ptr, N: tl.constexpr, REVERSE: tl.constexpr):
    """The recurrence h = a h + x, as a scan of pairs."""
    row = tl.program_id(0)
    lanes = row * N + tl.arange(0, N)
    _, h = tl.associative_scan((tl.load(a_ptr + lanes), tl.load(x_ptr + lanes)), 0, linear, reverse=REVERSE)
    tl.store(out_ptr + lanes, h)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def cummax_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    address = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + address)
    tl.store(out_ptr + address, tl.associative_scan(x, axis=1, combine_fn=larger))


@triton.jit
def integers_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.cumsum(x.to(tl.int32), axis=0))
    tl.store(out_ptr + N + lanes, tl.cumsum((x > 0).to(tl.int32), axis=0))


@triton.jit
def sequential_kernel(a_ptr, x_ptr, out_ptr, steps, D: tl.constexpr):
    """A recurrence one step after the other, its state carried by the loop."""
    lanes = tl.program_id(0) * D + tl.arange(0, D)
    width = tl.num_programs(0) * D
    state = tl.zeros((D,), dtype=tl.float32)
    for t in range(steps):
        a = tl.load(a_ptr + t * width + lanes)
        x = tl.load(x_ptr + t * width + lanes)
        state = tl.sigmoid(a) * state + x
        tl.store(out_ptr + t * width + lanes, state)
