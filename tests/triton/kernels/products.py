"""tl.dot, and matrix products in blocks."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b))


@triton.jit
def options_kernel(a_ptr, b_ptr, out_ptr, half_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """acc, allow_tf32, input_precision, out_dtype; the second factor transposed."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + n[:, None] * K + k[None, :])
    total = tl.full((M, N), 1.0, dtype=tl.float32)
    total = tl.dot(a, tl.trans(b), acc=total, input_precision="ieee")
    total = tl.dot(a, b.T, total)
    total += tl.dot(a, tl.trans(b), allow_tf32=False)
    address = m[:, None] * N + n[None, :]
    tl.store(out_ptr + address, total)
    tl.store(half_ptr + address, tl.dot(a.to(tl.float16), b.to(tl.float16).T, out_dtype=tl.float32))


@triton.jit
def half_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Factors of float16, the sum in float32."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    c = tl.dot(a, b)
    tl.static_assert(c.dtype == tl.float32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], c)


@triton.jit
def integer_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """int8 times int8 is counted in int32."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    total = tl.zeros((M, N), dtype=tl.int32)
    total = tl.dot(a, b, total, out_dtype=tl.int32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], total)


@triton.jit
def batched_dot_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    b, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a_ptr + b[:, None, None] * (M * K) + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b_ptr + b[:, None, None] * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(out_ptr + b[:, None, None] * (M * N) + m[None, :, None] * N + n[None, None, :], tl.dot(x, y))


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    RELU: tl.constexpr,
):
    """Blocks in groups of rows, so that neighbours read the same; edges masked by % and by K."""
    pid = tl.program_id(axis=0)
    blocks_m = tl.cdiv(m, BLOCK_M)
    blocks_n = tl.cdiv(n, BLOCK_N)
    in_group = GROUP * blocks_n
    group = pid // in_group
    first = group * GROUP
    size = min(blocks_m - first, GROUP)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    rows = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + inner[None, :] * stride_ak)
    b_ptrs = b_ptr + (inner[:, None] * stride_bk + columns[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(tl.cdiv(k, BLOCK_K)):
        a = tl.load(a_ptrs, mask=inner[None, :] < k - i * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < k - i * BLOCK_K, other=0.0)
        total += tl.dot(a, b, allow_tf32=False)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if RELU:
        total = tl.where(total > 0, total, 0.01 * total)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """One matrix of a batch per program of the last axis."""
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (columns[None, :] < n)
        a = tl.load(a_ptr + batch * m * k + rows[:, None] * k + inner[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + batch * k * n + inner[:, None] * n + columns[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + batch * m * n + rows[:, None] * n + columns[None, :], total, mask=mask)


@triton.jit
def split_k_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """The inner dimension is shared among programs, which add to the product by atomics."""
    pid, part = tl.program_id(0), tl.program_id(1)
    blocks_n = tl.cdiv(n, BLOCK_N)
    rows = (pid // blocks_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (pid % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(tl.cdiv(k, BLOCK_K * SPLIT)):
        inner = (i * SPLIT + part) * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=inner[None, :] < k, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + columns[None, :], mask=inner[:, None] < k, other=0.0)
        total = tl.dot(a, b, total)
    tl.atomic_add(c_ptr + rows[:, None] * n + columns[None, :], total, mask=columns[None, :] < n)


@triton.jit
def persistent_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Few programs, each of which takes every so many-th block."""
    blocks_n = tl.cdiv(n, BLOCK)
    blocks = tl.cdiv(m, BLOCK) * blocks_n
    for block in range(tl.program_id(0), blocks, PROGRAMS):
        rows = (block // blocks_n) * BLOCK + tl.arange(0, BLOCK)
        columns = (block % blocks_n) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for start in range(0, k, BLOCK):
            inner = start + tl.arange(0, BLOCK)
            a_mask = (rows[:, None] < m) & (inner[None, :] < k)
            a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=a_mask, other=0.0)
            b_mask = (inner[:, None] < k) & (columns[None, :] < n)
            b = tl.load(b_ptr + inner[:, None] * n + columns[None, :], mask=b_mask, other=0.0)
            total += tl.dot(a, b)
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c_ptr + rows[:, None] * n + columns[None, :], total, mask=mask)


@triton.jit
def quantised_kernel(x_ptr, w_ptr, scale_ptr, out_ptr, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """float16 by int8 weights with a scale for each column."""
    m = tl.arange(0, M)
    columns = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        x = tl.load(x_ptr + m[:, None] * k + inner[None, :], mask=inner[None, :] < k, other=0.0)
        w = tl.load(w_ptr + inner[:, None] * n + columns[None, :], mask=inner[:, None] < k, other=0)
        total = tl.dot(x, w.to(tl.float16), total)
    total *= tl.load(scale_ptr + columns)[None, :]
    tl.store(out_ptr + m[:, None] * n + columns[None, :], total.to(tl.float16))
