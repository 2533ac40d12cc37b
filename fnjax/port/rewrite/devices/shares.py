"""Which Functions sum a gradient over the devices, and over which mesh axis.

PyTorch's processes have copies of their own of everything. A backward that sums gradients over them needs a forward
that says so: `x = collectives.vary(x, axis)`. The axis is the group of the sum, as it is called where forward begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Class, Program
from fnjax.port.analysis.starts import begin
from fnjax.port.analysis.walk import Walk, line, parse
from fnjax.port.rewrite.devices.groups import constant, distributed, getter_name
from fnjax.port.source.records import Routine
from fnjax.port.torch import code, literal
from fnjax.port.tree.located import nodes

_Group = cst.BaseExpression | None
EVERY = "..."  # every axis of the mesh
_SUMS = frozenset({"all_reduce", "reduce", "inference_all_reduce"})


def own_copies(walk: Walk, routine: Routine, body: cst.BaseSuite) -> cst.BaseSuite:
    """Forward, where backward sums over devices: each device's copy of an input has a gradient of its own.

    What is kept for backward is the input itself: a sum over the devices times a copy would count as a share of each.
    """
    program = walk.program
    axes = _summed_axes(program, routine.owner) if routine.owner is not None else []
    if not axes or not isinstance(body, cst.IndentedBlock):
        return body
    start = begin(program, routine).variables
    backward = program.method(routine.owner, "backward") if routine.owner is not None else None
    without = _never_given(backward.node) if backward is not None else set()
    inputs = [p.name.value for i, p in enumerate(routine.parameters[routine.first :]) if i not in without]
    names_ = [n for n in inputs if start[n].kind != "static"]
    star = routine.node.params.star_arg
    names_ += [star.name.value] if isinstance(star, cst.Param) and star.name.value not in names_ else []
    if not names_:
        return body
    walk.sink.imports.add("collectives")
    walk.sink.imports |= {"AXIS_NAME"} if any("AXIS_NAME" in a for a in axes) else set()
    keeping = _Keeping(routine, {n for n in names_ if n not in routine.given})
    body = keeping.keep(body)
    made: list[Any] = [line(f"{new} = {old}") for old, new in keeping.kept.items()]
    perhaps = "is_initialized" in program.text  # without a mesh it runs on one device
    for axis in axes:
        lines = [line(f"{n} = collectives.vary({n}, {axis})") for n in names_]
        asked = perhaps and axis == "AXIS_NAME"
        made += [cst.If(parse("AXIS_NAME is not None"), cst.IndentedBlock(lines))] if asked else lines
    first = 1 if routine.node.get_docstring() is not None else 0
    return body.with_changes(body=[*body.body[:first], *made, *body.body[first:]])


class _Keeping(cst.CSTTransformer):
    """Inputs that a forward keeps as they are, under names of their own."""

    def __init__(self, routine: Routine, inputs: set[str]) -> None:
        super().__init__()
        self.context, self.inputs = routine.context, inputs
        self.kept: dict[str, str] = {}

    def keep(self, body: cst.IndentedBlock) -> cst.IndentedBlock:
        """The block that keeps them."""
        return cst.ensure_type(body.visit(self), cst.IndentedBlock)

    def _named(self, node: cst.BaseExpression) -> cst.BaseExpression:
        if not isinstance(node, cst.Name) or node.value not in self.inputs:
            return node
        return cst.Name(self.kept.setdefault(node.value, f"shared_{node.value}"))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if code(updated_node.func) != f"{self.context}.save_for_backward":
            return updated_node
        return updated_node.with_changes(args=[a.with_changes(value=self._named(a.value)) for a in updated_node.args])

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        if not code(updated_node.targets[0].target).startswith(f"{self.context}."):
            return updated_node
        return updated_node.with_changes(value=self._named(updated_node.value))


def _never_given(backward: cst.FunctionDef) -> set[int]:
    """The places of a backward's results that are None whatever way it takes."""
    found = [n.value for n in nodes(backward.body) if isinstance(n, cst.Return)]
    if not found or not all(isinstance(v, cst.Tuple) for v in found):
        return set()
    if any(isinstance(e, cst.StarredElement) for v in found for e in v.elements):  # type: ignore[union-attr] # tuples
        return set()
    places_ = [{i for i, e in enumerate(v.elements) if code(e.value) == "None"} for v in found]  # type: ignore[union-attr] # as above
    return set.intersection(*places_)


def _summed_axes(program: Program, owner: Class) -> list[str]:
    """The texts of the mesh axes over which the backward of a class sums, as its forward says them when it begins."""
    found: list[str] = []
    if not program.collective:
        return found
    for name in ("backward", "vjp"):
        routine = program.method(owner, name)
        for group in _sums(program, routine, frozenset()) if routine else ():
            text = _told(program, owner, routine, group, 0)
            if text not in found:
                found.append(text)
    return [EVERY] if EVERY in found else found


