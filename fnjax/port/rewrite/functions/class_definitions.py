"""Classes.

What: `torch.autograd.Function` and its like become `fnjax.Function`, under whatever alias; ONNX's `symbolic` is
dropped; Functions inside functions and classes stay where they are. Of another class that holds Functions the port has
what is read; of one whose methods hold them it has all.
Before: `class Cube(Function):` with `from torch.autograd import Function`
After: `class Cube(fnjax.Function):`
Safety: what a class inherits from classes of the file is ported along.
Limits: bases from other libraries are findings.
"""

from __future__ import annotations

from functools import partial
from itertools import dropwhile
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, Stop, parse_line, place_at
from fnjax.port.analysis.program import FUNCTION_BASES, Class, Program, list_nodes
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import Value
from fnjax.port.known.state import State
from fnjax.port.rewrite.functions.decorators import is_at_hand, port_decorators
from fnjax.port.rewrite.functions.function_definitions import are_same, port_routine
from fnjax.port.source.records import list_decorators
from fnjax.port.torch import unparse
from fnjax.port.tree.located import find_small_statement

_CONTEXTS = frozenset({"torch.autograd.FunctionCtx", "torch.autograd.function.FunctionCtx"})


@statement(cst.ClassDef, general=True)
def port_inner_class(ev: Evaluator, node: cst.ClassDef) -> Statements | None:
    """Translate a class inside a function, or at the top level."""
    cls = ev.program.by_node.get(node)
    if cls is None:
        raise Stop(node, "unknown", f"the porter does not see the class {node.name.value!r} from here")
    closure = ev.state.copy() if ev.routine.role != "module" else None
    if closure is not None:
        closure.variables[node.name.value] = Value("object", name=f"file:{cls.name}")
    made = port_class(ev, cls, closure)
    if closure is not None:
        ev.bind_name(node.name.value, Value("object", name=f"file:{cls.name}"), node)
    return [made]


def _set_off(statements: list[Any]) -> list[Any]:
    """Return statements with an empty line before the first."""
    if not statements or getattr(statements[0], "leading_lines", None):
        return statements
    return [statements[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)]), *statements[1:]]


def port_class(ev: Evaluator, cls: Class, closure: State | None) -> cst.ClassDef:
    """Return the translation of a class."""
    node, program = cls.node, ev.program
    holds = not cls.is_function and _holds_functions(program, cls)
    members = _list_read_members(program, cls) if holds and not _is_instance_read(program, cls) else None  # None: all
    # Not in the order of the text: backward is evaluated with what forward has left on ctx.
    order = sorted(range(len(node.body.body)), key=lambda i: _rank_member(node.body.body[i]))
    made: dict[int, list[Any]] = {}
    scope = closure.copy() if closure else State()  # what the statements of the class see, and its methods do not

    def port_member(i: int) -> None:
        if i not in made:
            made[i] = []  # while it is evaluated: it may call itself
            made[i] = _port_member(ev, cls, node.body.body[i], closure, members, scope)

    program.members |= {node.body.body[i]: partial(port_member, i) for i in order}  # some are needed first
    for i in order:
        port_member(i)
        program.members.pop(node.body.body[i], None)
    body = [line for i in range(len(node.body.body)) for line in made[i]]
    sums = program.collective and not cls.methods.keys().isdisjoint({"backward", "vjp"})
    copies, containers = "device_copies = True  # outputs are each device's own, as in PyTorch", "pytree = True"
    options = [parse_line(line) for line, holds in ((copies, sums), (containers, cls.containers)) if holds]
    if cls.is_function and options:
        start = len(made[0]) if node.get_docstring() is not None else 0
        body[start:] = [*(_set_off(options) if start else options), *_set_off(body[start:])]
    if body and not made[0] and (gap := getattr(body[0], "leading_lines", ())):  # its predecessor was dropped
        body[0] = body[0].with_changes(leading_lines=list(dropwhile(lambda e: not e.comment, gap)))
    changes: dict[str, Any] = {}
    bases = _port_bases(ev, cls, members is not None)
    if not are_same(bases, node.bases):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        commas = [comma] * (len(bases) - 1) + [cst.MaybeSentinel.DEFAULT]
        changes["bases"] = [b.with_changes(comma=c) for b, c in zip(bases, commas, strict=False)]
        changes |= {} if bases else {"lpar": cst.MaybeSentinel.DEFAULT, "rpar": cst.MaybeSentinel.DEFAULT}
    if not are_same(body, node.body.body):
        body = body or [parse_line("pass")]
        indented = isinstance(node.body, cst.IndentedBlock)
        changes["body"] = node.body.with_changes(body=body) if indented else cst.IndentedBlock(body)
    kept = port_decorators(ev, list(node.decorators))
    if not are_same(kept, node.decorators):
        changes["decorators"] = kept
    result = node.with_changes(**changes) if changes else node
    program.ported[cls.name] = result
    return result


