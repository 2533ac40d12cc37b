"""Which Functions sum a gradient over the devices, and over which mesh axis.

PyTorch's processes have copies of their own of everything. A backward that sums gradients over them needs a forward
that says so: `return collectives.vary(y, axis)`. The axis is the group of the sum, as forward calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from fnjax.port.analysis.program import Class, Program
from fnjax.port.analysis.walk import Walk, parse
from fnjax.port.rewrite.devices.groups import name_axis_constant, name_distributed, name_getter
from fnjax.port.source.naming import pair_targets
from fnjax.port.source.records import Routine
from fnjax.port.torch import bracket, read_literal, unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

_Group = cst.BaseExpression | None
EVERY = "..."  # every axis of the mesh
_SUMS = frozenset({"all_reduce", "reduce", "inference_all_reduce"})


def mark_own_copies(walk: Walk, routine: Routine, body: cst.BaseSuite) -> cst.BaseSuite:
    """Forward, where backward sums over devices: each device's copy of an output has a gradient of its own.

    Not of an input: what is kept for backward would vary with it, and a sum over the devices times what varies would
    count as a share of each.
    """
    axes = _list_summed_axes(walk.program, routine.owner) if routine.owner is not None else []
    if not axes or not isinstance(body, cst.IndentedBlock):
        return body
    walk.sink.imports |= {
        "collectives",
        *(n for a in axes for n in find_names(parse(a)) if n not in walk.state.variables),
    }
    if "is_initialized" in walk.program.text:  # without a mesh it runs on one device
        axes = ["AXIS_NAME or ()" if a == "AXIS_NAME" else a for a in axes]
    marks = (
        n for n in list_nodes(body) if isinstance(n, cst.Call) and unparse(n.func).endswith(".mark_non_differentiable")
    )
    return cst.ensure_type(
        body.visit(_VaryingMarker(axes, {unparse(a.value) for n in marks for a in n.args})), cst.IndentedBlock
    )


class _VaryingMarker(cst.CSTTransformer):
    """`return y` becomes `return collectives.vary(y, axis)`, but for what is marked, which ctx knows by identity."""

    def __init__(self, axes: list[str], marked: set[str]) -> None:
        super().__init__()
        self.axes, self.marked = axes, marked

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """A function inside returns to forward."""
        return False

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        """What is returned."""
        value = updated_node.value
        if value is None:
            return updated_node
        if isinstance(value, cst.Tuple) and any(unparse(e.value) in self.marked for e in value.elements):
            made = [e.with_changes(value=self._mark_varying(e.value)) for e in value.elements]
            return updated_node.with_changes(value=value.with_changes(elements=made))
        return updated_node.with_changes(
            value=self._mark_varying(value), whitespace_after_return=cst.SimpleWhitespace(" ")
        )

    def _mark_varying(self, value: cst.BaseExpression) -> cst.BaseExpression:
        text = unparse(bracket(value, 1))
        for axis in self.axes if text not in self.marked else ():
            text = f"collectives.vary({text}, {axis})"
        return parse(text)


def _list_summed_axes(program: Program, owner: Class) -> list[str]:
    """The texts of the mesh axes over which the backward of a class sums, as its forward says them when it begins."""
    found: list[str] = []
    if not program.collective:
        return found
    for name in ("backward", "vjp"):
        routine = program.find_method(owner, name)
        for group in _iter_sums(program, routine, frozenset()) if routine else ():
            text = _say_in_forward(program, owner, routine, group, 0)
            if text not in found:
                found.append(text)
    return [EVERY] if EVERY in found else found


def _iter_sums(program: Program, routine: Routine, seen: frozenset[cst.CSTNode]) -> Iterator[_Group]:
    """The groups of the sums in a function and those that it calls, in its own words."""
    if routine.node in seen:
        return
    called: set[cst.CSTNode] = set()
    for call in (n for n in list_nodes(routine.node.body) if isinstance(n, cst.Call)):
        name = program.resolve_name(call.func)
        last, _ = name_distributed(program, name)
        if last in _SUMS:
            called.add(call.func)
            yield next(
                (a.value for a in call.args if a.keyword and a.keyword.value == "group"), _find_third_argument(call)
            )
            continue
        other, skipped = _find_callee(program, call, name)
        if other is None:
            continue
        called.add(call.func)
        given = _match_arguments(other, call, skipped)
        for group in _iter_sums(program, other, seen | {routine.node}):
            yield given.get(group.value, group) if isinstance(group, cst.Name) else group

    for n in list_nodes(routine.node.body):  # `reduce = sum_all if flag else sum_rows`
        if isinstance(n, (cst.Name, cst.Attribute)) and n not in called and n not in _collect_heads(called):
            name = program.resolve_name(n)
            other = program.find_routine(name) if name.startswith("file:") else None
            if name_distributed(program, name)[0] in _SUMS or (
                other and _is_summing(program, other, seen | {routine.node})
            ):
                yield cst.Ellipsis()


def _is_summing(program: Program, routine: Routine, seen: frozenset[cst.CSTNode]) -> bool:
    return next((True for _ in _iter_sums(program, routine, seen)), False)


def _collect_heads(called: set[cst.CSTNode]) -> set[cst.CSTNode]:
    return {n for func in called for n in list_nodes(func)}


def _find_third_argument(call: cst.Call) -> _Group:
    plain = [a.value for a in call.args if a.keyword is None]
    return plain[2] if len(plain) > 2 else None


def _find_callee(program: Program, call: cst.Call, name: str) -> tuple[Routine | None, int]:
    """The function of the file that a call runs, and how many of its parameters the call leaves out."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value == "apply":
        cls = program.classes.get(program.resolve_name(func.value).removeprefix("file:"))
        found = program.find_method(cls, "forward") if cls is not None else None
        return found, found.first if found is not None else 0
    return (program.find_routine(name), 0) if name.startswith("file:") else (None, 0)


