"""Attention that never holds all scores: a program has a block of queries and goes through the keys."""

import jax
import jax.numpy as jnp

import fnjax
import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, length, scale, SIZE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr
):
    block, head = tl.program_id(0), tl.program_id(1)
    rows, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    at = head * length * SIZE + rows[:, None] * SIZE + columns[None, :]
    inside = rows[:, None] < length
    q = tl.load(q_ptr + at, mask=inside, other=0.0)
    largest = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    out = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        others = start + tl.arange(0, BLOCK)
        at_others = head * length * SIZE + others[:, None] * SIZE + columns[None, :]
        k = tl.load(k_ptr + at_others, mask=others[:, None] < length, other=0.0)
        v = tl.load(v_ptr + at_others, mask=others[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = others[None, :] < length
        if CAUSAL:
            seen = seen & (rows[:, None] >= others[None, :])
        scores = tl.where(seen, scores, -1e30)
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights, v)
        largest = larger
    tl.store(out_ptr + at, out / total[:, None], mask=inside)
    tl.store(lse_ptr + head * length + rows, largest + tl.log(total), mask=rows < length)


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    length, scale, SIZE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add to the queries' gradient: a program has a block of keys and iterates over the queries."""
    block, head = tl.program_id(0), tl.program_id(1)
    others, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    at_others = head * length * SIZE + others[:, None] * SIZE + columns[None, :]
    k = tl.load(k_ptr + at_others, mask=others[:, None] < length, other=0.0)
    v = tl.load(v_ptr + at_others, mask=others[:, None] < length, other=0.0)
    dk = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    dv = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        at = head * length * SIZE + rows[:, None] * SIZE + columns[None, :]
        inside = rows[:, None] < length
        q = tl.load(q_ptr + at, mask=inside, other=0.0)
        dout = tl.load(dout_ptr + at, mask=inside, other=0.0)
        lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
        seen = inside & (others[None, :] < length)
        if CAUSAL:
            seen = seen & (rows[:, None] >= others[None, :])
        weights = tl.where(seen, tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(weights), dout)
        dscores = weights * (tl.dot(dout, tl.trans(v)) - delta[:, None]) * scale
        dk += tl.dot(tl.trans(dscores), q)
        tl.atomic_add(dq_ptr + at, tl.dot(dscores, k), mask=inside)
    tl.store(dk_ptr + at_others, dk, mask=others[:, None] < length)
    tl.store(dv_ptr + at_others, dv, mask=others[:, None] < length)


class FlashAttention(fnjax.Function):
    """softmax(q kᵀ / √size) v of q, k and v (heads, length, size)."""

    @staticmethod
    def forward(ctx, q, k, v, causal=True, block=32):
        heads, length, size = q.shape
        grid = (triton.cdiv(length, block), heads)
        out, lse = jnp.empty_like(q), jnp.empty((heads, length), jnp.float32)
        out, lse = forward_kernel[grid](q, k, v, out, lse, length, size**-0.5, SIZE=size, CAUSAL=causal, BLOCK=block)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        heads, length, size = q.shape
        delta = jnp.sum(out * dout, -1)
        dq, dk, dv = jnp.zeros_like(q), jnp.empty_like(k), jnp.empty_like(v)
        dq, dk, dv = backward_kernel[(triton.cdiv(length, ctx.block), heads)](
            q, k, v, dout, lse, delta, dq, dk, dv, length, size**-0.5, SIZE=size, CAUSAL=ctx.causal, BLOCK=ctx.block
        )
        return dq, dk, dv, None, None


def plain(q, k, v, causal=True):
    """Compute the same in jax.numpy."""
    scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(q.shape[1], dtype=bool) | (not causal), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ v
