"""Patterns of kernels for sequences: packed batches, chunks, caches in pages, states that are passed on."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.heuristics(
    {
        "IS_VARLEN": lambda args: args["cu_seqlens"] is not None,
        "USE_INITIAL_STATE": lambda args: args["h0"] is not None,
        "STORE_FINAL_STATE": lambda args: args["ht"] is not None,
    }
)
@triton.jit(do_not_specialize=["T"])
def recurrence_kernel(
    q,
    k,
    v,
    g,
    o,
    h0,
    ht,
    cu_seqlens,
    scale,
    T,
    B: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    USE_INITIAL_STATE: tl.constexpr,
    STORE_FINAL_STATE: tl.constexpr,
    IS_VARLEN: tl.constexpr,
):
    """A gated state of (K, V) step by step; T is rebound to the length of the sequence that was loaded."""
    i_v, i_k, i_nh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_n, i_h = i_nh // H, i_nh % H
    if IS_VARLEN:
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int64), tl.load(cu_seqlens + i_n + 1).to(tl.int64)
        total = T
        T = eos - bos
    else:
        bos, eos = i_n * T, i_n * T + T
        total = B * T
    o_k = i_k * BK + tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    p_q = q + (bos * H + i_h) * K + o_k
    p_k = k + (bos * H + i_h) * K + o_k
    p_v = v + (bos * H + i_h) * V + o_v
    p_g = g + bos * H + i_h
    p_o = o + ((i_k * total + bos) * H + i_h) * V + o_v
    m_k = o_k < K
    m_v = o_v < V
    m_h = m_k[None, :] & m_v[:, None]
    b_h = tl.zeros([BV, BK], dtype=tl.float32)
    if USE_INITIAL_STATE:
        b_h += tl.load(h0 + i_nh * K * V + o_k[None, :] * V + o_v[:, None], mask=m_h, other=0).to(tl.float32)
    for _ in range(0, T):
        b_q = tl.load(p_q, mask=m_k, other=0).to(tl.float32) * scale
        b_k = tl.load(p_k, mask=m_k, other=0).to(tl.float32)
        b_v = tl.load(p_v, mask=m_v, other=0).to(tl.float32)
        b_g = tl.load(p_g).to(tl.float32)
        b_h = b_h * tl.exp(b_g) + b_k[None, :] * b_v[:, None]
        b_o = tl.sum(b_h * b_q[None, :], axis=1)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=m_v)
        p_q += H * K
        p_k += H * K
        p_v += H * V
        p_g += H
        p_o += H * V
    if STORE_FINAL_STATE:
        tl.store(ht + i_nh * K * V + o_k[None, :] * V + o_v[:, None], b_h.to(ht.dtype.element_ty), mask=m_h)


@triton.jit(do_not_specialize=["T"])
def chunk_cumsum_kernel(
    s,
    o,
    T,
    H: tl.constexpr,
    BT: tl.constexpr,
    REVERSE: tl.constexpr,
    cu_seqlens,
    chunk_indices,
    IS_VARLEN: tl.constexpr,
):
    """Sums within chunks, one head per program; chunks of packed sequences by a table of pairs."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    if IS_VARLEN:
        i_n, i_t = tl.load(chunk_indices + i_t * 2).to(tl.int32), tl.load(chunk_indices + i_t * 2 + 1).to(tl.int32)
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int32), tl.load(cu_seqlens + i_n + 1).to(tl.int32)
        T = eos - bos
    else:
        bos, eos = i_b * T, i_b * T + T
    p_s = tl.make_block_ptr(s + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_o = tl.make_block_ptr(o + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_s = tl.load(p_s, boundary_check=(0,)).to(tl.float32)
    b_o = tl.cumsum(b_s, axis=0)
    if REVERSE:
        b_z = tl.sum(b_s, axis=0)
        b_o = -b_o + b_z[None] + b_s
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0,))


