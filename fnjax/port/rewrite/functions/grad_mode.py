"""Gradient mode: no_grad, enable_grad, and what asks about PyTorch's machinery.

What: `with torch.no_grad():` and its like lose their head, as decorators go; what such a block or function computes in
backward is constant to further derivatives. Questions such as torch.compiler.is_compiling() have their answer in ported
code.
Before: `with torch.no_grad(): y = x.exp()`
After: `y = jnp.exp(x)`
Safety: forward runs without gradients in PyTorch; only what backward computes under no_grad is made constant.
Limits: gradients that a method takes itself, by torch.autograd.grad or `y.backward()`, are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import (
    Evaluator,
    Expr,
    Statements,
    Stop,
    list_statements,
    make_answer,
    parse_line,
    place_at,
)
from fnjax.port.analysis.guards import is_guard_context
from fnjax.port.analysis.registry import call_of, expression, statement
from fnjax.port.known.facts import UNKNOWN
from fnjax.port.torch import bracket, unparse
from fnjax.port.torch.machinery import ENABLING, FALSE, NO_GRAD, PLAIN, SILENT

_OF_GRADIENTS = (
    *("torch.autograd.backward", "torch.autograd.grad", "torch.autograd.Variable"),
    *("torch.is_grad_enabled", "torch.enable_grad", "torch.no_grad"),
)


def switches_gradients_off(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether a `with`, or a decorator, switches gradients off: `no_grad()`, `set_grad_enabled(False)`."""
    name = ev.find_name(node.func if isinstance(node, cst.Call) else node)
    values = [unparse(a.value) for a in node.args] if isinstance(node, cst.Call) else []
    if name in NO_GRAD:
        return values != ["False"]  # inference_mode(False) leaves them as they are
    return name in ENABLING and values == ["False"]


@statement(cst.With, general=True)
def port_with(ev: Evaluator, node: cst.With) -> Statements | None:
    """Translate `with torch.no_grad():`."""
    kept, gone = [], []
    for item in node.items:
        call = item.item
        func, args = (call.func, call.args) if isinstance(call, cst.Call) else (call, ())
        name = "torch.no_grad" if switches_gradients_off(ev, call) else ev.find_name(func)
        if name in NO_GRAD | PLAIN or (name[:5] == "file:" and is_guard_context(ev.program, name[5:])):
            gone.append(name)
            enabled = [a for a in args if a.keyword and a.keyword.value == "enabled"]
            if "autocast" in name and (not enabled or unparse(enabled[0].value) != "False"):
                message = (
                    "autocast is dropped: JAX has no autocast regions, the block computes in the dtypes of its inputs"
                )
                ev.note(item, "dropped", message)
        else:
            kept.append(item.with_changes(item=ev.port(item.item).node))
            if item.asname is not None:
                for bound in ev.program.list_bound(item):
                    ev.bind_name(bound, UNKNOWN, item)
    # Nothing switches gradients off in JAX: the variables that leave the block are made constants, where JAX may ask
    # for second derivatives.
    silent = "torch.no_grad" in gone and (ev.derived or ev.routine.role in {"backward", "vjp", "jvp"})
    before = set(ev.program.list_bound(node.body))
    enabling = bool(ENABLING.intersection(gone)) or (ev.here.grad_enabled and "torch.no_grad" not in gone)
    silenced = silent or (ev.here.stop_gradients and not enabling)
    with ev.enter(stop_gradients=silenced, grad_enabled=enabling):
        body = ev.port_body(node.body)
    if kept:
        kept[-1] = kept[-1].with_changes(comma=node.items[-1].comma)
        return [node.with_changes(items=kept, body=body)]
    made = list_statements(body)
    if silent:
        for name in sorted(before):
            value = ev.state.variables.get(name, UNKNOWN)
            if value.is_tensor and ev.is_live(name):
                ev.diagnostics.imports.add("jax")
                made.append(parse_line(f"{name} = jax.lax.stop_gradient({name})"))
    return [s for s in made if not (isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], cst.Pass))]


@statement(cst.Expr)
def port_silent_call(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `torch.cuda.synchronize()`, `x.storage().resize_(0)`, `x.set_()`."""
    name = ev.find_name(node.value.func) if isinstance(node.value, cst.Call) else ""
    if name not in SILENT:
        return None
    ev.note(node, "dropped", f"{name} is dropped: it computes nothing")
    return []


@call_of(*FALSE, *_OF_GRADIENTS)
def port_gradient_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate a question about the gradient mode, and `torch.autograd.Variable(x)`."""
    if name in {"torch.autograd.backward", "torch.autograd.grad"}:
        message = f"{name} takes gradients of what PyTorch records: write the computation as a function and use jax.vjp"
        raise Stop(node, "autograd", message)
    if name in FALSE or name == "torch.is_grad_enabled":  # forward and backward run without
        enabled = name not in FALSE and ev.here.grad_enabled
        return make_answer(enabled)
    if name == "torch.autograd.Variable" and node.args:
        of = node.args[0].value
        leaf = any(a.keyword and a.keyword.value == "requires_grad" and unparse(a.value) == "True" for a in node.args)
        made = isinstance(of, cst.Call)
        if not ev.derived or leaf or made or not ev.port(of).value.is_tensor:
            return ev.port(of)
        return ev.port(place_at(ev, cst.Call(cst.Attribute(bracket(of), cst.Name("detach"))), node))
    if name in {"torch.enable_grad", "torch.no_grad"}:
        raise Stop(node, "autograd", f"{name} as a value has no meaning in JAX")
    return None


@expression(cst.UnaryOperation)
def port_known_not(ev: Evaluator, node: cst.UnaryOperation) -> Expr | None:
    """Translate `not` of what the port knows."""
    expr = ev.port(node.expression) if isinstance(node.operator, cst.Not) else None
    return None if expr is None or expr.answer is None else make_answer(not expr.answer)
