"""Code that runs when a port with `raise` in it (`--strict`) is imported: top-level statements, decorators, defaults.

What needs manual porting is None there, and so is what is made of it: a port must be importable for the sake of the
classes that are ported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import libcst as cst

from fnjax.port.analysis.expr import TopItem, list_statements, parse_line
from fnjax.port.analysis.program import Program
from fnjax.port.result import Finding
from fnjax.port.source.naming import collect_read_names, iter_bindings
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_children, list_nodes

_FUNCTIONS = (cst.FunctionDef, cst.Lambda)
_HOLDING = frozenset({"dict", "functools.partial", "hasattr", "isinstance", "len", "list", "partial", "tuple", "type"})


def only_compiles(program: Program, statement: cst.CSTNode) -> bool:
    """Return whether an `if` or a `try` does nothing but `f = torch.jit.script(f)` and its like in every branch."""
    if not isinstance(statement, (cst.If, cst.Try)):
        return False
    small = list_nodes(statement, cst.BaseSmallStatement)
    given = [n for n in small if isinstance(n, cst.Assign)]
    if not given or any(not isinstance(n, (cst.Assign, cst.Pass)) for n in small):
        return False
    for n in given:
        call = n.value
        if not isinstance(call, cst.Call) or program.resolve_name(call.func) not in {
            "torch.compile",
            "torch.jit.script",
        }:
            return False
        if len(n.targets) != 1 or not call.args or unparse(n.targets[0].target) != unparse(call.args[0].value):
            return False
    return True


def is_kernel(program: Program, statement: cst.CSTNode) -> bool:
    """Return whether a statement of the top level makes a Triton kernel: it stays as it is."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return statement in program.kernel_nodes or (isinstance(small, cst.Assign) and small.value in program.kernel_nodes)


def drop_failing(program: Program, top_items: dict[cst.CSTNode, TopItem]) -> None:
    """Replace by None what of the statements an import of the port could not run, and report it."""
    source = program.source
    provided: dict[cst.CSTNode, set[str]] = {}
    for name, providers in source.providers.items():
        for provider in providers if not source.definitions[name][-1].imported else ():
            provided.setdefault(provider, set()).add(name)
    kernels = [i for i in top_items.values() if is_kernel(program, i.origin)]
    imported = {n: d.imported for i in kernels for n in i.list_names_read() if (d := source.find_definition(n))}
    known = sys.stdlib_module_names | program.importable | {"fnjax", "jax"}
    run = _ImportRun(program, {n for n, full in imported.items() if full and full.split(".")[0] not in known})
    items, before = sorted(top_items.values(), key=lambda i: source.locate(i.origin)), -1
    while before != (before := len(run.missing) + len(run.raising)):
        for item in items:
            run.note_item(item, provided.get(item.origin, set()))
    for item in items if before else ():
        item.made = [made for s in item.made for made in run.clean_statement(item, s)]


