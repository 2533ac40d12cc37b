"""Assignments.

What: assignments to variables and to attributes of ctx, and what unpacking gives; those to entries and to `x.data` are
writes.
Before: `a, y[0] = x.exp(), 1`
After: `a, new_1 = jnp.exp(x), 1` and `y = y.at[0].set(new_1)`
Safety: of several targets each sees what those before it wrote, as in PyTorch.
Limits: entries of tensors in containers; attributes of tensors other than `.data`, `.real` and `.imag`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import (
    Evaluator,
    Expr,
    Statements,
    Stop,
    find_names,
    make_assignment,
    parse,
    parse_line,
    place_at,
)
from fnjax.port.analysis.expr import Prologue
from fnjax.port.analysis.program import list_nodes
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import UNKNOWN, Value, may_widen
from fnjax.port.rewrite.calls.arguments import is_bound_once
from fnjax.port.rewrite.calls.torch_names import port_part_of_pair
from fnjax.port.rewrite.memory.indexing import (
    make_hashable,
)
from fnjax.port.rewrite.memory.indices import list_indices
from fnjax.port.rewrite.statements.entries import is_data, write_into
from fnjax.port.rewrite.values.binding import bind_target
from fnjax.port.rewrite.values.context import hides_arrays, is_ctx, name_ctx_attribute
from fnjax.port.source.parameter_inference import describe_parameter, read_annotation
from fnjax.port.torch import MISSING, bracket, read_literal, unparse
from fnjax.port.torch.expressions import is_same_text


@statement(cst.Assign, general=True)
def port_assignment(ev: Evaluator, node: cst.Assign) -> Statements | None:
    """Translate `a = b = value`."""
    # A write makes new arrays, which later targets see: such targets are taken one by one, before any value is bound.
    if any(_is_written_target(ev, e) for t in node.targets for e in _list_elements(t.target)):
        return _port_one_by_one(ev, node)
    if len(node.targets) > 1 and any(_is_written_target(ev, t.target) for t in node.targets):
        return _port_repeated_targets(ev, node)
    if (parts := _split_selections(ev, node)) is not None:
        return [s for part in parts for s in ev.port_small_statement(part)]
    if (alone := _port_part_alone(ev, node)) is not None:
        return alone
    if (part := _read_complex_part(ev, node)) is not None:
        return ev.port_small_statement(part)
    expr = _port_places_as_mask(ev, node) or ev.port(node.value)
    if any(isinstance(t.target, cst.Subscript) or is_data(ev, t.target) for t in node.targets):
        made = write_into(ev, node, node.targets[0].target, expr)
        if made is not None:
            return made
    if _is_torch_attribute(ev, node.targets[0].target):
        return []
    if (
        expr.value.kind == "object"
        and expr.value.name.startswith("torch.")
        and all(isinstance(t.target, cst.Name) for t in node.targets)
        and ev.routine.role != "module"
    ):
        for target in node.targets:
            bind_target(ev, target.target, replace(expr.value, number=""), node)
        names = ev.program.list_bound(node)
        return [] if all(is_bound_once(ev, n) for n in names) else [_make_assigned(node, expr)]
    value = expr.value
    if value.name.startswith("?"):
        value = UNKNOWN
    if value.mask and isinstance(expr.node, cst.Name) and unparse(node.targets[0].target) == expr.node.value:
        ev.state.variables[expr.node.value] = value  # `x = x[m]`: all entries stay, so that the mask does as well
        return []
    for target in node.targets:
        bind_target(ev, target.target, value, node)
    _note_uses(ev, node)
    if any(name_ctx_attribute(ev, t.target) for t in node.targets) and hides_arrays(ev, node.value):
        what = unparse(node.targets[0].target)
        message = (
            f"JAX cannot see the arrays inside {what}: this runs un-jitted only; keep the arrays on ctx themselves"
        )
        ev.report(node, "untraced", message)
    targets = [_port_target(ev, t) for t in node.targets]
    if ev.routine.role == "setup_context" and ev.program.draws_random_numbers(ev.routine):
        targets = [_add_key_target(ev, node, t) for t in targets]
    changed = expr.node is not node.value
    if changed and len(targets) == 1 and is_same_text(targets[0].target, expr.node):
        return []
    if not changed and all(a is b for a, b in zip(targets, node.targets, strict=True)):
        return [cst.SimpleStatementLine([node])]
    return [cst.SimpleStatementLine([node.with_changes(targets=targets, value=bracket(expr.node, 0))])]


def _note_uses(ev: Evaluator, node: cst.Assign) -> None:
    """Note what is unpacked from `*inputs`, which is known by its use, as a parameter is."""
    star = ev.routine.node.params.star_arg
    if not isinstance(star, cst.Param):
        return
    parts = _list_elements(node.value) or [node.value]
    roots = {unparse(p.value if isinstance(p, cst.Subscript) else p) for p in parts}
    if roots != {star.name.value}:
        return
    for name in ev.program.list_bound(node):
        kind = describe_parameter(cst.Param(cst.Name(name)), ev.routine.node, ev.program.inference).kind
        value = ev.state.variables.get(name)
        if value is not None and value.kind == "unknown" and kind in {"tensor", "static"}:
            ev.state.variables[name] = replace(value, kind=kind)
    pattern = node.targets[0].target
    if unparse(node.value) != star.name.value or not isinstance(pattern, cst.Tuple):
        return
    for i, target in enumerate(pattern.elements):  # each is an array of its own
        value = ev.state.variables.get(unparse(target.value))
        if isinstance(target, cst.StarredElement):
            return
        if value is not None and value.memref is not None:
            ev.state.variables[unparse(target.value)] = replace(
                value, memref=replace(value.memref, certain=True).take_entry(i)
            )


def _make_assigned(node: cst.Assign, expr: Expr) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([node.with_changes(value=bracket(expr.node, 0))])


def _list_elements(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else []


def _is_written_target(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Return whether a target is an entry or the data of a tensor."""
    if isinstance(target, cst.Subscript):
        return ev.port(target.value).value.kind not in {"static", "object"}
    return is_data(ev, target) or _is_part(ev, target)


