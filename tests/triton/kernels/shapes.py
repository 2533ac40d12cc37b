"""Blocks that change their shape or their order."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def trans_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    address = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out_ptr + address, tl.trans(x))
    tl.store(out_ptr + M * N + address, x.T)
    tl.store(out_ptr + 2 * M * N + address, tl.trans(x, 1, 0))


@triton.jit
def permute_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + a[:, None, None] * (B * C) + b[None, :, None] * C + c[None, None, :])
    address = c[:, None, None] * (A * B) + a[None, :, None] * B + b[None, None, :]
    tl.store(out_ptr + address, tl.permute(x, 2, 0, 1))
    tl.store(out_ptr + A * B * C + address, tl.permute(x, (2, 0, 1)))
    tl.store(out_ptr + 2 * A * B * C + address, x.permute(2, 0, 1) + tl.trans(x, (2, 0, 1)))


@triton.jit
def reshape_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Rows to halves of rows and back; sums over what reshape made."""
    lanes = tl.arange(0, M * N)
    x = tl.load(x_ptr + lanes)
    halves = tl.reshape(x, (M, 2, N // 2))
    tl.store(out_ptr + tl.arange(0, M * 2), tl.reshape(tl.sum(halves, axis=2), (M * 2,)))
    flat = halves.reshape(M * N)
    tl.store(out_ptr + M * 2 + lanes, tl.view(flat, (M * N,)) + tl.ravel(halves))


@triton.jit
def broadcast_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M))
    y = tl.load(y_ptr + tl.arange(0, N))
    columns = tl.broadcast_to(tl.expand_dims(x, 1), (M, N))
    rows = tl.broadcast_to(y[None, :], [M, N])
    columns, rows = tl.broadcast(columns, rows)
    total = columns * 10 + rows + tl.full((M, N), 0.5, tl.float32) + tl.full((M, 1), value=1, dtype=tl.float32)
    tl.store(out_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], total)


@triton.jit
def join_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """join, split and interleave."""
    lanes = tl.arange(0, N)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)
    both = tl.join(x, y)
    tl.store(out_ptr + tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :], both)
    left, right = tl.split(both)
    tl.store(out_ptr + 2 * N + lanes, left - right)
    tl.store(out_ptr + 3 * N + tl.arange(0, 2 * N), tl.interleave(x, y))


@triton.jit
def pairs_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, N: tl.constexpr):
    """Pairs of neighbours are rotated: reshape, split, join, reshape."""
    row = tl.program_id(0)
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + lanes)
    a, b = tl.split(tl.reshape(x, (N // 2, 2)))
    half = tl.arange(0, N // 2)
    c, s = tl.load(cos_ptr + row * (N // 2) + half), tl.load(sin_ptr + row * (N // 2) + half)
    turned = tl.join(a * c - b * s, b * c + a * s)
    tl.store(out_ptr + row * N + lanes, tl.reshape(turned, (N,)))


@triton.jit
def flip_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    address = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + address)
    tl.store(out_ptr + address, tl.flip(x, dim=1))
    tl.store(out_ptr + M * N + tl.arange(0, N), tl.flip(tl.sum(x, 0), 0))


@triton.jit
def sort_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    address = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + address)
    tl.store(out_ptr + address, tl.sort(x))
    tl.store(out_ptr + M * N + address, tl.sort(x, dim=1, descending=True))


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """tl.gather along each axis of a block."""
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    address = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    index = tl.load(index_ptr + address)
    tl.store(out_ptr + address, tl.gather(x, index, axis=1))
    index = tl.load(index_ptr + tl.arange(0, N)) % M
    rows = tl.gather(x, tl.broadcast_to(index[None, :], (M, N)), axis=0)
    tl.store(out_ptr + M * K + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], rows)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, N: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))


@triton.jit
def cat_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """The order of tl.cat's result is open: a sum does not depend on it."""
    lanes = tl.arange(0, N)
    both = tl.cat(tl.load(x_ptr + lanes), tl.load(y_ptr + lanes), can_reorder=True)
    tl.store(out_ptr, tl.sum(both * both, axis=0))


@triton.jit
def embedding_kernel(index_ptr, table_ptr, out_ptr, n, columns, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a table, by indices that were loaded."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lanes = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    index = tl.load(index_ptr + rows, mask=rows < n, other=0)
    mask = (rows[:, None] < n) & (lanes[None, :] < columns)
    found = tl.load(table_ptr + index[:, None] * columns + lanes[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows[:, None] * columns + lanes[None, :], found, mask=mask)


@triton.jit
def scatter_kernel(index_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + index, tl.load(x_ptr + offsets, mask=mask), mask=mask)
