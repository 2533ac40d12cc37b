"""A source file: its tree, the positions of its nodes, and the meanings of its top-level names."""

from __future__ import annotations

import importlib
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fnjax.port.source.canonical_names import find_canonical_name
from fnjax.port.torch import Operation, find_operation, unparse
from fnjax.port.tree.located import add_blanks, list_children, list_nodes
from fnjax.port.tree.locations import locate_nodes

_STARRED = frozenset({"math", "cmath", "numpy", "typing", "functools", "itertools", "operator", "collections"})
_CLASSES = frozenset(
    {"torch.autograd.Function", "torch.autograd.InplaceFunction", "torch.autograd.Variable", "torch.autograd.grad"}
    | {f"{of}.{mode}" for of in ("torch", "torch.autograd") for mode in ("enable_grad", "no_grad", "inference_mode")}
    | {"torch.autograd.set_grad_enabled", "torch.Tensor"}
)


def iter_imported(statement: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, and what each means; a relative module begins with dots."""
    if isinstance(statement, cst.Import):
        for alias in statement.names:
            full = unparse(alias.name)
            if alias.asname:
                yield unparse(alias.asname.name), find_canonical_name(full)
            else:
                yield full.split(".")[0], find_canonical_name(full.split(".")[0])
        return
    module = "." * len(statement.relative) + (unparse(statement.module) if statement.module else "")
    if isinstance(statement.names, cst.ImportStar):
        yield "*", module
        return
    for alias in statement.names:
        name = unparse(alias.name)
        bound = unparse(alias.asname.name) if alias.asname else name
        full = find_canonical_name(f"{module}.{name}" if module.strip(".") else f"{module}{name}")
        yield bound, "torch" if name == "torch" else full  # `from utils import torch`


def iter_targets(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the plain names that an assignment to this target binds."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from iter_targets(element.value)


def pair_targets(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Pair targets with values: of `a, b = x, y` the parts, if each has its own; else the whole."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = list(zip(target.elements, value.elements, strict=True))
        if all(isinstance(e, cst.Element) for pair in pairs for e in pair):
            return [(t.value, v.value) for t, v in pairs]
    return [(target, value)]


@dataclass(slots=True)
class Definition:
    """One place at which a name of the top level gets its meaning: an import, a def, a class, an expression."""

    imported: str = ""
    function: cst.FunctionDef | None = None
    cls: cst.ClassDef | None = None
    value: cst.BaseExpression | None = None


@dataclass(slots=True)
class Source:
    """A parsed file.

    Attributes:
        tree: the module.
        definitions: what each name of the top level may mean, in the order of the file; compound statements (try, if)
            at the top level are looked into.
        providers: the top-level statements that bind each name, or change what it means.
        changed: the names of what is changed while the file is imported.
        text: what was parsed, if the tree is still that.
    """

    filename: str
    tree: cst.Module
    positions: dict[cst.CSTNode, tuple[int, int]]
    definitions: dict[str, list[Definition]] = field(default_factory=dict)
    providers: dict[str, list[cst.CSTNode]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    text: str = ""

    @classmethod
    def parse(cls, text: str, filename: str) -> Source:
        """Read a file.

        Raises:
            cst.ParserSyntaxError: it is no Python.
        """
        parsed = cst.parse_module(text)
        positions = locate_nodes(parsed)
        tree = add_blanks(parsed, positions)
        source = cls(filename, tree, positions, text=text if tree is parsed else "")
        for script in (False, True):
            known = set(source.definitions)  # an import of the file sees these, whatever a script binds to them
            bound = [(s, *b) for s in source.tree.body if _is_script(s) is script for b in iter_bindings(s)]
            for statement, name, definition in bound:
                if name in known:
                    continue
                source.definitions.setdefault(name, []).append(definition)
                providers = source.providers.setdefault(name, [])
                if statement not in providers:
                    providers.append(statement)
        for name, full in source.iter_starred():
            source.definitions[name] = [Definition(imported=full)]
        filling = {
            f.name.value: list_changed_names(f, source.definitions) for f in tree.body if isinstance(f, cst.FunctionDef)
        }
        for statement in source.tree.body:
            for name in (
                () if _is_script(statement) else (*source.iter_changed(statement), *_list_filled(statement, filling))
            ):
                source.changed.add(name)
                if statement not in source.providers.get(name, [statement]):
                    source.providers[name].append(statement)
        return source

    def iter_starred(self) -> Iterator[tuple[str, str]]:
        """Yield what `from torch.autograd import *` brings; `from x import *` brings torch, where nothing else does."""
        stars = [d.imported for d in self.definitions.get("*", ())]
        read = {n.value for n in list_nodes(self.tree, cst.Name)} if stars else set()
        unknown = read - self.definitions.keys() - self.bound
        if "torch" in unknown and any(s.split(".")[0] not in {"torch", *_STARRED} for s in stars):
            yield "torch", "torch"
        for name in sorted(unknown):
            found = [f for s in stars if _star_brings(s, name, f := find_canonical_name(f"{s}.{name}"))]
            if found:
                yield name, found[-1]

    def iter_changed(self, statement: cst.CSTNode) -> Iterator[str]:
        """Yield the names whose objects a statement changes; a call of a method changes what is not a class."""
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        called = isinstance(small, cst.Expr) and unparse(small.value).partition("(")[0] != "setattr"
        for name in iter_changed_objects(statement):
            found = self.definitions.get(name, ())
            if not called or any(not (d.function or d.cls or d.imported) for d in found):
                yield name

    @property
    def bound(self) -> set[str]:
        """The names that functions, assignments and parameters bind anywhere in the file."""
        return {name for node in self.positions if type(node) in _BINDING for name in _list_bound(node)}

    def rename_names(self, names: set[str]) -> str:
        """Return the text with an underscore after these of its names, which the port needs for its own."""
        made = self.tree.visit(_UnderscoreRenamer(names))
        assert isinstance(made, cst.Module)
        return made.code

    def locate(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column, from 1; of a node that the porter made: 1, 1."""
        return self.positions.get(node, (1, 1))

    def find_definition(self, name: str) -> Definition | None:
        """Return what a name means when the file has run, compound statements taken branch after branch."""
        found = self.definitions.get(name)
        return found[-1] if found else None


def _star_brings(module: str, name: str, full: str) -> bool:
    """Return whether a star of torch's, NumPy's or a few of Python's modules brings a name."""
    if module in _STARRED:
        return not name.startswith("_") and hasattr(importlib.import_module(module), name)
    return module.split(".", maxsplit=1)[0] == "torch" and (
        isinstance(find_operation(full), Operation) or full in _CLASSES
    )


# Methods that put something into a container, and all that change one.
PUTTING = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})


