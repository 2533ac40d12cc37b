"""Flash attention, forward and backward, in float32."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    length,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    """Softmax by blocks of keys: the maximum, the sum and the output are carried."""
    start_m, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    log2e: tl.constexpr = 1.4426950408889634
    if CAUSAL:
        end = min((start_m + 1) * BLOCK_M, length)
    else:
        end = length
    for start_n in range(0, end, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        keys = start_n + columns
        k = tl.load(k_ptr + base + keys[None, :] * D + d[:, None], mask=keys[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * (scale * log2e)
        allowed = keys[None, :] < length
        if CAUSAL:
            allowed = allowed & (rows[:, None] >= keys[None, :])
        scores = tl.where(allowed, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        p = tl.math.exp2(scores - new[:, None])
        alpha = tl.math.exp2(largest - new)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < length, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v)
        largest = new
    mask = rows < length
    tl.store(out_ptr + base + rows[:, None] * D + d[None, :], acc / total[:, None], mask=mask[:, None])
    tl.store(lse_ptr + head * length + rows, largest + tl.math.log2(total), mask=mask)


@triton.jit
def delta_kernel(out_ptr, dout_ptr, delta_ptr, n, BLOCK_M: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    address = rows[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(out_ptr + address, mask=rows[:, None] < n, other=0.0)
    do = tl.load(dout_ptr + address, mask=rows[:, None] < n, other=0.0)
    tl.store(delta_ptr + rows, tl.sum(o * do, axis=1), mask=rows < n)


@triton.jit
def _key_gradients(
    dk,
    dv,
    k,
    v,
    q_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    keys,
    first,
    length,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    D: tl.constexpr,
):
    d = tl.arange(0, D)
    log2e: tl.constexpr = 1.4426950408889634
    for start in range(first, length, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        mask = rows < length
        q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        do = tl.load(dout_ptr + rows[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        lse = tl.load(lse_ptr + rows, mask=mask, other=0.0)
        delta = tl.load(delta_ptr + rows, mask=mask, other=0.0)
        p = tl.math.exp2(tl.dot(q, tl.trans(k)) * (scale * log2e) - lse[:, None])
        allowed = mask[:, None] & (keys[None, :] < length)
        if CAUSAL:
            allowed = allowed & (rows[:, None] >= keys[None, :])
        p = tl.where(allowed, p, 0.0)
        dv += tl.dot(tl.trans(p), do)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None]) * scale
        dk += tl.dot(tl.trans(ds), q)
    return dk, dv


@triton.jit
def backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    length,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    """A block of keys' gradients by a helper, then a block of queries'."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    q_ptr += base
    k_ptr += base
    v_ptr += base
    dout_ptr += base
    dq_ptr += base
    dk_ptr += base
    dv_ptr += base
    lse_ptr += head * length
    delta_ptr += head * length
    d = tl.arange(0, D)
    log2e: tl.constexpr = 1.4426950408889634

    keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
    here = keys[:, None] * D + d[None, :]
    k = tl.load(k_ptr + here, mask=keys[:, None] < length, other=0.0)
    v = tl.load(v_ptr + here, mask=keys[:, None] < length, other=0.0)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    first = block * BLOCK_N if CAUSAL else 0
    dk, dv = _key_gradients(
        dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, keys, first, length, scale, CAUSAL, BLOCK_M, D
    )
    tl.store(dk_ptr + here, dk, mask=keys[:, None] < length)
    tl.store(dv_ptr + here, dv, mask=keys[:, None] < length)

    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    mask = rows < length
    here = rows[:, None] * D + d[None, :]
    q = tl.load(q_ptr + here, mask=mask[:, None], other=0.0)
    do = tl.load(dout_ptr + here, mask=mask[:, None], other=0.0)
    lse = tl.load(lse_ptr + rows, mask=mask, other=0.0)
    delta = tl.load(delta_ptr + rows, mask=mask, other=0.0)
    dq = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    end = min((block + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + keys[:, None] * D + d[None, :], mask=keys[:, None] < length, other=0.0)
        v = tl.load(v_ptr + keys[:, None] * D + d[None, :], mask=keys[:, None] < length, other=0.0)
        p = tl.math.exp2(tl.dot(q, tl.trans(k)) * (scale * log2e) - lse[:, None])
        allowed = mask[:, None] & (keys[None, :] < length)
        if CAUSAL:
            allowed = allowed & (rows[:, None] >= keys[None, :])
        p = tl.where(allowed, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None]) * scale
        dq += tl.dot(ds, k)
    tl.store(dq_ptr + here, dq, mask=mask[:, None])


@triton.jit
def grouped_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    seq_ptr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    MAX: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    """One new token, its keys in a cache: grouped heads, lengths that are loaded."""
    batch, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(seq_ptr + batch)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + (batch * HEADS + head) * D + d)
    cache = (batch * (HEADS // GROUP) + head // GROUP) * MAX * D
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        mask = keys < length
        k = tl.load(k_ptr + cache + keys[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        scores = tl.where(mask, tl.sum(q[None, :] * k, axis=1), float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 0))
        p = tl.exp(scores - new)
        alpha = tl.exp(largest - new)
        v = tl.load(v_ptr + cache + keys[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, axis=0)
        total = total * alpha + tl.sum(p, 0)
        largest = new
    tl.store(out_ptr + (batch * HEADS + head) * D + d, acc / total)
