"""Differences of products that are to be 0 where both are the same.

What: a difference of products of one array, `s ** 2 - (s ** 2).T`, or one that the function compares or rounds.
Before: `d = a * a - b * b` and `torch.where(d == 0, x, x / d)`
After: `d = _difference(a * a, b * b)`
Safety: it is the difference but for the last digit, which XLA changes under jit where it joins a product and a sum.
Limits: products behind a helper, `d -= s ** 2` and `a * b + c` stay as they are.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.walk import Walk
from fnjax.port.torch import Operation, Overload, find_operation, unparse
from fnjax.port.tree.located import list_nodes


def must_vanish_exactly(walk: Walk, node: cst.BinaryOperation) -> bool:
    """Whether a difference of products is to be 0 where both are the same: of one array, `s - s.T`, or asked later."""
    of, other = _drop_axis_changes(walk, node.left), _drop_axis_changes(walk, node.right)
    if unparse(node.left) == unparse(node.right) or not (_is_product(walk, of) and _is_product(walk, other)):
        return False
    return unparse(of) == unparse(other) or _is_asked_later(walk, node)


def _is_product(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether an expression is a product, or its variable was given one."""
    given = walk.routine.given.get(node.value, ()) if isinstance(node, cst.Name) else (node,)
    tops = [_drop_axis_changes(walk, g) for g in given]
    return any(
        (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Multiply, cst.Power, cst.Divide)))
        or (isinstance(n, cst.Call) and _find_overload(n.func).product)
        for n in tops
    )


def _is_asked_later(walk: Walk, node: cst.BinaryOperation) -> bool:
    """Whether this, or what is made of it, is compared or rounded."""
    asking = [
        n
        for n in list_nodes(walk.routine.node)
        if isinstance(n, cst.Comparison) or (isinstance(n, cst.Call) and _find_overload(n.func).sharp)
    ]
    known = {n.value for a in asking for n in list_nodes(a) if isinstance(n, cst.Name)}
    while (
        more := {
            n.value
            for name in known
            for given in walk.routine.given.get(name, ())
            for n in list_nodes(given)
            if isinstance(n, cst.Name)
        }
        - known
    ):
        known |= more
    within = [g for name in known for g in walk.routine.given.get(name, ())]
    if any(g is node for g in walk.routine.given.get(unparse(node.left), ())):  # `v = v - spike * threshold`
        return False
    return any(n is node for a in (*asking, *within) for n in list_nodes(a))


def _drop_axis_changes(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """What an expression shows with other axes: `s` of `s.unsqueeze(0)`, `s[None, :]` and `s.T`."""
    while True:
        called = node.func if isinstance(node, cst.Call) else node
        if isinstance(called, cst.Attribute) and _find_overload(called).turns:
            function = isinstance(node, cst.Call) and walk.find_name(called).startswith("torch.") and node.args
            node = node.args[0].value if function else called.value  # type: ignore[attr-defined] # a call
        elif isinstance(node, cst.Subscript) and any(unparse(e.slice) in {"None", "0"} for e in node.slice):
            node = node.value
        else:
            return node


_NOTHING = Overload("", "")


def _find_overload(function: cst.BaseExpression) -> Overload:
    """What the table says of a method, or a function, of this name."""
    name = function.attr if isinstance(function, cst.Attribute) else function
    found = find_operation(f"torch.Tensor.{name.value}") if isinstance(name, cst.Name) else None
    return found.first if isinstance(found, Operation) else _NOTHING