def _sums(program: Program, routine: Routine, seen: frozenset[cst.CSTNode]) -> Iterator[_Group]:
    """The groups of the sums in a function and those that it calls, in its own words."""
    if routine.node in seen:
        return
    called: set[cst.CSTNode] = set()
    for call in (n for n in nodes(routine.node.body) if isinstance(n, cst.Call)):
        name = program.resolve(call.func)
        last, _ = distributed(program, name)
        if last in _SUMS:
            called.add(call.func)
            yield next((a.value for a in call.args if a.keyword and a.keyword.value == "group"), _third(call))
            continue
        other, skipped = _callee(program, call, name)
        if other is None:
            continue
        called.add(call.func)
        given = _arguments(other, call, skipped)
        for group in _sums(program, other, seen | {routine.node}):
            yield given.get(group.value, group) if isinstance(group, cst.Name) else group

    for n in nodes(routine.node.body):  # `reduce = sum_all if flag else sum_rows`
        if isinstance(n, (cst.Name, cst.Attribute)) and n not in called and n not in _heads(called):
            name = program.resolve(n)
            other = program.called(name) if name.startswith("file:") else None
            if distributed(program, name)[0] in _SUMS or (other and _is_summing(program, other, seen | {routine.node})):
                yield cst.Ellipsis()


def _is_summing(program: Program, routine: Routine, seen: frozenset[cst.CSTNode]) -> bool:
    return next((True for _ in _sums(program, routine, seen)), False)


def _heads(called: set[cst.CSTNode]) -> set[cst.CSTNode]:
    return {n for func in called for n in nodes(func)}


def _third(call: cst.Call) -> _Group:
    plain = [a.value for a in call.args if a.keyword is None]
    return plain[2] if len(plain) > 2 else None


def _callee(program: Program, call: cst.Call, name: str) -> tuple[Routine | None, int]:
    """The function of the file that a call runs, and how many of its parameters the call leaves out."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value == "apply":
        cls = program.classes.get(program.resolve(func.value).removeprefix("file:"))
        found = program.method(cls, "forward") if cls is not None else None
        return found, found.first if found is not None else 0
    return (program.called(name), 0) if name.startswith("file:") else (None, 0)


def _arguments(routine: Routine, call: cst.Call, skipped: int) -> Mapping[str, _Group]:
    params = routine.parameters[skipped:]
    given: dict[str, _Group] = {p.name.value: p.default for p in params}
    for param, arg in zip(params, (a for a in call.args if a.keyword is None), strict=False):
        given[param.name.value] = arg.value
    given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    return given


def _told(program: Program, owner: Class, routine: Routine | None, group: _Group, depth: int) -> str:
    """A group in the words of a method, as forward can say it."""
    if group is None or literal(group) is None or code(group).endswith(("group.WORLD", "GroupMember.WORLD")):
        return "AXIS_NAME"
    if routine is None or depth > 6 or isinstance(group, cst.Ellipsis):
        return EVERY
    if isinstance(group, cst.Call):
        name = getter_name(program, group)
        own = constant(name) if name and not group.args else ""
        return EVERY if not own else own if own == "AXIS_NAME" else f"{own} or AXIS_NAME"
    given: list[cst.BaseExpression] = []
    if isinstance(group, cst.Attribute) and code(group.value) == routine.context:
        return _kept(program, owner, group.attr.value, depth)
    if isinstance(group, cst.Name):
        given = routine.given.get(group.value, [])
        parameters = [p.name.value for p in routine.parameters]
        if not given and routine.role == "forward" and group.value in parameters:
            return f"{group.value} or AXIS_NAME"
        if not given and group.value in program.groups and program.source.last(group.value) is not None:
            return EVERY
    return _told(program, owner, routine, given[0], depth + 1) if len(given) == 1 else EVERY


def _kept(program: Program, owner: Class, attribute: str, depth: int) -> str:
    """What forward keeps on ctx."""
    forward, setup = program.method(owner, "forward"), program.method(owner, "setup_context")
    if setup is not None or forward is None:
        return EVERY
    key = f"{forward.context}.{attribute}"
    given = []
    for n in nodes(forward.node.body):
        for target in n.targets if isinstance(n, cst.Assign) else ():
            given += [v for t, v in _pairs(target.target, n.value) if code(t) == key]  # type: ignore[attr-defined] # an assignment
    return _told(program, owner, forward, given[0], depth + 1) if len(given) == 1 else EVERY


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Tuple):
        return [(target, value)]
    return [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=False)]
