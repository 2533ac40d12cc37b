"""The GPT of `trained_models` in JAX, with jax.custom_vjp for its Functions; parameters have PyTorch's names."""

import math

import jax
import jax.numpy as jnp


@jax.custom_vjp
def rms_norm(x, weight):
    return _rms_norm_forward(x, weight)[0]


def _rms_norm_forward(x, weight):
    rstd = jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * rstd * weight, (x, weight, rstd)


def _rms_norm_backward(saved, grad_output):
    x, weight, rstd = saved
    normal = x * rstd
    g = grad_output * weight
    grad_x = rstd * (g - normal * (g * normal).mean(-1, keepdims=True))
    return grad_x, (grad_output * normal).reshape(-1, x.shape[-1]).sum(0)


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@jax.custom_vjp
def swiglu(gate, up):
    return gate * jax.nn.sigmoid(gate) * up


def _swiglu_backward(saved, grad_output):
    gate, up = saved
    s = jax.nn.sigmoid(gate)
    return grad_output * up * s * (1 + gate * (1 - s)), grad_output * gate * s


swiglu.defvjp(lambda gate, up: (swiglu(gate, up), (gate, up)), _swiglu_backward)


@jax.custom_vjp
def cross_entropy(logits, targets):
    return _cross_entropy_forward(logits, targets)[0]


def _cross_entropy_forward(logits, targets):
    probabilities = jax.nn.softmax(logits)
    rows = jnp.arange(targets.shape[0])
    gradient = probabilities.at[rows, targets].add(-1)
    return -jnp.log(probabilities[rows, targets]).mean(), gradient / targets.shape[0]


cross_entropy.defvjp(_cross_entropy_forward, lambda gradient, grad_output: (gradient * grad_output, None))


def attend(p, start, x, heads):
    b, t, c = x.shape
    q, k, v = (
        y.reshape(b, t, heads, c // heads).swapaxes(1, 2) for y in jnp.split(x @ p[f"{start}.qkv.weight"].T, 3, 2)
    )
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9))
    return (weights @ v).swapaxes(1, 2).reshape(b, t, c) @ p[f"{start}.out.weight"].T


def loss(p, tokens, targets, heads=4):
    """Return the loss; `p` has the names of `GPT.named_parameters()`."""
    x = p["embedding.weight"][tokens] + p["position"][: tokens.shape[1]]
    layers = sum(name.endswith("norm1.weight") for name in p)
    for i in range(layers):
        block = f"blocks.{i}"
        x = x + attend(p, f"{block}.attention", rms_norm(x, p[f"{block}.norm1.weight"]), heads)
        y = rms_norm(x, p[f"{block}.norm2.weight"])
        hidden = swiglu(y @ p[f"{block}.gate.weight"].T, y @ p[f"{block}.up.weight"].T)
        x = x + hidden @ p[f"{block}.down.weight"].T
    logits = rms_norm(x, p["norm.weight"]) @ p["head.weight"].T
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