def _match_arguments(routine: Routine, call: cst.Call, skipped: int) -> Mapping[str, _Group]:
    params = routine.parameters[skipped:]
    given: dict[str, _Group] = {p.name.value: p.default for p in params}
    for param, arg in zip(params, (a for a in call.args if a.keyword is None), strict=False):
        given[param.name.value] = arg.value
    given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    return given


def _say_in_forward(program: Program, owner: Class, routine: Routine | None, group: _Group, depth: int) -> str:
    """A group in the words of a method, as forward can say it."""
    if group is None or read_literal(group) is None or unparse(group).endswith(("group.WORLD", "GroupMember.WORLD")):
        return "AXIS_NAME"
    if routine is None or depth > 6 or isinstance(group, cst.Ellipsis):
        return EVERY
    if isinstance(group, cst.Call):
        name = name_getter(program, group)
        own = name_axis_constant(name) if name and not group.args else ""
        return EVERY if not own else own if own == "AXIS_NAME" else f"{own} or AXIS_NAME"
    given: list[cst.BaseExpression] = []
    if isinstance(group, cst.Attribute) and unparse(group.value) == routine.context:
        return _find_kept(program, owner, group.attr.value, depth)
    if isinstance(group, cst.Name):
        given = routine.given.get(group.value, [])
        parameters = [p.name.value for p in routine.parameters]
        if not given and routine.role == "forward" and group.value in parameters:
            return f"{group.value} or AXIS_NAME"
        if not given and group.value in program.groups and program.source.find_definition(group.value) is not None:
            return EVERY
    return _say_in_forward(program, owner, routine, given[0], depth + 1) if len(given) == 1 else EVERY


def _find_kept(program: Program, owner: Class, attribute: str, depth: int) -> str:
    """What forward keeps on ctx."""
    forward, setup = program.find_method(owner, "forward"), program.find_method(owner, "setup_context")
    if setup is not None or forward is None:
        return EVERY
    key = f"{forward.context}.{attribute}"
    given = []
    for n in list_nodes(forward.node.body):
        for target in n.targets if isinstance(n, cst.Assign) else ():
            given += [v for t, v in pair_targets(target.target, n.value) if unparse(t) == key]  # type: ignore[attr-defined] # an assignment
    return _say_in_forward(program, owner, forward, given[0], depth + 1) if len(given) == 1 else EVERY
