"""Tracing of functions of arrays; closed-over arrays become inputs."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import PyTreeDef

from fnjax._primitives.jax_internals import trace_flat
from fnjax._primitives.rule import Arrays, Derivative, Needs, Rule
from fnjax._primitives.tree import has_leaf, is_tracer


class Traced(NamedTuple):
    """Function traced to a program that closes over nothing.

    Attributes:
        jaxpr: (closed-over arrays, leaves of the arguments) → leaves of the result.
        closed_over: the arrays that the function closes over.
        result: the structure of what it returned; None in it has no leaf.
    """

    jaxpr: ClosedJaxpr
    closed_over: Arrays
    result: PyTreeDef

    def __call__(self, closed_over: Sequence[Any], *args: Any) -> Any:
        """Evaluate the program on other arrays."""
        return self.result.unflatten(jaxpr_as_fun(self.jaxpr)(*closed_over, *jax.tree.leaves(args)))


def trace(name: str, fun: Callable[..., Any], *args: Any) -> Traced:
    """Trace a function of pytrees whose leaves are arrays or their types; None is an empty subtree."""
    leaves, tree = jax.tree.flatten(args)
    structures: list[PyTreeDef] = []

    def flat(*leaves: Any) -> Arrays:
        results, structure = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
        structures.append(structure)
        return results

    avals = [x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x) for x in leaves]
    jaxpr, closed_over = trace_flat(name, flat, avals)
    return Traced(jaxpr, closed_over, structures[0])


class TracedRun(NamedTuple):
    """Result of tracing `rule.forward`.

    Attributes:
        jaxpr: (closed-over arrays, operands) → outputs and intermediates.
        closed_over: the arrays that forward closes over.
        n_outputs: how many outputs there are.
        derivative: the derivative.
    """

    jaxpr: ClosedJaxpr
    closed_over: Arrays
    n_outputs: int
    derivative: Derivative


def trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> TracedRun:
    """Trace `rule.forward` on operands; `needs` says which of them are being differentiated."""
    runs: list[tuple[int, Derivative]] = []

    def run(*operands: Any) -> Arrays:
        outputs, intermediates, derivative = rule.forward(needs, operands)
        runs.append((len(outputs), derivative))
        return outputs + intermediates

    avals = [*map(jax.typeof, operands)]
    jaxpr, closed_over = trace_flat(f"{rule.name}.forward", run, avals, rule.operand_names())
    return TracedRun(jaxpr, closed_over, *runs[0])


def closes_over_tracers(functions: Iterable[Any]) -> bool:
    """Return whether one of some values is a function that closes over a tracer, or refers to one that does."""
    # A function may refer to itself, so the depth is limited; a deeper tracer is an error when the rule runs.
    pending = [(function, 0) for function in functions]
    while pending:
        value, depth = pending.pop()
        function = value.__func__ if isinstance(value, types.MethodType | staticmethod | classmethod) else value
        if isinstance(function, types.FunctionType) and depth < _DEPTH:
            for closed_over in closed_over_values(function):
                if not isinstance(closed_over, types.FunctionType) and has_leaf(closed_over, is_tracer):
                    return True
                pending.append((closed_over, depth + 1))
    return False


_DEPTH = 4


def closed_over_values(function: types.FunctionType) -> list[Any]:
    """Return the values in a function's closure and defaults, and the function that it wraps."""
    values = list(function.__defaults__ or ())
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            values.append(cell.cell_contents)
    return [*values, function.__wrapped__] if hasattr(function, "__wrapped__") else values
