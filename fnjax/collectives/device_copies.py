"""Inside shard_map: outputs whose gradients backward sums over devices itself, as PyTorch's processes do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from fnjax._primitives.jax_internals import open_jaxpr, varying
from fnjax._primitives.rule import Arrays, DerivedRule, ForwardResult, Needs, ResidualSource, Rule
from fnjax._primitives.sharding import is_in_backward, manual_axes
from fnjax._primitives.trace import trace, trace_run
from fnjax._primitives.tree import is_inexact


class DeviceCopies(DerivedRule):
    """Rule inside shard_map whose outputs vary over the mesh axes over which its backward sums their gradients.

    For a value that does not vary, JAX sums its gradients over the devices. If backward also sums them, each device's
    gradient is counted once for each device.
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.has_vmap, self.finishes = rule.has_vmap, rule.finishes
        self._in_backward = (
            is_in_backward()
        )  # a copy there would make the product with a reduced gradient a partial one

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward and make its outputs vary."""
        rule = self.rule
        outputs, intermediates, derivative = rule.forward(needs, operands)
        if self._in_backward and not any(needs):
            return ForwardResult(outputs, intermediates, derivative)
        copies = [_vary(x, axes) for x, axes in zip(outputs, _find_sums(rule, operands), strict=True)]
        # Backward saves the output that does not vary: a reduced gradient times a varying value would be partial.
        varied = [at for at, (x, copy) in enumerate(zip(outputs, copies, strict=True)) if x is not copy]
        if self._in_backward and varied:
            raise rule.error("copies in backward")
        saved = {at: len(intermediates) + i for i, at in enumerate(varied)}
        sources = tuple(
            ResidualSource("intermediate", saved[k.at]) if k.source == "output" and k.at in saved else k
            for k in derivative.sources
        )
        return ForwardResult(
            copies, [*intermediates, *(outputs[at] for at in varied)], dataclasses.replace(derivative, sources=sources)
        )


def _vary(x: Any, axes: frozenset[Any]) -> Any:
    missing = tuple(axes - varying(jax.typeof(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _find_sums(rule: Rule, operands: Sequence[Any]) -> list[frozenset[Any]]:
    """Return for each output the mesh axes over which backward sums its gradient.

    Backward is traced with device-varying cotangents. A gradient that depends on one and does not vary is the result of
    a sum over the devices or of another collective.
    """
    axes = manual_axes()
    forward = trace_run(rule, tuple(map(is_inexact, operands)), operands)
    derivative, results = forward.derivative, forward.jaxpr.out_avals
    found: list[frozenset[Any]] = [frozenset() for _ in range(forward.n_outputs)]
    if derivative.vjp is None or all(axes <= varying(t) for t in results[: forward.n_outputs]):
        return found
    vjp = derivative.vjp
    types = {"operand": [*map(jax.typeof, operands)], "output": results, "intermediate": results[len(found) :]}
    residuals = [types[k.source][k.at] for k in derivative.sources]
    given = [t.to_ct_aval() if d else None for t, d in zip(results, derivative.differentiable, strict=False)]

    def of_copies(cotangents: Sequence[Any], residuals: Sequence[Any]) -> Arrays:
        return vjp(residuals, [ct if ct is None else _vary(ct, axes) for ct in cotangents])

    backward = trace(f"{rule.name}.backward", of_copies, given, residuals)
    jaxpr, start = open_jaxpr(backward.jaxpr), len(backward.closed_over)
    for i, gradient in enumerate(jaxpr.outvars):
        if summed := axes - varying(gradient.aval):
            used = iter(dce_jaxpr(jaxpr, [j == i for j in range(len(jaxpr.outvars))])[1][start:])
            found = [f | summed if ct is not None and next(used) else f for f, ct in zip(found, given, strict=True)]
    return found