def _port_bases(ev: Evaluator, cls: Class, in_part: bool) -> list[cst.Arg]:
    """Return the bases of a class; one of which only members are read has none of other files."""
    bases = []
    for index, arg in enumerate(cls.node.bases):
        own = ev.program.resolve_name(arg.value, [])
        name = cls.bases[index] if index < len(cls.bases) else own
        if name in FUNCTION_BASES:
            if own and own not in FUNCTION_BASES:
                ev.note(arg, "base", f"{own} is taken for torch.autograd.Function")
            ev.diagnostics.imports.add("fnjax")
            bases.append(arg.with_changes(value=cst.parse_expression("fnjax.Function")))
        elif name == "fnjax.Function" or is_at_hand(name):
            ev.called |= {name} if name.startswith("file:") else set()
            bases.append(arg)
        elif name not in _CONTEXTS and not in_part:  # those declare attributes of ctx, for annotations
            message = f"the base class {unparse(arg.value)} is not of this file; put a class of that name in its place"
            inside = ", or move the Function inside to the top level" if _holds_functions(ev.program, cls) else ""
            ev.report(arg, "supply", message + inside)
    return bases


def _holds_functions(program: Program, cls: Class) -> bool:
    return any(c.is_function and c.name.startswith(f"{cls.name}.") for c in program.classes.values())


def _makes_functions(program: Program, cls: Class, method: cst.FunctionDef) -> bool:
    inside = {f"{cls.name}.{method.name.value}.{n.name.value}" for n in list_nodes(method.body, cst.ClassDef)}
    return any(program.classes[c].is_function for c in inside & program.classes.keys())


def _is_instance_read(program: Program, cls: Class) -> bool:
    """Return whether a method that holds Functions has the instance, of which these may read any member."""
    static = {"staticmethod", "classmethod"}
    makers = (f for f in cls.methods.values() if _makes_functions(program, cls, f))
    return any(static.isdisjoint(list_decorators(f)) for f in makers)


def _rank_member(node: cst.CSTNode) -> int:
    """Return when a member is evaluated: forward first, then what reads what it leaves on ctx."""
    name = node.name.value if isinstance(node, cst.FunctionDef) else ""
    return {"forward": 1, "setup_context": 2}.get(name, 3 if name else 0)


def _port_member(
    ev: Evaluator, cls: Class, node: Any, closure: State | None, members: set[str] | None, scope: State
) -> list[Any]:
    """Translate a statement of a class; members that are not read go."""
    program = ev.program
    if node in program.kernel_nodes:
        return [node]
    if isinstance(node, cst.FunctionDef):
        name = node.name.value
        if members is not None and name not in members and not _makes_functions(program, cls, node):
            return []
        if cls.is_function and name == "symbolic":
            ev.note(node, "onnx", "symbolic is dropped: it serves the export to ONNX")
            return []
        routine = program.make_routine(node, f"{cls.name}.{name}", cls)
        routine.closure = closure
        made, inner = port_routine(program, routine)
        ev.take_over(inner)
        return [made]
    if isinstance(node, cst.ClassDef):
        inner_cls = program.by_node[node]
        wanted = members is None or inner_cls.is_function or _holds_functions(program, inner_cls)
        return [port_class(ev, inner_cls, closure)] if wanted else []
    small = find_small_statement(node)
    text = isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
    if members is not None and (text or not program.list_bound(node) & members):
        return [node] if text else []
    inner_ev = Evaluator(program, ev.routine, scope)
    inner_ev.importing = True
    lines: list[Any] = list(inner_ev.port_statement(_port_field(ev, node)))
    scope.variables, scope.versions = inner_ev.state.variables, inner_ev.state.versions
    ev.take_over(inner_ev)
    return lines


def _port_field(ev: Evaluator, node: Any) -> Any:
    """Return `dtype: object` for `dtype: torch.dtype`: what is annotated in a class may be a field of it."""
    small = find_small_statement(node)
    if not isinstance(small, cst.AnnAssign) or ev.program.port_annotation(small.annotation.annotation, ev) is not None:
        return node
    plain = small.with_changes(annotation=cst.Annotation(cst.Name("object")))
    return place_at(ev, node.with_changes(body=[plain]), node)


def _list_read_members(program: Program, cls: Class) -> set[str]:
    """Return what Functions and functions read of another class: its constants and static helpers."""
    functions = [c.node for c in program.classes.values() if c.is_function]
    waiting: list[cst.CSTNode] = [*functions, *(n for n in program.source.tree.body if isinstance(n, cst.FunctionDef))]
    own = {n: s for s in cls.node.body.body if isinstance(s, cst.SimpleStatementLine) for n in program.list_bound(s)}
    helpers = {n: f for n, f in cls.methods.items() if {"staticmethod", "classmethod"} & set(list_decorators(f))}
    found: set[str] = set()
    while waiting:
        first = waiting.pop()
        for n in list_nodes(first):
            of = unparse(n.value) if isinstance(n, cst.Attribute) else ""
            name = n.attr.value if isinstance(n, cst.Attribute) and of in {cls.name, cls.node.name.value, "cls"} else ""
            if isinstance(n, cst.Name) and first in own.values():  # one constant of another
                name = n.value
            part = own.get(name) or helpers.get(name)
            if part is not None and name not in found:
                found.add(name)
                waiting.append(part)
    return found
