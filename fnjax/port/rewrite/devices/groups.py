"""Process groups, ranks and sizes.

What: a process group is the name of a mesh axis, its size a Python int and the rank a traced one. What a getter of
another module would return, `get_tensor_model_parallel_group()`, the caller of the port sets in the module: AXIS_NAME,
or the getter's own constant.
Before: `group.size()`, `dist.get_rank(group)`, `mpu.get_tensor_model_parallel_group()`
After: `collectives.axis_size(group or AXIS_NAME)`, `collectives.axis_index(group or AXIS_NAME)` and
`(TENSOR_MODEL_PARALLEL_AXIS_NAME or AXIS_NAME)`
Safety: a group is known by its annotation, by its name, or by what is done with it.
Limits: groups that the file makes (`dist.new_group`) outside such a getter of its own are findings.
"""

from __future__ import annotations

import re

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, make_answer
from fnjax.port.analysis.program import GROUP
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.devices.collective_table import HANDED_ON, name_distributed
from fnjax.port.torch import MISSING, fill, read_literal, unparse

_RANK = re.compile(r"((local|global|world|group|[tscdem]p|sequence|seq|tensor_parallel|model_parallel)_)?rank")
_GETTER = re.compile(r"_?get_(?P<of>\w*?)_?(?P<what>process_group|group|world_size|rank|src_rank)(?:_if_none)?$")
_QUESTIONS = rf".*\.(size|rank)|(.*[.:])?{_GETTER.pattern.rstrip('$')}(__\w+)?|{HANDED_ON}"
_SUFFIX = re.compile(r"(?<=\w)__\w+$")  # of names in files that are read together
_GROUPS = frozenset({"group", "process_group"})
_GROUP_ATTRIBUTES = frozenset({"device_group", "cpu_group", "group", "process_group"})
_AXIS = "instance:axis"  # the name of a group that surely is the name of an axis, and not None
_DEFAULT = Expr(cst.Name("None"), Value("static", name=GROUP, literal=None))  # the group of all processes
_RANK_VALUE = Value("tensor", "int", 0)


def port_axis(ev: Evaluator, node: cst.BaseExpression | None) -> cst.BaseExpression:
    """Return the mesh axis that replaces a group."""
    ev.diagnostics.imports |= {"collectives", "AXIS_NAME"}
    expr = _DEFAULT if node is None else ev.port(node)
    if expr.value.literal is None:
        return cst.Name("AXIS_NAME")
    return expr.node if expr.value.name == _AXIS else fill("G or AXIS_NAME", G=expr.node)


