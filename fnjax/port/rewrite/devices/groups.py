"""Process groups, ranks and sizes.

What: a process group is the name of a mesh axis, its size a Python int and the rank a traced one. What a getter would
give, `get_tensor_model_parallel_group()`, the caller of the port sets in the module: AXIS_NAME, or the getter's own
constant.
Before: `group.size()`, `dist.get_rank(group)`, `mpu.get_tensor_model_parallel_group()`
After: `collectives.axis_size(group or AXIS_NAME)`, `collectives.axis_index(group or AXIS_NAME)` and
`(TENSOR_MODEL_PARALLEL_AXIS_NAME or AXIS_NAME)`
Safety: a group is known by its annotation, by its name, or by what is done with it.
Limits: groups that the file makes (`dist.new_group`) are findings; so are ranks of the world that are no ranks of the
group.
"""

from __future__ import annotations

import re

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, make_answer, parse
from fnjax.port.analysis.program import GROUP, Program
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import Value
from fnjax.port.torch import MISSING, bracket, read_literal, unparse
from fnjax.port.torch.expressions import drop_parentheses
from fnjax.port.tree.located import list_nodes

_MODULES = ("torch.distributed.", "torch.distributed.distributed_c10d.", "torch.distributed.nn.functional.")
_FUNCTIONAL = (
    "torch.distributed._functional_collectives.",
    "torch.distributed.nn.functional.",
    "torch.distributed.nn.",
)
_RANK = re.compile(r"((local|global|world|group|[tscdem]p|sequence|seq|tensor_parallel|model_parallel)_)?rank")
_HANDED_ON = frozenset({"comm", "dist", "distributed", "torch_dist", "torch_distributed"})
_GETTER = re.compile(r"_?get_(?P<of>\w*?)_?(?P<what>process_group|group|world_size|rank|src_rank)(?:_if_none)?$")
_GROUP_ATTRIBUTES = frozenset({"device_group", "cpu_group", "group", "process_group"})
_KNOWN = frozenset(
    [
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "_all_gather_base",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
        "all_to_all",
        "all_to_all_single",
        "send",
        "recv",
        "isend",
        "irecv",
        "P2POp",
        "batch_isend_irecv",
        "barrier",
        "gather",
        "scatter",
        "monitored_barrier",
        "get_rank",
        "get_world_size",
        "get_global_rank",
        "get_group_rank",
        "get_backend",
        "is_initialized",
        "is_available",
        "new_group",
        "allgather_fn",
        "reduce_scatter_fn",
        "inference_all_reduce",
        "all_gather_object",
        "broadcast_object_list",
    ]
)
# Functions of torch.distributed that an object of another module hands on; what `asked` is asked for.
HANDED_ON = rf"(?!torch\.|file:|\*)(.*\.)?({'|'.join(sorted(_HANDED_ON))})\.({'|'.join(sorted(_KNOWN))})"
_QUESTIONS = rf".*\.(size|rank)|(.*[.:])?{_GETTER.pattern.rstrip('$')}(__\w+)?|{HANDED_ON}"
AXIS = "instance:axis"  # the name of a group that surely is the name of an axis, and not None
DEFAULT = Value("static", name=GROUP, literal=None)  # the group of all processes
RANK = Value("tensor", "int", 0)
SIZE = Value("static", "int")


def name_distributed(program: Program, name: str) -> tuple[str, bool]:
    """Return the name of a function of torch.distributed, and whether it is one that returns its result; or nothing."""
    module, _, last = name.rpartition(".")
    if f"{module}." in _FUNCTIONAL:
        return last, True
    if f"{module}." in _MODULES:
        return last, False
    handed_on = module and not name.startswith(("torch.", "file:")) and module.rpartition(".")[2] in _HANDED_ON
    if handed_on and last in _KNOWN:
        return last, False
    return "", False


def write_axis(ev: Evaluator, node: cst.BaseExpression | None) -> str:
    """Return the text for the mesh axis that stands for a group."""
    ev.diagnostics.imports |= {"collectives", "AXIS_NAME"}
    if node is None or read_literal(node) is None:
        return "AXIS_NAME"
    expr = ev.port(node)
    if expr.value.literal is None:
        return "AXIS_NAME"
    if expr.value.name == AXIS:
        return unparse(bracket(drop_parentheses(expr.node), 1))
    return f"{unparse(bracket(expr.node, 1))} or AXIS_NAME"


