"""Rules under jax.vmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import ad

from fnjax._primitives.jax_internals import vmap
from fnjax._primitives.rule import Arrays, Derivative, DerivedRule, ForwardResult, Needs, Rule


class Batched(DerivedRule):
    """Rule under `jax.vmap`: every output and intermediate is batched along axis 0.

    Under a second vmap JAX batches it: the user's rule handles one axis, and finish none.
    """

    def __init__(self, rule: Rule, axis: Any, dims: Sequence[int | None]) -> None:
        super().__init__(rule)
        self._axis, self._dims = axis, list(dims)

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward on all examples at once."""
        derivatives: list[Derivative] = []

        def run_one(operands: Sequence[Any]) -> tuple[Arrays, Arrays]:
            outputs, intermediates, derivative = self.rule.forward(needs, operands)
            derivatives.append(derivative)
            return outputs, intermediates

        # Operands that are residuals are not results of the vmap: it would batch those that are not batched.
        axis, dims = self._axis, self._dims
        outputs, intermediates = vmap(run_one, axis, (dims,))(list(operands))
        residual_dims = [dims[k.at] if k.source == "operand" else 0 for k in derivatives[0].sources]
        return ForwardResult(outputs, intermediates, batched_derivative(derivatives[0], axis, residual_dims, dims))


def _sum(grads: Any) -> Any:
    """Sum gradients over axis 0, with the addition of their dtype: flax's fp8 metadata takes the maximum."""
    if not jax.numpy.issubdtype(grads.dtype, jax.dtypes.extended):
        return grads.sum(0)
    return jax.lax.scan(lambda total, grad: (ad.add_jaxvals(total, grad), None), grads[0], grads[1:])[0]


def batched_derivative(
    derivative: Derivative, axis: Any, dims: Sequence[int | None], operands: Sequence[int | None]
) -> Derivative:
    """Return a derivative under `jax.vmap`: residuals are batched as `dims` says, and operands as `operands` does."""

    def vjp(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        assert derivative.vjp is not None
        # An unbatched operand gets the sum of the examples' gradients.
        grads = vmap(derivative.vjp, axis, (list(dims), 0))(list(residuals), list(cotangents))
        return [
            None if g is None else _sum(g) if dim is None else jax.numpy.moveaxis(g, 0, dim)
            for g, dim in zip(grads, operands, strict=True)
        ]

    def jvp(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert derivative.jvp is not None
        given = [None if t is None else dim for t, dim in zip(tangents, operands, strict=True)]
        return list(vmap(derivative.jvp, axis, (list(dims), given))(list(residuals), list(tangents)))

    return dataclasses.replace(derivative, vjp=derivative.vjp and vjp, jvp=derivative.jvp and jvp)
