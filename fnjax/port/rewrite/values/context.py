"""ctx, which works as in PyTorch.

What: `ctx` works as in PyTorch and stays as it is. Reads of `x.requires_grad` become `ctx.needs_input_grad[i]`; what
ctx keeps is followed from forward into backward, so that tensors are known there.
Before: `ctx.save_for_backward(x) if x.requires_grad else None`
After: `ctx.save_for_backward(x) if ctx.needs_input_grad[0] else None`
Safety: of an attribute that several methods write only that is known which holds for all of them.
Limits: an output that depends on `requires_grad` is a finding: a plain call in JAX is not differentiated.
`requires_grad` of what is no input of forward is taken as True, with a note; hooks and graph attributes are
findings.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, make_answer
from fnjax.port.analysis.registry import call_of, expression, statement
from fnjax.port.known.facts import SAVED, TENSOR, UNKNOWN, MemRef, Value, join_values, list_memrefs
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import bracket, fill, unparse
from fnjax.port.tree.located import list_nodes

_ASKING = re.compile(r"requires_grad(_\(|\s*=\s*True)|enable_grad")
_SAVED_NAMES = frozenset({"saved_tensors", "saved_variables", "saved_values"})


def is_ctx(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an expression is the ctx of this method."""
    return isinstance(node, cst.Name) and ev.look_up(node.value).name == "ctx"


def name_ctx_attribute(ev: Evaluator, node: cst.BaseExpression) -> str:
    """Return the name under which backward knows `ctx.alpha`, an attribute of ctx; empty for anything else."""
    return ev.name_variable(node) if isinstance(node, cst.Attribute) else ""


@expression(cst.Attribute)
def port_ctx_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Return what ctx holds."""
    key = name_ctx_attribute(ev, node)
    if not key:
        return None
    if node.attr.value in _SAVED_NAMES:
        return Expr(node, ev.state.variables.get("ctx.saved", Value("static", element=TENSOR)))
    if node.attr.value == "needs_input_grad":
        return Expr(node, Value("static", element=Value("static", "bool")))
    return Expr(node, ev.state.variables.get(key, UNKNOWN))


@statement(cst.Expr, only="dirty")
def port_mark_dirty(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Drop `ctx.mark_dirty(x)` after a write to x: it is the new array then, and no input."""
    call = node.value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if call.func.attr.value != "mark_dirty" or not is_ctx(ev, call.func.value):
        return None
    return [] if any(ev.state.find_version(unparse(a.value)) for a in call.args) else None


def keep_on_ctx(ev: Evaluator, key: str, value: Value) -> None:
    """Add what a method sets on ctx."""
    ev.kept[key] = join_values(ev.kept[key], value) if key in ev.kept else value


@call_of("ctx.")
def port_ctx_call(ev: Evaluator, node: cst.Call, key: str) -> Expr | None:
    """Translate `ctx.save_for_backward(x)` and its like."""
    made = ev.port_parts(node)
    if made is node or isinstance(made, cst.Call):
        made = made.with_changes(func=node.func)
    if key in {"ctx.save_for_backward", "ctx.save_for_forward"}:
        values = [ev.port(a.value).value for a in node.args]
        ev.need_entries(*values)
        starred = any(a.star for a in node.args)
        held = [p for v in values for p in list_memrefs(v)]
        one = replace(TENSOR, memref=held[0] if len(held) == 1 else MemRef.join_all(*held) if held else None)
        saved = Value("static", element=one) if starred else Value("static", parts=tuple(values))
        keep_on_ctx(ev, "ctx.saved", saved)
        ev.state.variables[SAVED] = saved
        return Expr(made, Value("static", literal=None))
    value = ev.state.variables.get(key, UNKNOWN)
    if value.kind == "static":  # a function that forward chose: its result is not known
        given = [p for a in node.args if (p := ev.port(a.value).value.memref)]
        value = replace(UNKNOWN, memref=MemRef.join_all(*given)) if given else UNKNOWN
    return Expr(made, value)


