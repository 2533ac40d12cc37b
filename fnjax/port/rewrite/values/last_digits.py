"""Differences and quotients of which the last digit counts.

What: a difference of one product, along other axes, which is to be 0 where both are the same; a quotient that `round`,
`floor`, `ceil`, `trunc`, a conversion to integers or a comparison is given.
Before: `d = s ** 2 - (s ** 2).unsqueeze(1)`; `torch.floor(x.clamp(lo, hi) / step)`
After: `d = _difference(s ** 2, (s ** 2)[:, None])`; `jnp.floor(_quotient(jnp.clip(x, lo, hi), step))`
Safety: XLA joins a product and a sum, and multiplies by the reciprocal of a divisor that broadcasts, which changes the
last digit: 1e-8 for 0, and 16 for 15 where the quotient is an integer.
Limits: differences of two products, and quotients after a helper, stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.known.facts import Value
from fnjax.port.torch import Operation, find_operation, unparse
from fnjax.port.torch.expressions import drop_parentheses
from fnjax.port.tree.located import list_nodes

_TURNING = frozenset({"t", "T", "mT", "transpose", "permute", "unsqueeze", "view", "reshape", "expand", "swapaxes"})
_NO_VALUES = frozenset({"rank", "size", "whole", "dtype", "device"})  # results


def must_vanish_exactly(ev: Evaluator, node: cst.BinaryOperation) -> bool:
    """Return whether this is the difference of one product along other axes: `s ** 2 - (s ** 2).t()`."""
    of, other = (_drop_axis_changes(n) for n in (node.left, node.right))
    if unparse(of) != unparse(other) or unparse(node.left) == unparse(node.right):
        return False
    given = ev.routine.given.get(of.value, ()) if isinstance(of, cst.Name) else (of,)
    return any(_is_product(_drop_axis_changes(g)) for g in given)


def _is_product(node: cst.BaseExpression) -> bool:
    match node:
        case cst.Call(cst.Attribute(attr=cst.Name("pow" | "square" | "mul"))):
            return True
        case cst.BinaryOperation(operator=cst.Multiply() | cst.Power()):
            return True
    return False


def _drop_axis_changes(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what an expression shows with other axes: `s` of `s.unsqueeze(0)`, `s[None, :]` and `s.T`."""
    match node:
        case cst.Call(cst.Attribute(of, cst.Name(turn))) | cst.Attribute(of, cst.Name(turn)) if turn in _TURNING:
            return _drop_axis_changes(of)
        case cst.Subscript(of, indices) if any(unparse(e.slice) == "None" for e in indices):
            return _drop_axis_changes(of)
    return node


def must_divide_exactly(ev: Evaluator, node: cst.CSTNode, over: Value, under: Value) -> bool:
    """Return whether a quotient must be rounded as a division rounds it.

    Args:
        ev: the evaluation.
        node: the division, `x / s`, `x.div(s)` or `x /= s`.
        over: what is known of the dividend.
        under: what is known of the divisor.
    """
    number = under.literal if isinstance(under.literal, (int, float)) else 0
    exact = abs(math.frexp(number)[0]) == 0.5  # a power of two, whose reciprocal is exact
    if exact or not over.traced:
        return False
    names, inside = ev.keep_one(must_divide_exactly, lambda: _collect_stepped(ev))
    return _find_written_name(node) in names or id(node) in inside


def write_quotient(ev: Evaluator, made: cst.BinaryOperation) -> cst.Call:
    """Return a translated division as a call of `_quotient`."""
    ev.diagnostics.needs.add("_quotient")
    over, under = (cst.Arg(drop_parentheses(p)) for p in (made.left, made.right))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return cst.Call(cst.Name("_quotient"), [over.with_changes(comma=comma), under])


def _has_steps(ev: Evaluator, node: cst.CSTNode) -> bool:
    """Return whether an expression is discontinuous in its operand: a comparison, `x.floor()`, `torch.round(x)`."""
    if isinstance(node, cst.Comparison):
        return not all(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in node.comparisons)
    if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)):
        return False
    name = node.func.attr.value
    found = find_operation(f"torch.Tensor.{name}")
    steps = name in {"round", "round_"} or (isinstance(found, Operation) and found.first.steps)
    return steps and not ev.find_name(node.func).startswith(("math.", "numpy."))


def _collect_stepped(ev: Evaluator) -> tuple[set[str], set[int]]:
    """Return the variables that such expressions use, and the identities of all nodes in these and what makes them."""
    given = ev.routine.given
    names: set[str] = set()
    inside: set[int] = set()
    waiting: list[cst.CSTNode] = [n for n in list_nodes(ev.routine.node) if _has_steps(ev, n)]
    while waiting:
        for n in _iter_values(ev, waiting.pop()):
            inside.add(id(n))
            if isinstance(n, cst.Name) and n.value not in names:
                names.add(n.value)
                waiting += given.get(n.value, ())
    return names, inside


def _iter_values(ev: Evaluator, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all below it whose values count: those of `x` do not in `x.shape` and `x.dim()`."""
    yield node
    if isinstance(node, cst.Attribute) and not ev.find_name(node):
        found = find_operation(f"torch.Tensor.{node.attr.value}")
        if isinstance(found, Operation) and found.first.result in _NO_VALUES:
            return
    for child in node.children:
        yield from _iter_values(ev, child)


def _find_written_name(node: cst.CSTNode) -> str:
    """Return the variable that `x /= s` or `x.div_(s)` writes to; empty for another expression."""
    written: cst.CSTNode = node
    if isinstance(node, cst.AugAssign):
        written = node.target
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value.endswith("_"):
        written = node.func.value
    return written.value if written is not node and isinstance(written, cst.Name) else ""
