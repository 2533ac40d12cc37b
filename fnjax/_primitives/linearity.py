"""Linearity of traced functions: what depends on their inputs, and is added to what does not."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, primitives
from jax.interpreters import ad
from jax.interpreters.partial_eval import dce_jaxpr

from fnjax._primitives.jax_equations import is_callback
from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import BACKWARD, FORWARD, NONDIFFERENTIABLE, Marks, propagate, read_body
from fnjax._primitives.rule import Rule, select
from fnjax._primitives.trace import trace, trace_run
from fnjax._primitives.tree import is_inexact, is_ref, is_tracer

# `jax.linear_transpose` refuses products of what depends on the linear inputs, and drops constants that are added to
# it: it takes g + 1, which is affine, for linear. So each value is marked as a sum, known to be zero, of two summands.
_ZERO = 0
_CONSTANT = 1  # a summand that does not depend on the linear inputs
_LINEAR = 2  # one that does
_AFFINE = _CONSTANT | _LINEAR
_UNKNOWN = 4  # the result of an operation of which JAX does not tell whether it is linear: a callback, a while loop

# Operations that return zeros for zeros.
_OF_ZEROS = {
    *("add", "sub", "add_any", "select_n", "concatenate", "stack", "pad", "dynamic_update_slice", "complex", "neg"),
    *("scatter", "scatter-add", "scatter-sub", "scatter_add", "gather", "slice", "dynamic_slice", "split", "unstack"),
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "rev", "tile", "copy", "copy_p", "reduce_sum", "cumsum"),
    *("convert_element_type", "reduce_precision", "real", "imag", "conj", "pvary", "pcast", "psum", "psum_invariant"),
    *("all_gather", "ppermute", "sharding_constraint", "reshard", "abs", "sign", "max", "min", "tanh"),
}
# Operations that return zeros if one operand is zero.
_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}
# Operations that are linear in one or some operands, for any values of the others.
_LINEAR_IN_SOME = _PRODUCTS | {
    *("div", "triangular_solve", "tridiagonal_solve", "ragged_dot_general", "scatter-mul", "scatter_mul"),
    *("select_and_scatter_add", "select_and_gather_add", "custom_linear_solve", "linear_call"),
}
# Operations that return their first operands unchanged.
_EACH = {"optimization_barrier", "name", NONDIFFERENTIABLE, "fnjax_forward_only"}
# Operations that may be linear and have no transpose, besides loops of unknown length and callbacks.
_NO_TRANSPOSE = {"stop_gradient", "pallas_call", "ffi_call", "triton_kernel_call"}


def is_linear(program: Any, closed_over: Sequence[Any]) -> bool | None:
    """Return whether a program is linear in its inputs after the first ones, the arrays that it closes over.

    None if it may be, but for an operation of which JAX does not tell.
    """

    def mark(mark_array: Callable[[Any], int]) -> int:
        given = [*map(mark_array, closed_over), *([_LINEAR] * (len(program.in_avals) - len(closed_over)))]
        return _join(_mark(program, given, mark_array))

    found = mark(lambda _: _CONSTANT)
    if found & _CONSTANT:  # only now, since a large constant must be copied from its device
        found = mark(lambda x: _ZERO if _is_known_zero(x) else _CONSTANT)
    return False if found & _CONSTANT else None if found & _UNKNOWN else True


def returns_zeros(program: Any, closed_over: Sequence[Any]) -> bool:
    """Return whether a program is seen to return zeros where its inputs after the first ones are zeros."""
    given = [_CONSTANT] * len(closed_over) + [_ZERO] * (len(program.in_avals) - len(closed_over))
    return _join(_mark(program, given, lambda _: _CONSTANT)) == _ZERO


def is_linear_by_rule(rule: Rule, avals: Sequence[Any], linear: Sequence[bool], body: ClosedJaxpr | None) -> bool:
    """Return whether a call is linear in one operand by its rule, which is the function itself.

    So it is for `where(y == 0, 0, x * y)`, whose backward applies it to x and grad_output; its body is not seen to be
    linear in y. The body returns zeros for zeros (without a body that is known), and the gradient is the call with
    grad_output as the operand.
    """
    if sum(linear) != 1 or (body is not None and len(linear) != len(body.in_avals)):
        return False
    at = list(linear).index(True)

    if body is not None and _join(_mark(body, [_ZERO if v else _CONSTANT for v in linear], lambda _: _CONSTANT)):
        return False
    run = trace_run(rule, tuple(linear), [*map(ad.zeros_like_aval, avals)])
    vjp, sources = run.derivative.vjp, run.derivative.sources
    if vjp is None or any(source.source != "operand" for source in sources) or run.n_outputs != 1:
        return False
    residuals = [avals[source.at] for source in sources]
    program, closed_over, _ = trace(rule.name, lambda xs, g: vjp(xs, [g])[at], residuals, run.jaxpr.out_avals[0])
    jaxpr, used = dce_jaxpr(open_jaxpr(program), [True])
    calls = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == FORWARD]
    if closed_over or len(calls) != 1 or any(u for u, source in zip(used, sources, strict=False) if source.at == at):
        return False
    from_grad = {jaxpr.invars[-1]} if used[-1] else set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name not in _LAYOUT:
            break
        if not from_grad.isdisjoint(eqn.invars):
            from_grad.update(eqn.outvars)
    is_itself = list(calls[0].params["rule"].functions[:4]) == list(rule.functions[:4]) != []
    others = {eqn.primitive.name for eqn in jaxpr.eqns} - _LAYOUT
    return is_itself and others == {FORWARD} and [v in from_grad for v in calls[0].invars] == list(linear)


# Operations between a gradient and the call: casts, and moves of batch axes.
_LAYOUT = {"convert_element_type", "transpose", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum"}


def is_nonlinear(eqn: Any) -> bool:
    """Return whether an operation that JAX cannot transpose is not linear; a linear one has more than a derivative."""
    has_derivative_only = eqn.primitive in ad.primitive_jvps and eqn.primitive not in ad.primitive_transposes
    return has_derivative_only and not has_no_transpose(eqn)


def has_no_transpose(eqn: Any) -> bool:
    """Return whether JAX can never transpose an operation, although it may be linear."""
    return eqn.primitive is primitives.while_p or eqn.primitive.name in _NO_TRANSPOSE or is_callback(eqn)


def _is_known_zero(array: Any) -> bool:
    """Return whether a constant is zero; computed by NumPy, since JAX may be tracing."""
    if is_tracer(array) or is_ref(array) or jnp.issubdtype(array.dtype, jax.dtypes.extended):  # a key has no zero
        return False
    return getattr(array, "is_fully_addressable", True) and not np.asarray(array).any()


def _mark(program: Any, given: Sequence[int], mark_array: Callable[[Any], int]) -> Marks:
    """Mark the results of a program by the marks of its inputs; `mark_array` marks an array that it holds."""

    def mark_constant(x: Any) -> int:
        if isinstance(x, Literal):
            return _CONSTANT if np.asarray(x.val).any() else _ZERO
        return mark_array(x)

    def mark(eqn: Any, given: Marks, inside: Callable[[Marks], Marks | None]) -> Marks:
        found = zip(eqn.outvars, _mark_results(eqn, given, inside, mark_array), strict=True)
        # An integer, or a comparison, that depends on the linear inputs is not linear in them.
        return [_AFFINE if m & _LINEAR and not may_be_linear(v.aval) else m for v, m in found]

    return propagate(program, given, mark, mark_constant)


def may_be_linear(aval: Any) -> bool:
    return hasattr(aval, "dtype") and is_inexact(aval)


def _mark_results(
    eqn: Any, given: Marks, inside: Callable[[Marks], Marks | None], mark_array: Callable[[Any], int]
) -> Marks:
    """Mark the results of an equation by the marks of its operands."""
    name, n = eqn.primitive.name, len(eqn.outvars)
    if name in _EACH:
        return given[:n]
    if name == BACKWARD or (name == FORWARD and eqn.params["rule"].linear_in):
        return _mark_linear(eqn, given, mark_array)
    if eqn.primitive is primitives.cond_p:
        given = [_AFFINE if given[0] & _LINEAR else _ZERO, *given[1:]]
    if eqn.primitive is not primitives.while_p and (marks := inside(given)) is not None:
        if name == FORWARD and _join(marks) & _CONSTANT and not eqn.params["body"].n_closed_over:
            linear = [m == _LINEAR for m in given]
            if is_linear_by_rule(eqn.params["rule"], [x.aval for x in eqn.invars], linear, read_body(eqn)):
                return [_LINEAR] * n
        return marks
    data = [m for x, m in zip(eqn.invars, given, strict=True) if m & _LINEAR or may_be_linear(x.aval)]
    perturbed = [m for m in data if m & _LINEAR]
    if perturbed and has_no_transpose(eqn):
        return [_join(perturbed) | _UNKNOWN] * n
    if (name in _PRODUCTS and len(perturbed) > 1) or (name == "div" and given[1] & _LINEAR):
        return [_AFFINE] * n
    if name == "div" and given[0] == _ZERO:
        return [_ZERO]
    if (name in _PRODUCTS and _ZERO in data) or (name in _OF_ZEROS and not _join(data or given)):
        return [_ZERO] * n
    # An operation in no table is treated as a sum of its operands, so a constant among them counts.
    return [_join(perturbed if name in _LINEAR_IN_SOME else data) if perturbed else _CONSTANT] * n


def _mark_linear(eqn: Any, given: Marks, mark_array: Callable[[Any], int]) -> Marks:
    """Mark the results of an equation that is linear in its vectors, together, for any values of its parameters."""
    if eqn.primitive.name == FORWARD:
        is_vector = (False,) * eqn.params["body"].n_closed_over + eqn.params["rule"].linear_in
    else:
        n_vectors = sum(eqn.params["needs"])
        is_vector = (False,) * (len(given) - n_vectors) + (True,) * n_vectors
    if any(m & _LINEAR and not v for m, v in zip(given, is_vector, strict=True)):
        avals = [x.aval for x in eqn.invars]
        program, closed_over, _ = trace(
            eqn.params["rule"].name, functools.partial(eqn.primitive.impl, **eqn.params), *avals
        )
        return _mark(program, [*map(mark_array, closed_over), *given], mark_array)
    return [_join(select(given, is_vector))] * len(eqn.outvars)


def _join(marks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, marks, _ZERO)
