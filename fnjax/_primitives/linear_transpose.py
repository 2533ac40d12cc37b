"""Transposition of functions that are checked to be linear: JAX would silently return a wrong value for others."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, DebugInfo, Literal, jaxpr_as_fun, jaxprs_in_params, primitives
from jax.interpreters import ad

from fnjax._primitives.jax_equations import located_anew, user_location
from fnjax._primitives.jax_internals import is_sharding_error, open_jaxpr, without_writes
from fnjax._primitives.jaxprs import FORWARD, iter_equations
from fnjax._primitives.linearity import has_no_transpose, is_linear, is_nonlinear, may_be_linear
from fnjax._primitives.rule import OPERATION, Arrays, Body, ErrorKind, Method, Rule, select
from fnjax._primitives.trace import trace
from fnjax._primitives.types import Aval, Eqn, Jaxpr
from fnjax.errors import FnjaxError

_ERRORS: dict[Method, tuple[ErrorKind, ErrorKind]] = {
    "forward": ("forward not linear", "forward without transpose"),
    "backward": ("backward not linear", "backward without transpose"),
    "jvp": ("jvp not linear", "jvp without transpose"),
}


def transpose(
    fun: Callable[..., Arrays],
    avals: Sequence[Aval],
    vectors: Sequence[Any],
    rule: Rule,
    method: Method,
    *,
    known_linear: bool = False,
) -> Arrays:
    """Apply the transpose of a linear function (which may return None for zero) to `vectors`.

    Args:
        fun: the function.
        avals: the types of its arguments.
        vectors: one for each of its results.
        rule: the rule that it belongs to, for errors.
        method: the user's method that it runs, for errors.
        known_linear: whether the function needs no check.

    Raises:
        FnjaxError: if the function is not linear, or JAX cannot transpose one of its operations.
    """
    not_linear, without_transpose = _ERRORS[method]
    zeros = list(map(ad.zeros_like_aval, avals))  # rather than types: zeros carry the mesh axes on which they vary
    jaxpr, closed_over, result = trace(rule.name, fun, *zeros)
    if jaxpr.effects:  # backward's writes to Refs are not part of its transpose
        part = without_writes(open_jaxpr(jaxpr), [True] * len(jaxpr.out_avals))
        if part is None:
            raise rule.error(not_linear)
        jaxpr = ClosedJaxpr(part, ())
    may_be = True if known_linear else is_linear(jaxpr, closed_over)
    if may_be is False:
        raise rule.error(not_linear)
    vectors = [v for v, child in zip(vectors, result.children(), strict=True) if child.num_leaves]  # not those of None

    jaxpr = _prepare(jaxpr)

    def linear(*xs: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*closed_over, *xs)

    cause: Exception | None = None
    try:
        results = list(jax.linear_transpose(linear, *zeros)(vectors))
        if may_be:
            return results
    except Exception as e:  # any error of JAX about an operation without a transpose
        if isinstance(e, FnjaxError) or is_of_a_method(e) or is_sharding_error(e):
            raise
        cause = e
    with located_anew():
        retraced = trace(rule.name, fun, *zeros)
    depends = [False] * len(retraced.closed_over) + [True] * len(zeros)
    failing = list(_iter_without_transpose(retraced.jaxpr, depends, ""))
    if failing and all(eqn.primitive.name in _DERIVATIVE_ONLY for eqn, _ in failing):  # that of a linear function
        return list(jax.vjp(linear, *zeros)[1](vectors))
    if any(is_nonlinear(eqn) for eqn, _ in failing):
        raise rule.error(not_linear) from cause
    operation = f"{failing[0][0].primitive.name}{failing[0][1]}" if failing else OPERATION
    raise rule.error(without_transpose, operation) from cause


# Linear operations of which JAX has the derivative, and no transpose for some parameters: x.at[i].set(y), cg.
_DERIVATIVE_ONLY = {"scatter", "custom_linear_solve"}


def transpose_call(
    run: Callable[[Arrays, Sequence[Any]], Arrays],
    differentiate: Callable[[Arrays, Arrays, Sequence[Any]], Arrays],
    known: Arrays,
    avals: Sequence[Aval],
    vectors: Arrays,
    rule: Rule,
    *,
    known_linear: bool,
) -> Arrays:
    """Transpose a call in the operands in which its body is linear, by its operations.

    The result, linear in `vectors`, is differentiated in the other operands by the rule: its derivative is the
    transpose of the derivative of the call.

    Args:
        run: (other operands, those to transpose in) → outputs.
        differentiate: (other operands, their tangents or symbolic zeros, those to transpose in) → tangents of the
            outputs, by the rule.
        known: the other operands.
        avals: the types of those to transpose in.
        vectors: the cotangents of the outputs.
        rule: of the call.
        known_linear: whether the body is known to be linear.
    """

    @jax.custom_jvp
    def transposed(known: Arrays, vectors: Arrays) -> Arrays:
        return transpose(lambda *xs: run(known, xs), avals, vectors, rule, "forward", known_linear=known_linear)

    def jvp(primals: tuple[Arrays, Arrays], tangents: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
        (known, vectors), terms = primals, []
        dots = [ad.Zero(t.aval) if isinstance(t, SymbolicZero) else t for t in tangents[0]]
        if any(type(t) is not ad.Zero for t in dots):
            terms.append(transpose(lambda *xs: differentiate(known, dots, xs), avals, vectors, rule, "forward"))
        if not all(isinstance(t, SymbolicZero) for t in tangents[1]):
            filled = [ad.zeros_like_aval(t.aval) if isinstance(t, SymbolicZero) else t for t in tangents[1]]
            terms.append(transposed(known, filled))
        return transposed(known, vectors), [functools.reduce(jnp.add, xs) for xs in zip(*terms, strict=True)]

    transposed.defjvp(jvp, symbolic_zeros=True)
    return list(transposed(known, vectors))


def _prepare(program: Jaxpr) -> Any:
    """Return a program that is known to be linear in a form that JAX can transpose.

    Calls of Functions need no check of their own: that of the program has seen into their bodies. JAX has no transpose
    for names, nor (0.12) for a barrier with known operands.
    """

    def replace(value: Any) -> Any:
        if isinstance(value, Body):
            return dataclasses.replace(value, jaxpr=_prepare(value.jaxpr))
        if hasattr(open_jaxpr(value), "eqns"):
            return _prepare(value)
        if isinstance(value, tuple | list):
            return getattr(value, "_make", type(value))(map(replace, value))
        return value

    if not any(eqn.primitive.name in {FORWARD, "name", "optimization_barrier"} for eqn in iter_equations(program)):
        return program
    jaxpr, eqns = open_jaxpr(program), []
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitives.name_p:
            eqns.append(eqn.replace(primitive=primitives.copy_p, params={}))
        elif eqn.primitive.name == "optimization_barrier":
            eqns += [eqn.replace(invars=[x], outvars=[v]) for x, v in zip(eqn.invars, eqn.outvars, strict=True)]
        else:
            params = {name: replace(value) for name, value in eqn.params.items()}
            if eqn.primitive.name == FORWARD:
                params["known_linear"] = True
            eqns.append(eqn.replace(params=params))
    jaxpr = jaxpr.replace(eqns=eqns)
    return jaxpr if program is open_jaxpr(program) else ClosedJaxpr(jaxpr, program.consts)


def _iter_without_transpose(program: Jaxpr, linear: Sequence[bool], outer: str) -> Iterator[tuple[Any, str]]:
    """Yield the equations of a program that JAX cannot transpose in those inputs that are `linear`, and their places.

    `outer` is the place of the equation around the program: JAX's own programs have none.
    """
    jaxpr = open_jaxpr(program)
    variables = set(select(jaxpr.invars, linear))  # that depend on these inputs
    for eqn in jaxpr.eqns:
        depends = [not isinstance(x, Literal) and x in variables for x in eqn.invars]
        if not any(depends):
            continue
        variables.update(v for v in eqn.outvars if may_be_linear(v.aval))
        if not has_no_transpose(eqn) and _has_transpose(jaxpr, eqn, depends):
            continue
        place, is_one = user_location(eqn) or outer, has_no_transpose(eqn) or eqn.primitive.name in _DERIVATIVE_ONLY
        inner = [] if is_one else map(open_jaxpr, jaxprs_in_params(eqn.params))
        # Of a branch the operands are the last ones.
        bodies = [(body, depends[len(depends) - len(body.invars) :]) for body in inner]
        failing = [e for body, last in bodies for e in _iter_without_transpose(body, last, place)]
        yield from failing or [(eqn, place)]


def _has_transpose(jaxpr: Jaxpr, eqn: Eqn, linear: Sequence[bool]) -> bool:
    """Return whether JAX can transpose an equation of a program in the operands that are marked."""
    inputs = list(dict.fromkeys(x for x in eqn.invars if not isinstance(x, Literal)))
    marked = {x for x, is_linear in zip(eqn.invars, linear, strict=True) if is_linear}
    results = [v for v in eqn.outvars if may_be_linear(v.aval)]
    info = DebugInfo("fnjax", "operation", ("",) * len(inputs), ("",) * len(results))
    alone = jaxpr.replace(constvars=[], invars=inputs, outvars=results, eqns=[eqn], debug_info=info)
    zeros = [ad.zeros_like_aval(x.aval) for x in inputs]
    vectors = [x for x, v in zip(zeros, inputs, strict=True) if v in marked]

    def run(*xs: Any) -> Arrays:
        values = iter(xs)
        filled = [next(values) if v in marked else x for x, v in zip(zeros, inputs, strict=True)]
        return list(jax.core.eval_jaxpr(alone, (), *filled))

    try:
        jax.eval_shape(lambda *xs: jax.linear_transpose(run, *xs)(run(*xs)), *vectors)
    except Exception:  # noqa: BLE001 - any error of JAX
        return False
    return True


def mark_as_of_a_method(e: Exception) -> None:
    """Mark an exception that a user's method raised, to distinguish it from JAX's about transposes."""
    vars(e)[_MARK] = True


_MARK = "_raised_by_a_method"


def is_of_a_method(e: Exception) -> bool:
    """Return whether an exception was raised inside a user's method."""
    return _MARK in vars(e)
