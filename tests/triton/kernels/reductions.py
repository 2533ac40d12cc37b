"""Reductions of rows and blocks, with combining functions of one's own."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def rows_kernel(x_ptr, sum_ptr, max_ptr, min_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
    tl.store(sum_ptr + row, tl.sum(x, axis=0))
    tl.store(max_ptr + row, tl.max(tl.where(mask, x, -float("inf")), axis=0))
    tl.store(min_ptr + row, tl.min(tl.where(mask, x, float("inf")), 0))


@triton.jit
def block_kernel(x_ptr, rows_ptr, columns_ptr, all_ptr, M: tl.constexpr, N: tl.constexpr):
    """Each axis of a block, and all of it."""
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(rows_ptr + tl.arange(0, M), tl.sum(x, axis=1))
    tl.store(columns_ptr + tl.arange(0, N), tl.max(x, axis=0))
    tl.store(all_ptr, tl.sum(x))
    tl.store(all_ptr + 1, tl.max(x))
    tl.store(all_ptr + 2, tl.min(x))


@triton.jit
def centred_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """keep_dims, and methods in place of functions."""
    address = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + address)
    x = x - tl.sum(x, axis=1, keep_dims=True) / N
    x = x - tl.max(x, axis=0, keep_dims=True)
    tl.store(out_ptr + address, x + x.sum(axis=-1)[:, None] + x.min(axis=0)[None, :])


@triton.jit
def positions_kernel(x_ptr, first_ptr, last_ptr, value_ptr, index_ptr, n, BLOCK: tl.constexpr):
    """Of argmax and argmin: of equal elements the first."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + lanes, mask=lanes < n, other=float("-inf"))
    tl.store(first_ptr + row, tl.argmax(x, axis=0))
    tl.store(last_ptr + row, tl.argmin(tl.where(lanes < n, x, float("inf")), axis=0))
    value, index = tl.max(x, axis=0, return_indices=True)
    tl.store(value_ptr + row, value)
    tl.store(index_ptr + row, index)


@triton.jit
def positions_of_block_kernel(x_ptr, index_ptr, value_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(index_ptr + tl.arange(0, M), tl.argmax(x, axis=1))
    smallest, where = tl.min(x, axis=0, return_indices=True)
    tl.store(value_ptr + tl.arange(0, N), smallest + where)


@triton.jit
def integers_kernel(x_ptr, out_ptr, small_ptr, BLOCK: tl.constexpr):
    """Sums of small integers are counted in 32 bits; xor_sum; a mask that is counted."""
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, tl.sum(x, axis=0))
    tl.store(out_ptr + 1, tl.xor_sum(x.to(tl.int32), axis=0))
    tl.store(out_ptr + 2, tl.sum((x > 0).to(tl.int32), axis=0))
    tl.store(out_ptr + 3, tl.max(x, axis=0))
    tl.store(out_ptr + 4, tl.sum(x > 5))
    tl.store(small_ptr, tl.min(x, axis=0).to(tl.int8))


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def combine_moments(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    delta = mean_b - mean_a
    weight = weight_a + weight_b
    share = tl.where(weight == 0.0, 0.0, weight_b / weight)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight


@triton.jit
def reduce_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.reduce(x, 0, multiply))
    tl.store(out_ptr + 1, tl.reduce(x, 0, larger))


@triton.jit
def reduce_rows_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + tl.arange(0, M), tl.reduce(x, axis=1, combine_fn=multiply))


@triton.jit
def moments_kernel(x_ptr, mean_ptr, variance_ptr, n, BLOCK: tl.constexpr):
    """Mean and variance in one pass, reduced as triples."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
    mean, m2, weight = tl.reduce((x, tl.zeros_like(x), mask.to(tl.float32)), 0, combine_moments)
    tl.store(mean_ptr + row, mean)
    tl.store(variance_ptr + row, m2 / weight)


@triton.jit
def half_sum_kernel(x_ptr, out_ptr, wide_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.max(x, axis=0))
    tl.store(wide_ptr, tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + lanes, mask=lanes < n, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride + lanes, numerator / tl.sum(numerator, axis=0), mask=lanes < n)


@triton.jit
def online_softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Rows longer than a block: maximum and sum are carried."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n
    largest, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + lanes, mask=lanes < n, other=float("-inf"))
        new = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new))
        largest = new
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + lanes, mask=lanes < n, other=float("-inf"))
        tl.store(out_ptr + row * n + lanes, tl.exp(x - largest) / total, mask=lanes < n)
