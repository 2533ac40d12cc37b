"""Python that branches on a tensor's value.

What: an `if` on a tensor that only raises runs where the value is known, that is outside jit; an `assert` too.
Before: `if x.min() < 0: raise ValueError("negative")`
After: `if not isinstance(check := jnp.min(x) < 0, jax.core.Tracer) and check: raise ValueError("negative")`
Safety: branches on Python values stay as they are.
Limits: any other choice by a tensor's value is a finding, and so is `match`; its function stays PyTorch, which
fnjax.torch runs under jit.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Narrowed, Statements, Stop, list_statements
from fnjax.port.analysis.registry import expression, statement
from fnjax.port.known.facts import PRESENT, Value, join_values
from fnjax.port.known.state import mark_choice
from fnjax.port.rewrite.control.checks import only_raises, port_value_assert, port_value_check
from fnjax.port.rewrite.control.loops import BRANCHES, only_passes
from fnjax.port.torch import MISSING, bracket, read_literal
from fnjax.port.torch.expressions import is_same_text
from fnjax.port.tree.located import list_nodes, replace_parts

_SINGLES = (None, True, False)


@expression(cst.IfExp, general=True)
def port_conditional_expression(ev: Evaluator, node: cst.IfExp) -> Expr:
    """Translate `a if c else b`."""
    test = ev.port(node.test)
    if (known := test.answer) is not None:
        return ev.port(node.body if known else node.orelse)
    with ev.enter_conditional():
        body, orelse = ev.port(node.body), ev.port(node.orelse)
    ev.need_entries(test.value, body.value, orelse.value)
    value, branch = replace(join_values(body.value, orelse.value), number=""), ev.name_branch(node)
    ev.state.decide_anew(branch)
    value = mark_choice(value, [body.value, orelse.value], branch)
    if ev.is_traced(test.value):
        ev.report_untraced(node, f"this conditional expression {BRANCHES}")
    acts = list_nodes(node.test, cst.Call, cst.NamedExpr)
    pure = all(isinstance(n, cst.Call) and ev.find_name(n.func) == "builtins.isinstance" for n in acts)
    if pure and is_same_text(body.node, orelse.node):
        return Expr(body.node, replace(value, literal=MISSING))  # `x if inplace else x.clone()`
    return Expr(ev.port_parts(node), replace(value, literal=MISSING))


@statement(cst.If, general=True)
def port_if(ev: Evaluator, node: cst.If) -> Statements | None:
    """Translate `if c: ...`."""
    test = ev.port(node.test)
    if (known := test.answer) is not None:
        return _port_decided_if(ev, node, known)
    ev.need_entries(test.value)
    if ev.is_traced(test.value):
        if only_raises(node):
            return port_value_check(ev, node, test)
        ev.report_untraced(node.test, f"this `if` {BRANCHES}")
    orelse, bodies = node.orelse, [node.body, ev.find_else_block(node)]
    first, second = ev.evaluate_branches(bodies, _narrow_variable(ev, node.test))
    assert first is not None
    if test.node is node.test and first is node.body and (second is None or second is bodies[1]):
        return [node]
    if (
        orelse is None
        and only_passes(first)
        and not only_passes(node.body)
        and isinstance(node.test, (cst.Name, cst.Attribute))
    ):
        return []
    new_else: cst.Else | cst.If | None = None
    if isinstance(orelse, cst.If):
        assert second is not None
        only = second.body[0] if len(second.body) == 1 else None
        new_else = only if isinstance(only, cst.If) else cst.Else(second)
    elif orelse is not None and second is not None:
        new_else = orelse.with_changes(body=second)
    space = node.whitespace_before_test if not node.whitespace_before_test.empty else cst.SimpleWhitespace(" ")
    return [node.with_changes(test=bracket(test.node, 1), body=first, orelse=new_else, whitespace_before_test=space)]


def _port_decided_if(ev: Evaluator, node: cst.If, answer: bool) -> Statements:
    """Return the block of an `if` whose condition the port knows."""
    taken = node.body if answer else ev.find_else_block(node)
    return ev.port_block(list_statements(taken)) if taken else []


def _narrow_variable(ev: Evaluator, test: cst.BaseExpression) -> Narrowed:
    """Return what `isinstance(x, torch.Tensor)` and `x is None` say of a variable in the branches."""
    variables = ev.state.variables
    match test:
        case cst.UnaryOperation(cst.Not(), inner):
            found = _narrow_variable(ev, inner)
            return found and (found[0], (found[1][1], found[1][0]))
        case cst.Call(func, [cst.Arg(cst.Name(name)), *others]) if (value := variables.get(name)) is not None:
            asked = ev.find_name(func), *(ev.find_name(a.value) for a in others)
            if asked in {("torch.is_tensor",), ("builtins.isinstance", "torch.Tensor")}:
                other = replace(value, kind="static" if value.kind == "unknown" else value.kind)
                return name, (replace(value, kind="tensor").with_null(left_out=False), other)
        case cst.Comparison(cst.Name(name), [cst.ComparisonTarget(cst.Is() | cst.IsNot() as operator, only)]):
            value, known = variables.get(name), read_literal(only)
            if value is not None and any(known is s for s in _SINGLES):
                same = Value("static", "unknown" if known is None else "bool", literal=known)
                other = replace(value, null=PRESENT)
                return name, (same, other) if isinstance(operator, cst.Is) else (other, same)
        case cst.Name(name) if (value := variables.get(name)) and value.kind == "static" and value.dtype == "bool":
            return name, (replace(value, literal=True), replace(value, literal=False))
    return None


@statement(cst.Assert, general=True)
def port_assert(ev: Evaluator, node: cst.Assert) -> Statements | None:
    """Translate `assert c, "message"`."""
    test = ev.port(node.test)
    message = ev.port(node.msg) if node.msg else None
    traced = ev.is_traced(test.value)
    made = port_value_assert(ev, node, test) if traced else replace_parts(node, test=test.node)
    return [cst.SimpleStatementLine([replace_parts(made, msg=message and message.node)])]


@statement(cst.Match, general=True)
def refuse_match(ev: Evaluator, node: cst.Match) -> Statements | None:
    """Refuse `match`, which stays PyTorch."""
    raise Stop(node, "unknown", "`match` is not translated: write it with `if`")
