"""Entries that nobody takes are not computed at a pole where JAX may differentiate: their gradient is 0, not NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("libcst")
from fnjax.port import port_source

BACKWARD = """
import torch


def inverse(x, at):
    return torch.where(at, 1.0, 1 / x)


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        {lines}
        return g * y
"""
FORWARD = """
import torch


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {lines}
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y
"""
# The lines that give y, where they take f(x), and f; elsewhere y is constant.
FORMS = {
    "y = torch.where(x == 0, 1.0, 1 / x)": (lambda x: x != 0, lambda x: 1 / x),
    "y = torch.where(x != 0, 1 / x, torch.ones_like(x))": (lambda x: x != 0, lambda x: 1 / x),
    "y = (1 / x).where(x != 0, 1.0)": (lambda x: x != 0, lambda x: 1 / x),
    "y = x.reciprocal().masked_fill(x == 0, 2.0)": (lambda x: x != 0, lambda x: 1 / x),
    "y = x.rsqrt()\n        y.masked_fill_(x <= 0, 2.0)": (lambda x: x > 0, lambda x: x**-0.5),
    "y = 1 / x\n        y[x == 0] = 2.0": (lambda x: x != 0, lambda x: 1 / x),
    "m = x <= 0\n        y = x.log()\n        y[m] = 0": (lambda x: x > 0, jnp.log),
    "y = 1 / x\n        y = torch.where(x == 0, 1.0, y * 2 - 1)": (lambda x: x != 0, lambda x: 2 / x - 1),
    "r = torch.sqrt(x)\n        s = 1 / r\n        y = torch.where(x <= 0, 1.0, s * s)": (
        lambda x: x > 0,
        lambda x: 1 / x,
    ),
    "y = torch.where(x == 0, 1.0, torch.where(x == 1, 2.0, 1 / x + 1 / (x - 1)))": (
        lambda x: (x != 0) & (x != 1),
        lambda x: 1 / x + 1 / (x - 1),
    ),
    "y = torch.where(x == 0, 1.0, x.sin() / x)": (lambda x: x != 0, lambda x: jnp.sin(x) / x),
    "y = torch.where(x <= 0, 0.0, x ** 0.5)": (lambda x: x > 0, lambda x: x**0.5),
    "y = torch.where(x >= 1, 0.0, torch.acos(x))": (lambda x: x < 1, jnp.arccos),
    "y = torch.where(x > 0, 0.0, torch.exp(1e3 * x))": (lambda x: x <= 0, lambda x: jnp.exp(1e3 * x)),
    "y = inverse(x, x == 0)": (lambda x: x != 0, lambda x: 1 / x),
}
X = jnp.array([-0.5, 0.0, 0.25, 1.0, 2.0])


def differentiate(text):
    """Second derivatives of a ported class at X, under jit."""
    names = {}
    exec(port_source(text).code, names)
    first = jax.grad(lambda x: names["C"].apply(x).sum())
    return jax.jit(jax.grad(lambda x: first(x).sum()))(X)


@pytest.mark.parametrize("lines", FORMS)
def test_in_backward(lines):
    """The derivative of backward is that of what it takes: f's, and 0 where y is a constant."""
    taken, f = FORMS[lines]
    expected = [jax.grad(f)(x) if t else 0.0 for x, t in zip(X, taken(X), strict=True)]
    np.testing.assert_allclose(differentiate(BACKWARD.format(lines=lines)), jnp.array(expected), rtol=1e-5)


@pytest.mark.parametrize("lines", [n for n in FORMS if "inverse" not in n])
def test_in_forward_that_keeps_an_intermediate(lines):
    """The derivative of an intermediate is taken from forward's body, which has the same poles."""
    taken, f = FORMS[lines]
    expected = [jax.grad(f)(x) if t else 0.0 for x, t in zip(X, taken(X), strict=True)]
    np.testing.assert_allclose(differentiate(FORWARD.format(lines=lines)), jnp.array(expected), rtol=1e-5)
