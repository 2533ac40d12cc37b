"""Inside shard_map: reduction of gradients over the mesh axes on which their arguments do not vary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.extend.core import Literal, jaxprs_in_params
from jax.interpreters import ad

from fnjax._primitives.jax_internals import is_callback, open_jaxpr, varying
from fnjax._primitives.rule import Arrays, Rule
from fnjax._primitives.trace import trace

# Part of the keys of JAX's caches: a helper under jax.jit that both forward and backward call is traced for each.
_IN_BACKWARD = jax.make_user_context(False)


def manual_axes() -> frozenset[Any]:
    """Return the mesh axes that the surrounding shard_map splits; those of vmap are not among them."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def is_in_backward() -> bool:
    """Return whether backward is running inside shard_map, outside any forward that is being differentiated."""
    return bool(_IN_BACKWARD.value)


def in_backward(is_one: bool) -> AbstractContextManager[None]:
    """Mark the block as part of a backward, or of a forward that is being differentiated.

    Outside shard_map nothing is marked: only its collectives read the mark, and each operation would be compiled twice.
    """
    return _IN_BACKWARD(is_one) if jax.sharding.get_abstract_mesh().manual_axes else nullcontext()


def pull_summed(
    pull: Callable[..., Arrays], cotangents: Sequence[Any], outputs: Sequence[Any], arguments: Sequence[Any], rule: Rule
) -> Arrays:
    """Call `pull`; inside shard_map sum each gradient over the mesh axes on which its argument does not vary.

    There the cotangent of an output that does not vary is a reduced gradient, and that of one that varies is a partial
    one. A gradient that may depend on both is refused: only the partial part must be summed, and the two cannot be
    separated.

    Args:
        pull: cotangents → gradients, None for zero.
        cotangents: those of the outputs, or None.
        outputs: the types of the outputs.
        arguments: the types of the arguments.
        rule: builds the errors.
    """
    if jax.sharding.get_abstract_mesh().empty:  # as it is outside of shard_map
        return pull(*cotangents)
    grads = (_checked(pull, rule) if any_varies([*outputs, *arguments]) else pull)(*cotangents)
    # Axes on which a gradient varies and its argument does not come from a partial cotangent or from backward itself.
    # If every output with a cotangent varies on an axis, the gradient is partial; else it may be a sum of both.
    given = [varying(output) for output, ct in zip(outputs, cotangents, strict=True) if ct is not None]
    shares, in_all = frozenset().union(*map(varying, outputs)), frozenset.intersection(*given)
    for grad, argument in zip(grads, arguments, strict=True):
        if grad is not None and (varying(jax.typeof(grad)) - varying(argument) - in_all) & shares:
            raise rule.error("shares and totals")
    return [g if g is None else _as_varying_as(a, g) for g, a in zip(grads, arguments, strict=True)]


def _checked(pull: Callable[..., Arrays], rule: Rule) -> Callable[..., Arrays]:
    """Return `pull` with a check that no callback in it hides that its result varies over the devices."""

    def checked(*cotangents: Any) -> Arrays:
        traced = trace(f"{rule.name}.backward", pull, *cotangents)
        if hides_varying(open_jaxpr(traced.jaxpr)):
            raise rule.error("varying callback")
        return list(traced(traced.captured, *cotangents))

    return checked


def make_zeros(aval: Any) -> jax.Array:
    """Return zeros of a type, which says on which mesh axes they vary and how they are sharded."""
    if aval.sharding.mesh == jax.sharding.get_abstract_mesh():
        return ad.zeros_like_aval(aval.update(weak_type=False))
    zeros = ad.zeros_like_aval(jax.core.ShapedArray(aval.shape, aval.dtype))  # the axes may be Auto for a while
    return jax.lax.pcast(zeros, tuple(varying(aval)), to="varying") if varying(aval) else zeros


def any_varies(avals: Iterable[Any]) -> bool:
    """Return whether a value of one of these types varies over some mesh axis."""
    return any(map(varying, avals))


def _as_varying_as(aval: Any, grad: Any) -> Any:
    """Sum a gradient over the mesh axes on which it varies and its argument does not."""
    on = varying(jax.typeof(grad))
    if surplus := tuple(on - varying(aval)):
        grad = jax.lax.psum(grad, surplus)
    if missing := tuple(varying(aval) - on):
        grad = jax.lax.pcast(grad, missing, to="varying")
    return grad


def hides_varying(jaxpr: Any) -> bool:
    """Return whether a result depends on a callback of device-varying values and is not itself marked as varying.

    `jax.pure_callback` carries no mesh axes, so JAX takes its result to be replicated, and would sum its gradient over
    the devices. A `jax.lax.pcast` of the result marks it as varying.
    """
    return any(_find_hidden(jaxpr))


def _find_hidden(jaxpr: Any) -> list[frozenset[Any]]:
    """Return for each result of a jaxpr the axes on which it varies through a callback, unknown to JAX."""
    hidden: dict[Any, frozenset[Any]] = {}
    none: frozenset[Any] = frozenset()

    def of(atom: Any) -> frozenset[Any]:
        return none if isinstance(atom, Literal) else hidden.get(atom, none)

    for eqn in jaxpr.eqns:
        given = none.union(*map(of, eqn.invars))
        if is_callback(eqn):
            given = given.union(*(varying(x.aval) for x in eqn.invars))
        inside = [given] * len(eqn.outvars)
        for found in map(_find_hidden, jaxprs_in_params(eqn.params)):  # a loop or a call: results in the same order
            fits = len(found) == len(inside)
            inside = [axes | (found[i] if fits else none.union(*found)) for i, axes in enumerate(inside)]
        hidden.update((v, axes - varying(v.aval)) for v, axes in zip(eqn.outvars, inside, strict=True))
    return [of(v) for v in jaxpr.outvars]
