"""Kernels' twins in plain JAX, written by hand, and both as functions of the same inputs."""

import functools
import importlib

import jax
import jax.numpy as jnp

import fnjax.triton.language as tl

LOG2E = 1.4426950408889634


def add(x, y):
    return (x + y,)


def swiglu(gate, up):
    return (jax.nn.silu(gate) * up,)


def rms_forward(x, w):
    rstd = jax.lax.rsqrt(jnp.mean(x * x, axis=-1) + 1e-6)
    return x * rstd[:, None] * w, rstd


def rms_backward(dy, x, w, rstd):
    m, r = dy * w, rstd[:, None]
    dx = r * m - r**3 * jnp.mean(m * x, axis=-1, keepdims=True) * x
    return dx, (dy * x * r).sum(0)


def softmax(x):
    return (jax.nn.softmax(x, axis=-1),)


def cross_entropy(logits, target):
    """The gradient, which takes the logits' place, and the losses."""
    rows = jnp.arange(len(target))
    log_p = jax.nn.log_softmax(logits, axis=-1)
    return jnp.exp(log_p).at[rows, target].add(-1.0) / len(target), -log_p[rows, target] / len(target)


def matmul(a, b):
    return (a @ b,)


def attention(q, k, v, *, causal):
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * (q.shape[-1] ** -0.5)
    if causal:
        scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    return jnp.einsum("hqk,hkd->hqd", jnp.exp(scores - lse[..., None]), v), lse * LOG2E


def attention_by_blocks(q, k, v, *, causal, block=64):
    """Flash attention as one writes it in JAX: a scan over blocks of keys, each recomputed in backward."""
    heads, length, d = q.shape
    rows = jnp.arange(length)

    def step(carry, now):
        largest, total, acc = carry
        start, k, v = now
        scores = jnp.einsum("hqd,hkd->hqk", q, k) * d**-0.5
        if causal:
            scores = jnp.where(rows[:, None] >= start + jnp.arange(block), scores, -jnp.inf)
        new = jnp.maximum(largest, scores.max(-1))
        p, alpha = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
        acc = acc * alpha[..., None] + jnp.einsum("hqk,hkd->hqd", p, v)
        return (new, total * alpha + p.sum(-1), acc), None

    first = jnp.full((heads, length), -jnp.inf), jnp.zeros((heads, length)), jnp.zeros_like(q)
    blocks = (jnp.moveaxis(x.reshape(heads, -1, block, d), 1, 0) for x in (k, v))
    step = jax.checkpoint(step, prevent_cse=False)
    (largest, total, acc), _ = jax.lax.scan(step, first, (jnp.arange(0, length, block), *blocks))
    return acc / total[..., None], (largest + jnp.log(total)) * LOG2E


def embedding(index, table):
    return (table[index],)


def scan(x, dt, a, b, c):
    dt, a = jnp.where(dt > 20, dt, jnp.log(1 + jnp.exp(dt))), -jnp.exp(a)

    def step(h, now):
        x, dt, b, c = now
        h = h * jnp.exp(dt[..., None] * a) + (dt * x)[..., None] * b[:, None]
        return h, jnp.sum(h * c[:, None], -1)

    first = jnp.zeros((x.shape[0], *a.shape))
    _, out = jax.lax.scan(step, first, [jnp.moveaxis(each, 1, 0) for each in (x, dt, b, c)])
    return (jnp.moveaxis(out, 0, 1),)


def experts(x, w, expert):
    rows = x.reshape(len(expert), -1, x.shape[1])
    return (jnp.einsum("gmk,gkn->gmn", rows, w[expert]).reshape(x.shape[0], -1),)


def eight_bits(x, w, scale):
    return (x @ (w.astype(jnp.float32) * jnp.repeat(scale, len(w) // len(scale), axis=0)),)


def embedding_backward(index, grad, *, table=8192):
    return (jnp.zeros((table, grad.shape[1])).at[index].add(grad),)


def histogram(index, *, bins=256):
    return (jnp.zeros(bins, jnp.int32).at[index].add(1),)


def adam(p, m, v, grad):
    beta1, beta2 = jnp.float32(0.9), jnp.float32(0.999)  # 1 - beta2 loses digits, in the kernel as well
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    m_hat, v_hat = m / (1 - 0.9**10), v / (1 - 0.999**10)
    return p - 1e-3 * (m_hat / (jnp.sqrt(v_hat) + 1e-8) + 0.01 * p), m, v


TWINS = {
    "add": add,
    "swiglu": swiglu,
    "swiglu-uneven": swiglu,
    "rms-forward": rms_forward,
    "rms-backward": rms_backward,
    "softmax": softmax,
    "cross-entropy": cross_entropy,
    "cross-entropy-uneven": cross_entropy,
    "matmul": matmul,
    "matmul-block-pointers": matmul,
    "attention-causal": functools.partial(attention, causal=True),
    "attention-full": functools.partial(attention, causal=False),
    "embedding": embedding,
    "scan": scan,
    "experts": experts,
    "eight-bits": eight_bits,
    "embedding-backward": embedding_backward,
    "histogram": histogram,
    "adam": adam,
}
# Hand-written programs that compute in blocks, as the kernels do.
BY_BLOCKS = {
    "attention-causal": functools.partial(attention_by_blocks, causal=True),
    "attention-full": functools.partial(attention_by_blocks, causal=False),
}
WITHOUT_GRADIENT = {"histogram"}  # of integers
# The output whose gradient is taken, where it is not the first.
DIFFERENTIATED = {"cross-entropy": 1, "cross-entropy-uneven": 1}


def forms_of(name, case):
    """The launch and its twin as functions of the same inputs, and these inputs."""
    kernel = getattr(importlib.import_module(f"tests.triton.kernels.{case.file}"), case.kernel)
    arrays = case.arrays()
    written_only = {k for k in case.outs if not arrays[k].any()}
    inputs = {k: jnp.asarray(a) for k, a in arrays.items() if k not in written_only}

    def launched(*given):
        empty = {k: jnp.empty(arrays[k].shape, arrays[k].dtype) for k in written_only}
        positional, named = case.call(dict(zip(inputs, given, strict=True)) | empty, tl)
        stored = kernel[case.grid](*positional, **named)
        stored = stored if isinstance(stored, tuple) else (stored,)
        if name == "rms-backward":  # the wrapper's part: each program left a row
            return stored[0], stored[1].sum(0)
        return stored

    return {"fnjax": launched, "twin": TWINS[name]}, tuple(inputs.values())


def gradient_of(f, name, inputs):
    """The gradient of one output, weighted, with regard to all float inputs."""
    floats = tuple(i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating))
    which = DIFFERENTIATED.get(name, 0)

    def loss(*given):
        out = f(*given)[which]
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return jax.grad(loss, argnums=floats)
