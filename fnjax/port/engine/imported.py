"""Code that runs when the port is imported: top-level statements, decorators, defaults, the bodies of classes.

What needs manual porting is None there, and so is what is made of it: a port must be importable for the sake of the
classes that are ported.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import libcst as cst

from fnjax.port.analysis.expr import TopItem, parse_line
from fnjax.port.analysis.program import Program
from fnjax.port.result import Finding
from fnjax.port.source.naming import collect_read_names, iter_bindings
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_children, list_nodes

_COMPOUND = (cst.If, cst.For, cst.While, cst.With, cst.Try, cst.TryStar, cst.Match)
_MAKING = frozenset({"__new__", "__init__", "__post_init__"})
_PARTIAL = frozenset({"partial", ".partial"})


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


Defined = tuple[TopItem, cst.FunctionDef | cst.Lambda]


class ImportRun:
    """The import of a port, statement by statement: what reads something that is missing by then is dropped."""

    def __init__(self, program: Program, top_items: dict[cst.CSTNode, TopItem]) -> None:
        self.program, self.top_items = program, top_items
        self.missing: dict[str, list[Finding]] = {}  # names that are None, or incomplete, for want of a translation
        self.functions: dict[str, list[Defined]] = {}  # what runs for a callee, see `_iter_callees`

    def drop_unportable(self) -> None:
        """Leave out of all units what an import could not run."""
        source = self.program.source
        kernels = [u for u in self.top_items.values() if is_kernel(self.program, u.origin)]
        imported = {n: d.imported for u in kernels for n in u.list_names_read() if (d := source.find_definition(n))}
        known = sys.stdlib_module_names | self.program.importable | {"fnjax", "jax"}
        self.missing = {n: [] for n, full in imported.items() if full and full.split(".")[0] not in known}
        if not self.missing and not any(u.diagnostics.left or _lost_decorators(u) for u in self.top_items.values()):
            return
        provided: dict[cst.CSTNode, set[str]] = {}
        for name, providers in source.providers.items():
            for provider in providers if not source.definitions[name][-1].imported else ():
                provided.setdefault(provider, set()).add(name)
        order: dict[cst.CSTNode, int] = {s: i for i, s in enumerate(source.tree.body)}
        for top_item in sorted(self.top_items.values(), key=lambda u: order.get(u.origin, -1)):
            before = len(top_item.diagnostics.findings)
            top_item.made = self._run_block(top_item.made, top_item)
            own = top_item.origin if isinstance(top_item.origin, (cst.FunctionDef, cst.ClassDef)) else None
            if len(top_item.diagnostics.findings) > before or (
                top_item.diagnostics.left if own is None else _lost_decorators(top_item)
            ):
                given = provided.get(top_item.origin, set()) - ({own.name.value} if own is not None else set())
                self.missing |= dict.fromkeys(given, top_item.diagnostics.findings)

    def _run_block(self, statements: Iterable[Any], top_item: TopItem) -> list[Any]:
        return [s for statement in statements for s in self._run_statement(statement, top_item)]

    def _run_statement(self, node: Any, top_item: TopItem) -> list[Any]:
        """Return a statement without what reads something missing, or what takes its place."""
        if isinstance(node, cst.FunctionDef):
            return [self._run_function(node, top_item)]
        if isinstance(node, cst.ClassDef):
            return [self._run_class(node, top_item)]
        if self._find_missing(_list_heads(node), top_item):
            bound = {n for n, _ in iter_bindings(node)}
            self.missing |= dict.fromkeys(bound, top_item.diagnostics.findings)
            return [parse_line(f"{n} = None") for n in sorted(bound)]
        if isinstance(node, _COMPOUND):
            return [self._run_blocks(node, top_item)]
        for name, definition in iter_bindings(node):
            self.missing.pop(name, None)
            self.functions[name] = self._list_functions(definition.value, top_item)
        if top_item.diagnostics.left:
            self.missing |= dict.fromkeys(
                _list_nones(node) - _list_nones(top_item.origin), top_item.diagnostics.findings
            )
        return [node]

    def _list_functions(self, node: cst.BaseExpression | None, top_item: TopItem) -> list[Defined]:
        """List the functions that an expression may be: a lambda, another name of one, a partial of one."""
        if isinstance(node, cst.Lambda):
            return [(top_item, node)]
        if isinstance(node, cst.Call) and _name_callee(node.func) in _PARTIAL and node.args:
            node = node.args[0].value
        return self.functions.get(_name_callee(node), []) if node is not None else []

    def _run_blocks(self, node: Any, top_item: TopItem) -> Any:
        """Run the blocks of an `if`, a loop and the like; after them is missing what is missing after one of them."""
        start, found = dict(self.missing), dict(self.missing)
        changes: dict[str, Any] = {}
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            part = getattr(node, name, None)
            if isinstance(part, cst.BaseSuite):
                changes[name] = self._run_lines(part, top_item)
            elif isinstance(part, cst.CSTNode):
                changes[name] = self._run_blocks(part, top_item)
            elif part:
                changes[name] = [self._run_blocks(p, top_item) for p in part]
            found |= self.missing
            self.missing = dict(start if isinstance(node, cst.If) else found)
        self.missing = found
        return node.with_changes(**changes)

    def _run_lines(self, block: cst.BaseSuite, top_item: TopItem) -> cst.BaseSuite:
        if isinstance(block, cst.SimpleStatementSuite):
            block = cst.IndentedBlock([cst.SimpleStatementLine(block.body)])
        return block.with_changes(body=self._run_block(block.body, top_item) or [parse_line("pass")])

    def _run_class(self, node: cst.ClassDef, top_item: TopItem) -> cst.ClassDef:
        name, around = node.name.value, dict(self.missing)
        decorators = [d for d in node.decorators if not self._find_missing([d.decorator], top_item)]
        bases = [b for b in node.bases if not self._find_missing([b.value], top_item)]
        if bases and len(bases) < len(node.bases):
            bases[-1] = bases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        inherited = [f for b in node.bases for f in self.functions.get(_name_callee(b.value), ())]
        body = self._run_lines(node.body, top_item)
        if any(self.program.resolve_name(b.value).startswith("enum.") for b in bases):  # each of its fields is a number
            body = body.with_changes(body=[s for s in body.body if not _list_nones(s) & self.missing.keys()])
        own = [n for n in body.body if isinstance(n, cst.FunctionDef)]
        self.functions[name] = [(top_item, n) for n in own if n.name.value in _MAKING] or inherited
        for function in own:
            asked = any(unparse(d.decorator).endswith("property") for d in function.decorators)
            key = f"{'@' if asked else '.'}{function.name.value}"
            self.functions[key] = [*self.functions.get(key, ()), (top_item, function)]
        self.missing = {n: f for n, f in around.items() if n != name}
        return node.with_changes(decorators=decorators, bases=bases, body=body)

    def _run_function(self, node: cst.FunctionDef, top_item: TopItem) -> cst.FunctionDef:
        """Return a function without the decorators, defaults and annotations that read something missing."""
        kept = [d for d in node.decorators if not self._find_missing([d.decorator], top_item)]
        none = {
            p for p in list_nodes(node.params, cst.Param) if p.default and self._find_missing([p.default], top_item)
        }
        noted = [n for n in list_nodes(node, cst.Annotation) if self._find_missing([n.annotation], top_item)]
        made = node.with_changes(decorators=kept, params=node.params.visit(_ParameterCleaner(none, noted)))
        made = made.with_changes(returns=None) if node.returns in noted else made
        self.missing.pop(node.name.value, None)
        self.functions[node.name.value] = [(top_item, made)]
        return made

    def _find_missing(self, nodes: Iterable[cst.CSTNode], top_item: TopItem) -> bool:
        """Report whether evaluating these nodes reads something missing, or calls a function that does or raises."""
        for node in nodes:
            run = [*_iter_run_on_import(node)]
            names = self.missing.keys() & {n.value for n in run if isinstance(n, cst.Name)}
            for name in sorted(names & _collect_reads(node) if names else ()):
                self._report(top_item, self.missing[name], f"{name} needs manual porting, and this reads it")
                return True
            for name in sorted({*_iter_callees(run), _name_callee(node)}):
                if found := self._find_raising(name, set()):
                    self._report(top_item, [], f"{found} needs manual porting, and this calls it")
                    return True
        return False

    def _report(self, top_item: TopItem, findings: Sequence[Finding], message: str) -> None:
        where = self.program.source.locate(top_item.origin)
        own = Finding(*where, "unknown", f"{message} while the file is imported")
        top_item.diagnostics.findings += [f for f in [*findings, own] if f not in top_item.diagnostics.findings]

    def _find_raising(self, callee: str, seen: set[str]) -> str:
        """Return the function that raises if this callee runs now: itself, or one that it calls; else nothing."""
        for top_item, function in self.functions.get(callee, ()) if callee not in seen else ():
            seen.add(callee)
            inside = list_nodes(function.body)
            raised = (unparse(n) for n in inside if isinstance(n, cst.Raise))
            raises = top_item.diagnostics.left and any(r.startswith("raise NotImplementedError(") for r in raised)
            if raises or self.missing.keys() & _collect_reads(function):
                return callee.strip(".@")
            for name in sorted({*_iter_callees(inside)}):
                if found := self._find_raising(name, seen):
                    return found
        return ""


class _ParameterCleaner(cst.CSTTransformer):
    """Parameters that lose their default for None, or their annotation."""

    def __init__(self, none: Collection[cst.Param], noted: Collection[cst.Annotation]) -> None:
        super().__init__()
        self.none, self.noted = none, noted

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        """Change one of them."""
        if original_node in self.none:
            updated_node = updated_node.with_changes(default=cst.Name("None"))
        return updated_node.with_changes(annotation=None) if original_node.annotation in self.noted else updated_node


def _list_heads(node: cst.CSTNode) -> list[cst.CSTNode]:
    """List what a statement of several blocks evaluates before them, tests of `elif` among it; else the statement."""
    if not isinstance(node, _COMPOUND):
        return [node]
    found = [n for name in ("test", "iter", "subject") if (n := getattr(node, name, None)) is not None]
    found += [i.item for i in getattr(node, "items", ())]
    orelse = getattr(node, "orelse", None)
    return found + (_list_heads(orelse) if isinstance(orelse, cst.If) else [])


def _list_nones(node: cst.CSTNode) -> set[str]:
    """List the names to which a statement gives None."""
    given = (n for n in list_nodes(node, cst.Assign) if unparse(n.value) == "None")
    return {unparse(t.target) for n in given for t in n.targets}


def _collect_reads(node: Any) -> set[str]:
    """Collect the names of the top level that a statement, or an expression, reads."""
    line = cst.SimpleStatementLine([cst.Expr(node)]) if isinstance(node, cst.BaseExpression) else node
    return collect_read_names([line]) | {unparse(n.target) for n in list_nodes(node, cst.AugAssign)}


def _iter_callees(nodes: Iterable[cst.CSTNode]) -> Iterator[str]:
    """Return what evaluating these nodes runs: `f` for a function or class, `.f` for a method, `@f` for a property."""
    for node in nodes:
        if isinstance(node, cst.Call):
            callee = _name_callee(node.func)
            yield from (callee, ".__call__")
            yield from () if callee in _PARTIAL else (_name_callee(a.value) for a in node.args)
        elif isinstance(node, cst.Subscript):
            yield ".__getitem__"
        elif isinstance(node, cst.Attribute):
            yield f"@{node.attr.value}"


def _name_callee(node: cst.CSTNode) -> str:
    """Name a callee as `_iter_callees` does."""
    return f".{node.attr.value}" if isinstance(node, cst.Attribute) else unparse(node)


def _lost_decorators(top_item: TopItem) -> bool:
    """Return whether a function or class has fewer decorators in the port for want of a translation."""
    if not isinstance(top_item.origin, (cst.FunctionDef, cst.ClassDef)) or not top_item.origin.decorators:
        return False
    made = [n for n in top_item.made if isinstance(n, type(top_item.origin))]
    fewer = any(len(n.decorators) < len(top_item.origin.decorators) for n in made)
    return fewer and any(f.severity == "error" for f in top_item.diagnostics.findings)


def _iter_run_on_import(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and what runs below it: not the body of a function, which waits for its call."""
    if isinstance(node, cst.Call):
        yield from list_nodes(node)
    elif not isinstance(node, (cst.FunctionDef, cst.Lambda)):
        yield node
        for child in list_children(node):
            yield from _iter_run_on_import(child)
