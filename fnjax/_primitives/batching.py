"""Rules under jax.vmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching

from fnjax._primitives.jax_internals import find_batch_axes, vmap
from fnjax._primitives.rule import Arrays, Derivative, DerivedRule, ForwardResult, Needs, Rule, select
from fnjax._primitives.types import Axis


def batch(
    fun: Callable[[Sequence[Any]], Arrays], axis: Axis, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Arrays, list[int | None]]:
    """Apply a function of one example to a batch.

    Returns:
        Its results, and for each of them its batch axis: 0, or None if it does not depend on the batch.
    """
    shared: Arrays = []
    axes: list[int | None] = []

    def run_one(operands: Sequence[Any]) -> Arrays:
        results = fun(operands)
        values, dims = find_batch_axes(results)
        shared[:] = values
        axes[:] = [None if dim is None else 0 for dim in dims]
        return select(results, [dim is not None for dim in axes])

    batched = iter(vmap(run_one, axis, (list(dims),))(list(operands)))
    return [value if dim is None else next(batched) for value, dim in zip(shared, axes, strict=True)], axes


class Batched(DerivedRule):
    """Rule under `jax.vmap`: outputs and intermediates that depend on the batch are batched along axis 0.

    Under a second vmap JAX batches it: the user's rule handles one axis, and finish none.

    Attributes:
        output_dims: the batch axes of the outputs, once forward has run.
    """

    output_dims: list[int | None]

    def __init__(self, rule: Rule, axis: Axis, dims: Sequence[int | None]) -> None:
        super().__init__(rule)
        self._axis, self._dims = axis, list(dims)

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward on all examples at once."""
        runs: list[tuple[int, Derivative]] = []

        def run_one(operands: Sequence[Any]) -> Arrays:
            outputs, intermediates, derivative = self.rule.forward(needs, operands)
            runs.append((len(outputs), derivative))
            return outputs + intermediates

        # Operands that are residuals are not results of `run_one`: their batch axes are known.
        values, axes = batch(run_one, self._axis, operands, self._dims)
        ((n, derivative),) = runs
        self.output_dims = axes[:n]
        dims = {"operand": self._dims, "output": self.output_dims, "intermediate": axes[n:]}
        residuals = [dims[source.source][source.at] for source in derivative.sources]
        derivative = batched_derivative(derivative, self._axis, residuals, self._dims, self.output_dims)
        return ForwardResult(values[:n], values[n:], derivative)


def _sum(grads: Any) -> Any:
    """Sum gradients over axis 0, with the addition of their dtype: flax's fp8 metadata takes the maximum."""
    if not jax.numpy.issubdtype(grads.dtype, jax.dtypes.extended):
        return grads.sum(0)
    return jax.lax.scan(lambda total, grad: (ad.add_jaxvals(total, grad), None), grads[0], grads[1:])[0]


def _to_first(cotangent: Any, axis: Axis) -> Any:
    """Return a batch of cotangents with the given one at the first example, zero at the others."""
    batch = batching.bdim_at_front(cotangent, None, axis.size, axis.explicit_mesh_axis)
    sharding = jax.typeof(batch).sharding
    example = jax.lax.broadcasted_iota(jax.numpy.int32, batch.shape, 0, out_sharding=sharding)
    return jax.numpy.where(example == 0, batch, ad.zeros_like_aval(jax.typeof(batch)))


def batched_derivative(
    derivative: Derivative,
    axis: Axis,
    residual_dims: Sequence[int | None],
    operand_dims: Sequence[int | None],
    output_dims: Sequence[int | None],
) -> Derivative:
    """Return a derivative under `jax.vmap`, given the batch axes of residuals, operands and outputs."""

    def vjp(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        assert derivative.vjp is not None
        # An unbatched output is that of every example, and of all of them together: its cotangent counts once. An
        # unbatched operand gets the sum of the examples' gradients.
        cotangents = [
            ct if ct is None or dim is not None else _to_first(ct, axis)
            for ct, dim in zip(cotangents, output_dims, strict=True)
        ]
        grads = vmap(derivative.vjp, axis, (list(residual_dims), 0))(list(residuals), cotangents)
        return [
            None if g is None else _sum(g) if dim is None else jax.numpy.moveaxis(g, 0, dim)
            for g, dim in zip(grads, operand_dims, strict=True)
        ]

    def jvp(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert derivative.jvp is not None
        tangent_dims = [None if t is None else dim for t, dim in zip(tangents, operand_dims, strict=True)]
        dots = vmap(derivative.jvp, axis, (list(residual_dims), tangent_dims))(list(residuals), list(tangents))
        return [t if t is None or dim is not None else t[0] for t, dim in zip(dots, output_dims, strict=True)]

    return dataclasses.replace(derivative, vjp=derivative.vjp and vjp, jvp=derivative.jvp and jvp)
