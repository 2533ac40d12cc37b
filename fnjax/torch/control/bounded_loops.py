"""Loops of JAX that end on a traced value, with gradients where a bound of the number of iterations is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.trace import Traced, trace

Arrays = Sequence[Any]
_MOST = 1000  # iterations of which a gradient may keep what they compute


def while_loop(
    test: Callable[[Arrays], Any],
    body: Callable[[Arrays], list[Any]],
    start: list[Any],
    most: int | None,
    end: Callable[[list[Any]], Any],
) -> Any:
    """Return `end(jax.lax.while_loop(test, body, start))`, differentiated as a scan if the iterations are bounded.

    Args:
        test: returns whether there is another iteration.
        body: runs an iteration.
        start: the arrays that the first iteration takes.
        most: a bound of the number of iterations; None to look for a counter that bounds it.
        end: a function of the results that makes reverse mode raise, where it cannot differentiate the loop.
    """
    # A function with a derivative of its own must not close over what is differentiated.
    ask, step = trace("test", test, start), trace("body", body, start)
    most = _find_most(ask, step, start) if most is None else most

    def run(start: Any, asked: Arrays, given: Arrays) -> Any:
        return end(jax.lax.while_loop(lambda a: ask(asked, a), lambda a: step(given, a), start))

    if most is None or most > _MOST:
        return run(start, ask.closed_over, step.closed_over)

    def scan(start: Any, asked: Arrays, given: Arrays) -> Any:
        def run(arrays: Any, _: None) -> tuple[Any, None]:
            return jax.lax.cond(ask(asked, arrays), lambda a: step(given, a), list, arrays), None

        return jax.lax.scan(run, start, length=most)[0]

    def differentiate(primals: Any, tangents: Any) -> Any:
        given: list[Any]
        tree: Any
        given, tree = jax.tree.flatten(primals)
        of = jax.tree.leaves(tangents)
        at = [i for i, t in enumerate(of) if not isinstance(t, SymbolicZero)]

        def run_from(*moved: Any) -> Any:  # constants stay known as such: some, as NumPy's results, have no derivative
            arrays = [*given]
            for i, array in zip(at, moved, strict=True):
                arrays[i] = array
            return scan(*tree.unflatten(arrays))

        return jax.jvp(run_from, [given[i] for i in at], [of[i] for i in at])

    loop = jax.custom_jvp(run)
    loop.defjvp(differentiate, symbolic_zeros=True)
    return loop(start, ask.closed_over, step.closed_over)


def _find_most(ask: Traced, step: Traced, start: list[Any]) -> int | None:
    """Return a bound of the number of iterations, by counters with concrete start values: `n < 9 and x > 0`."""
    known = [x if _is_counter(x) and not isinstance(x, jax.core.Tracer) else None for x in start[1:]]
    before: Any = None
    with jax.ensure_compile_time_eval():
        for count in range(_MOST + 1):
            numbers = [x if x is None else int(x) for x in known]
            if numbers == before or all(x is None for x in known):
                return None
            before = numbers
            (goes_on,), (_, *known) = (_evaluate(traced, [None, *known]) for traced in (ask, step))
            if goes_on is not None and not goes_on:
                return count
    return None


def _is_counter(x: Any) -> bool:
    return bool(x.shape == () and (jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool))


def _evaluate(traced: Traced, args: Sequence[Any]) -> list[Any]:
    """Return the results of a program that depend on arguments with concrete values alone, and None for others."""
    program = open_jaxpr(traced.jaxpr)
    values = dict(zip(program.invars, [*(None for _ in traced.closed_over), *args], strict=True))

    def read(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values.get(x)

    for equation in program.eqns:
        given = [read(x) for x in equation.invars]
        if equation.primitive.multiple_results or equation.effects or not _is_counter(equation.outvars[0].aval):
            continue
        (result,) = equation.outvars
        if all(x is not None for x in given):
            values[result] = equation.primitive.bind(*given, **equation.params)
        elif (equation.primitive.name, result.aval.dtype) == ("and", bool) and any(
            x is not None and not x for x in given
        ):
            values[result] = np.False_
    return [read(x) for x in program.outvars]
