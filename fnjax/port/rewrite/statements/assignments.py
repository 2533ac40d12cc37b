"""Assignments.

What: assignments to variables and to attributes of ctx, and unpacking; those to elements are writes.
Before: `largest, _ = x.max(1)`
After: `largest = jnp.max(x, axis=1)`
Safety: a part that is left out is never read.
Limits: elements of tensors among several targets; attributes of tensors.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import (
    Evaluator,
    Statements,
    Stop,
    find_names,
    make_assignment,
    parse_line,
    place_at,
)
from fnjax.port.analysis.registry import statement
from fnjax.port.analysis.variables import iter_elements
from fnjax.port.known.facts import UNKNOWN, Value, may_widen
from fnjax.port.rewrite.calls.torch_names import port_part_of_pair
from fnjax.port.rewrite.memory.indexing import make_hashable
from fnjax.port.rewrite.memory.indices import list_indices
from fnjax.port.rewrite.statements.entries import write_into
from fnjax.port.rewrite.values.binding import bind_target
from fnjax.port.rewrite.values.context import is_ctx
from fnjax.port.source.naming import iter_imported
from fnjax.port.source.parameter_inference import read_annotation
from fnjax.port.torch import bracket, unparse
from fnjax.port.torch.expressions import is_same_text
from fnjax.port.tree.located import list_nodes, replace_parts


@statement(cst.Assign, general=True)
def port_assignment(ev: Evaluator, node: cst.Assign) -> Statements | None:
    """Translate `a = b = value`."""
    first = node.targets[0].target
    several = [e for t in node.targets for e in iter_elements(t.target)]
    if len(several) > 1 and any(_is_written_target(ev, e) for e in several):
        raise Stop(node, "alias", "several targets of which one is an element of a tensor; write them one by one")
    if (alone := _port_part_alone(ev, node)) is not None:
        return alone
    expr = ev.port(node.value)
    if isinstance(first, cst.Subscript) and (made := write_into(ev, node, first, expr)) is not None:
        return made
    if _is_torch_attribute(ev, first):
        return []
    value = expr.value
    if value.name.startswith("?"):
        value = UNKNOWN
    if value.mask and isinstance(expr.node, cst.Name) and unparse(node.targets[0].target) == expr.node.value:
        ev.state.variables[expr.node.value] = value  # `x = x[m]`: all entries stay, so that the mask does as well
        return []
    for target in node.targets:
        bind_target(ev, target.target, value, node)
    _check_no_key(ev, node)
    targets = [_port_target(ev, t) for t in node.targets]
    changed = expr.node is not node.value
    if changed and len(targets) == 1 and is_same_text(targets[0].target, expr.node):
        return []
    if not changed and all(a is b for a, b in zip(targets, node.targets, strict=True)):
        return [cst.SimpleStatementLine([node])]
    return [cst.SimpleStatementLine([node.with_changes(targets=targets, value=bracket(expr.node, 0))])]


def _check_no_key(ev: Evaluator, node: cst.Assign) -> None:
    """Refuse `x, n = inputs` in setup_context where the inputs of forward have a key as well."""
    if ev.routine.role != "setup_context" or not ev.program.draws_random_numbers(ev.routine):
        return
    inputs = ev.routine.parameters[ev.routine.first].name.value
    if isinstance(node.targets[0].target, cst.Tuple) and unparse(node.value) == inputs:
        raise Stop(node, "random", f"{inputs} has a key as well, as forward draws random numbers: unpack it by index")


def _is_written_target(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Return whether a target is an element of a tensor."""
    return isinstance(target, cst.Subscript) and ev.port(target.value).value.kind not in {"static", "object"}


def _port_part_alone(ev: Evaluator, node: cst.Assign) -> Statements | None:
    """Translate `largest, _ = x.max(1)`, where nothing reads the other part."""
    target = node.targets[0].target
    names_ = [e.value for e in target.elements] if isinstance(target, cst.Tuple) else []
    if len(node.targets) > 1 or len(names_) != 2 or not all(isinstance(n, cst.Name) for n in names_):
        return None
    unread = [unparse(n) for n in names_ if _is_never_read(ev, unparse(n))]
    if len(unread) != 1:
        return None
    wanted = 0 if unparse(names_[1]) == unread[0] else 1
    expr = port_part_of_pair(ev, node.value, wanted)
    if expr is None:
        return None
    name = unparse(names_[wanted])
    bind_target(ev, names_[wanted], expr.value, node)
    return [make_assignment(name, expr.node)]


def _is_never_read(ev: Evaluator, name: str) -> bool:
    """Return whether a variable is only given values."""
    given = {
        id(n)
        for s in list_nodes(ev.routine.node)
        if isinstance(s, (cst.AssignTarget, cst.For, cst.CompFor))
        for n in list_nodes(s.target)
        if isinstance(n, cst.Name)
    }
    deleted = any(isinstance(s, cst.Del) and name in find_names(s) for s in list_nodes(ev.routine.node))
    return not deleted and all(id(n) in given for n in ev.routine.reads.get(name, ()))