class _ImportRun:
    """Failures of a port's import.

    Attributes:
        missing: the names that are None, or incomplete, for want of a translation.
        raising: the functions and classes that raise when they are called, and what holds one of them.
        causes: for each of them the statement that binds it.
    """

    def __init__(self, program: Program, missing: set[str]) -> None:
        self.program, self.missing, self.raising = program, missing, set[str]()
        self.causes: dict[str, TopItem] = {}

    def note_item(self, item: TopItem, names: set[str]) -> None:
        """Note which of the names that a statement binds are missing, or raise."""
        origin, reads = item.origin, item.list_names_read()
        self.causes |= dict.fromkeys(names, item)
        if isinstance(origin, (cst.FunctionDef, cst.ClassDef)):
            if item.diagnostics.left or reads & (self.missing | self.raising):
                self.raising.add(origin.name.value)
            if any(f.severity == "error" for f in item.diagnostics.findings):
                self.missing |= names - {origin.name.value}  # what its decorators were to fill
        elif item.diagnostics.left or any(map(self.find_failure, item.made)):
            self.missing |= names
        elif reads & self.raising:
            self.raising |= names

    def find_failure(self, node: cst.CSTNode, called: bool = False) -> tuple[str, str] | None:
        """Return for which name, and why, the evaluation, or with `called` the call, of a node fails; None if not."""
        run = [*_iter_run_on_import(node)]
        names = self.missing & {n.value for n in run if isinstance(n, cst.Name)}
        if names and (names := names & _collect_reads(node)):
            return min(names), "reads"
        calls = [n for n in run if isinstance(n, cst.Call) and unparse(n.func) not in _HOLDING]
        given = [part for c in calls for part in (c.func, *(a.value for a in c.args))]
        names = {n.value for part in [*given, *([node] if called else [])] for n in list_nodes(part, cst.Name)}
        return (min(names & self.raising), "calls") if names & self.raising else None

    def clean_statement(self, item: TopItem, node: Any) -> list[Any]:
        """Return a statement without what fails, or what takes its place."""
        if isinstance(node, cst.FunctionDef):
            params = node.params.visit(_ParameterCleaner(self, item))
            returns = None if node.returns and self._fails(item, node.returns) else node.returns
            return [node.with_changes(decorators=self._clean_decorators(item, node), params=params, returns=returns)]
        if isinstance(node, cst.ClassDef):
            bases = [b for b in node.bases if not self._fails(item, b.value)]
            if bases and len(bases) < len(node.bases):
                bases[-1] = bases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            body = [made for s in list_statements(node.body) for made in self.clean_statement(item, s)]
            block = cst.IndentedBlock(body or [parse_line("pass")])
            return [node.with_changes(decorators=self._clean_decorators(item, node), bases=bases, body=block)]
        if not self._fails(item, node):
            return [node]
        return [parse_line(f"{n} = None") for n in sorted({n for n, _ in iter_bindings(node)})]

    def _clean_decorators(self, item: TopItem, node: cst.FunctionDef | cst.ClassDef) -> list[cst.Decorator]:
        return [d for d in node.decorators if not self._fails(item, d.decorator, called=True)]

    def _fails(self, item: TopItem, node: cst.CSTNode, called: bool = False) -> bool:
        """Return whether the evaluation of a node fails, after a report of that."""
        failure = self.find_failure(node, called)
        if failure is None:
            return False
        message = f"{failure[0]} needs manual porting, and this {failure[1]} it while the file is imported"
        found = [Finding(*self.program.source.locate(item.origin), "unknown", message)]
        found += self.causes[failure[0]].diagnostics.findings if failure[0] in self.causes else []
        item.diagnostics.findings += [f for f in found if f not in item.diagnostics.findings]
        return True


class _ParameterCleaner(cst.CSTTransformer):
    """Parameters without the defaults and annotations that fail."""

    def __init__(self, run: _ImportRun, item: TopItem) -> None:
        super().__init__()
        self.run, self.item = run, item

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        """Replace a default by None, and drop an annotation."""
        for name, instead in (("default", cst.Name("None")), ("annotation", None)):
            part = getattr(original_node, name)
            if part is not None and self.run._fails(self.item, part):
                updated_node = updated_node.with_changes(**{name: instead})
        return updated_node


def _collect_reads(node: Any) -> set[str]:
    """Collect the names of the top level that a statement, or an expression, reads."""
    node = node.annotation if isinstance(node, cst.Annotation) else node
    line = cst.SimpleStatementLine([cst.Expr(node)]) if isinstance(node, cst.BaseExpression) else node
    return collect_read_names([line]) | {unparse(n.target) for n in list_nodes(node, cst.AugAssign)}


def _iter_run_on_import(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and what of it an import evaluates: not the body of a function, which waits for its call."""
    yield node
    for child in list_children(node):
        if not (isinstance(node, _FUNCTIONS) and child is node.body):
            yield from _iter_run_on_import(child)
