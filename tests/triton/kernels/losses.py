"""Losses whose gradient goes where the logits were."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    stride,
    target_ptr,
    loss_ptr,
    n,
    count,
    ignore,
    smoothing: tl.constexpr,
    REDUCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows longer than a block; ignored rows give zeros; the gradient is written over the logits."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    logits_ptr += row * stride
    if target == ignore:
        for i in range(0, n, BLOCK):
            lanes = i + tl.arange(0, BLOCK)
            tl.store(logits_ptr + lanes, 0.0, mask=lanes < n)
        return
    loss_ptr += row
    largest = float("-inf")
    total = 0.0
    all_logits = 0.0
    original = tl.load(logits_ptr + target)
    for i in range(0, n, BLOCK):
        lanes = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + lanes, mask=lanes < n, other=float("-inf"))
        if smoothing > 0:
            all_logits += tl.sum(tl.where(lanes < n, x, 0.0))
        new = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new))
        largest = new
    for i in range(0, n, BLOCK):
        lanes = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + lanes, mask=lanes < n, other=float("-inf"))
        x = tl.exp(x - largest) / total - smoothing / n
        x = tl.where(lanes != target, x, x - (1 - smoothing))
        if REDUCE == "mean":
            x = x / count
        tl.store(logits_ptr + lanes, x, mask=lanes < n)
    tl.debug_barrier()
    lse = largest + tl.log(total)
    loss = lse - original
    if smoothing > 0:
        loss = (1 - smoothing) * loss + smoothing * (lse - all_logits / n)
    if REDUCE == "mean":
        loss = loss / count
    tl.store(loss_ptr, loss)


@triton.jit
def kl_kernel(p_ptr, q_ptr, loss_ptr, grad_ptr, n, LOG_TARGET: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(0, n, BLOCK):
        lanes = i + tl.arange(0, BLOCK)
        mask = lanes < n
        p = tl.load(p_ptr + row * n + lanes, mask=mask, other=0.0)
        q = tl.load(q_ptr + row * n + lanes, mask=mask, other=0.0)
        if not LOG_TARGET:
            total += q * (tl.log(tl.maximum(q, 1e-10)) - p)
            tl.store(grad_ptr + row * n + lanes, q * -1, mask=mask)
        else:
            total += tl.exp(q) * (q - p)
            tl.store(grad_ptr + row * n + lanes, -tl.exp(q), mask=mask)
    tl.store(loss_ptr + row, tl.sum(total, axis=0))


@triton.jit
def smooth_l1_kernel(x_ptr, y_ptr, loss_ptr, n, beta, BLOCK: tl.constexpr):
    """Per-block losses, to be summed by whoever launched."""
    pid = tl.program_id(0)
    lanes = pid * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    difference = tl.abs(tl.load(x_ptr + lanes, mask=mask) - tl.load(y_ptr + lanes, mask=mask))
    loss = tl.where(difference < beta, 0.5 * difference * difference / beta, difference - 0.5 * beta)
    tl.store(loss_ptr + pid, tl.sum(tl.where(mask, loss, 0.0), axis=0))
