"""Linear Functions: forward is linear in its differentiable arguments, and backward is its transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fnjax._function.backward import BackwardSpec, call_backward
from fnjax._primitives.rule import Arrays, Derivative, ResidualSource
from fnjax._primitives.sharding import make_zeros
from fnjax.errors import ContextError, error


def linear_derivative(
    spec: BackwardSpec, sources: Sequence[ResidualSource], forward: Callable[[Arrays], Arrays]
) -> Derivative:
    """Return the derivative of a linear Function: forward itself on tangents, and backward as its transpose.

    Args:
        spec: of the run of forward.
        sources: those of the residuals that ctx keeps.
        forward: operands → outputs.

    Raises:
        ContextError: if ctx keeps an argument in which the Function is linear, or an output: where JAX transposes a
            linear function, these have no value.
    """
    differentiable = spec.arguments.differentiable
    for source in sources:
        if source.source == "output" or (source.source == "operand" and differentiable[source.at]):
            raise _keeps_value(spec, source)
    parameters = [ResidualSource("operand", i) for i, d in enumerate(differentiable) if not d]
    sources = list(dict.fromkeys([*sources, *parameters]))  # a Ref must not appear twice
    places = {source.at: i for i, source in enumerate(sources) if source.source == "operand"}

    def call_on_tangents(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        operands = [
            residuals[places[i]] if i in places else make_zeros(aval) if t is None else t
            for i, (t, aval) in enumerate(zip(tangents, spec.operands, strict=True))
        ]
        return [y if d else None for y, d in zip(forward(operands), spec.differentiable, strict=True)]

    vjp = functools.partial(call_backward, spec)
    return Derivative(tuple(sources), spec.differentiable, vjp, call_on_tangents, is_linear=True)


def _keeps_value(spec: BackwardSpec, source: ResidualSource) -> ContextError:
    name = spec.spec.name
    what = f"output {source.at}"
    if source.source == "operand":
        what = f"argument '{spec.arguments.operand_names()[source.at]}'"
    return error(
        ContextError,
        f"{name} says linear = True, and its ctx keeps {what}; backward of a linear Function is its transpose, which "
        "does not depend on that value",
        "linear",
        method=spec.spec.setup_context or spec.spec.forward,
        expected="a ctx that keeps shapes, static values, integers and what is computed from these",
        fix=f"save the shape or the dtype if that is what backward reads; pass parameters of {name} as static values, "
        "or in a tuple or a dict, which have no gradient; remove linear = True if backward needs the value",
    )