def _port_target(ev: Evaluator, target: cst.AssignTarget) -> cst.AssignTarget:
    inner = target.target
    if isinstance(inner, cst.Subscript):
        made = ev.port_parts(inner)
        index = list_indices(inner)[0] if len(inner.slice) == 1 else None
        if index is not None and (key := make_hashable(ev, ev.port(index))) is not ev.port(index).node:
            made = made.with_changes(slice=[cst.SubscriptElement(cst.Index(key))])
        return target if made is inner else target.with_changes(target=made)
    return target


_IGNORED = frozenset({"grad", "requires_grad", "activation_offloading", "grad_fn", "is_leaf", "retains_grad"})


def _is_torch_attribute(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Return whether a target is an attribute of a tensor, which is dropped; only PyTorch's machinery reads it."""
    if not isinstance(target, cst.Attribute) or is_ctx(ev, target.value):
        return False
    value = ev.port(target.value).value
    if target.attr.value in {"data", "real", "imag"} and value.kind not in {"static", "object"}:
        text = unparse(target)
        raise Stop(target, "alias", f"{text} = ... is not translated; write {text}.copy_(...), or give it a new name")
    if value.is_tensor or (value.kind == "unknown" and target.attr.value in _IGNORED):
        ev.note(
            target, "dropped", f"the attribute {target.attr.value!r} of a tensor is dropped: JAX's arrays carry none"
        )
        return True
    return False


@statement(cst.AnnAssign, general=True)
def port_annotated_assignment(ev: Evaluator, node: cst.AnnAssign) -> Statements | None:
    """Translate `x: Tensor = value`."""
    annotation, value = ev.program.port_annotation(node.annotation.annotation, ev), node.value
    if value is not None:
        expr = ev.port(value)
        open_ = expr.value.kind == "unknown"
        said = read_annotation(node.annotation.annotation, ev.program.resolve_name) if open_ else None
        known = expr.value if said is None else replace(said, memref=expr.value.memref if said.is_tensor else None)
        bind_target(ev, node.target, known, node)
        value = bracket(expr.node, 0)
    if annotation is None:  # nothing is left of the type
        return [] if value is None else [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(node.target)], value)])]
    made = replace_parts(node, annotation=replace_parts(node.annotation, annotation=annotation), value=value)
    return [cst.SimpleStatementLine([made])]


@statement(cst.Expr, general=True)
def port_expression_statement(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `x.add_(1)`, `print(x)`; `y[0].copy_(x)` is an assignment."""
    if (assigned := _read_entry_copy(ev, node.value)) is not None:
        return ev.apply_rules(assigned)
    match node.value:
        case cst.Call(cst.Attribute(of, cst.Name("sort"))) if not ev.port(of).value.is_tensor:  # a list, in place
            return [cst.SimpleStatementLine([node])]
    expr = ev.port(node.value)
    if expr.node is node.value:
        return [cst.SimpleStatementLine([node])]
    if isinstance(expr.node, (cst.Name, cst.Attribute, cst.Subscript)) and not isinstance(
        node.value, (cst.Name, cst.SimpleString)
    ):
        return []
    if ev.before and not isinstance(node.value, (cst.Await, cst.Yield)) and expr.value.memref is not None:
        return []
    return [cst.SimpleStatementLine([node.with_changes(value=bracket(expr.node, 0))])]


def _read_entry_copy(ev: Evaluator, node: cst.BaseExpression) -> cst.Assign | None:
    """Return `y[0] = x` for `y[0].copy_(x)`, where `y[0]` surely is a view."""
    match node:
        case cst.Call(cst.Attribute(cst.Subscript() as entries, cst.Name("copy_")), [cst.Arg(given, None, star="")]):
            base, expr, other = (ev.port(n).value for n in (entries.value, entries, given))
        case _:
            return None
    if base.memref is None or expr.memref is None or not expr.memref.certain or not base.is_tensor:
        return None
    view = len(expr.memref.steps) == len(base.memref.steps) + 1
    same = other.dtype == base.dtype and not may_widen(base, other)
    if not view or other.kind not in {"tensor", "unknown"}:
        return None
    if not same:
        dtype = cst.Attribute(entries.value, cst.Name("dtype"))
        given = cst.Call(cst.Attribute(bracket(given), cst.Name("to")), [cst.Arg(dtype)])
    made: cst.Assign = place_at(ev, cst.Assign([cst.AssignTarget(entries)], given), node)
    return made


@statement(cst.Import, cst.ImportFrom, general=True)
def port_import(ev: Evaluator, node: cst.Import | cst.ImportFrom) -> Statements | None:
    """Drop imports of torch inside functions."""
    kept = False
    ours = [(n, f) for n, f in iter_imported(node) if f.startswith("fnjax.triton")]
    if ours and ev.routine.role == "module":  # the port has them at its head
        return []
    for name, full in iter_imported(node):
        ev.bind_name(name, Value("object", name=full), node)
        root = full.split(".")[0]
        kept = kept or root in sys.stdlib_module_names or root in {"numpy", "scipy", "jax", "fnjax"}
    if ours:
        parted = [(*f.rpartition("."), n) for n, f in ours]
        return [parse_line(f"from {module} import {last} as {name}") for module, _, last, name in parted]
    return [cst.SimpleStatementLine([node])] if kept else []


@statement(cst.Raise, general=True)
def port_raise(ev: Evaluator, node: cst.Raise) -> Statements | None:
    """Translate `raise ValueError(x.shape)`."""
    made = ev.port_parts(node)
    return [cst.SimpleStatementLine([made])]