def _is_group(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an expression is a process group."""
    if isinstance(node, cst.Call):
        return _find_getter(ev, node)[1] in _GROUPS
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    last = node.value if isinstance(node, cst.Name) else node.attr.value
    named = last in ev.program.groups and not ev.find_name(node).startswith("torch.")
    return named or ev.port(node).value.name in {GROUP, _AXIS}


def _find_getter(ev: Evaluator, node: cst.Call) -> tuple[str, str]:
    """Return the port's constant for a getter of groups, and what it gets (`world_size`); two empty texts for others.

    That of get_tensor_model_parallel_group is TENSOR_MODEL_PARALLEL_AXIS_NAME.
    """
    func, program = node.func, ev.program
    last = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
    found = _GETTER.match(_SUFFIX.sub("", last))
    full = program.resolve_name(func) if found and program.collective and len(node.args) <= 1 else "file:"
    own = program.find_routine(full) if full.startswith("file:") and not node.args else None
    if own is not None and "new_group(" in unparse(own.node):
        full = f"made:{last}"  # a group that the file makes once, for all
    if not found or full.startswith(("torch.", "builtins.", "file:")) or name_distributed(full):
        return "", ""
    known = full or isinstance(func, cst.Attribute)
    return (f"{found['of'].upper()}_AXIS_NAME".lstrip("_"), found["what"]) if known else ("", "")


@call_of("torch.distributed.", like=_QUESTIONS, only="collective")
def port_group_question(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `get_tensor_model_parallel_rank()`, `group.size()`, `dist.get_rank(group)`."""
    func = node.func
    asks = isinstance(func, cst.Attribute) and func.attr.value in {"size", "rank"} and not node.args
    if asks and _is_group(ev, func.value):  # type: ignore[attr-defined] # an attribute
        return _answer(ev, port_axis(ev, func.value), func.attr.value)  # type: ignore[attr-defined] # as above
    if _find_getter(ev, node)[1]:
        return _port_getter(ev, node)
    last = name_distributed(name)
    match last:
        case "get_world_size" | "get_rank":
            named = {"group", "pg"}
            group = next((a.value for a in node.args if a.keyword is None or a.keyword.value in named), None)
            return _answer(ev, port_axis(ev, group), last)
        case "is_initialized" | "is_available" | "is_nccl_available" | "is_gloo_available":
            return make_answer(True)
        case "get_backend":
            return Expr(cst.SimpleString("'xla'"), Value("static", literal="xla"))
        case "get_global_rank" | "get_group_rank" if len(node.args) == 2:
            return ev.port(node.args[1].value)
        case "_get_default_group":
            return _DEFAULT
        case "new_group" | "init_device_mesh" | "new_subgroups" | "get_process_group_ranks":
            message = "groups are the axes of a mesh, which the caller makes: take the name of an axis in its place"
            raise Stop(node, "absent", f"{last}: {message}")
    return None


def _answer(ev: Evaluator, axis: cst.BaseExpression, what: str) -> Expr:
    """Return the expression for the rank along an axis, or for its size."""
    if "rank" not in what:
        return Expr(fill("collectives.axis_size(AXIS)", AXIS=axis), Value("static", "int"))
    return Expr(fill("collectives.axis_index(AXIS)", AXIS=axis), _RANK_VALUE)


def _port_getter(ev: Evaluator, node: cst.Call) -> Expr:
    constant, what = _find_getter(ev, node)
    if what == "src_rank":
        return Expr(cst.Integer("0"), Value("static", "int", literal=0))
    if what not in _GROUPS:
        return _answer(ev, _make_constant(ev, constant), what)
    given = ev.port(node.args[0].value) if node.args and read_literal(node.args[0].value) is MISSING else None
    axis = _make_constant(ev, constant)
    if given is not None and given.value.dtype == "unknown":  # of `get_..._if_none(group)`, and no flag
        axis = fill("G or A", G=given.node, A=axis)
    return Expr(axis, Value("static", name=_AXIS))


def _make_constant(ev: Evaluator, constant: str) -> cst.BaseExpression:
    """Return the axis that a constant of the port names, which is AXIS_NAME by default."""
    ev.diagnostics.imports |= {"collectives", "AXIS_NAME", constant}
    return cst.Name(constant) if constant == "AXIS_NAME" else fill("C or AXIS_NAME", C=cst.Name(constant))


@expression(cst.Attribute, only="collective")
def port_group_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `dist.group.WORLD`, `dist.ReduceOp.MAX`, `get_tp_group().world_size`."""
    name, attr = ev.find_name(node), node.attr.value
    if name.endswith((".group.WORLD", ".GroupMember.WORLD")):
        return _DEFAULT
    if re.search(r"\b(ReduceOp|reduce_op)\.[A-Z]+$", name or unparse(node)):
        return Expr(cst.SimpleString(repr(attr.lower())), Value("static", literal=attr.lower()))
    if not isinstance(node.value, cst.Call) or attr not in {"rank_in_group", "world_size"} | _GROUP_ATTRIBUTES:
        return None
    if _find_getter(ev, node.value)[1] not in _GROUPS:
        return None
    return ev.port(node.value) if attr in _GROUP_ATTRIBUTES else _answer(ev, port_axis(ev, node.value), attr)


@expression(cst.Name, cst.Attribute, only="collective")
def port_passed_rank(ev: Evaluator, node: cst.Name | cst.Attribute) -> Expr | None:
    """Translate a parameter `rank`, or `args.rank`: the caller passes `lax.axis_index`, or a Python int."""
    last = node.value if isinstance(node, cst.Name) else node.attr.value
    base = node if isinstance(node, cst.Name) else node.value
    if not _RANK.fullmatch(last) or not isinstance(base, cst.Name) or base.value == ev.routine.context:
        return None
    known = ev.state.variables.get(base.value)
    passed = known is not None and known.kind == "unknown" and (known.memref is not None or base is not node)
    return Expr(node, _RANK_VALUE) if passed and base.value in {p.name.value for p in ev.routine.parameters} else None
