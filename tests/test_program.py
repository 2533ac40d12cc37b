"""Nothing to pay at run time: the optimised program has the operations of hand-written jax.custom_vjp."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.zoo import CASES, CubeWithSlope, Linear, Outer, Recompute, SavedInput, SavedIntermediate, SavedOutput


def custom_vjp(primal, fwd, bwd):
    f = jax.custom_vjp(primal)
    f.defvjp(fwd, bwd)
    return f


def _recompute(x):
    return jnp.sin(x) * x


def _unbroadcast(grad, shape):
    return grad.sum(tuple(range(grad.ndim - len(shape)))) if grad.ndim > len(shape) else grad.sum(1, keepdims=True)


# Each Function beside the same rules written by hand, and the shapes of their arguments.
PAIRS = {
    "saved_input": (
        SavedInput.apply,
        custom_vjp(
            lambda x: jnp.sin(x) * x,
            lambda x: (jnp.sin(x) * x, x),
            lambda x, g: (g * (jnp.cos(x) * x + jnp.sin(x)),),
        ),
        [(4, 8)],
    ),
    "saved_output": (
        SavedOutput.apply,
        custom_vjp(jnp.exp, lambda x: (jnp.exp(x),) * 2, lambda y, g: (g * y,)),
        [(4, 8)],
    ),
    "saved_intermediate": (
        SavedIntermediate.apply,
        custom_vjp(lambda x: x**3, lambda x: (x**3, 3 * x**2), lambda slope, g: (slope * g,)),
        [(4, 8)],
    ),
    "two_outputs": (
        CubeWithSlope.apply,
        custom_vjp(
            lambda x: (x**3, 3 * x**2),
            lambda x: ((x**3, 3 * x**2), (x, 3 * x**2)),
            lambda res, g: (g[0] * res[1] + g[1] * 6 * res[0],),
        ),
        [(4, 8)],
    ),
    "vjp_in_backward": (
        Recompute.apply,
        custom_vjp(_recompute, lambda x: (_recompute(x), x), lambda x, g: jax.vjp(_recompute, x)[1](g)),
        [(4, 8)],
    ),
    "linear": (
        Linear.apply,
        custom_vjp(
            lambda x, w, b: x @ w.T + b,
            lambda x, w, b: (x @ w.T + b, (x, w)),
            lambda res, g: (g @ res[1], g.T @ res[0], g.sum(0)),
        ),
        [(5, 3), (2, 3), (2,)],
    ),
    "sum_to_size": (
        Outer.apply,
        custom_vjp(
            lambda x, y: x * jnp.sin(y),
            lambda x, y: (x * jnp.sin(y), (x, y)),
            lambda res, g: (
                _unbroadcast(g * jnp.sin(res[1]), res[0].shape),
                _unbroadcast(g * res[0] * jnp.cos(res[1]), res[1].shape),
            ),
        ),
        [(3, 1), (4,)],
    ),
}


def operations(f, *args):
    """How often each operation stands in the compiled program of `f`."""
    text = jax.jit(f).lower(*args).compile().as_text()
    return collections.Counter(re.findall(r" = \S+ ([a-z][a-z0-9-]*)\(", text))


def loss(f, depth=1):
    def wrapped(*args):
        total = 0.0
        for _ in range(depth):
            outputs = jax.tree.leaves(f(*args))
            total += sum(jnp.sum(jnp.sin(y)) for y in outputs)
            args = (args[0] * total, *args[1:])
        return total

    return wrapped


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("depth", [1, 3])
def test_gradient_program_is_that_of_custom_vjp(name, depth):
    """jit(value_and_grad) of a Function compiles to the operations of custom_vjp, one call or several."""
    apply, by_hand, shapes = PAIRS[name]
    args = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    every = tuple(range(len(args)))
    got = operations(jax.value_and_grad(loss(apply, depth), every), *args)
    want = operations(jax.value_and_grad(loss(by_hand, depth), every), *args)
    assert got == want
    assert sum(got.values()) > 3  # the pattern found operations at all


@pytest.mark.parametrize("name", PAIRS)
def test_batched_program_is_that_of_custom_vjp(name):
    """The same under vmap."""
    apply, by_hand, shapes = PAIRS[name]
    args = [jax.random.normal(jax.random.key(i), (6, *shape)) for i, shape in enumerate(shapes)]
    every = tuple(range(len(args)))
    grad = lambda f: jax.grad(lambda *args: jax.vmap(loss(f))(*args).sum(), every)
    assert operations(grad(apply), *args) == operations(grad(by_hand), *args)


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "numpy_forward"], ids=lambda c: c.name)
def test_forward_program_is_that_of_the_body(case):
    """Where nobody differentiates, the compiled program is that of the plain formula."""
    args = [jnp.asarray(x) for x in case.inputs(np.random.default_rng(0))]
    assert operations(case.apply, *args) == operations(case.twin, *args)
