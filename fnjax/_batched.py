"""Rules under jax.vmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fnjax._jax.rule import Arrays, Linear, Needs, Rule, Run


class Batched:
    """A rule under `jax.vmap`: every output and intermediate is batched along axis 0."""

    batch = finish = traces = None

    def __init__(self, rule: Rule, axis: Any, dims: Sequence[int | None]) -> None:
        self.captures_tracers, self.error = rule.captures_tracers, rule.error
        self.name, self.residual_name = rule.name, rule.residual_name
        self._rule, self._axis, self._dims = rule, axis, dims

    def run(self, needs: Needs, *operands: Any) -> Run:
        linears: list[Linear] = []

        def run(operands: Sequence[Any]) -> tuple[Arrays, Arrays]:
            run = self._rule.run(needs, *operands)
            linears.append(run.linear)
            return run.outputs, run.intermediates

        outputs, intermediates = vmap(run, self._axis, (list(self._dims),))(list(operands))
        linear = linears[-1]
        dims = [self._dims[k.at] if k.source == "operand" else 0 for k in linear.kept]
        return Run(outputs, intermediates, batched(linear, self._axis, dims, self._dims))


def vmap(fun: Callable[..., Any], axis: Any, dims: tuple[Any, ...]) -> Callable[..., Any]:
    """`jax.vmap` over the axis that a batching rule was told of."""
    return jax.vmap(fun, dims, 0, axis_name=axis.name, axis_size=axis.size, spmd_axis_name=axis.spmd_name)


def batched(linear: Linear, axis: Any, dims: Sequence[int | None], operands: Sequence[int | None]) -> Linear:
    """A derivative under `jax.vmap`: residuals are batched as `dims` says, and operands as `operands` does."""

    def pull(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        assert linear.pull is not None
        grads = vmap(linear.pull, axis, (list(dims), 0))(list(residuals), list(cotangents))
        return [
            None if g is None else g.sum(0) if dim is None else jax.numpy.moveaxis(g, 0, dim)
            for g, dim in zip(grads, operands, strict=True)
        ]

    def push(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert linear.push is not None
        given = [None if t is None else dim for t, dim in zip(tangents, operands, strict=True)]
        return list(vmap(linear.push, axis, (list(dims), given))(list(residuals), list(tangents)))

    return dataclasses.replace(linear, pull=linear.pull and pull, push=linear.push and push)
