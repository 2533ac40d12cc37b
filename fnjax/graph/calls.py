"""Parsed calls of Functions: the only module here that reads the parameters of the primitives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.rule import Derivative, ResidualSource, merge, select

SOURCES = {"operand": "input", "output": "output", "intermediate": "intermediate"}


@dataclasses.dataclass(eq=False)
class FunctionCall:
    """Call of a Function.

    Attributes:
        name: the name of the class.
        arguments: for each operand the name of its argument.
        jaxpr: the operations of forward: operands → outputs and saved intermediates.
        n_outputs: how many of these results are outputs.
        n_closed_over: how many of its operands are closed-over arrays.
        derivative: the derivative, once the call was differentiated.
        needs: for each operand after the closed-over ones whether it is being differentiated.
        outputs: the types of the outputs that have a gradient.
        residuals: the types of what is saved; inside shard_map those on one device.
    """

    name: str
    arguments: tuple[str, ...]
    jaxpr: Any
    n_outputs: int
    n_closed_over: int
    derivative: Derivative | None = None
    needs: tuple[bool, ...] = ()
    outputs: tuple[Any, ...] = ()
    residuals: tuple[Any, ...] = ()

    @property
    def residual_sources(self) -> tuple[ResidualSource, ...]:
        """The source of each residual."""
        return () if self.derivative is None else self.derivative.sources

    def describe(self, residual: ResidualSource) -> str:
        """Return the name of a residual: `input x`, `output 1`, `output 1 (no gradient)`, `intermediate 0 (exp)`."""
        word = SOURCES[residual.source]
        if residual.source == "operand":
            return f"{word} {self.argument(residual.at)}"
        if residual.source == "output":
            return self._name_output(residual.at)
        results = open_jaxpr(self.jaxpr).outvars
        for i, output in enumerate(results[: self.n_outputs]):  # returned, but as an output without gradient
            if output is results[self.n_outputs + residual.at]:
                return f"{self._name_output(i)} (no gradient)"
        maker = self._find_maker(self.n_outputs + residual.at)
        return f"{word} {residual.at}" + (f" ({maker})" if maker else "")

    def _name_output(self, index: int) -> str:
        return "output" if self.n_outputs == 1 else f"output {index}"

    def argument(self, operand: int) -> str:
        """Return the name of the argument to which an operand of the rule belongs."""
        return self.arguments[operand] if operand < len(self.arguments) else f"argument {operand}"

    def _find_maker(self, result: int) -> str:
        jaxpr = open_jaxpr(self.jaxpr)
        made_by: dict[int, str] = {
            id(v): eqn.params.get("name", eqn.primitive.name) for eqn in jaxpr.eqns for v in eqn.outvars
        }
        return made_by.get(id(jaxpr.outvars[result]), "")

    def backward(self) -> tuple[Any, list[bool]] | None:
        """Trace backward alone.

        Returns:
            Its jaxpr, (residuals, gradients of the outputs that have one) → gradients of the operands that are being
            differentiated, without those that are None, and flags for the ones present; or None if there is only a jvp,
            or if backward names an axis of the surrounding shard_map or vmap.
        """
        derivative = self.derivative
        if derivative is None or derivative.vjp is None:
            return None
        vjp = derivative.vjp

        def run(residuals: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
            return select(vjp(residuals, merge(grads, derivative.differentiable)), self.needs)

        types = [[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] for avals in (self.residuals, self.outputs)]
        present: list[bool] = []

        def traced(*types: Any) -> list[Any]:
            grads = run(*types)
            present[:] = [g is not None for g in grads]
            return grads

        try:
            jaxpr = jax.make_jaxpr(traced)(*types)
        except NameError:  # JAX's for an axis that is not bound here
            return None
        return jaxpr, present


def read_call(eqn: Any) -> FunctionCall:
    """Return the call of a `fnjax_call` equation."""
    rule, body = eqn.params["rule"], eqn.params["body"]
    return FunctionCall(rule.name, rule.operand_names(), body.jaxpr, body.n_outputs, body.n_closed_over)


def read_backward(call: FunctionCall, eqn: Any) -> FunctionCall:
    """Return the call with the derivative of its `fnjax_linear` equation."""
    params = eqn.params
    residuals = tuple(v.aval for v in eqn.invars[: len(params["derivative"].sources)])
    return dataclasses.replace(
        call, derivative=params["derivative"], needs=params["needs"], outputs=params["avals"], residuals=residuals
    )