def iter_changed_objects(statement: cst.CSTNode) -> Iterator[str]:
    """Yield the names of objects that a statement changes: `TABLE[0] = 1`, `TABLE.append(1)`, `A.k = 2`."""
    return iter(()) if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) else _find_changed_objects(statement)


def _find_changed_objects(statement: cst.CSTNode) -> Iterator[str]:
    for n in list_nodes(statement):
        part: cst.BaseExpression | None = n.target if isinstance(n, (cst.AssignTarget, cst.AugAssign)) else None
        if isinstance(n, cst.Expr) and isinstance(n.value, cst.Call):
            func, args = n.value.func, n.value.args
            part = func
            if unparse(func) == "setattr" and args:
                yield unparse(args[0].value)
        if isinstance(part, (cst.Subscript, cst.Attribute)):
            while isinstance(part, (cst.Subscript, cst.Attribute)):
                part = part.value
            yield from iter_targets(part)


def list_changed_names(function: cst.FunctionDef, definitions: Mapping[str, object]) -> set[str]:
    """Return the names of the top level that a function gives new values, or whose objects it changes."""
    given = {i.name.value for n in list_nodes(function, cst.Global) for i in n.names}
    local = {n for part in (function.params, function.body) for n in iter_bound(part)}
    return given | (set(_find_changed_objects(function.body)) & definitions.keys() - local)


