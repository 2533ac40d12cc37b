"""The statements of the top level that the classes need, each translated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.analysis.expr import Diagnostics, Stop, TopItem
from fnjax.port.analysis.expressions import KernelStop
from fnjax.port.analysis.guards import only_imports_triton
from fnjax.port.analysis.program import Class, Program, Routine
from fnjax.port.engine.imported import is_kernel
from fnjax.port.known.facts import UNKNOWN, MemRef, Value
from fnjax.port.known.state import State
from fnjax.port.result import Finding
from fnjax.port.rewrite.functions import function_definitions
from fnjax.port.source.naming import iter_changed_objects
from fnjax.port.torch import unparse


def _make_module_routine(statement: cst.CSTNode) -> Routine:
    body = cst.IndentedBlock([statement])  # type: ignore[list-item] # a statement of the top level
    return Routine(cst.FunctionDef(cst.Name("module"), cst.Parameters(), body), "module", "module")


def evaluate_at_top_level(program: Program, node: cst.BaseExpression) -> Value:
    """Evaluate an expression at the top level."""
    ev = Evaluator(program, _make_module_routine(cst.SimpleStatementLine([cst.Expr(node)])), State())
    try:
        return ev.port(node).value
    except Stop as e:
        return Value("kernel") if isinstance(e, KernelStop) else UNKNOWN


def translate_top_items(
    program: Program, functions: list[Class], part: frozenset[cst.CSTNode], known: dict[cst.CSTNode, TopItem]
) -> dict[cst.CSTNode, TopItem]:
    """Return the statements of a part of the top level that its classes need, each translated.

    Args:
        program: the file.
        functions: its classes.
        part: the statements that have to do with each other.
        known: the items that need not be evaluated again; new ones are added to it.
    """
    top_items: dict[cst.CSTNode, TopItem] = {}
    waiting: list[cst.CSTNode] = []
    for cls in functions:
        for statement in (cls.top, *cls.next_to, *program.source.providers.get(cls.name, ())):
            if statement not in waiting and (statement is cls.top or not isinstance(statement, cst.ClassDef)):
                waiting.append(statement)
    names = {f"{c.name}.apply" for c in functions}
    body = sorted(part, key=program.source.locate)
    waiting += [s for s in body if isinstance(s, cst.SimpleStatementLine) and unparse(_find_applied(s)) in names]
    while waiting:
        first = waiting.pop(0)
        if first in top_items:
            continue
        top_items[first] = find_top_item(program, first, known)
        for name in sorted(top_items[first].list_names_read() - program.as_pytorch):
            providers = program.source.providers.get(name, ())
            waiting.extend(p for p in providers if p not in top_items and not is_import(p))
    for wrapper in body:
        applied = _find_applied(wrapper)
        if isinstance(applied, cst.Call) and unparse(applied.func) in names and wrapper not in top_items:
            _add_wrapper(program, top_items, wrapper, known)
    return top_items


def find_top_item(program: Program, statement: cst.CSTNode, known: dict[cst.CSTNode, TopItem]) -> TopItem:
    """Return a statement of the top level, evaluated now if it is not known."""
    if statement not in known:
        known[statement] = evaluate_top_item(program, statement, lambda: _make_top_item(program, statement))
        _report_left_over(program, known[statement])
    return known[statement]


def evaluate_top_item(program: Program, statement: cst.CSTNode, ev: Callable[[], TopItem]) -> TopItem:
    """Return the top-level item that `ev` makes of a statement, with the dependencies of that evaluation."""
    waiting = program.dependencies[:]
    program.dependencies.clear()
    program.evaluating.append(statement)
    try:
        top_item = ev()
        top_item.add_dependencies(program.dependencies)
    finally:
        program.evaluating.pop()
        program.dependencies[:] = waiting
    return top_item


def _find_applied(statement: cst.CSTNode) -> cst.CSTNode:
    """Return `C.apply` for `f = C.apply`, and `C.apply(x, 2)` for a function or lambda that returns it."""
    body: Sequence[Any] = ()
    if isinstance(statement, cst.FunctionDef) and not statement.decorators:
        body = statement.body.body[statement.get_docstring() is not None :]
    elif isinstance(statement, cst.SimpleStatementLine):
        body = statement.body
    while len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine):
        body = body[0].body
    value = body[0].value if len(body) == 1 and isinstance(body[0], (cst.Return, cst.Assign)) else None
    return value.body if isinstance(value, cst.Lambda) else value or cst.Pass()


def _add_wrapper(
    program: Program, top_items: dict[cst.CSTNode, TopItem], wrapper: cst.CSTNode, known: dict[cst.CSTNode, TopItem]
) -> None:
    """Take a wrapper along, if it is ported whole and needs nothing else."""
    top_item = find_top_item(program, wrapper, known)
    needed = {p for n in top_item.list_names_read() for p in program.source.providers.get(n, ())} - {wrapper}
    if not any(f.severity == "error" for f in top_item.diagnostics.findings) and all(
        p in top_items or is_import(p) for p in needed
    ):
        top_items[wrapper] = top_item


def _report_left_over(program: Program, top_item: TopItem) -> None:
    """Report a name of torch's that no rule has translated: the output does not import it."""
    torch = {
        n
        for n in top_item.list_names_read()
        if (d := program.source.find_definition(n)) is not None and d.imported.split(".")[0] == "torch"
    }
    if not torch:
        return
    tree = ast.parse("".join(map(unparse, top_item.made)))
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for name in sorted(torch - own):
        message = f"{name!r} is of torch, and the porter knows no translation for it here"
        top_item.diagnostics.findings.append(Finding(*program.source.locate(top_item.origin), "unknown", message))


def is_import(node: cst.CSTNode) -> bool:
    """Return whether a statement only imports."""
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], (cst.Import, cst.ImportFrom))


def _make_top_item(program: Program, statement: cst.CSTNode) -> TopItem:
    if is_kernel(program, statement):
        return TopItem(statement, [statement], Diagnostics(), set())
    if only_imports_triton(statement):
        return TopItem(statement, [], Diagnostics(), set())
    if isinstance(statement, cst.FunctionDef):
        routine = program.make_routine(statement, statement.name.value)
        made, inner = function_definitions.port_routine(program, routine)
        return TopItem(
            statement, function_definitions.add_registrations(inner, routine, made), inner.diagnostics, inner.called
        )
    ev = _make_top_evaluator(program, statement)
    result: list[Any] = ev.port_statement(statement)  # type: ignore[arg-type] # a statement of the top level
    if isinstance(statement, (cst.For, cst.While)) and any(f.severity == "error" for f in ev.diagnostics.findings):
        result, ev.diagnostics.left = [], True  # at the top level nothing may raise
    return TopItem(statement, result, ev.diagnostics, ev.called)


def _make_top_evaluator(program: Program, statement: cst.CSTNode) -> Evaluator:
    ev = Evaluator(program, _make_module_routine(statement), _describe_changed_arrays(program, statement))
    ev.importing = True
    return ev


def _describe_changed_arrays(program: Program, statement: cst.CSTNode) -> State:
    """Return a state in which the top level's arrays that a statement writes to are variables."""
    state = State()
    for name in iter_changed_objects(statement):
        value = evaluate_at_top_level(program, cst.Name(name))
        if value.is_tensor:
            state.variables[name] = replace(value, memref=MemRef(frozenset({f"arg:{name}"})), number="")
    return state