@triton.jit
def chunk_state_kernel(
    k,
    v,
    g,
    h,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """The state before each chunk, with decays; the last chunk is shorter."""
    i_k, i_v, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    bos = i_b * T
    NT = tl.cdiv(T, BT)
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    for i_t in range(NT):
        p_k = tl.make_block_ptr(k + (bos * H + i_h) * K, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1))
        p_v = tl.make_block_ptr(v + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        o_h = ((i_b * NT + i_t) * H + i_h) * K * V
        p_h = tl.make_block_ptr(h + o_h, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        tl.store(p_h, b_h.to(p_h.dtype.element_ty), boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        last_idx = min((i_t + 1) * BT, T) - 1
        b_g_last = tl.load(g + bos * H + last_idx * H + i_h)
        lanes = i_t * BT + tl.arange(0, BT)
        b_g = tl.load(g + (bos + lanes) * H + i_h, mask=lanes < T, other=0.0)
        b_h *= tl.exp(b_g_last)
        b_v = (b_v * tl.where(lanes < T, tl.exp(b_g_last - b_g), 0.0)[:, None]).to(b_v.dtype)
        b_h += tl.dot(b_k, b_v)


@triton.jit
def packed_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    cu_ptr,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Sequences of loaded lengths, one after the other; a window of keys; programs beyond the end return."""
    start, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(cu_ptr + sequence)
    length = tl.load(cu_ptr + sequence + 1) - first
    if start * BLOCK >= length:
        return
    rows = start * BLOCK + tl.arange(0, BLOCK)
    lanes = tl.arange(0, D)
    base = (first * HEADS + head) * D
    q = tl.load(q_ptr + base + rows[:, None] * HEADS * D + lanes[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full([BLOCK], -1e30, dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    acc = tl.zeros([BLOCK, D], dtype=tl.float32)
    low = max(0, start * BLOCK - WINDOW) // BLOCK * BLOCK
    high = min(length, (start + 1) * BLOCK)
    for begin in range(low, high, BLOCK):
        keys = begin + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + base + keys[:, None] * HEADS * D + lanes[None, :], mask=keys[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        distance = rows[:, None] - keys[None, :]
        allowed = (distance >= 0) & (distance <= WINDOW) & (keys[None, :] < length)
        scores = tl.where(allowed, scores, -1e30)
        new = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.where(allowed, tl.exp(scores - new[:, None]), 0.0)
        alpha = tl.exp(largest - new)
        v = tl.load(v_ptr + base + keys[:, None] * HEADS * D + lanes[None, :], mask=keys[:, None] < length, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v)
        total = total * alpha + tl.sum(p, axis=1)
        largest = new
    out = out_ptr + base + rows[:, None] * HEADS * D + lanes[None, :]
    tl.store(out, acc / total[:, None], mask=rows[:, None] < length)


@triton.jit
def pages_kernel(
    q_ptr, cache_ptr, table_ptr, lengths_ptr, out_ptr, PAGE: tl.constexpr, D: tl.constexpr, MAX: tl.constexpr
):
    """Keys and values lie in pages; which ones, a table says."""
    batch = tl.program_id(0)
    length = tl.load(lengths_ptr + batch)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + batch * D + d)
    largest, total = -float("inf"), 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for i in range(tl.cdiv(length, PAGE)):
        page = tl.load(table_ptr + batch * MAX + i).to(tl.int64)
        inside = i * PAGE + tl.arange(0, PAGE) < length
        address = page * 2 * PAGE * D + tl.arange(0, PAGE)[:, None] * D + d[None, :]
        k = tl.load(cache_ptr + address, mask=inside[:, None], other=0.0)
        v = tl.load(cache_ptr + address + PAGE * D, mask=inside[:, None], other=0.0)
        scores = tl.where(inside, tl.sum(k * q[None, :], axis=1), -float("inf"))
        new = tl.maximum(largest, tl.max(scores, axis=0))
        p = tl.exp(scores - new)
        acc = acc * tl.exp(largest - new) + tl.sum(p[:, None] * v, axis=0)
        total = total * tl.exp(largest - new) + tl.sum(p, axis=0)
        largest = new
    tl.store(out_ptr + batch * D + d, acc / total)


@triton.jit
def slots_kernel(key_ptr, cache_ptr, slot_ptr, stride, n, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """New tokens go to their slots; a negative one is left out."""
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot < 0:
        return
    page, inside = slot // PAGE, slot % PAGE
    lanes = tl.arange(0, BLOCK)
    x = tl.load(key_ptr + token * stride + lanes, mask=lanes < n)
    tl.store(cache_ptr + (page * PAGE + inside) * n + lanes, x, mask=lanes < n)


@triton.jit
def selective_scan_kernel(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, d_ptr, y_ptr, L, DIM, N: tl.constexpr, BLOCK: tl.constexpr
):
    """A diagonal state space, its step sizes through softplus."""
    batch = tl.program_id(0)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < DIM
    n = tl.arange(0, N)
    a = -tl.exp(tl.load(a_ptr + lanes[:, None] * N + n[None, :], mask=mask[:, None], other=0.0))
    d = tl.load(d_ptr + lanes, mask=mask, other=0.0)
    state = tl.zeros((BLOCK, N), dtype=tl.float32)
    for t in range(L):
        row = (batch * L + t) * DIM
        x = tl.load(x_ptr + row + lanes, mask=mask, other=0.0)
        dt = tl.load(dt_ptr + row + lanes, mask=mask, other=0.0)
        dt = tl.where(dt <= 20.0, tl.log(1.0 + tl.exp(dt)), dt)
        b = tl.load(b_ptr + (batch * L + t) * N + n)
        c = tl.load(c_ptr + (batch * L + t) * N + n)
        state = state * tl.exp(dt[:, None] * a) + (dt * x)[:, None] * b[None, :]
        tl.store(y_ptr + row + lanes, tl.sum(state * c[None, :], axis=1) + d * x, mask=mask)


@triton.jit
def convolution_kernel(
    x_ptr, w_ptr, y_ptr, L, D, W: tl.constexpr, SILU: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr
):
    """A causal convolution of each channel; what lies before the start is zero."""
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BL + tl.arange(0, BL)
    columns = tl.program_id(1) * BD + tl.arange(0, BD)
    y = tl.zeros((BL, BD), dtype=tl.float32)
    for i in tl.static_range(W):
        source = rows + i - (W - 1)
        mask = (source[:, None] >= 0) & (source[:, None] < L) & (columns[None, :] < D)
        x = tl.load(x_ptr + (batch * L + source[:, None]) * D + columns[None, :], mask=mask, other=0.0)
        y += x * tl.load(w_ptr + columns * W + i, mask=columns < D, other=0.0)[None, :]
    if SILU:
        y = y * tl.sigmoid(y)
    tl.store(
        y_ptr + (batch * L + rows[:, None]) * D + columns[None, :], y, mask=(rows[:, None] < L) & (columns[None, :] < D)
    )


@triton.jit
def positions_kernel(q_ptr, position_ptr, table_ptr, out_ptr, HEADS: tl.constexpr, D: tl.constexpr):
    """Rotary embeddings at positions that are loaded, one head per program, by a turned index."""
    token, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(position_ptr + token)
    d = tl.arange(0, D)
    angle = tl.load(table_ptr + position * D + d)
    base = (token * HEADS + head) * D
    x = tl.load(q_ptr + base + d)
    turned = tl.load(q_ptr + base + (d + D // 2) % D)
    turned = tl.where(d < D // 2, -turned, turned)
    tl.store(out_ptr + base + d, x * tl.cos(angle) + turned * tl.sin(angle))
