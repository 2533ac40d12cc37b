"""Functions.

What: methods and helpers keep their names and arguments; annotations lose their torch types; a helper that writes to
what it is given returns it; what draws random numbers takes a key.
Before: `def scale_(x: torch.Tensor, k): x.mul_(k)`
After: `def scale_(x: jax.Array, k): x = x * k; return x`
Safety: what a caller reads of a written argument is what the function returns.
Limits: a helper that writes to an argument and returns something else is a finding, and so is a forward that writes to
a buffer, as running statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.entry_states import make_start_state
from fnjax.port.analysis.evaluator import Evaluator, Statements, Stop, ends_with_jump
from fnjax.port.analysis.expr import EQUAL
from fnjax.port.analysis.program import Program, Routine, list_nodes
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import LIST, MemRef, Value, rename_storages
from fnjax.port.known.state import State
from fnjax.port.rewrite.calls.own_functions import note_filled_around
from fnjax.port.rewrite.functions.decorators import port_decorators
from fnjax.port.rewrite.functions.grad_mode import switches_gradients_off
from fnjax.port.rewrite.functions.keys import add_key, draws_beside, insert_at_top
from fnjax.port.rewrite.functions.returns import return_also
from fnjax.port.source.records import METHODS
from fnjax.port.torch import unparse
from fnjax.port.torch.machinery import ENABLING
from fnjax.port.tree.located import replace_parts


def port_routine(program: Program, routine: Routine) -> tuple[cst.FunctionDef, Evaluator]:
    """Return the translation of a function; its routine gets what the evaluation of the body has found."""
    node = routine.node
    ev = Evaluator(program, routine, make_start_state(program, routine))
    # Decorators, defaults and annotations are evaluated around the function, where its variables are not known.
    outer = Evaluator(program, routine, routine.closure.copy() if routine.closure else State())
    outer.diagnostics = ev.diagnostics
    try:
        kept = port_decorators(outer, list(node.decorators))
    except Stop as e:
        ev.report(e.node, e.kind, e.message)
        kept = [d for d in node.decorators if unparse(d.decorator) in {"staticmethod", "classmethod"}]
    params = _port_parameters(outer, node.params)
    decorators = [d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator for d in node.decorators]
    off = any(switches_gradients_off(outer, d.decorator) for d in node.decorators)
    enabled = not off and any(outer.find_name(d) in ENABLING for d in decorators)
    ev.here = replace(ev.here, grad_enabled=enabled, stop_gradients=ev.derived and off)
    body = ev.port_body(node.body)
    ev.called |= outer.called
    for value in ev.returns if routine.materialised == ev.materialised else ():  # else these are no entries yet
        routine.add_result(value)
    answers = [v.literal for v in ev.returns if isinstance(v.literal, bool)]
    one = len(answers) == len(ev.returns) and len(set(answers)) == 1 and ends_with_jump(body)
    routine.only_result = answers[0] if one else None
    if any(isinstance(n, (cst.Yield, cst.From)) for n in list_nodes(node.body)):  # views, perhaps
        storage = frozenset(f"arg:{p.name.value}" for p in routine.parameters)
        routine.result = Value("static", element=Value(memref=MemRef(storage, certain=False)))
    routine.views = _find_viewed_parameter(ev.returns)
    if routine.owner is not None and ev.kept:
        routine.owner.keep_on_ctx(routine.role, dict(ev.kept))
    if routine.role == "forward":
        _note_written_inputs(ev, routine)
    traversed = routine.owner is not None and routine.owner.containers
    if routine.role == "forward" and any(map(_has_nested_tensors, ev.returns)) and not traversed:
        message = "an output that holds arrays in a list or a dictionary: return them one by one, or set pytree = True"
        ev.report(node.name, "output", message)
    wrapping = [d for d in kept if outer.find_name(d.decorator).startswith("file:")]
    if routine.role in METHODS and routine.writes and wrapping:
        ev.report(
            wrapping[0],
            "alias",
            f"{routine.role} writes to an argument, which {unparse(wrapping[0].decorator)} may read afterwards: let it "
            "compute a new array",
        )
    if _becomes_callback(ev):
        routine.concrete = True
    if ev.here.stop_gradients and routine.role == "helper":
        given = make_start_state(program, routine).variables
        floats = [n for n in sorted(routine.writes) if given[n].dtype not in {"int", "bool"}]
        if floats:
            message = f"this writes to {floats[0]!r} under no_grad, whose gradients PyTorch lets pass; write to a copy"
            ev.report(node.name, "autograd", message)
    changes: dict[str, Any] = {}
    if not are_same(kept, node.decorators):
        changes["decorators"] = kept
        if node.decorators and not kept:
            changes["lines_after_decorators"] = []
            changes["leading_lines"] = [*node.leading_lines, *node.lines_after_decorators]
    if params is not node.params:
        changes["params"] = params
    ends = routine.gives_value
    if routine.role == "helper" and routine.writes and (not ends or _may_return_written(program, routine)):
        routine.gives = tuple(p.name.value for p in routine.parameters if _is_still_given(ev, routine, p.name.value))
        if routine.gives:
            # evaluated once more: what it returns in addition is read at each of its ends now.
            body = return_also(ev.port_body(node.body), routine.gives, None if ends else False)
            changes |= {"returns": None} if ends else {}
    if body is not node.body:
        changes["body"] = body
    if "returns" not in changes and (annotation := _port_annotation(ev, node.returns)) is not node.returns:
        changes["returns"] = annotation
    made = node.with_changes(**changes) if changes else node
    made = _return_mutated(ev, routine, made)
    if ev.derived and any(outer.find_name(d).startswith("torch.jit.script") for d in decorators):
        for name in _list_scripted_numbers(routine):
            ev.diagnostics.imports.add("jax")
            made = insert_at_top(made, f"{name} = jax.lax.stop_gradient({name})")
            changes["body"] = made.body
    named = routine.context == "ctx" or any(isinstance(n, cst.Name) and n.value == "ctx" for n in list_nodes(node))
    if changes and not named:
        spelled = made.visit(_CtxRenamer(routine.context))
        assert isinstance(spelled, cst.FunctionDef)
        made = spelled
    if (
        routine.draws
        or (routine.role in METHODS and program.draws_random_numbers(routine))
        or draws_beside(program, routine)
    ):
        made = add_key(ev, program, routine, made)
    return made, ev


def are_same(made: Sequence[cst.CSTNode], before: Sequence[cst.CSTNode]) -> bool:
    """Return whether two sequences hold the same nodes."""
    return len(made) == len(before) and all(a is b for a, b in zip(made, before, strict=True))


def _becomes_callback(ev: Evaluator) -> bool:
    """Return whether this is the body of an operator that asks for tensors' values, and whose results are known."""
    node = ev.routine.node
    operator = ev.program.by_node.get(node)
    if operator is None or operator.methods.get("forward") is not node:
        return False
    nothing = node.returns is not None and unparse(node.returns.annotation) == "None" and node in ev.program.mutating
    return bool(operator.shaped or nothing) and bool(ev.diagnostics.concrete)


