"""Differences of products that are to be 0 where both are the same, and quotients that are rounded or compared.

What: a difference of products of one array, `s ** 2 - (s ** 2).T`, or one that the function compares or rounds; a
quotient that `round`, `floor`, `ceil`, `trunc`, a conversion to integers or a comparison is given.
Before: `d = a * a - b * b` and `torch.where(d == 0, x, x / d)`; `torch.floor(x.clamp(lo, hi) / step)`
After: `d = _difference(a * a, b * b)`; `jnp.floor(_quotient(jnp.clip(x, lo, hi), step))`
Safety: each is the difference, or the quotient, but for the last digit, which XLA changes where it joins a product and
a sum, or multiplies by the reciprocal of a divisor that broadcasts: 16 for 15 where the quotient is an integer.
Limits: products and quotients after a helper, `d -= s ** 2` and `a * b + c` stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.known.facts import Value
from fnjax.port.torch import Operation, Overload, find_operation, unparse
from fnjax.port.torch.expressions import drop_parentheses
from fnjax.port.tree.located import list_nodes


def must_vanish_exactly(ev: Evaluator, node: cst.BinaryOperation) -> bool:
    """Return whether a difference of products must be 0 where both are equal: of one array, or compared later."""
    of, other = _drop_axis_changes(ev, node.left), _drop_axis_changes(ev, node.right)
    # XLA computes what is reduced on both sides before it subtracts: there is nothing that it could fuse.
    reduced = all(isinstance(n, cst.Call) and _find_overload(n.func).total for n in (node.left, node.right))
    if reduced or unparse(node.left) == unparse(node.right) or not (_is_product(ev, of) and _is_product(ev, other)):
        return False
    given = ev.routine.given.get(unparse(node.left), ())
    grows = any(g is node for g in given)  # `v = v - spike * threshold`
    return unparse(of) == unparse(other) or (not grows and _is_used_by(ev, node, "asks", _asks))


def must_divide_exactly(ev: Evaluator, node: cst.CSTNode, over: Value, under: Value) -> bool:
    """Return whether a quotient must be rounded as a division rounds it.

    Args:
        ev: the evaluation.
        node: the division, `x / s`, `x.div(s)` or `x /= s`.
        over: what is known of the dividend.
        under: what is known of the divisor.
    """

    def has_steps(used: cst.CSTNode) -> bool:
        if isinstance(used, cst.Comparison):
            return True
        if not (isinstance(used, cst.Call) and isinstance(used.func, cst.Attribute)):
            return False
        steps = _find_overload(used.func).steps or used.func.attr.value in {"round", "round_"}
        return steps and not ev.find_name(used.func).startswith(("math.", "numpy."))

    number = under.literal if isinstance(under.literal, (int, float)) else 0
    exact = abs(math.frexp(number)[0]) == 0.5  # a power of two, whose reciprocal is exact
    return over.traced and not exact and _is_used_by(ev, node, "steps", has_steps)


def write_quotient(ev: Evaluator, made: cst.BinaryOperation) -> cst.Call:
    """Return a translated division as a call of `_quotient`."""
    ev.diagnostics.needs.add("_quotient")
    over, under = (cst.Arg(drop_parentheses(p)) for p in (made.left, made.right))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return cst.Call(cst.Name("_quotient"), [over.with_changes(comma=comma), under])


def _asks(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Comparison) or (isinstance(node, cst.Call) and _find_overload(node.func).sharp)


def _is_product(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an expression is a product, or its variable was given one."""
    given = ev.routine.given.get(node.value, ()) if isinstance(node, cst.Name) else (node,)
    tops = [_drop_axis_changes(ev, g) for g in given]
    return any(
        (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Multiply, cst.Power, cst.Divide)))
        or (isinstance(n, cst.Call) and _find_overload(n.func).product)
        for n in tops
    )


def _is_used_by(ev: Evaluator, node: cst.CSTNode, key: str, uses: Callable[[cst.CSTNode], bool]) -> bool:
    """Return whether an expression selected by `uses` (cached under `key`) reads this, or what is computed from it."""
    names, inside = ev.keep_one((_is_used_by, key), lambda: _collect_used(ev, uses))
    return _find_written_name(node) in names or id(node) in inside


def _collect_used(ev: Evaluator, uses: Callable[[cst.CSTNode], bool]) -> tuple[set[str], set[int]]:
    """Return the variables that such expressions use, and the identities of all nodes in these and what makes them."""
    given = ev.routine.given
    names: set[str] = set()
    inside: set[int] = set()
    waiting: list[cst.CSTNode] = [n for n in list_nodes(ev.routine.node) if uses(n)]
    while waiting:
        for n in list_nodes(waiting.pop()):
            inside.add(id(n))
            if isinstance(n, cst.Name) and n.value not in names:
                names.add(n.value)
                waiting += given.get(n.value, ())
    return names, inside


def _find_written_name(node: cst.CSTNode) -> str:
    """Return the variable that `x /= s` or `x.div_(s)` writes to; empty for another expression."""
    written: cst.CSTNode = node
    if isinstance(node, cst.AugAssign):
        written = node.target
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value.endswith("_"):
        written = node.func.value
    return written.value if written is not node and isinstance(written, cst.Name) else ""


def _drop_axis_changes(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what an expression shows with other axes: `s` of `s.unsqueeze(0)`, `s[None, :]` and `s.T`."""
    while True:
        called = node.func if isinstance(node, cst.Call) else node
        if isinstance(called, cst.Attribute) and _find_overload(called).turns:
            function = isinstance(node, cst.Call) and ev.find_name(called).startswith("torch.") and node.args
            node = node.args[0].value if function else called.value  # type: ignore[attr-defined] # a call
        elif isinstance(node, cst.Subscript) and any(unparse(e.slice) in {"None", "0"} for e in node.slice):
            node = node.value
        else:
            return node


_NOTHING = Overload("", "")


def _find_overload(function: cst.BaseExpression) -> Overload:
    """Return the table's line of a method, or a function, of this name."""
    name = function.attr if isinstance(function, cst.Attribute) else function
    found = find_operation(f"torch.Tensor.{name.value}") if isinstance(name, cst.Name) else None
    return found.first if isinstance(found, Operation) else _NOTHING
