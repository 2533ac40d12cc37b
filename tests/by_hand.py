"""The zoo's Functions next to the same rules written by hand with jax.custom_vjp."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo import (
    CubeWithSlope,
    Dictionary,
    Linear,
    MarkedOutput,
    Modulus,
    Nested,
    NumPyExp,
    Outer,
    Pullback,
    Recompute,
    SavedInput,
    SavedIntermediate,
    SavedOutput,
    Scale,
)


def custom_vjp(primal, fwd, bwd):
    """The rules written by hand, with the barrier that keeps XLA from undoing what recomputing saves."""
    f = jax.custom_vjp(primal)
    f.defvjp(fwd, lambda res, g: bwd(jax.lax.optimization_barrier(res), g))
    return f


def _recompute(x):
    return jnp.sin(x) * x


def _gated(x):
    return jnp.tanh(x) * x


def _numpy_exp(x):
    return jax.pure_callback(np.exp, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


def _unbroadcast(grad, shape):
    return grad.sum(tuple(range(grad.ndim - len(shape)))) if grad.ndim > len(shape) else grad.sum(1, keepdims=True)


# Each Function next to the same rules written by hand, and the shapes of their arguments.
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
    "numpy_forward": (
        NumPyExp.apply,
        custom_vjp(_numpy_exp, lambda x: (y := _numpy_exp(x), y), lambda y, g: (g * y,)),
        [(4,)],
    ),
    "pullback_on_ctx": (
        Pullback.apply,
        custom_vjp(_gated, lambda x: jax.vjp(_gated, x), lambda pullback, g: pullback(g)),
        [(4,)],
    ),
    "static_argument": (
        lambda x: Scale.apply(x, 3),
        custom_vjp(lambda x: x**3, lambda x: (x**3, x), lambda x, g: (g * 3 * x**2,)),
        [(4,)],
    ),
    "nested": (
        Nested.apply,
        custom_vjp(lambda x: jnp.exp(x) * x, lambda x: (jnp.exp(x) * x, x), lambda x, g: (g * (jnp.exp(x) * (x + 1)),)),
        [(4,)],
    ),
    "containers": (
        lambda w, b, x: Dictionary.apply({"w": w, "b": b}, x),
        custom_vjp(
            lambda w, b, x: {"y": w * x + b, "square": x**2},
            lambda w, b, x: ({"y": w * x + b, "square": x**2}, (w, x)),
            lambda res, g: (g["y"] * res[1], g["y"], g["y"] * res[0] + g["square"] * 2 * res[1]),
        ),
        [(4,), (4,), (4,)],
    ),
    "complex": (
        Modulus.apply,
        # Of JAX's convention, not PyTorch's: the conjugate.
        custom_vjp(
            lambda z: (z * z.conj()).real,
            lambda z: ((z * z.conj()).real, z),
            lambda z, g: ((2 * g * z).conj(),),
        ),
        [(4,)],
    ),
    "marked_output": (
        MarkedOutput.apply,
        custom_vjp(
            lambda x: (x**2, jnp.sign(x) * x, jnp.argsort(x)),
            lambda x: ((x**2, jnp.sign(x) * x, jnp.argsort(x)), x),
            lambda x, g: (2 * x * g[0],),
        ),
        [(4,)],
    ),
}


def arguments(name, batch=()):
    """Arrays of the shapes of a pair, each with `batch` axes in front."""
    keys = jax.random.split(jax.random.key(0), len(PAIRS[name][2]))
    dtype = jnp.complex64 if name == "complex" else jnp.float32
    return [jax.random.normal(k, (*batch, *shape), dtype) for k, shape in zip(keys, PAIRS[name][2], strict=True)]


def loss(f, depth=1):
    """A real number that depends on every output, `depth` calls of `f` one after the other."""

    def wrapped(*args):
        total = 0.0
        for _ in range(depth):
            outputs = jax.tree.leaves(f(*args))
            total += sum(jnp.sum(jnp.sin(y)) for y in outputs)
            args = (args[0] * total, *args[1:])
        return total

    return wrapped
