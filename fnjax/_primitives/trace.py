"""Tracing of functions of arrays; captured arrays become inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import PyTreeDef

from fnjax._primitives.jax_internals import trace_flat
from fnjax._primitives.rule import Arrays, Derivative, Needs, Rule


class Traced(NamedTuple):
    """Function traced to a program that captures nothing.

    Attributes:
        jaxpr: (captured arrays, leaves of the arguments) → leaves of the result.
        captured: the arrays that the function captured.
        result: the structure of what it returned; None in it has no leaf.
    """

    jaxpr: ClosedJaxpr
    captured: Arrays
    result: PyTreeDef

    def __call__(self, captured: Sequence[Any], *args: Any) -> Any:
        """Evaluate the program on other arrays."""
        return self.result.unflatten(jaxpr_as_fun(self.jaxpr)(*captured, *jax.tree.leaves(args)))


def trace(name: str, fun: Callable[..., Any], *args: Any) -> Traced:
    """Trace a function of pytrees whose leaves are arrays or their types; None is an empty subtree."""
    leaves, tree = jax.tree.flatten(args)
    results: list[PyTreeDef] = []

    def flat(*leaves: Any) -> Arrays:
        found, result = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
        results.append(result)
        return found

    avals = [x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x) for x in leaves]
    jaxpr, captured = _trace_closed(name, flat, avals)
    return Traced(jaxpr, captured, results[0])


def _trace_closed(name: str, fun: Callable[..., Arrays], avals: Sequence[Any]) -> tuple[ClosedJaxpr, Arrays]:
    jaxpr, captured = trace_flat(name, fun, avals)
    if captured:  # once more with these as inputs: constants in a jaxpr would outlive their trace
        body, n = jaxpr, len(captured)
        avals = [*map(jax.typeof, captured), *avals]
        jaxpr, _ = trace_flat(name, lambda *xs: jax.core.eval_jaxpr(body, xs[:n], *xs[n:]), avals)
    return ClosedJaxpr(jaxpr, ()), captured


class TracedRun(NamedTuple):
    """Result of tracing `rule.run`.

    Attributes:
        jaxpr: (captured arrays, operands) → outputs and intermediates.
        captured: the arrays that forward captured.
        n_outputs: how many outputs there are.
        derivative: the derivative.
    """

    jaxpr: ClosedJaxpr
    captured: Arrays
    n_outputs: int
    derivative: Derivative


def trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> TracedRun:
    """Trace `rule.run` on operands; `needs` says which of them are being differentiated."""
    facts: list[tuple[int, Derivative]] = []

    def run(*operands: Any) -> Arrays:
        outputs, intermediates, derivative = rule.run(needs, *operands)
        facts.append((len(outputs), derivative))
        return outputs + intermediates

    jaxpr, captured = _trace_closed(f"{rule.name}.forward", run, [*map(jax.typeof, operands)])
    return TracedRun(jaxpr, captured, *facts[0])
