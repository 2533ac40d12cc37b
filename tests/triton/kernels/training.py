"""Five kinds that training launches beside the usual ones: a scan, experts, whole-number weights, scatters, a step."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def scan_kernel(x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, out_ptr, L, D, N: tl.constexpr, BLOCK: tl.constexpr):
    """A selective scan: the state of each channel, N numbers, is carried over the sequence."""
    batch = tl.program_id(1)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = tl.arange(0, N)
    mask = channels < D
    a = -tl.exp(tl.load(a_ptr + channels[:, None] * N + states[None, :], mask=mask[:, None], other=0.0))
    h = tl.zeros((BLOCK, N), tl.float32)
    x_ptrs = x_ptr + batch * L * D + channels
    dt_ptrs = dt_ptr + batch * L * D + channels
    out_ptrs = out_ptr + batch * L * D + channels
    b_ptrs = b_ptr + batch * L * N + states
    c_ptrs = c_ptr + batch * L * N + states
    for _ in range(L):
        x = tl.load(x_ptrs, mask=mask, other=0.0)
        dt = softplus(tl.load(dt_ptrs, mask=mask, other=0.0))
        h = h * tl.exp(dt[:, None] * a) + (dt * x)[:, None] * tl.load(b_ptrs)[None, :]
        tl.store(out_ptrs, tl.sum(h * tl.load(c_ptrs)[None, :], axis=1), mask=mask)
        x_ptrs += D
        dt_ptrs += D
        out_ptrs += D
        b_ptrs += N
        c_ptrs += N


@triton.jit
def experts_kernel(
    x_ptr, w_ptr, expert_ptr, out_ptr, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A grouped product: each block of rows belongs to one expert, whose number is loaded."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    w_ptr += tl.load(expert_ptr + pid_m) * k * n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        x = tl.load(x_ptr + rows[:, None] * k + (start + inner)[None, :])
        w = tl.load(w_ptr + (start + inner)[:, None] * n + columns[None, :])
        acc = tl.dot(x, w, acc)
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], acc)


@triton.jit
def eight_bits_kernel(
    x_ptr, w_ptr, scale_ptr, out_ptr, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A product with weights of eight bits, which have a scale for each column and block of the inner dimension."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(k // BLOCK_K):
        inner = block * BLOCK_K + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows[:, None] * k + inner[None, :])
        w = tl.load(w_ptr + inner[:, None] * n + columns[None, :]).to(tl.float32)
        acc += tl.dot(x, w * tl.load(scale_ptr + block * n + columns)[None, :])
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], acc)


@triton.jit
def embedding_backward_kernel(index_ptr, grad_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """Each token adds its gradient to the row of its embedding."""
    token = tl.program_id(0)
    row = tl.load(index_ptr + token)
    for start in range(0, columns, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        mask = lanes < columns
        tl.atomic_add(
            out_ptr + row * columns + lanes, tl.load(grad_ptr + token * columns + lanes, mask=mask), mask=mask
        )


@triton.jit
def adam_kernel(p_ptr, m_ptr, v_ptr, grad_ptr, n, lr, beta1, beta2, eps, decay, first, second, BLOCK: tl.constexpr):
    """One step of AdamW, in place; `first` and `second` correct the bias of the two moments."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    p, g = tl.load(p_ptr + lanes, mask=mask), tl.load(grad_ptr + lanes, mask=mask)
    m = beta1 * tl.load(m_ptr + lanes, mask=mask) + (1 - beta1) * g
    v = beta2 * tl.load(v_ptr + lanes, mask=mask) + (1 - beta2) * g * g
    tl.store(p_ptr + lanes, p - lr * (m / first / (tl.sqrt(v / second) + eps) + decay * p), mask=mask)
    tl.store(m_ptr + lanes, m, mask=mask)
    tl.store(v_ptr + lanes, v, mask=mask)
