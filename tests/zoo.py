"""Functions with their plain-JAX twins and inputs, shared by tests and benchmarks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class SavedInput(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x) * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (jnp.cos(x) * x + jnp.sin(x))


class SavedOutput(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        y = jnp.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


class NumPyExp(fnjax.Function):
    """A saved output whose forward JAX cannot differentiate."""

    @staticmethod
    def forward(ctx, x):
        y = jax.pure_callback(np.exp, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


class SavedIntermediate(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        slope = 3 * x**2
        ctx.save_for_backward(slope)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return slope * grad_output


class Pullback(fnjax.Function):
    """ctx takes along a pullback of jax.vjp, a pytree of intermediates."""

    @staticmethod
    def forward(ctx, x):
        y, ctx.pullback = jax.vjp(lambda x: jnp.tanh(x) * x, x)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.pullback(grad_output)


class Recompute(fnjax.Function):
    """jax.vjp inside backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x) * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return jax.vjp(lambda x: jnp.sin(x) * x, x)[1](grad_output)


class CubeWithSlope(fnjax.Function):
    """The intermediate is an extra output, in the style with setup_context."""

    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx, grad_cube, grad_slope):
        x, slope = ctx.saved_tensors
        return grad_cube * slope + grad_slope * 6 * x


class Scale(fnjax.Function):
    """A static argument, kept as an attribute."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.save_for_backward(x)
        return x**k

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.k * x ** (ctx.k - 1), None


class Linear(fnjax.Function):
    """The documentation's LinearFunction: what is saved and computed depends on needs_input_grad."""

    @staticmethod
    def forward(ctx, x, w, b=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, w if needs[0] else None)
        y = x @ w.T
        return y if b is None else y + b

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ w
        if ctx.needs_input_grad[1]:
            grad_w = grad_output.T @ x
        if len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2]:
            grad_b = grad_output  # summed to the shape of b
        return grad_x, grad_w, grad_b


class Outer(fnjax.Function):
    """Broadcast arguments: gradients are summed to size."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * jnp.sin(y)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * jnp.sin(y), grad_output * x * jnp.cos(y)


class Nested(fnjax.Function):
    """Functions inside forward and backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return SavedOutput.apply(x) * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (SavedOutput.apply(x) * (x + 1))


class Dictionary(fnjax.Function):
    """Containers in and out."""

    pytree = True

    @staticmethod
    def forward(ctx, parameters, x):
        ctx.parameters, ctx.x = parameters, x
        return {"y": parameters["w"] * x + parameters["b"], "square": x**2}

    @staticmethod
    def backward(ctx, grad_output):
        g, w, x = grad_output["y"], ctx.parameters["w"], ctx.x
        return {"w": g * x, "b": g}, g * w + grad_output["square"] * 2 * x


class Modulus(fnjax.Function):
    """Complex in, real out, in PyTorch's convention."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z * z.conj()).real

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return 2 * grad_output * z


class MarkedOutput(fnjax.Function):
    """An output without gradient, and one of integers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        step = jnp.sign(x) * x
        ctx.mark_non_differentiable(step)
        return x**2, step, jnp.argsort(x)

    @staticmethod
    def backward(ctx, grad_square, grad_step, grad_order):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_square + grad_step + grad_order


class FalseRule(fnjax.Function):
    """exp with a rule that is not its derivative and goes through the saved output: d/dx = 100 y."""

    @staticmethod
    def forward(ctx, x):
        y = jnp.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return 100 * grad_output * y


@dataclasses.dataclass(frozen=True)
class Case:
    """A Function, what plain JAX makes of the same formula, and arguments for both.

    Attributes:
        name: the id in tests.
        apply: arrays → one array (or a tuple of them).
        twin: the same in plain jnp.
        inputs: random numbers → the arrays.
        order: how often both can be differentiated.
    """

    name: str
    apply: Callable[..., Any]
    twin: Callable[..., Any]
    inputs: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    order: int = 3

    def loss(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A real number that depends on every output without being linear in it."""
        return lambda *args: sum(jnp.sum(jnp.sin(jnp.abs(y)) + y.real**2) for y in jax.tree.leaves(f(*args)))


def arrays(case: Case) -> list[jax.Array]:
    """The arguments of a case, always the same."""
    return [jnp.asarray(x) for x in case.inputs(np.random.default_rng(0))]


def _vector(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.uniform(0.3, 1.2, 4),)


CASES = [
    Case("saved_input", SavedInput.apply, lambda x: jnp.sin(x) * x, _vector),
    Case("saved_output", SavedOutput.apply, jnp.exp, _vector),
    Case("numpy_forward", NumPyExp.apply, jnp.exp, _vector),
    Case("saved_intermediate", SavedIntermediate.apply, lambda x: x**3, _vector),
    Case("pullback_on_ctx", Pullback.apply, lambda x: jnp.tanh(x) * x, _vector),
    Case("vjp_in_backward", Recompute.apply, lambda x: jnp.sin(x) * x, _vector),
    Case("two_outputs", CubeWithSlope.apply, lambda x: (x**3, 3 * x**2), _vector),
    Case("static_argument", lambda x: Scale.apply(x, 3), lambda x: x**3, _vector),
    Case("nested", Nested.apply, lambda x: jnp.exp(x) * x, _vector),
    Case(
        "linear",
        Linear.apply,
        lambda x, w, b: x @ w.T + b,
        lambda rng: (rng.normal(size=(8, 3)), rng.normal(size=(2, 3)), rng.normal(size=2)),
    ),
    Case(
        "sum_to_size",
        Outer.apply,
        lambda x, y: x * jnp.sin(y),
        lambda rng: (rng.normal(size=(4, 1)), rng.normal(size=4)),
    ),
    Case(
        "containers",
        lambda w, b, x: Dictionary.apply({"w": w, "b": b}, x),
        lambda w, b, x: {"y": w * x + b, "square": x**2},
        lambda rng: tuple(rng.normal(size=4) for _ in range(3)),
    ),
    Case(
        "complex",
        Modulus.apply,
        lambda z: (z * z.conj()).real,
        lambda rng: (rng.normal(size=4) + 1j * rng.normal(size=4),),
    ),
    Case(
        "marked_output",
        MarkedOutput.apply,
        lambda x: (x**2, jax.lax.stop_gradient(jnp.sign(x) * x), jnp.argsort(x)),
        _vector,
    ),
]