def _list_filled(statement: cst.CSTNode, filling: Mapping[str, set[str]]) -> set[str]:
    """Return the names that a statement changes because it calls functions of the file, as a decorator too."""
    own = isinstance(statement, (cst.FunctionDef, cst.ClassDef))
    parts = [n for d in statement.decorators for n in list_nodes(d)] if own else list(list_nodes(statement))  # type: ignore[attr-defined] # it has
    called = {unparse(n.func) for n in parts if isinstance(n, cst.Call)}
    called |= {unparse(d.decorator) for d in statement.decorators} if own else set()  # type: ignore[attr-defined] # as above
    return {name for f in called for name in filling.get(f, ())}


def _is_script(node: cst.CSTNode) -> bool:
    """Return whether this is `if __name__ == "__main__":`."""
    return isinstance(node, cst.If) and unparse(node.test).replace("'", '"') == '__name__ == "__main__"'


_BINDING = (
    *(cst.FunctionDef, cst.Param, cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor),
    *(cst.NamedExpr, cst.AsName),
)


def _list_bound(node: cst.CSTNode) -> set[str]:
    """Return the names that a node itself binds, imports left out."""
    if isinstance(node, (cst.FunctionDef, cst.Param)):
        return {node.name.value}
    if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)):
        return set(iter_targets(node.target))
    if isinstance(node, cst.AsName):
        return set(iter_targets(node.name))
    return set()


