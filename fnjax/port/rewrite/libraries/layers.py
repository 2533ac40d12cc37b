"""Layers without state that a function makes for itself.

What: activations, losses and pools of torch.nn become what torch.nn.functional has for them.
Before: `act = nn.GELU()` and `y = act(x)`
After: `y = jax.nn.gelu(x, approximate=False)`
Safety: only where the layer is made with literals, and is called and nothing else.
Limits: layers with parameters or random numbers are findings, as are losses that are made with bare options.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.registry import RESULT, VARIABLE, call_of, statement
from fnjax.port.analysis.walk import Statements, Term, Walk
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.calls.torch_calls import port_operation
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, Operation, find_operation, read_literal
from fnjax.port.torch.layers import LAYERS, LOSSES, PLAIN
from fnjax.port.tree.located import list_nodes


def _find_constructor(walk: Walk, node: cst.BaseExpression) -> tuple[str, cst.Call] | None:
    """The layer that a call makes, and the call."""
    if not isinstance(node, cst.Call):
        return None
    name = walk.find_name(node.func) or walk.program.resolve_name(node.func)
    space, _, last = name.rpartition(".")
    plain = [a for a in node.args if not a.keyword]
    known = (last in LAYERS and len(plain) <= PLAIN) or (last in LOSSES and not plain)
    if not space.startswith("torch.nn") or space.startswith("torch.nn.functional") or not known:
        return None
    return (last, node) if all(read_literal(a.value) is not MISSING and not a.star for a in node.args) else None


def _find_layer(walk: Walk, node: cst.BaseExpression) -> tuple[str, cst.Call] | None:
    """The layer that is called."""
    if not isinstance(node, cst.Name):
        return _find_constructor(walk, node)
    held = walk.state.variables.get(node.value)
    if held is not None:
        return _find_constructor(walk, held.literal) if isinstance(held.literal, cst.Call) else None
    found = walk.program.source.definitions.get(node.value, ())
    return _find_constructor(walk, found[0].value) if len(found) == 1 and found[0].value is not None else None


@call_of(VARIABLE, RESULT, *(f"torch.nn.{n}" for n in LAYERS | LOSSES))
def port_layer_call(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`nn.GELU()(x)`, also through a name."""
    layer = _find_layer(walk, node.func)
    if layer is None:
        return None
    operation = find_operation(f"torch.nn.functional.{(LAYERS | LOSSES)[layer[0]]}")
    if not isinstance(operation, Operation):
        return None
    term: Term = port_operation(walk, node, operation, [*node.args, *layer[1].args])
    return term


@statement(cst.Assign)
def port_layer(walk: Walk, node: cst.Assign) -> Statements | None:
    """`act = nn.GELU()`."""
    target = node.targets[0].target
    layer = _find_constructor(walk, node.value)
    if layer is None or len(node.targets) > 1 or not isinstance(target, cst.Name) or walk.routine.role == "module":
        return None
    others = [n for n in list_nodes(walk.routine.node) if isinstance(n, cst.AssignTarget) and n is not node.targets[0]]
    if target.value in {n for other in others for n in iter_targets(other.target)}:
        return None
    walk.bind_name(target.value, Value("object", name=f"torch.nn.{layer[0]}", literal=layer[1]), node)
    return []
