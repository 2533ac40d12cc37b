"""Classes.

What: `torch.autograd.Function` and its like become `fnjax.Function`, under whatever alias; ONNX's `symbolic` is
dropped; Functions inside functions and classes stay where they are, those inside methods of other classes move to the
class.
Before: `class Cube(Function):` with `from torch.autograd import Function`
After: `class Cube(fnjax.Function):`
Safety: what a class inherits from classes of the file is ported along.
Limits: bases from other libraries are findings.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import dropwhile
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, Stop, parse_line, place_at
from fnjax.port.analysis.program import FUNCTION_BASES, Class, Program, list_nodes
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import State, Value
from fnjax.port.rewrite.functions.decorators import port_decorators
from fnjax.port.rewrite.functions.function_definitions import port_routine
from fnjax.port.source.naming import collect_read_names
from fnjax.port.source.parameter_inference import iter_parameters
from fnjax.port.source.records import list_decorators
from fnjax.port.torch import unparse
from fnjax.port.tree.located import find_small_statement

_CONTEXTS = frozenset({"torch.autograd.FunctionCtx", "torch.autograd.function.FunctionCtx"})


@statement(cst.ClassDef, general=True)
def port_inner_class(ev: Evaluator, node: cst.ClassDef) -> Statements | None:
    """Return a class inside a function, or at the top level."""
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
    node = cls.node
    program = ev.program
    body: list[Any] = []
    container = not cls.is_function and any(
        c.is_function and c.name.startswith(f"{cls.name}.") for c in program.classes.values()
    )
    # Not in the order of the text: backward is evaluated with what forward has left on ctx.
    order = sorted(range(len(node.body.body)), key=lambda i: _rank_member(node.body.body[i]))
    made: dict[int, list[Any]] = {}
    scope = closure.copy() if closure else State()  # what the statements of the class see, and its methods do not

    def port_member(i: int) -> None:
        if i not in made:
            made[i] = []  # while it is evaluated: it may call itself
            made[i] = _port_member(ev, cls, node.body.body[i], closure, container, scope)

    program.members |= {node.body.body[i]: partial(port_member, i) for i in order}  # some are asked for first
    for i in order:
        port_member(i)
        program.members.pop(node.body.body[i], None)
    for i in range(len(node.body.body)):
        body += made[i]
    sums = program.collective and not cls.methods.keys().isdisjoint({"backward", "vjp"})
    options = [parse_line(f"{n} = True") for n, holds in (("device_copies", sums), ("pytree", cls.containers)) if holds]
    if cls.is_function and options:
        start = len(made[0]) if node.get_docstring() is not None else 0
        body[start:] = [*(_set_off(options) if start else options), *_set_off(body[start:])]
    if body and not made[0] and (gap := getattr(body[0], "leading_lines", ())):  # what went left its distance
        body[0] = body[0].with_changes(leading_lines=list(dropwhile(lambda e: not e.comment, gap)))
    bases = []
    for arg in node.bases:
        own = program.resolve_name(arg.value, [])
        index = list(node.bases).index(arg)
        name = cls.bases[index] if index < len(cls.bases) else own
        if name in FUNCTION_BASES:
            if own and own not in FUNCTION_BASES:
                ev.note(arg, "base", f"{own} is taken for torch.autograd.Function")
            ev.diagnostics.imports.add("fnjax")
            bases.append(
                arg
                if unparse(arg.value) == "fnjax.Function"
                else arg.with_changes(value=cst.parse_expression("fnjax.Function"))
            )
        elif (
            name.startswith("file:")
            or name.split(".")[0] in sys.stdlib_module_names
            or name in {"object", "builtins.object"}
            or name in dir(__import__("builtins"))
            or name == "fnjax.Function"
        ):
            if name.startswith("file:"):
                ev.called.add(name)
            bases.append(arg)
        elif name in _CONTEXTS:  # of a class that says what is kept on ctx, for annotations
            continue
        elif not container:
            ev.report(
                arg,
                "supply",
                f"the base class {unparse(arg.value)} is not of this file; put a class of that name in its place",
            )
    changes: dict[str, Any] = {}
    if len(bases) != len(node.bases) or any(a is not b for a, b in zip(bases, node.bases, strict=True)):
        changes["bases"] = [
            *(b.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) for b in bases[:-1]),
            *(b.with_changes(comma=cst.MaybeSentinel.DEFAULT) for b in bases[-1:]),
        ]
        if not bases:
            changes |= {"lpar": cst.MaybeSentinel.DEFAULT, "rpar": cst.MaybeSentinel.DEFAULT}
    same = len(body) == len(node.body.body) and all(a is b for a, b in zip(body, node.body.body, strict=True))
    if not same:
        if not body:
            body = [parse_line("pass")]
        changes["body"] = (
            node.body.with_changes(body=body) if isinstance(node.body, cst.IndentedBlock) else cst.IndentedBlock(body)
        )
    try:
        kept = port_decorators(ev, list(node.decorators))
    except Stop as e:
        ev.report(e.node, e.kind, e.message)
        kept = []
    if len(kept) != len(node.decorators) or any(a is not b for a, b in zip(kept, node.decorators, strict=True)):
        changes["decorators"] = kept
    result = node.with_changes(**changes) if changes else node
    program.ported[cls.name] = result
    return result


def _rank_member(node: cst.CSTNode) -> int:
    """Forward first, then what reads what it leaves on ctx."""
    name = node.name.value if isinstance(node, cst.FunctionDef) else ""
    return {"forward": 1, "setup_context": 2}.get(name, 3 if name else 0)


def _repeats_base(ev: Evaluator, node: Any) -> bool:
    """Return whether this is `jvp = torch.autograd.Function.jvp`, which the base class says already."""
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    if not isinstance(small, cst.Assign) or len(small.targets) > 1 or not isinstance(small.value, cst.Attribute):
        return False
    base, _, name = ev.find_name(small.value).rpartition(".")
    return base in FUNCTION_BASES and unparse(small.targets[0].target) == name


def _port_member(
    ev: Evaluator, cls: Class, node: Any, closure: State | None, container: bool, scope: State
) -> list[Any]:
    program = ev.program
    if node in program.kernel_nodes:
        return [node]
    if isinstance(node, cst.FunctionDef):
        names = dict.fromkeys(
            f"{cls.name}.{node.name.value}.{n.name.value}" for n in list_nodes(node.body, cst.ClassDef)
        )
        inside = [program.classes[name] for name in names if name in program.classes]
        kept = container and node.name.value in _collect_read_members(program, cls)
        if container and not kept and not _makes_class(node, {c.node.name.value for c in inside if c.is_function}):
            return [_move_class(ev, cls, node, c) for c in inside if c.is_function]
        if cls.is_function and node.name.value == "symbolic":
            ev.note(node, "onnx", "symbolic is dropped: it serves the export to ONNX")
            return []
        if cls.is_function and node.name.value == "jvp" and _only_calls_base(ev, node):
            ev.note(node, "dropped", "this jvp is dropped: it only calls that of PyTorch's base class, which raises")
            return []
        routine = program.make_routine(node, f"{cls.name}.{node.name.value}", cls)
        routine.closure = closure
        made, inner = port_routine(program, routine)
        ev.take_over(inner)
        return [made]
    if isinstance(node, cst.ClassDef):
        inner_cls = program.by_node[node]
        wanted = (
            not container
            or inner_cls.is_function
            or any(c.is_function and c.name.startswith(f"{inner_cls.name}.") for c in program.classes.values())
        )
        return [port_class(ev, inner_cls, closure)] if wanted else []
    if cls.is_function and _repeats_base(ev, node):
        return []
    if container:
        is_text = (
            isinstance(node, cst.SimpleStatementLine)
            and isinstance(node.body[0], cst.Expr)
            and isinstance(node.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
        )
        bound = program.list_bound(node) if isinstance(node, cst.SimpleStatementLine) else set()
        if is_text or not bound & _collect_read_members(program, cls):
            return [node] if is_text else []
    inner_ev = Evaluator(program, ev.routine, scope)
    inner_ev.importing = True
    lines: list[Any] = list(inner_ev.port_statement(_port_field(ev, node)))
    scope.variables, scope.versions = inner_ev.state.variables, inner_ev.state.versions
    ev.take_over(inner_ev)
    return lines


def _port_field(ev: Evaluator, node: Any) -> Any:
    """Translate `dtype: object` for `dtype: torch.dtype`: what is annotated in a class may be a field of it."""
    small = find_small_statement(node)
    if not isinstance(small, cst.AnnAssign) or ev.program.port_annotation(small.annotation.annotation, ev) is not None:
        return node
    plain = small.with_changes(annotation=cst.Annotation(cst.Name("object")))
    return place_at(ev, node.with_changes(body=[plain]), node)


def _collect_read_members(program: Program, cls: Class) -> set[str]:
    """Return what Functions and functions read of a class that only holds some: its constants and helpers."""
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


def _makes_class(node: cst.FunctionDef, classes: set[str]) -> bool:
    """Return whether a method returns one of the classes that stand in it, or its apply."""
    returned = (n.value for n in list_nodes(node.body) if isinstance(n, cst.Return) and n.value is not None)
    return any(unparse(r).removesuffix(".apply") in classes for r in returned)


def _move_class(ev: Evaluator, outer: Class, method: cst.FunctionDef, cls: Class) -> cst.ClassDef:
    """Return a Function that a method of some other class makes for itself, as one of that class: the method goes."""
    program, name = ev.program, f"{outer.name}.{method.name.value}"
    new = f"{outer.name}.{cls.node.name.value}"
    ev.note(cls.node, "dropped", f"{name} around this class is dropped, which the port has as {new}")
    defined = (n for n in list_nodes(method.body) if isinstance(n, (cst.FunctionDef, cst.ClassDef)))
    local = program.list_bound(method.body) | {n.name.value for n in (*defined, *iter_parameters(method))}
    local &= collect_read_names([cls.node])
    return port_class(ev, cls, State({n: Value("object", name=f"?{name} {n}") for n in local}))


def _only_calls_base(ev: Evaluator, node: cst.FunctionDef) -> bool:
    """Return whether a jvp does nothing but call `torch.autograd.Function.jvp`."""
    calls = [n for n in list_nodes(node.body) if isinstance(n, cst.Call)]
    asks = len(calls) == 1 and ev.find_name(calls[0].func) == "torch.autograd.Function.jvp"
    return asks and len([s for s in node.body.body if calls and any(n is calls[0] for n in list_nodes(s))]) == len(
        node.body.body
    )
