"""One compiled program in place of runs outside jit, where each operation would be compiled by itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr

from fnjax._check import running
from fnjax._primitives.identity import identify
from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import iter_equations

SHORT_BYTES = 2**12  # the results of an operation, on average, of a program that is not worth optimizing
SHORT_OPERATIONS = 256  # of fewer the results may be larger


class Results(NamedTuple):
    """Results of one run of a function and of its vjp.

    Attributes:
        values: what the function returns.
        values_differentiated: what it returns while it is being differentiated.
        gradients: those of its arguments.
    """

    values: list[Any]
    values_differentiated: list[Any]
    gradients: list[Any]


def compile_vjp(
    fun: Callable[..., list[Any]], ins: Sequence[Any], outs: Sequence[Any]
) -> Callable[..., Results] | None:
    """Compile a function together with its vjp: (arguments, cotangents) → results.

    Args:
        fun: function of arrays.
        ins: types of its arguments.
        outs: types of its results.

    Returns:
        The compiled function; None under the conditions of `compile_reproducible`.
    """

    def run(parts: Sequence[Any], cotangents: Sequence[Any]) -> Results:
        values, pullback = jax.vjp(fun, *parts)
        return Results(fun(*parts), values, list(pullback(cotangents)))

    return compile_reproducible(run, list(ins), list(outs))


def compile_reproducible(fun: Callable[..., Any], *types: Any) -> Callable[..., Any] | None:
    """Compile a function of trees of arrays that is called more than once.

    Returns:
        The compiled function; None under the conditions of `compile_traced`, or if a second trace, which runs the
        user's methods again, is another program.
    """
    return compile_traced(fun, *types, traces=2)


def compile_traced(fun: Callable[..., Any], *types: Any, traces: int = 1) -> Callable[..., Any] | None:
    """Compile a function of trees of arrays.

    Args:
        fun: the function.
        types: its arguments, or their types.
        traces: how often it is traced; all traces have to be the same program.

    Returns:
        The compiled function; None if it cannot be traced, or has operations that are not JAX's own (callbacks for
        example).
    """
    try:  # functools.partial makes another object, which JAX traces again
        made = [jax.make_jaxpr(functools.partial(fun), return_shape=True)(*types) for _ in range(traces)]
        program, *others = (running.inline(closed, jax.tree.leaves(types)) for closed, _ in made)
    except Exception:  # noqa: BLE001 - outside jit the function may work, or raise a clearer error
        return None
    key, structure = identify(program), jax.tree.structure(made[0][1])
    if not running.is_jax_own(program) or any(key != identify(other) for other in others):
        return None
    run, constants = _compile(_Program(key, open_jaxpr(program))), list(program.consts)
    return lambda *args: jax.tree.unflatten(structure, run(constants, jax.tree.leaves(args)))


@dataclasses.dataclass(frozen=True)
class _Program:
    """Jaxpr with its key."""

    key: Hashable
    jaxpr: Any = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=64)
def _compile(program: _Program) -> Callable[..., list[Any]]:
    """Compile a program as a function of its constants and its arguments; it is kept for the next check."""
    loops = any(eqn.primitive.name in ("scan", "while") for eqn in iter_equations(program.jaxpr))
    # A short program takes longer to compile than to run a thousand times.
    operations, held = running.measure_cost(program.jaxpr)
    short = held < SHORT_BYTES * max(operations, SHORT_OPERATIONS) and not loops and jax.default_backend() == "cpu"
    options: dict[str, Any] = {"xla_backend_optimization_level": 0} if short else {}
    if short and operations > SHORT_OPERATIONS:  # of fewer fusion makes less code
        options["xla_disable_hlo_passes"] = "fusion"
    return jax.jit(
        lambda constants, args: running.evaluate(ClosedJaxpr(program.jaxpr, constants), args), compiler_options=options
    )