def _write_own_axis(ev: Evaluator, own: str, given: str = "") -> str:
    """Return the text for the axis that a constant names, or for the one that is given where there is one."""
    ev.diagnostics.imports |= {"collectives", "AXIS_NAME", own}
    return " or ".join([*([given] if given else []), *([own] if own != "AXIS_NAME" else []), "AXIS_NAME"])


def is_group(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an expression is a process group."""
    if isinstance(node, (cst.Name, cst.Attribute)) and not ev.find_name(node).startswith("torch."):
        last = node.value if isinstance(node, cst.Name) else node.attr.value
        if last in ev.program.groups:
            return True
    if not isinstance(node, (cst.Name, cst.Attribute, cst.Call)):
        return False
    if isinstance(node, cst.Call):
        return _find_question(ev, node) in {"group", "process_group"}
    return ev.port(node).value.name in {GROUP, AXIS}


def name_axis_constant(name: str) -> str:
    """Return the constant of a getter: TENSOR_MODEL_PARALLEL_AXIS_NAME for get_tensor_model_parallel_group."""
    found = _GETTER.match(name)
    return f"{found['of'].upper()}_AXIS_NAME".lstrip("_") if found else "AXIS_NAME"


def name_getter(program: Program, node: cst.Call) -> str:
    """Return the name of a function that tells a group, its size or the rank in it."""
    func = node.func
    last = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
    spelled = re.sub(r"(?<=\w)__\w+$", "", last)  # in files that are read together
    if not program.collective or not _GETTER.match(spelled) or len(node.args) > 1:
        return ""
    full = program.resolve_name(func)
    if full.startswith(("torch.", "builtins.")) or name_distributed(program, full)[0]:
        return ""
    if full.startswith("file:"):
        routine = program.find_routine(full)
        if routine is None or not _reads_globals(program, routine.node):
            return ""
    elif isinstance(func, cst.Name) and not full:
        return ""
    return spelled


def _reads_globals(program: Program, node: cst.FunctionDef) -> bool:
    """Return whether a function tells of what the file keeps: of a global variable, or an object's attribute."""
    text = unparse(node.body)
    kept = [n for n, d in program.source.definitions.items() if d[-1].value is not None and n in text]
    return any(re.search(rf"\b{re.escape(n)}\b", text) for n in kept) or "get_" in text


def _find_question(ev: Evaluator, node: cst.Call) -> str:
    last = name_getter(ev.program, node)
    found = _GETTER.match(last)
    return found["what"] if found else ""


@call_of("torch.distributed.", like=_QUESTIONS, only="collective")
def port_group_question(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `get_tensor_model_parallel_rank()`, `group.size()`, `dist.get_rank(group)`."""
    func = node.func
    asks = isinstance(func, cst.Attribute) and func.attr.value in {"size", "rank"} and not node.args
    if asks and is_group(ev, func.value):  # type: ignore[attr-defined] # an attribute
        return _answer_group_question(ev, write_axis(ev, func.value), func.attr.value)  # type: ignore[attr-defined] # as above
    what = _find_question(ev, node)
    if what:
        return _port_getter(ev, node, what)
    last, _ = name_distributed(ev.program, name)
    group = next((a.value for a in node.args if a.keyword is None or a.keyword.value in {"group", "pg"}), None)
    match last:
        case "get_world_size":
            return _answer_group_question(ev, write_axis(ev, group), "size")
        case "get_rank":
            return _answer_group_question(ev, write_axis(ev, group), "rank")
        case "is_initialized" if _only_default_group(ev):
            ev.diagnostics.imports |= {"collectives", "AXIS_NAME"}
            return Expr(parse("AXIS_NAME is not None"), Value("static", "bool"))
        case "is_initialized" | "is_available" | "is_nccl_available" | "is_gloo_available":
            return make_answer(True)
        case "get_backend":
            return Expr(parse("'xla'"), Value("static", literal="xla"))
        case "get_global_rank" if len(node.args) == 2:
            return ev.port(node.args[1].value)
        case "get_group_rank" if len(node.args) == 2:
            return ev.port(node.args[1].value)
        case "_get_default_group":
            return Expr(parse("None"), DEFAULT)
        case "new_group" | "init_device_mesh" | "new_subgroups" | "get_process_group_ranks":
            message = "groups are the axes of a mesh, which the caller makes: take the name of an axis in its place"
            raise Stop(node, "absent", f"{last}: {message}")
    return None


def _only_default_group(ev: Evaluator) -> bool:
    """Whether a function speaks of the default group alone: without an axis it runs on one device, as in PyTorch."""
    inside = list(list_nodes(ev.routine.node))
    named = any(isinstance(n, cst.Name) and n.value in ev.program.groups for n in inside)
    return not named and not any(isinstance(n, cst.Call) and _find_question(ev, n) for n in inside)


def _answer_group_question(ev: Evaluator, text: str, what: str) -> Expr:
    if what == "rank":
        ev.diagnostics.ranked = True
        return Expr(parse(f"collectives.axis_index({text})"), RANK)
    return Expr(parse(f"collectives.axis_size({text})"), SIZE)


def _port_getter(ev: Evaluator, node: cst.Call, what: str) -> Expr:
    own = name_axis_constant(name_getter(ev.program, node))
    if what == "src_rank":
        return Expr(parse("0"), Value("static", "int", literal=0))
    if what not in {"group", "process_group"}:
        return _answer_group_question(ev, _write_own_axis(ev, own), "rank" if what == "rank" else "size")
    given = ev.port(node.args[0].value) if node.args and read_literal(node.args[0].value) is MISSING else None
    flag = given is None or given.value.dtype != "unknown"  # or `get_..._if_none(group)`
    text = _write_own_axis(ev, own, "" if given is None or flag else unparse(bracket(given.node, 1)))
    return Expr(parse(f"({text})"), Value("static", name=AXIS))


@expression(cst.Attribute, only="collective")
def port_group_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `dist.group.WORLD`, `dist.ReduceOp.MAX`, `get_tp_group().world_size`."""
    name = ev.find_name(node)
    if name.endswith((".group.WORLD", ".GroupMember.WORLD")):
        return Expr(parse("None"), DEFAULT)
    if re.search(r"\b(ReduceOp|reduce_op)\.[A-Z]+$", name) or re.search(r"\bReduceOp\.[A-Z]+$", unparse(node)):
        known = name_operation(node.attr.value)
        return Expr(parse(repr(known)), Value("static", literal=known))
    attr = node.attr.value
    of = _find_question(ev, node.value) if isinstance(node.value, cst.Call) else ""
    if of not in {"group", "process_group"} or attr not in {"rank_in_group", "world_size"} | _GROUP_ATTRIBUTES:
        return None
    if attr in _GROUP_ATTRIBUTES:
        return ev.port(node.value)
    return _answer_group_question(ev, write_axis(ev, node.value), "rank" if attr == "rank_in_group" else "size")


@expression(cst.Name, cst.Attribute, only="collective")
def port_told_rank(ev: Evaluator, node: cst.Name | cst.Attribute) -> Expr | None:
    """Return a parameter `rank`, or `args.rank`: the caller passes `lax.axis_index`, or a Python int."""
    last = node.value if isinstance(node, cst.Name) else node.attr.value
    if not _RANK.fullmatch(last):
        return None
    if isinstance(node, cst.Name):
        known = ev.state.variables.get(node.value)
        asked = known is not None and known.kind == "unknown" and known.memref is not None
    else:
        base = node.value
        known = ev.state.variables.get(base.value) if isinstance(base, cst.Name) else None
        asked = known is not None and known.kind == "unknown" and base.value != ev.routine.context  # type: ignore[attr-defined] # a name
    parameters = {p.name.value for p in ev.routine.parameters}
    first = last if isinstance(node, cst.Name) else unparse(node.value)
    return Expr(node, RANK) if asked and first in parameters else None


@expression(cst.Name, only="collective")
def port_kept_group(ev: Evaluator, node: cst.Name) -> Expr | None:
    """Translate a global variable that holds a group, as `_TP_GROUP`: a constant of the port, as for a getter."""
    if node.value not in ev.program.groups or node.value in ev.state.variables:
        return None
    found = ev.program.source.find_definition(node.value)
    if found is None or found.value is None:
        return None
    own = name_axis_constant(
        "get_"
        + re.sub(r"_?(process_)?groups?$", "", re.sub(r"(?<=\w)__\w+$", "", node.value).strip("_").lower())
        + "_group"
    )
    return Expr(parse(f"({_write_own_axis(ev, own)})"), Value("static", name=AXIS))


def name_operation(name: str) -> str:
    """Return what fnjax.collectives calls a ReduceOp."""
    return name.lower()