def _split_selections(ev: Evaluator, node: cst.Assign) -> list[cst.Assign] | None:
    """Translate `a, b = x[m], y[m]` as two assignments: the values are what a mask selects."""
    target, value = node.targets[0].target, node.value
    if len(node.targets) > 1 or not (isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple)):
        return None
    names_ = [e.value for e in target.elements]
    values = [e.value for e in value.elements]
    if len(names_) != len(values) or not all(isinstance(n, cst.Name) for n in names_):
        return None
    bound = {unparse(n) for n in names_}
    if any(bound & find_names(v) for v in values) or not any(ev.port(v).value.mask for v in values):
        return None
    return [cst.Assign([cst.AssignTarget(n)], v) for n, v in zip(names_, values, strict=True)]  # type: ignore[arg-type] # names


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


def _port_one_by_one(ev: Evaluator, node: cst.Assign) -> Statements:
    """Translate `x[0], x[1] = a, b`: the values first, then each target."""
    target = node.targets[0].target
    if len(node.targets) > 1 or any(isinstance(e, cst.StarredElement) for e in getattr(target, "elements", ())):
        raise Stop(node, "alias", "several targets of which one is an entry of a tensor; write them one by one")
    parts = _list_elements(target)
    new = [ev.make_unused_name(f"new_{i}") for i in range(len(parts))]
    together = cst.ensure_type(parse(", ".join(new)), cst.Tuple)
    made = ev.port_small_statement(node.with_changes(targets=[cst.AssignTarget(together)]))
    for i, part in enumerate(parts):
        with ev.await_reads(set(new[i + 1 :])):
            made += _port_one_target(ev, part, cst.Name(new[i]))
    return made


