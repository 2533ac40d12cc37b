"""Second derivatives of the values that a Function saved: found by differentiating backward, on types alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxpr_as_fun

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.rule import ResidualSource
from fnjax._primitives.tree import is_inexact, is_ref
from fnjax.errors import OnceDifferentiableError
from fnjax.graph.calls import FunctionCall
from fnjax.graph.program import differentiate

_UNBOUND = "not known: backward names an axis of what is around it"
_USES_REF = "not known: backward uses a Ref"


def is_unknown(why: str) -> bool:
    """Return whether a reason means that the route could not be determined."""
    return why in (_UNBOUND, _USES_REF)


class Route(NamedTuple):
    """Path of the second derivative of a saved value.

    Attributes:
        goes: whether there is one; False also if there is nothing to differentiate.
        text: the path, or why there is none.
        stops: whether computing it raises.
    """

    goes: bool
    text: str
    stops: bool = False


def find_routes(call: FunctionCall) -> tuple[list[Route], str]:
    """Return the route of each residual, and why double backward stops ("" if it does not, see `is_unknown`)."""
    avals = list(call.residuals)
    if any(map(is_ref, avals)):  # a Ref has no type to trace backward with
        return [Route(False, "a Ref has no derivative" if is_ref(a) else _USES_REF) for a in avals], _USES_REF
    found = [_find_route(call, residual, avals, at) for at, residual in enumerate(call.residual_sources)]
    stop = next((r.text for r in found if r.stops), "") or _find_stop(call, avals)
    return found, stop


def _find_route(call: FunctionCall, residual: ResidualSource, avals: Sequence[Any], at: int) -> Route:
    if not is_inexact(avals[at]):
        return Route(False, f"{avals[at].dtype.name} has no derivative")
    if call.derivative is None or call.derivative.vjp is None:
        return Route(True, "through the derivative of jvp")
    n = len(avals)
    depends, reason = _try(lambda *xs: _run_backward(call, xs[:n], xs[n:]), [*avals, *call.outputs], at)
    if reason:
        return Route(False, reason, stops=not is_unknown(reason))
    if not depends:
        return Route(False, f"{call.name}.backward does not vary with it")
    if residual.source == "operand":
        return Route(True, f"to the argument {call.argument(residual.at)}")
    if residual.source == "output":
        return Route(True, f"through the rule of {call.name} again")
    return _follow_operations(call, residual)


def _follow_operations(call: FunctionCall, residual: ResidualSource) -> Route:
    operands = [v.aval for v in open_jaxpr(call.jaxpr).invars]
    result = call.n_outputs + residual.at
    for i in range(call.n_closed_over, len(operands)):
        needed = call.needs[i - call.n_closed_over] if i - call.n_closed_over < len(call.needs) else True
        if is_inexact(operands[i]) and needed:
            _, reason = _try(lambda *xs: jaxpr_as_fun(call.jaxpr)(*xs)[result], operands, i)
            if reason:
                return Route(False, f"JAX cannot differentiate what made it: {reason}", stops=True)
    return Route(True, "through the operations of forward")


def _find_stop(call: FunctionCall, avals: Sequence[Any]) -> str:
    """Return why backward cannot be differentiated in the gradients of the outputs ("" if it can)."""
    if call.derivative is None or call.derivative.vjp is None:
        return ""
    n = len(avals)
    for at in range(len(call.outputs)):
        _, reason = _try(lambda *xs: _run_backward(call, xs[:n], xs[n:]), [*avals, *call.outputs], n + at)
        if reason:
            return reason
    return ""


def _run_backward(call: FunctionCall, residuals: Sequence[Any], grads: Sequence[Any]) -> Any:
    assert call.derivative is not None
    assert call.derivative.vjp is not None
    given = iter(grads)
    dense = [next(given) if d else None for d in call.derivative.differentiable]
    return [x for x in call.derivative.vjp(residuals, dense) if x is not None]


def _try(fun: Callable[..., Any], avals: Sequence[Any], at: int) -> tuple[bool, str]:
    """Return whether `fun` depends differentiably on argument `at`, and why JAX cannot tell ("" if it can)."""
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    try:
        traced = differentiate(fun, types, lambda _: False, argnums=at)
    except NameError:  # JAX's for an axis that is not bound here
        return False, _UNBOUND
    except OnceDifferentiableError:
        return False, "once_differentiable"
    except Exception as e:  # noqa: BLE001 - any error of the user's backward or of JAX is the reason
        return False, (str(e).strip() or type(e).__name__).splitlines()[0]
    return any(t.linear for t in traced.out_tangents), ""