def _return_mutated(ev: Evaluator, routine: Routine, made: cst.FunctionDef) -> cst.FunctionDef:
    """Return the body of an operator, or its register_fake, with the new values of mutated arguments as results."""
    names = ev.program.mutating.get(routine.node, ())
    if not names or routine.gives == names:
        return made
    rebound = ev.program.list_rebound(routine.node.body) & set(names)
    if rebound or any(n in routine.writes and not _is_still_given(ev, routine, n) for n in names):
        lost = ", ".join(sorted(rebound or names))
        message = f"the operator mutates {lost}, which is another array when the body returns: give that another name"
        ev.report(routine.node.name, "alias", message)
    several = any(v.parts is not None for v in ev.returns)
    return made.with_changes(body=return_also(made.body, names, several))


def _may_return_written(program: Program, routine: Routine) -> bool:
    """Return whether a function that returns something is to return what it writes to as well."""
    inside = list(list_nodes(routine.node.body))
    plain = not any(isinstance(n, (cst.Yield, cst.Await)) for n in inside) and routine.node.asynchronous is None
    return routine.hands and plain and routine.node not in program.by_node  # nor an operator


class _CtxRenamer(cst.CSTTransformer):
    """`ctx`, as the evaluation calls it, under the name that it has in a method."""

    def __init__(self, context: str) -> None:
        super().__init__()
        self.context = context

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self.context) if updated_node.value == "ctx" else updated_node


def _has_nested_tensors(value: Value, inside: bool = False) -> bool:
    """Return whether outputs hold tensors in nested containers, which PyTorch passes on unchanged."""
    held = [*(value.parts or ()), *([value.element] if value.element else ()), *(v for _, v in value.entries)]
    if inside or value.entries or value.name == LIST:
        return value.kind == "static" and any(v.is_tensor or _has_nested_tensors(v, inside=True) for v in held)
    return any(_has_nested_tensors(v, inside=True) for v in held)


def _is_still_given(ev: Evaluator, routine: Routine, name: str) -> bool:
    """Return whether a parameter is written to, and its variable still is that memory when the function ends."""
    value = ev.state.variables.get(name)
    memref = value.memref if value else None
    early = any(isinstance(n, cst.Return) for n in list_nodes(routine.node.body))
    if early and name in ev.program.list_rebound(routine.node.body):
        return False
    return name in routine.writes and memref is not None and memref.certain and not memref.steps


def _note_written_inputs(ev: Evaluator, routine: Routine) -> None:
    """Note or report inputs of forward that PyTorch would have changed for the caller."""
    for name in sorted(routine.writes):
        param = next((p for p in routine.parameters if p.name.value == name), None)
        if param is None:
            continue
        graded = routine.parameters.index(param) - routine.first in ev.program.find_differentiated_inputs(routine)
        if any(f"arg:{name}" in v.storages or (graded and v.literal is not None) for v in ev.returns):
            ev.note(param, "in-place", f"forward writes to its input {name!r}: the caller's own array stays as it was")
        else:  # a buffer, whose new entries are meant for the caller
            ev.report(
                param,
                "in-place",
                f"forward writes to its input {name!r}, which the caller would see, and does not return it: "
                "return the new array too",
            )


