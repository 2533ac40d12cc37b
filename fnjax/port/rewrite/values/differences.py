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
from fnjax.port.torch import Operation, Overload, code, find
from fnjax.port.tree.located import nodes


def same_products(walk: Walk, node: cst.BinaryOperation) -> bool:
    """Whether a difference of products is to be 0 where both are the same: of one array, `s - s.T`, or asked later."""
    of, other = _turned(walk, node.left), _turned(walk, node.right)
    if code(node.left) == code(node.right) or not (_product(walk, of) and _product(walk, other)):
        return False
    return code(of) == code(other) or _asked(walk, node)


def _product(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether an expression is a product, or its variable was given one."""
    given = walk.routine.given.get(node.value, ()) if isinstance(node, cst.Name) else (node,)
    tops = [_turned(walk, g) for g in given]
    return any(
        (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Multiply, cst.Power, cst.Divide)))
        or (isinstance(n, cst.Call) and _said(n.func).product)
        for n in tops
    )


def _asked(walk: Walk, node: cst.BinaryOperation) -> bool:
    """Whether this, or what is made of it, is compared or rounded."""
    asking = [
        n
        for n in nodes(walk.routine.node)
        if isinstance(n, cst.Comparison) or (isinstance(n, cst.Call) and _said(n.func).sharp)
    ]
    known = {n.value for a in asking for n in nodes(a) if isinstance(n, cst.Name)}
    while (
        more := {
            n.value
            for name in known
            for given in walk.routine.given.get(name, ())
            for n in nodes(given)
            if isinstance(n, cst.Name)
        }
        - known
    ):
        known |= more
    within = [g for name in known for g in walk.routine.given.get(name, ())]
    if any(g is node for g in walk.routine.given.get(code(node.left), ())):  # `v = v - spike * threshold`
        return False
    return any(n is node for a in (*asking, *within) for n in nodes(a))


def _turned(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """What an expression shows with other axes: `s` of `s.unsqueeze(0)`, `s[None, :]` and `s.T`."""
    while True:
        called = node.func if isinstance(node, cst.Call) else node
        if isinstance(called, cst.Attribute) and _said(called).turns:
            function = isinstance(node, cst.Call) and walk.name_of(called).startswith("torch.") and node.args
            node = node.args[0].value if function else called.value  # type: ignore[attr-defined] # a call
        elif isinstance(node, cst.Subscript) and any(code(e.slice) in {"None", "0"} for e in node.slice):
            node = node.value
        else:
            return node


_NOTHING = Overload("", "")


def _said(function: cst.BaseExpression) -> Overload:
    """What the table says of a method, or a function, of this name."""
    name = function.attr if isinstance(function, cst.Attribute) else function
    found = find(f"torch.Tensor.{name.value}") if isinstance(name, cst.Name) else None
    return found.first if isinstance(found, Operation) else _NOTHING