def _port_repeated_targets(ev: Evaluator, node: cst.Assign) -> Statements:
    """Translate `x[0] = y[1] = a`: the value first, then each target."""
    value, first, made, rest = node.value, node.targets[0], [], list(node.targets)
    if not isinstance(value, cst.Name) and read_literal(value) is MISSING:
        value = rest.pop(0).target if isinstance(first.target, cst.Name) else cst.Name(ev.make_unused_name("new"))
        made = ev.port_small_statement(node.with_changes(targets=[first.with_changes(target=value)]))
    for target in rest:
        made += _port_one_target(ev, target.target, value)
    return made


def _port_one_target(ev: Evaluator, target: cst.BaseExpression, value: cst.BaseExpression) -> Statements:
    ev.before, before = Prologue(), ev.before
    made = ev.port_small_statement(cst.Assign([cst.AssignTarget(target)], value))  # type: ignore[arg-type] # a target
    made = [*ev.before, *made]
    ev.before = before
    return made


def _port_places_as_mask(ev: Evaluator, node: cst.Assign) -> Expr | None:
    """`i = torch.where(m)` and `i = m.nonzero(as_tuple=True)` as the mask itself, where i only serves as an index."""
    call, target = node.value, node.targets[0].target
    if not isinstance(call, cst.Call) or not isinstance(target, cst.Name) or len(node.targets) > 1:
        return None
    name, args = ev.find_name(call.func), list(call.args)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "nonzero" and not name:
        name, args = "torch.nonzero", [cst.Arg(call.func.value), *args]
    pair = len(args) == 2 and args[1].keyword is not None and unparse(args[1].keyword) == "as_tuple"
    if not (name == "torch.where" and len(args) == 1) and not (
        name == "torch.nonzero" and pair and unparse(args[1].value) == "True"
    ):
        return None
    mask = ev.port(args[0].value)
    used = ev.routine.reads.get(target.value, [])
    indices = sum(
        isinstance(n, cst.Subscript) and [unparse(e) for e in n.slice] == [target.value]
        for n in list_nodes(ev.routine.node)
    )
    if mask.value.dtype != "bool" or len(used) != indices + 1:
        return None
    return Expr(mask.node, replace(mask.value, number=mask.value.number or ev.number_expression(args[0].value)))


def _add_key_target(ev: Evaluator, node: cst.Assign, target: cst.AssignTarget) -> cst.AssignTarget:
    """Translate `x, n = inputs` where the inputs have a key as well."""
    inner = target.target
    inputs = ev.routine.parameters[ev.routine.first].name.value
    if not isinstance(inner, cst.Tuple) or unparse(node.value) != inputs:
        return target
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elements = [*(e.with_changes(comma=comma) for e in inner.elements), cst.Element(cst.Name("_"))]
    return target.with_changes(target=inner.with_changes(elements=elements))


def _port_target(ev: Evaluator, target: cst.AssignTarget) -> cst.AssignTarget:
    inner = target.target
    if isinstance(inner, cst.Subscript):
        made = ev.port_parts(inner)
        index = list_indices(inner)[0] if len(inner.slice) == 1 else None
        if index is not None and (key := make_hashable(ev, ev.port(index))) is not ev.port(index).node:
            made = made.with_changes(slice=[cst.SubscriptElement(cst.Index(key))])
        return target if made is inner else target.with_changes(target=made)
    return target


def _read_complex_part(ev: Evaluator, node: cst.Assign) -> cst.Expr | None:
    """Translate `z.imag = v` as `z.imag.copy_(v)`."""
    target = node.targets[0].target
    if len(node.targets) > 1 or not _is_part(ev, target):
        return None
    call = cst.Call(cst.Attribute(target, cst.Name("copy_")), [cst.Arg(node.value)])
    return place_at(ev, cst.Expr(call), node)  # type: ignore[no-any-return] # the same node