def _port_parameters(ev: Evaluator, params: cst.Parameters) -> cst.Parameters:
    groups = ("params", "posonly_params", "kwonly_params", "star_arg", "star_kwarg")
    made = {group: getattr(params, group) for group in groups}
    for group, value in made.items():
        if isinstance(value, cst.Param):
            made[group] = _port_parameter(ev, value)
        elif isinstance(value, (tuple, list)):
            new = [_port_parameter(ev, p) for p in value]
            made[group] = value if are_same(new, value) else new
    return replace_parts(params, **made)


def _port_parameter(ev: Evaluator, param: cst.Param) -> cst.Param:
    name, default = param.name.value, param.default
    if name.endswith("_") and name[:-1] in ev.program.renamed:
        ev.note(param, "renamed", f"the parameter {name[:-1]!r} is now {name!r}: the port needs that name for its own")
    annotation = _port_annotation(ev, param.annotation)
    if default is not None:
        try:
            typed = ev.find_name(default) == "torch.Tensor"  # `bias=torch.Tensor`, meant for an annotation
            default = ev.program.port_annotation(default, ev) if typed else ev.port(default).node
        except Stop as e:
            ev.report(e.node, e.kind, e.message)
            default = cst.Name("None")
    sign = EQUAL if default is not None and annotation is None is not param.annotation else param.equal
    return replace_parts(param, annotation=annotation, default=default, equal=sign)


def _port_annotation(ev: Evaluator, node: cst.Annotation | None) -> cst.Annotation | None:
    """Return an annotation without PyTorch's types; None for a class of the file whose base the port would not have."""
    made = ev.program.port_annotation(node.annotation, ev) if node is not None else None
    if node is None or made is None:
        if node is not None and ev.routine.node in ev.program.by_node:
            message = (
                f"an operator's schema is read from its annotations, and the port has no {unparse(node.annotation)}"
            )
            ev.report(node, "supply", message)
        return None
    return node if made is node.annotation else node.with_changes(annotation=made)


def _list_scripted_numbers(routine: Routine) -> list[str]:
    """Return tensors that a scripted function takes for floats, by annotation: Python's numbers have no history."""
    floats = [p.name.value for p in routine.parameters if p.annotation and unparse(p.annotation.annotation) == "float"]
    given = [(n, routine.find_argument(n)) for n in reversed(floats)]
    return [n for n, value in given if value is not None and value.kind != "static"]


def _find_viewed_parameter(returns: list[Value]) -> str:
    """Return the parameter of which all that a function returns is a view."""
    known = {p.storage for v in returns if (p := v.memref) and p.certain and not any(s.assumed for s in p.steps)}
    views = returns and len(known) == 1 and all(v.memref and v.memref.certain for v in returns)
    only = next(iter(known)) if views else frozenset()
    return next(iter(only)).removeprefix("arg:") if len(only) == 1 and next(iter(only)).startswith("arg:") else ""


def add_registrations(ev: Evaluator, routine: Routine, made: cst.FunctionDef) -> Statements:
    """Return a function with the lines that register it as the body of a custom operator, where it has such lines."""
    program = ev.program
    for cls in program.classes.values():
        if cls.methods.get("forward") is routine.node and cls.next_to:
            program.ported[cls.name] = made  # type: ignore[assignment] # the body of an operator
    after = program.following.get(routine.node, [])
    ev.diagnostics.imports |= {"fnjax"} if after else set()
    gap = [cst.EmptyLine(indent=False)] * 2
    return [made, *(cst.SimpleStatementLine([cst.Expr(n)], gap if n is after[0] else []) for n in after)]


@statement(cst.FunctionDef, general=True)
def port_inner_function(ev: Evaluator, node: cst.FunctionDef) -> Statements | None:
    """Translate a function inside a function."""
    if node in ev.program.kernel_nodes:
        return [node]
    outer = {i.name.value for n in list_nodes(node, cst.Nonlocal) for i in n.names}
    if lost := sorted(outer & ev.program.list_bound(node.body)):
        message = f"{node.name.value} gives {lost[0]!r} of the enclosing function a new value: let it return that"
        ev.report(node, "alias", message)
    routine = ev.program.make_routine(node, node.name.value)
    routine.closure = ev.state.copy()
    routine.add_call(ev.derived)
    outside = {s: f"outer {s}" for s in ev.state.variables.storages}
    for name, value in ev.state.variables.items():
        routine.closure.variables[name] = rename_storages(value, outside)
    made, inner = port_routine(ev.program, routine)
    ev.take_over(inner)
    ev.program.inner[f"{node.name.value} at {ev.program.source.locate(node)[0]}"] = routine
    name = f"file:{node.name.value} at {ev.program.source.locate(node)[0]}"
    ev.bind_name(node.name.value, Value("object", name=name), node)
    note_filled_around(ev, routine, [])  # whoever calls it
    return add_registrations(ev, routine, made)
