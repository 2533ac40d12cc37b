"""Distributions.

What: a distribution of torch.distributions is the tuple of its parameters; what is asked of it becomes a function of
jax.scipy.stats, a closed form, or a draw with a key.
Before: `spikes = Bernoulli(probs=p).sample()`
After: `spikes = jax.random.bernoulli(key, p, p.shape).astype(p.dtype)`
Safety: densities, entropies and moments are PyTorch's numbers; draws have the distribution, as everywhere (see
randomness).
Limits: what PyTorch checks of parameters and values is not checked; distributions of several dimensions, those that
are made of others, and divergences are findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.analysis.walk import Stop, Term, Walk, parse
from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.rewrite.calls.operations import operate
from fnjax.port.torch import TABLE, Operation, code, find, fit
from fnjax.port.torch.distributions import HOME, PARAMETERS, arguments, parameters
from fnjax.port.torch.signature import parse as signature
from fnjax.port.tree.located import nodes

_HELD = f"instance:{HOME}"
_ASKED = frozenset(n.rpartition(".")[2] for n in TABLE if n.startswith(HOME))


def _named(walk: Walk, node: cst.BaseExpression) -> str:
    """The distribution that a call makes."""
    name = walk.name_of(node.func) if isinstance(node, cst.Call) else ""
    last = name.rpartition(".")[2]
    return last if name.startswith(HOME) and last in PARAMETERS else ""


def _given(walk: Walk, node: cst.Call, name: str) -> dict[str, cst.BaseExpression]:
    found = parameters(name, node.args)
    if isinstance(found, str):
        raise Stop(node, "operation", f"{HOME}{name} {found}")
    all_ = signature(PARAMETERS[name])
    return {p.name: found[p.name] if p.name in found else p.default or cst.Name("None") for p in all_}


@call_of(HOME)
def made(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`Normal(mu, sigma)`."""
    name = _named(walk, node)
    if not name:
        return None
    terms = [walk.expr(v) for v in _given(walk, node, name).values()]
    walk.need_entries(*(t.value for t in terms))
    texts = [code(fit(t.node, 1)) for t in terms]
    parts = tuple(replace(t.value, number="") for t in terms)
    value = Value("static", name=f"{_HELD}{name}", parts=parts)
    return Term(parse(f"({', '.join(texts)}{',' * (len(texts) == 1)})"), value)


@call_of("*.")
def asked(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`d.log_prob(x)`."""
    return _asked(walk, node, node.func, node.args)  # type: ignore[arg-type] # a method


@expression(cst.Attribute)
def attribute(walk: Walk, node: cst.Attribute) -> Term | None:
    """`d.mean`."""
    called = any(isinstance(n, cst.Call) and n.func is node for n in nodes(walk.current))
    if called:
        return Term(node) if _value(walk, node.value).name.startswith(_HELD) else None
    return _asked(walk, node, node, None)


def _asked(walk: Walk, node: cst.BaseExpression, of: cst.Attribute, args: Sequence[cst.Arg] | None) -> Term | None:
    base, method = of.value, of.attr.value
    name = _named(walk, base)
    if name and isinstance(base, cst.Call):
        given = _given(walk, base, name)
    else:
        plain, asks = isinstance(base, (cst.Name, cst.Attribute)), method in _ASKED
        value = _value(walk, base) if plain or asks else UNKNOWN
        held = value.name.startswith(_HELD)
        several = value.parts is not None or value.element is not None
        unclear = asks and value.kind == "static" and several and not value.fields
        if unclear and not (held and (plain or isinstance(base, cst.Subscript))):
            raise Stop(node, "unknown", f"which distribution {code(base)!r} is cannot be told; give it a name")
        if not held:
            return None
        name = value.name.rpartition(".")[2]
        text = code(fit(base))
        given = {p.name: parse(f"{text}[{i}]") for i, p in enumerate(signature(PARAMETERS[name]))}
    found = find(f"{HOME}{name}.{method}")
    if not isinstance(found, Operation) or found.called != (args is not None):
        raise Stop(node, "unknown", f"the porter does not know {HOME}{name}.{method}")
    passed = [cst.Arg(v, keyword=cst.Name(n)) for n, v in given.items()]
    term: Term = operate(walk, node, found, [*passed, *arguments(method, args or ())])
    return term


def _value(walk: Walk, node: cst.BaseExpression) -> Value:
    """What is known of an object, which is no module."""
    name = walk.name_of(node)
    return walk.expr(node).value if not name or name.startswith("instance:") else UNKNOWN
