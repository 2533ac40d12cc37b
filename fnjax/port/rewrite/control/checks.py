"""Checks of values.

What: an `if` on a tensor's value that only raises, and an `assert`, run where the value is known.
Before: `assert x.min() > 0`
After: `assert isinstance(check := jnp.min(x) > 0, jax.core.Tracer) or check`
Safety: outside of jit the exception is PyTorch's; under jit a note says that nothing is checked.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, parse
from fnjax.port.torch import bracket, fill, unparse
from fnjax.port.tree.located import list_small_statements


def only_raises(node: cst.If) -> bool:
    """Return whether an `if` is a check: its block raises, warns or prints, and does nothing else."""
    small = list_small_statements(node.body.body)
    return node.orelse is None and all(isinstance(x, cst.Raise) or is_message(x) for x in small)


_LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})


def is_message(node: cst.CSTNode) -> bool:
    """Return whether a statement prints, warns or logs."""
    if not (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call)):
        return False
    text = unparse(node.value.func)
    owner, _, level = text.rpartition(".")
    return text in {"print", "warnings.warn"} or (level in _LEVELS and "log" in owner.lower())


def port_value_check(ev: Evaluator, node: cst.If, test: Expr) -> Statements:
    """Translate `if c: raise ...` for a tensor's value."""
    body = ev.evaluate_branches([node.body])[0]
    traced, known = _ask_for_tracer(ev, node.test, test)
    return [node.with_changes(test=fill("not A and B", A=traced, B=known), body=body)]


def port_value_assert(ev: Evaluator, node: cst.Assert, test: Expr) -> cst.Assert:
    """Translate `assert c` for a tensor's value."""
    traced, known = _ask_for_tracer(ev, node, test)
    return node.with_changes(test=fill("A or B", A=traced, B=known))


def _ask_for_tracer(ev: Evaluator, node: cst.CSTNode, test: Expr) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """Return the condition that a test is a tracer, and an expression for the test after it."""
    ev.diagnostics.imports.add("jax")
    ev.note(node, "check", "this check of a tensor's value runs outside jit only")
    name = test.node if isinstance(test.node, cst.Name) else cst.Name(ev.make_unused_name("check"))
    value = test.node if name is test.node else cst.NamedExpr(name, bracket(test.node, 1))
    return cst.Call(cst.Name("isinstance"), [cst.Arg(value), cst.Arg(parse("jax.core.Tracer"))]), name
