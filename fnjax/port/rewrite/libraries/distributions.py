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
from fnjax.port.rewrite.calls.torch_calls import port_operation
from fnjax.port.torch import TABLE, Operation, bracket, find_operation, unparse
from fnjax.port.torch.distributions import HOME, PARAMETERS, bind_parameters, name_arguments
from fnjax.port.torch.expressions import parse_template
from fnjax.port.tree.located import list_nodes
from fnjax.torch._table.signature import parse_signature

_HELD = f"instance:{HOME}"
_ASKED = frozenset(n.rpartition(".")[2] for n in TABLE if n.startswith(HOME))


def _name_distribution(walk: Walk, node: cst.BaseExpression) -> str:
    """The distribution that a call makes."""
    name = walk.find_name(node.func) if isinstance(node, cst.Call) else ""
    last = name.rpartition(".")[2]
    return last if name.startswith(HOME) and last in PARAMETERS else ""


def _bind_parameters(walk: Walk, node: cst.Call, name: str) -> dict[str, cst.BaseExpression]:
    found = bind_parameters(name, node.args)
    if isinstance(found, str):
        raise Stop(node, "operation", f"{HOME}{name} {found}")
    all_ = parse_signature(PARAMETERS[name])
    return {p.name: found[p.name] if p.name in found else parse_template(p.default or "None") for p in all_}


@call_of(HOME)
def port_distribution(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`Normal(mu, sigma)`."""
    name = _name_distribution(walk, node)
    if not name:
        return None
    terms = [walk.port(v) for v in _bind_parameters(walk, node, name).values()]
    walk.need_entries(*(t.value for t in terms))
    texts = [unparse(bracket(t.node, 1)) for t in terms]
    parts = tuple(replace(t.value, number="") for t in terms)
    value = Value("static", name=f"{_HELD}{name}", parts=parts)
    return Term(parse(f"({', '.join(texts)}{',' * (len(texts) == 1)})"), value)


@call_of("*.")
def port_distribution_method(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`d.log_prob(x)`."""
    return _port_question(walk, node, node.func, node.args)  # type: ignore[arg-type] # a method


@expression(cst.Attribute)
def port_distribution_attribute(walk: Walk, node: cst.Attribute) -> Term | None:
    """`d.mean`."""
    called = any(isinstance(n, cst.Call) and n.func is node for n in list_nodes(walk.current))
    if called:
        return Term(node) if _find_object_value(walk, node.value).name.startswith(_HELD) else None
    return _port_question(walk, node, node, None)


def _port_question(
    walk: Walk, node: cst.BaseExpression, of: cst.Attribute, args: Sequence[cst.Arg] | None
) -> Term | None:
    base, method = of.value, of.attr.value
    name = _name_distribution(walk, base)
    if name and isinstance(base, cst.Call):
        given = _bind_parameters(walk, base, name)
    else:
        plain, asks = isinstance(base, (cst.Name, cst.Attribute)), method in _ASKED
        value = _find_object_value(walk, base) if plain or asks else UNKNOWN
        held = value.name.startswith(_HELD)
        several = value.parts is not None or value.element is not None
        unclear = asks and value.kind == "static" and several and not value.fields
        if unclear and not (held and (plain or isinstance(base, cst.Subscript))):
            raise Stop(node, "unknown", f"which distribution {unparse(base)!r} is cannot be told; give it a name")
        if not held:
            return None
        name = value.name.rpartition(".")[2]
        text = unparse(bracket(base))
        given = {p.name: parse(f"{text}[{i}]") for i, p in enumerate(parse_signature(PARAMETERS[name]))}
    found = find_operation(f"{HOME}{name}.{method}")
    if not isinstance(found, Operation) or found.called != (args is not None):
        raise Stop(node, "unknown", f"the porter does not know {HOME}{name}.{method}")
    passed = [cst.Arg(v, keyword=cst.Name(n)) for n, v in given.items()]
    term: Term = port_operation(walk, node, found, [*passed, *name_arguments(method, args or ())])
    return term


def _find_object_value(walk: Walk, node: cst.BaseExpression) -> Value:
    """What is known of an object, which is no module."""
    name = walk.find_name(node)
    return walk.port(node).value if not name or name.startswith("instance:") else UNKNOWN
