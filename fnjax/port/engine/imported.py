"""Code that runs when a port with `raise` in it (`--strict`) is imported: top-level statements, decorators, defaults.

What needs manual porting is None there, and what reads it is tried: a port must be importable for the sake of the
classes that are ported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import libcst as cst

from fnjax.port.analysis.expr import TopItem, parse_line
from fnjax.port.analysis.program import Program
from fnjax.port.result import Finding
from fnjax.port.source.naming import collect_read_names, iter_bindings
from fnjax.port.tree.located import find_small_statement, list_children


def is_kernel(program: Program, statement: cst.CSTNode) -> bool:
    """Return whether a statement of the top level makes a Triton kernel: it stays as it is."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return statement in program.kernel_nodes or (isinstance(small, cst.Assign) and small.value in program.kernel_nodes)


def guard_import(program: Program, top_items: dict[cst.CSTNode, TopItem]) -> None:
    """Put the statements into `try` that may fail on import, as they read what needs manual porting."""
    source = program.source
    known = sys.stdlib_module_names | program.importable | {"fnjax", "jax", "torch"}
    found = ((n, d[-1].imported.split(".")[0]) for n, d in source.definitions.items())
    missing = {name for name, module in found if module and module not in known}
    items, before = sorted(top_items.values(), key=lambda i: source.locate(i.origin)), -1
    while before != (before := len(missing)):
        for item in items:
            partial = item.diagnostics.left or any(f.severity == "error" for f in item.diagnostics.findings)
            if partial or item.list_names_read() & missing:
                missing |= {n for n, _ in iter_bindings(item.origin)}
    for item in items:
        for i, statement in enumerate(item.made):
            if run := missing & list_run(statement):
                item.made[i] = _guard(statement)
                message = f"{min(run)} needs manual porting, and this reads it while the file is imported"
                item.diagnostics.report(Finding(*source.locate(item.origin), "unknown", message))


def _guard(statement: Any) -> cst.Try:
    """Return `try: ... except Exception: name = None`."""
    given = [parse_line(f"{n} = None") for n in sorted({n for n, _ in iter_bindings(statement)})]
    handler = cst.ExceptHandler(cst.IndentedBlock(given or [parse_line("pass")]), type=cst.Name("Exception"))
    body = cst.IndentedBlock([statement.with_changes(leading_lines=[])])
    return cst.Try(body, [handler], leading_lines=statement.leading_lines)


def list_run(statement: Any) -> set[str]:
    """Return the names that a statement reads on import; none for `f = g` and `f = C.apply`, which cannot fail."""
    small = find_small_statement(statement)
    value = small.value if isinstance(small, cst.Assign) else None
    if isinstance(value, cst.Attribute) and value.attr.value == "apply":
        value = value.value
    if isinstance(value, cst.Name):
        return set()
    run = {n.value for n in _iter_run(statement) if isinstance(n, cst.Name)} & collect_read_names([statement])
    return run - {n for n, _ in iter_bindings(statement)}


def _iter_run(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and what of it an import evaluates: not the body of a function, which waits for its call."""
    yield node
    for child in list_children(node):
        if not (isinstance(node, (cst.FunctionDef, cst.Lambda)) and child is node.body):
            yield from _iter_run(child)