@expression(cst.Attribute)
def port_requires_grad(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `x.requires_grad`: of an input `ctx.needs_input_grad[i]`, in forward False of what it computes."""
    if node.attr.value != "requires_grad" or ev.find_name(node):
        return None
    reason, role = "JAX decides by itself what is differentiated", ev.routine.role
    if role == "forward":
        if (found := _port_requires_grad_in_forward(ev, node)) is not None:
            return found
    elif role in {"backward", "jvp", "vjp"}:
        owner, memref = ev.routine.owner, ev.port(node.value).value.memref
        saved = ev.program.find_saved_input(owner, memref) if owner and memref else None
        if saved is not None:
            return Expr(_ask_for_input(ev, saved), Value("static", "bool"))
        reason = "the gradient of what needs none is dropped"
    ev.note(node, "requires-grad", f"requires_grad is taken as True: {reason}")
    return make_answer(True)


def _ask_for_input(ev: Evaluator, index: int, may_be_left_out: bool = False) -> cst.BaseExpression:
    template = "any(C.needs_input_grad[I:J])" if may_be_left_out else "C.needs_input_grad[I]"
    ends = (cst.Integer(str(i)) for i in (index, index + 1))
    return fill(template, C=cst.Name(ev.routine.context), **dict(zip("IJ", ends, strict=True)))


def _port_requires_grad_in_forward(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `x.requires_grad` in forward: PyTorch's is that of the inputs alone, as needs_input_grad has it."""
    routine, value = ev.routine, ev.port(node.value).value
    inputs = [p for p in routine.parameters[routine.first :] if p is not routine.node.params.star_arg]
    memory = value.memref.storage if value.memref and not value.memref.steps else frozenset[str]()
    perhaps = {s for s in memory if s.startswith("arg:")}
    given = [i for i, p in enumerate(inputs) if f"arg:{p.name.value}" in perhaps]
    if value.is_tensor and not perhaps and not _ASKING.search(unparse(routine.node)):  # it runs without gradients
        return make_answer(False)
    if not given or routine.has_setup or value.memref is None:
        return None
    if _decides_output(ev, node):
        message = "the outputs would depend on whether somebody differentiates: pass a flag of your own"
        ev.report(node, "requires-grad", message)
    doubtful = not value.memref.certain
    if doubtful and ev.here.repeated:  # of a comprehension
        raise Stop(node, "requires-grad", "which input this is, is not known here: ask each by its name")
    left_out = {i for i in given if inputs[i].default and doubtful}
    if doubtful and perhaps < memory and not left_out.issuperset(given):
        ev.note(node, "requires-grad", "where this is no input but computed, PyTorch's requires_grad is False")
    each = [_ask_for_input(ev, i, i in left_out) for i in given]
    asked = functools.reduce(lambda a, b: fill("A or B", A=a, B=b), each)
    return Expr(bracket(asked), Value("static", "bool"))


def _decides_output(ev: Evaluator, node: cst.Attribute) -> bool:
    """Return whether what forward returns depends on a condition, and not only what it keeps on ctx."""
    within = list(list_nodes(ev.routine.node.body))
    returns = [n for n in within if isinstance(n, cst.Return) and n.value]
    given = {n.value for r in returns for n in list_nodes(r) if isinstance(n, cst.Name)}
    for choice in within:
        if not isinstance(choice, (cst.If, cst.IfExp)) or not any(n is node for n in list_nodes(choice.test)):
            continue
        blocks: list[Any] = [choice.body, choice.orelse]
        if isinstance(choice, cst.IfExp):
            small = (n for n in within if isinstance(n, (cst.Return, cst.Assign)))
            blocks = [n for n in small if any(c is choice for c in list_nodes(n))]
        selected = [n for block in blocks if block for n in list_nodes(block)]
        bound = {t for n in selected if isinstance(n, cst.AssignTarget) for t in iter_targets(n.target)}
        differ = isinstance(choice, cst.IfExp) or len({unparse(r) for r in returns}) > 1
        if bound & given or (differ and any(isinstance(n, cst.Return) for n in selected)):
            return True
    return False