class _UnderscoreRenamer(cst.CSTTransformer):
    """Names get an underscore in the functions that bind them, or in the whole file."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.here: list[set[str]] = []
        self.parameters: set[str] = set()

    def visit_Module(self, node: cst.Module) -> None:
        """Enter what the top level binds."""
        self.here.append({n for s in node.body for n, d in iter_bindings(s) if not d.imported} & self.names)
        self.parameters = self.names & {p.name.value for p in list_nodes(node, cst.Param)}

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Begin the scope of a function: the names that it, or a function around it, binds."""
        own = {n for part in (node.params, node.body) for n in iter_bound(part)}
        self.here.append(self.here[-1] | (own & self.names))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Rename the function itself, whose name belongs to what is around it."""
        self.here.pop()
        return updated_node.with_changes(name=self._add_underscore(original_node.name))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Rename a variable."""
        return self._add_underscore(updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """Keep what follows a dot, which is not a variable."""
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Keep a keyword, unless it is a parameter of a function of the file."""
        keyword = original_node.keyword
        if keyword is not None and keyword.value in self.parameters:
            keyword = keyword.with_changes(value=f"{keyword.value}_")
        return updated_node.with_changes(keyword=keyword)

    def _add_underscore(self, node: cst.Name) -> cst.Name:
        return node.with_changes(value=f"{node.value}_") if node.value in self.here[-1] else node


def collect_read_names(made: Iterable[Any]) -> set[str]:
    """Return the names of the top level that statements read, or declare global."""
    symbols = _iter_symbols("".join(map(unparse, made)))
    return {s.get_name() for s, top in symbols if (s.is_referenced() if top else s.is_global())}


def collect_bound_names(text: str) -> set[str]:
    """Return the names of the top level that a file binds, by `global` in its functions too."""
    symbols = (s for s, top in _iter_symbols(text) if top or s.is_declared_global())
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def _iter_symbols(text: str) -> Iterator[tuple[symtable.Symbol, bool]]:
    """Yield the symbols of all scopes, and whether they are the top level's."""
    tables = [symtable.symtable(text, "port", "exec")]
    for table in tables:
        tables += table.get_children()
        yield from ((s, table.get_type() == "module") for s in table.get_symbols())


def iter_bound(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names that a node binds, and those that parameters and loops inside it bind; imports are left out."""
    for inner in list_nodes(node, *_BINDING):
        yield from _list_bound(inner)


_INNER = (
    *(cst.BaseSuite, cst.BaseStatement, cst.BaseSmallStatement, cst.WithItem),
    *(cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler),
)


def iter_bindings(node: cst.CSTNode) -> Iterator[tuple[str, Definition]]:
    """Yield what a statement of the top level binds, with what is inside it."""
    match node:
        case cst.FunctionDef():
            yield node.name.value, Definition(function=node)
            return
        case cst.ClassDef():
            yield node.name.value, Definition(cls=node)
            return
        case cst.Import() | cst.ImportFrom():
            yield from ((name, Definition(imported=full)) for name, full in iter_imported(node))
        case cst.Assign():
            for target in (t.target for t in node.targets):
                value = node.value if isinstance(target, cst.Name) else None
                yield from ((name, Definition(value=value)) for name in iter_targets(target))
        case cst.AnnAssign(target=cst.Name(name)):
            yield name, Definition(value=node.value)
        case cst.AugAssign(target=cst.Name(name)):
            yield name, Definition()
        case cst.For(target=target) | cst.WithItem(asname=cst.AsName(target)):
            yield from ((name, Definition()) for name in iter_targets(target))
    for child in reversed(list_children(node)):
        if isinstance(child, _INNER) and not (isinstance(child, cst.ExceptHandler) and is_import_that_succeeds(node)):
            yield from iter_bindings(child)


_KEPT = ("torch.amp.", "torch.autograd.", "torch.nn.", "torch.jit.", "torch.compile", "torch.utils.")


# What a port has of Triton.
MAKING = frozenset({"fnjax.triton.jit", "fnjax.triton.autotune", "fnjax.triton.heuristics"})
LANGUAGE = "fnjax.triton.language"
_ASKED = ("", ".Config", ".cdiv", ".next_power_of_2", ".processor_count", ".__version__")
PROVIDED = MAKING | {f"fnjax.triton{name}" for name in _ASKED}
DESCRIBING = "fnjax.triton.tools.tensor_descriptor"


def is_provided(name: str) -> bool:
    """Return whether this is of Triton, and fnjax.triton has it."""
    return name in PROVIDED or any(name == m or name.startswith(f"{m}.") for m in (LANGUAGE, DESCRIBING))


def is_import_that_succeeds(node: cst.CSTNode) -> bool:
    """Return whether this is a `try` that imports or reads what exists today, and does little else."""
    if not isinstance(node, cst.Try) or node.finalbody is not None or not isinstance(node.body, cst.IndentedBlock):
        return False
    small = [x for s in node.body.body for x in (s.body if isinstance(s, cst.SimpleStatementLine) else [s])]
    imports = [x for x in small if isinstance(x, (cst.Import, cst.ImportFrom))]
    whole = [f for x in imports if isinstance(x, cst.Import) for _, f in iter_imported(x)]
    modules = all(f.split(".")[0] == "torch" or is_provided(f) for f in whole)
    full = [find_canonical_name(f) for x in imports if isinstance(x, cst.ImportFrom) for _, f in iter_imported(x)]
    read = [unparse(x.value) for x in small if isinstance(x, cst.Assign) and isinstance(x.value, cst.Attribute)]
    full += [find_canonical_name(f) for f in read if f.startswith("torch.")]
    plain = all(x in imports or (isinstance(x, cst.Assign) and not isinstance(x.value, cst.Call)) for x in small)
    known = all(isinstance(find_operation(f), Operation) or f.startswith(_KEPT) or is_provided(f) for f in full)
    return bool(whole or full) and plain and modules and known
