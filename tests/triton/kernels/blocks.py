"""Block pointers and tensor descriptors."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, m, n, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Edges: what lies outside is read as zero where checked, and not written."""
    i, j = tl.program_id(0), tl.program_id(1)
    source = tl.make_block_ptr(
        base=x_ptr,
        shape=(m, n),
        strides=(stride, 1),
        offsets=(i * BLOCK_M, j * BLOCK_N),
        block_shape=(BLOCK_M, BLOCK_N),
        order=(1, 0),
    )
    target = tl.make_block_ptr(out_ptr, (m, n), (n, 1), (i * BLOCK_M, j * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0))
    x = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    total = tl.sum(x)
    tl.store(target, x * 2 + total, boundary_check=(0, 1))


@triton.jit
def advance_kernel(x_ptr, out_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A row of blocks: the pointer advances, and comes back."""
    i = tl.program_id(0)
    source = tl.make_block_ptr(x_ptr, (m, n), (n, 1), (i * BLOCK_M, 0), (BLOCK_M, BLOCK_N), (1, 0))
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for _ in range(0, n, BLOCK_N):
        total += tl.sum(tl.load(source, boundary_check=(0, 1), padding_option="zero"), axis=1)
        source = tl.advance(source, (0, BLOCK_N))
    source = tl.advance(source, (0, -BLOCK_N))
    total += tl.max(tl.load(source, boundary_check=(0, 1), padding_option="zero"), axis=1)
    target = tl.make_block_ptr(out_ptr, (m,), (1,), (i * BLOCK_M,), (BLOCK_M,), (0,))
    tl.store(target, total, boundary_check=(0,))


@triton.jit
def transposed_kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """The same memory with its axes changed round."""
    source = tl.make_block_ptr(x_ptr, (n, m), (1, n), (tl.program_id(0) * N, 0), (N, M), (0, 1))
    target = tl.make_block_ptr(out_ptr, (n, m), (m, 1), (tl.program_id(0) * N, 0), (N, M), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def nan_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Padding with NaN, where a check fails only."""
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    x = tl.load(source, boundary_check=(0,), padding_option="nan")
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.where(x == x, x, -1.0))


@triton.jit
def half_kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """Types come from the block pointer's base."""
    source = tl.make_block_ptr(x_ptr, (m, n), (n, 1), (0, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(out_ptr, (m, n), (n, 1), (0, 0), (M, N), (1, 0))
    x = tl.load(source, boundary_check=(0, 1))
    tl.store(target, (x.to(tl.float32) * 1.5).to(target.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    a_block = tl.make_block_ptr(a_ptr, (m, k), (k, 1), (i * BLOCK_M, 0), (BLOCK_M, BLOCK_K), (1, 0))
    b_block = tl.make_block_ptr(b_ptr, (k, n), (n, 1), (0, j * BLOCK_N), (BLOCK_K, BLOCK_N), (1, 0))
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(tl.cdiv(k, BLOCK_K)):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(a, b)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = b_block.advance((BLOCK_K, 0))
    c_block = tl.make_block_ptr(c_ptr, (m, n), (n, 1), (i * BLOCK_M, j * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(c_block, total.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def chunks_kernel(k_ptr, v_ptr, h_ptr, out_ptr, t, D: tl.constexpr, BT: tl.constexpr):
    """Linear attention by chunks: a state of (D, D) is carried and kept for each chunk."""
    head = tl.program_id(0)
    state = tl.zeros((D, D), dtype=tl.float32)
    for i in range(tl.cdiv(t, BT)):
        k_block = tl.make_block_ptr(k_ptr + head * t * D, (D, t), (1, D), (0, i * BT), (D, BT), (0, 1))
        v_block = tl.make_block_ptr(v_ptr + head * t * D, (t, D), (D, 1), (i * BT, 0), (BT, D), (1, 0))
        h_block = tl.make_block_ptr(h_ptr + (head * tl.cdiv(t, BT) + i) * D * D, (D, D), (D, 1), (0, 0), (D, D), (1, 0))
        tl.store(h_block, state, boundary_check=(0, 1))
        k = tl.load(k_block, boundary_check=(0, 1))
        v = tl.load(v_block, boundary_check=(0, 1))
        o_block = tl.make_block_ptr(out_ptr + head * t * D, (t, D), (D, 1), (i * BT, 0), (BT, D), (1, 0))
        scores = tl.dot(tl.trans(k), k)
        scores = tl.where(tl.arange(0, BT)[:, None] >= tl.arange(0, BT)[None, :], scores, 0.0)
        tl.store(o_block, tl.dot(tl.trans(k), state) + tl.dot(scores, v), boundary_check=(0, 1))
        state += tl.dot(k, v)


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, m, n, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tensor descriptors check both edges by themselves."""
    source = tl.make_tensor_descriptor(x_ptr, shape=[m, n], strides=[stride, 1], block_shape=[BLOCK_M, BLOCK_N])
    target = tl.make_tensor_descriptor(out_ptr, shape=[m, n], strides=[stride, 1], block_shape=[BLOCK_M, BLOCK_N])
    i, j = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    x = source.load([i, j])
    target.store([i, j], x + tl.sum(x))
