"""Checks, and messages about values.

What: `torch._check` and the like become the `if` with a `raise` that they are, `torch._assert` an `assert`; an `if`
on a tensor's value that only raises runs where the value is known.
Before: `torch._check(x.dim() == 2, lambda: f"got {x.dim()}")`
After: `if not x.ndim == 2: raise RuntimeError(f"got {x.ndim}")`
Safety: the exception is PyTorch's; of a tensor's value it is raised outside of jit only, as of any `if` with a `raise`.
Limits: hints for symbolic sizes (`torch._check_is_size`) say nothing in JAX and go away.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, parse, place_at
from fnjax.port.analysis.registry import statement
from fnjax.port.torch import bracket, fill, unparse
from fnjax.port.tree.located import list_small_statements

_RAISING = {
    "torch._check": "RuntimeError",
    "torch._check_value": "ValueError",
    "torch._check_type": "TypeError",
    "torch._check_index": "IndexError",
    "torch._check_not_implemented": "NotImplementedError",
}
_UNTOLD = '"Expected cond to be True, but got False."'
_HINTS = frozenset({"torch._check_is_size", "torch._constrain_as_size", "torch._constrain_as_value"})


@statement(cst.Expr)
def port_torch_check(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `torch._check(x.dim() == 2, lambda: "text")`."""
    call = node.value
    if not isinstance(call, cst.Call):
        return None
    name = ev.find_name(call.func)
    if name in _HINTS:
        return []
    args = {a.keyword.value if a.keyword else ("cond", "message")[i]: a.value for i, a in enumerate(call.args[:2])}
    condition, message = args.get("cond", args.get("condition")), args.get("message")
    if condition is None:
        return None
    if name == "torch._assert":
        return ev.port_statement(cst.SimpleStatementLine([place_at(ev, cst.Assert(condition, message), node)]))
    if name not in _RAISING:
        return None
    if isinstance(message, cst.Lambda):
        message = message.body
    elif message is not None:
        message = cst.Call(bracket(message, 18))
    error = cst.Call(cst.Name(_RAISING[name]), [cst.Arg(message or cst.SimpleString(_UNTOLD))])
    body = cst.IndentedBlock([cst.SimpleStatementLine([cst.Raise(error)])])
    made = cst.If(cst.UnaryOperation(cst.Not(), bracket(condition, 7)), body)
    return ev.port_statement(place_at(ev, made, node))


def only_raises(node: cst.If) -> bool:
    """Return whether an `if` is a check: its block raises, warns or prints, and does nothing else."""
    small = list_small_statements(node.body.body)
    return node.orelse is None and all(isinstance(x, cst.Raise) or is_message(x) for x in small)


DROPPED = "this message about values is dropped: jax.debug.print shows them, under jit too"
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
