"""Gradient mode: no_grad, enable_grad, and what asks about PyTorch's machinery.

What: `with torch.no_grad():` and its like lose their head, as decorators go; what such a block or function computes in
backward is constant to further derivatives. Questions such as torch.compiler.is_compiling() have their answer in ported
code.
Before: `with torch.no_grad(): y = x.exp()`
After: `y = jnp.exp(x)`
Safety: forward runs without gradients in PyTorch; only what backward computes under no_grad is made constant.
Limits: calls of torch.autograd.grad that no recomputed forward explains are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.registry import call_of, expression, statement
from fnjax.port.analysis.walk import Statements, Stop, Term, Walk, answered, line, lines_of, placed
from fnjax.port.known.facts import UNKNOWN
from fnjax.port.rewrite.calls.gpu import holds_device
from fnjax.port.torch import code, fit
from fnjax.port.torch.machinery import ENABLING, FALSE, NO_GRAD, PLAIN, SILENT

_OF_GRADIENTS = (
    *("torch.autograd.grad", "torch.autograd.backward", "torch.autograd.Variable"),
    *("torch.is_grad_enabled", "torch.enable_grad", "torch.no_grad"),
)


def switches_off(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether a `with`, or a decorator, switches gradients off: `torch.no_grad()`, `torch.set_grad_enabled(False)`."""
    name = walk.name_of(node.func if isinstance(node, cst.Call) else node)
    values = [code(a.value) for a in node.args] if isinstance(node, cst.Call) else []
    if name in NO_GRAD:
        return values != ["False"]  # inference_mode(False) leaves them as they are
    return name in ENABLING and values == ["False"]


@statement(cst.With, general=True)
def mode(walk: Walk, node: cst.With) -> Statements | None:
    """`with torch.no_grad():`."""
    kept, gone = [], []
    for item in node.items:
        call = item.item
        name = walk.name_of(call.func) if isinstance(call, cst.Call) else walk.name_of(call)
        if switches_off(walk, call):
            name = "torch.no_grad"
        if name in NO_GRAD | PLAIN or holds_device(walk.program, name):
            gone.append(name)
            if "autocast" in name:
                enabled = (
                    [a for a in call.args if a.keyword and a.keyword.value == "enabled"]
                    if isinstance(call, cst.Call)
                    else []
                )
                if not enabled or code(enabled[0].value) != "False":
                    walk.note(
                        item,
                        "dropped",
                        "autocast is dropped: JAX has no autocast regions, the block computes in the dtypes of "
                        "its inputs",
                    )
        else:
            kept.append(item.with_changes(item=walk.expr(item.item).node))
            if item.asname is not None:
                for bound in walk.program.bound_in(item):
                    walk.bind(bound, UNKNOWN, item)
    # Nothing switches gradients off in JAX: the variables that leave the block are made constants, where JAX may ask
    # for second derivatives.
    silent = any(g == "torch.no_grad" for g in gone) and (
        walk.derived or walk.routine.role in {"backward", "vjp", "jvp"}
    )
    before = set(walk.program.bound_in(node.body))
    enabling = bool(ENABLING.intersection(gone))
    silenced = silent or (walk.here.stop_gradients and not enabling)
    with walk.inside(stop_gradients=silenced, grad_enabled=enabling):
        body = walk.body(node.body)
    if kept:
        kept[-1] = kept[-1].with_changes(comma=node.items[-1].comma)
        return [node.with_changes(items=kept, body=body)]
    made = lines_of(body)
    if silent:
        for name in sorted(before):
            value = walk.state.variables.get(name, UNKNOWN)
            if value.is_tensor and walk.live(name):
                walk.sink.imports.add("jax")
                made.append(line(f"{name} = jax.lax.stop_gradient({name})"))
        written = walk.program.bound_in(cst.IndentedBlock(made)) - before
        if walk.surely_differentiated and any(walk.live(name) for name in written):
            message = "this writes under no_grad, in a forward that backward computes again; write to a copy"
            raise Stop(node, "autograd", message)
    return [s for s in made if not (isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], cst.Pass))]


@statement(cst.Expr)
def silent(walk: Walk, node: cst.Expr) -> Statements | None:
    """`torch.cuda.synchronize()`, `x.storage().resize_(0)`."""
    name = walk.name_of(node.value.func) if isinstance(node.value, cst.Call) else ""
    if isinstance(node.value, cst.Call) and _resizes(node.value.func):
        name = code(node.value.func)
    elif name not in SILENT:
        return None
    walk.note(node, "dropped", f"{name} is dropped: it computes nothing")
    return []


def _resizes(function: cst.BaseExpression) -> bool:
    """Whether this frees memory, or takes it again: entries are read after a write only."""
    match function:
        case cst.Attribute(
            cst.Call(cst.Attribute(_, cst.Name("storage" | "untyped_storage")), []), cst.Name("resize_")
        ):
            return True
    return False


@call_of(*FALSE, *_OF_GRADIENTS)
def gradient(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """A call of torch.autograd.grad that no pattern has taken."""
    if name in {"torch.autograd.grad", "torch.autograd.backward"}:
        raise Stop(
            node,
            "autograd",
            f"{name} of what the porter could not follow: write the computation as a function and use jax.vjp",
        )
    if name in FALSE or name == "torch.is_grad_enabled":  # forward and backward run without
        enabled = name not in FALSE and (walk.here.grad_enabled or walk.surely_differentiated)
        return answered(enabled)
    if name == "torch.autograd.Variable" and node.args:
        of = node.args[0].value
        leaf = any(a.keyword and a.keyword.value == "requires_grad" and code(a.value) == "True" for a in node.args)
        made = isinstance(of, cst.Call) and not walk.here.differentiated
        if not walk.derived or leaf or made or not walk.expr(of).value.is_tensor:
            return walk.expr(of)
        return walk.expr(placed(walk, cst.Call(cst.Attribute(fit(of), cst.Name("detach"))), node))
    if name in {"torch.enable_grad", "torch.no_grad"}:
        raise Stop(node, "autograd", f"{name} as a value has no meaning in JAX")
    return None


@expression(cst.Comparison)
def tangent(walk: Walk, node: cst.Comparison) -> Term | None:
    """`torch.autograd.forward_ad.unpack_dual(x).tangent is None`, which is so of every array."""
    of, asked = node.left, node.comparisons[0]
    call = of.value if isinstance(of, cst.Attribute) and of.attr.value == "tangent" else None
    if not isinstance(call, cst.Call) or walk.name_of(call.func) != "torch.autograd.forward_ad.unpack_dual":
        return None
    if len(node.comparisons) > 1 or code(asked.comparator) != "None":
        return None
    return answered(isinstance(asked.operator, (cst.Is, cst.Equal)))


@expression(cst.UnaryOperation)
def opposite(walk: Walk, node: cst.UnaryOperation) -> Term | None:
    """`not` of what the port knows."""
    term = walk.expr(node.expression) if isinstance(node.operator, cst.Not) else None
    return None if term is None or term.answer is None else answered(not term.answer)