def _is_part(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Return whether this is the real or the imaginary part of an array."""
    if not isinstance(target, cst.Attribute) or target.attr.value not in {"real", "imag"}:
        return False
    return not is_ctx(ev, target.value) and ev.port(target.value).value.kind not in {"static", "object"}


_IGNORED = frozenset({"grad", "requires_grad", "activation_offloading", "grad_fn", "is_leaf", "retains_grad"})


def _is_torch_attribute(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Attributes of tensors that mean something to PyTorch's machinery only."""
    if not isinstance(target, cst.Attribute) or is_ctx(ev, target.value):
        return False
    value = ev.port(target.value).value
    if value.is_tensor or (value.kind == "unknown" and target.attr.value in _IGNORED):
        ev.note(
            target, "dropped", f"the attribute {target.attr.value!r} of a tensor is dropped: JAX's arrays carry none"
        )
        return True
    return False


@statement(cst.AnnAssign, general=True)
def port_annotated_assignment(ev: Evaluator, node: cst.AnnAssign) -> Statements | None:
    """Translate `x: Tensor = value`."""
    annotation = ev.program.port_annotation(node.annotation.annotation, ev)
    made: dict[str, Any] = {}
    if annotation is not None and annotation is not node.annotation.annotation:
        made["annotation"] = node.annotation.with_changes(annotation=annotation)
    if node.value is not None:
        expr = ev.port(node.value)
        said = (
            read_annotation(node.annotation.annotation, ev.program.resolve_name)
            if expr.value.kind == "unknown"
            else None
        )
        known = expr.value if said is None else replace(said, memref=expr.value.memref if said.is_tensor else None)
        bind_target(ev, node.target, known, node)
        if expr.node is not node.value:
            made["value"] = bracket(expr.node, 0)
    if annotation is None:  # nothing is left of the type
        value = made.get("value", node.value)
        return [] if value is None else [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(node.target)], value)])]
    return [cst.SimpleStatementLine([node.with_changes(**made) if made else node])]


@statement(cst.Expr, general=True)
def port_expression_statement(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `x.add_(1)`, `print(x)`; `setattr(ctx, "y", y)` and `y[0].copy_(x)` are assignments."""
    if (assigned := _read_setattr(ev, node.value) or _read_entry_copy(ev, node.value)) is not None:
        return ev.port_small_statement(assigned)
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


def _read_setattr(ev: Evaluator, node: cst.BaseExpression) -> cst.Assign | None:
    """Return what `setattr(ctx, "y", y)` says."""
    if not isinstance(node, cst.Call) or ev.find_name(node.func) != "builtins.setattr" or len(node.args) != 3:
        return None
    owner, name, value = (a.value for a in node.args)
    if not is_ctx(ev, owner) or not isinstance(read_literal(name), str):
        return None
    return cst.Assign([cst.AssignTarget(cst.Attribute(owner, cst.Name(str(read_literal(name)))))], value)


def _read_entry_copy(ev: Evaluator, node: cst.BaseExpression) -> cst.Assign | None:
    """Translate `y[0] = x` for `y[0].copy_(x)`, where `y[0]` surely is a view."""
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
    import sys

    from fnjax.port.source.naming import iter_imported

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


@statement(cst.Del, general=True)
def port_del(ev: Evaluator, node: cst.Del) -> Statements | None:
    """Translate `del x`."""
    found = [node.target] if not isinstance(node.target, cst.Tuple) else [e.value for e in node.target.elements]
    if any(not isinstance(t, cst.Name) for t in found):
        return [cst.SimpleStatementLine([node])]
    return [cst.SimpleStatementLine([node])]


@statement(cst.Raise, general=True)
def port_raise(ev: Evaluator, node: cst.Raise) -> Statements | None:
    """Translate `raise ValueError(x.shape)`."""
    made = ev.port_parts(node)
    return [cst.SimpleStatementLine([made])]
