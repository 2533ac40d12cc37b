"""Files of a folder that import from each other, as one text, so that helpers of other files are evaluated, too.

A name that two files give different meanings, or that a file knows under another name (`from b import f as g`, `b.f`),
gets the name of its file after it in the text, and its own back in what is written. Each line stays a line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fnjax.port.source.edits import Edit, apply_edits, iter_renamings, locate_node
from fnjax.port.source.module_paths import Modules
from fnjax.port.source.operator_names import OPERATOR, iter_defined_operators, iter_named_operators
from fnjax.port.source.top_level import (
    collect_bound,
    iter_bound_here,
    iter_inside,
    iter_reads,
    iter_top_level_references,
    name_alias,
)

_OPERATOR = re.compile(OPERATOR)
_REGISTERS = re.compile(_OPERATOR.pattern + r"|\.register_|\.impl\b|\bimpl\(")  # in what defines or registers one


class Name(NamedTuple):
    """A name of the top level of a file."""

    file: str
    name: str


class _Reference(NamedTuple):
    """A reference to a name of the top level of this or another file.

    Attributes:
        node: the place.
        spelled: its text, `f` or `b.f`; empty where the port cannot have that text, as `b` has it from another file.
        name: the name.
    """

    node: ast.AST
    spelled: str
    name: Name


@dataclass(slots=True)
class Linked:
    """Files as one text.

    Attributes:
        text: the text.
        starts: the line before the first of each file, in the order of the text.
        spelled: for each file how it spells the names that the text spells otherwise.
        imports: for each file the import that brings a name of another file, by the name in the text.
    """

    text: str = ""
    starts: dict[str, int] = field(default_factory=dict)
    spelled: dict[str, dict[str, str]] = field(default_factory=dict)
    imports: dict[str, dict[str, str]] = field(default_factory=dict)

    def find_place(self, line: int) -> tuple[str, int]:
        """Return the file of a line of the text, and its line there."""
        name, start = next((n, s) for n, s in reversed(self.starts.items()) if s < line or s == 0)
        return name, line - start

    def rename_classes(self, names: Sequence[str] | None) -> list[str] | None:
        """Return the names that classes of the files have in the joined text."""
        if names is None:
            return None
        pairs = {(new, old) for spelled in self.spelled.values() for new, old in spelled.items()}
        found = [n.replace(old, new, 1) for n in names for new, old in pairs if n.partition(".")[0] == old]
        return [n for n in sorted({*names, *found}) if re.search(rf"\bclass {n.partition('.')[0]}\b", self.text)]

    def restore_names(self, file: str, text: str) -> str:
        """Return a text with the names that a file has for what is in it."""
        spelled = self.spelled[file]
        if not spelled:
            return text
        return re.sub(rf"\b({'|'.join(map(re.escape, spelled))})\b", lambda found: spelled[found[0]], text)


class _File:
    """A file, and what its top level binds."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text, self.tree = name, text, ast.parse(text)
        nodes = [*ast.walk(self.tree)]
        self.classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
        self.identifiers = {n.id for n in nodes if isinstance(n, ast.Name)}
        self.identifiers |= {n.arg for n in nodes if isinstance(n, ast.arg)}
        self.bound: dict[str, list[ast.AST]] = {}  # of each name of the top level what binds it
        for node in (*iter_inside(self.tree), *(n for n in nodes if isinstance(n, ast.Global))):
            for bound in iter_bound_here(node):
                self.bound.setdefault(bound, []).append(node)
        self.stated: dict[ast.stmt, set[str]] = {}
        self.references: dict[ast.stmt, list[ast.AST]] = {}
        self.imports = [n for n in iter_inside(self.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]

    def list_providers(self, name: str) -> list[ast.stmt]:
        """Return the statements of the top level that bind a name, or that contain it."""
        return [s for s in self.tree.body if name in self.list_bound(s)]

    def list_bound(self, statement: ast.stmt) -> set[str]:
        """Return the names that a statement of the top level binds, and the classes in it."""
        if statement not in self.stated:
            classes = {n.name for n in ast.walk(statement) if isinstance(n, ast.ClassDef)}
            self.stated[statement] = classes | collect_bound(statement)
        return self.stated[statement]

    def list_references(self, statement: ast.stmt) -> list[ast.AST]:
        """Return the references to the top level in a statement of it."""
        if statement not in self.references:
            self.references[statement] = [*iter_top_level_references([statement])]
        return self.references[statement]

    def find_import(self, name: str) -> tuple[ast.Import | ast.ImportFrom, ast.alias] | None:
        """Return the import that alone defines a name."""
        found = self.bound.get(name, [])
        if len(found) != 1 or not isinstance(found[0], (ast.Import, ast.ImportFrom)):
            return None
        return found[0], next(a for a in found[0].names if name_alias(a) == name)

    @property
    def stars(self) -> list[ast.ImportFrom]:
        """The imports of `*` in the file, the last first."""
        return [n for n in reversed(self.imports) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]


def link_files(files: Mapping[str, str], roots: Mapping[str, str]) -> list[Linked | str]:
    """Join files that import from each other.

    Args:
        files: the texts by name; those that are no Python are left out.
        roots: for each file the folder that its modules are named from.

    Returns:
        For each group of files that import from each other its text, and the names of the files that are alone.
    """
    known: dict[str, _File] = {}
    for name, text in files.items():
        try:
            known[name] = _File(name, text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    modules = Modules({name: roots[name] for name in known})
    groups = _Linker(known, modules, known).group_files()
    return [_Linker(known, modules, g).join_files(g) if len(g) > 1 else g[0] for g in groups]


class _Linker:
    """Files that are joined to one text: what their names refer to, within the group, and how they are written."""

    def __init__(self, files: dict[str, _File], modules: Modules, group: Iterable[str]) -> None:
        self.files, self.modules, self.group = files, modules, frozenset(group)
        self.meanings: dict[Name, Name | _File | None] = {}
        self.operators: dict[str, set[Name]] = {}
        for file in files.values():
            if _OPERATOR.search(file.text):
                for qualname, name in iter_defined_operators(file.tree, partial(self._find_constant, file)):
                    self.operators.setdefault(qualname, set()).add(Name(file.name, name))

    def group_files(self) -> list[list[str]]:
        """Return the files, those together that import what Function classes need from each other."""
        group = {name: [name] for name in self.files}
        registered = self._list_registered()
        waiting = [*self._list_functions(), *(name for _, name in registered)]
        seen = set(waiting)
        pairs = [(file, name.file) for file, name in registered]
        while waiting:
            here = waiting.pop()
            needs = self._list_needs(here)
            waiting += needs - seen
            seen |= needs
            pairs += [(here.file, n.file) for n in needs]
        for one, other in pairs:
            if group[other] is not group[one]:
                joined = group[one] + group[other]
                group.update(dict.fromkeys(joined, joined))
        order = {name: i for i, name in enumerate(self.files)}
        return [sorted(g, key=order.__getitem__) for g in {id(g): g for g in group.values()}.values()]

    def _list_registered(self) -> list[tuple[str, Name]]:
        """Return names that lines read which register operators, `direct_register_custom_op("f", f)`, and the file."""
        calls = ((f, s) for f in self.files.values() for s in f.tree.body if isinstance(s, ast.Expr))
        lines = [(f, s) for f, s in calls if _OPERATOR.search(f.text) and _REGISTERS.search(ast.unparse(s))]
        return [(f.name, r.name) for f, s in lines for r in self._iter_references(f, [s])]

    def _list_functions(self) -> list[Name]:
        """Return the classes that may be Functions, by their bases, and the custom operators."""
        texts = ((f, s, ast.unparse(s)) for f in self.files.values() if _OPERATOR.search(f.text) for s in f.tree.body)
        defining = [(f, s) for f, s, text in texts if _REGISTERS.search(text)]
        found = [Name(f.name, n) for f, s in defining for n in f.list_bound(s)]
        classes = [(f, c) for f in self.files.values() for c in f.classes]
        derived: dict[Name, list[Name]] = {}
        for file, node in classes:
            here = Name(file.name, node.name)
            if any("Function" in ast.unparse(b) for b in node.bases):
                found.append(here)
            for base in node.bases:
                meaning = self._find_meaning(file, base.id) if isinstance(base, ast.Name) else None
                if isinstance(meaning, Name):
                    derived.setdefault(meaning, []).append(here)
        for name in found:  # which grows
            found += [d for d in derived.get(name, ()) if d not in found]
        return found

    def _list_needs(self, name: Name) -> set[Name]:
        """Return the names that the statements read which define a name."""
        file = self.files[name.file]
        return {r.name for r in self._iter_references(file, file.list_providers(name.name))}

    # ------------------------------------------------------------------------------------- what names mean

    def _find_module(self, file: _File, module: str, level: int) -> _File | None:
        """Return the file of an imported module."""
        found, _ = self.modules.find(file.name, module, level)
        return self.files[found] if found is not None else None

    def _find_meaning(self, file: _File, name: str, seen: frozenset[Name] = frozenset()) -> Name | _File | None:
        """Return what a name of the top level means: a name of a file, or a file."""
        here = Name(file.name, name)
        if here in seen:
            return None
        if here not in self.meanings:
            found = self._follow_name(file, name, here, seen)
            outside = isinstance(found, Name) and found.file not in self.group
            self.meanings[here] = None if outside else found
        return self.meanings[here]

    def _follow_name(self, file: _File, name: str, here: Name, seen: frozenset[Name]) -> Name | _File | None:
        if name not in file.bound:
            brought = (self._find_module(file, s.module or "", s.level) for s in file.stars)
            other = next((o for o in brought if o is not None and name in o.bound), None)
            return None if other is None or name[0] == "_" else self._find_meaning(other, name, seen | {here})
        found = file.find_import(name)
        if found is None:
            return here
        statement, alias = found
        if isinstance(statement, ast.Import):
            return self._find_module(file, alias.name, 0) if alias.asname or "." not in alias.name else None
        other = self._find_module(file, statement.module or "", statement.level)
        if other is not None and alias.name in other.bound:
            return self._find_meaning(other, alias.name, seen | {here})
        module = f"{statement.module}.{alias.name}" if statement.module else alias.name
        return self._find_module(file, module, statement.level)

    def _find_constant(self, file: _File, name: str) -> ast.expr | None:
        """Return the value of a name of a file, assigned in this or another file, if there is one assignment."""
        meaning = self._follow_name(file, name, Name(file.name, name), frozenset()) if name in file.bound else None
        if not isinstance(meaning, Name):
            return None
        given = self.files[meaning.file].list_providers(meaning.name)
        return given[0].value if len(given) == 1 and isinstance(given[0], ast.Assign) else None

    def _iter_operator_references(self, file: _File, nodes: Iterable[ast.AST]) -> Iterator[_Reference]:
        """Yield the references to operators of other files by their qualified names."""
        for node, qualname in iter_named_operators(nodes) if "torch.ops." in file.text and self.operators else ():
            found = self.operators.get(qualname, set())
            if len(found) == 1 and (name := next(iter(found))).file in self.group - {file.name}:
                free = (
                    name.name not in file.identifiers | file.bound.keys() or self._find_meaning(file, name.name) == name
                )
                yield _Reference(node, name.name if free else "", name)

    def _iter_references(self, file: _File, statements: Sequence[ast.stmt]) -> Iterator[_Reference]:
        yield from self._iter_operator_references(file, statements)
        for node in (n for s in statements for n in file.list_references(s)):
            if isinstance(node, ast.Attribute):
                assert isinstance(node.value, ast.Name)
                meaning = self._find_meaning(file, node.value.id)
                if isinstance(meaning, _File):
                    inner = self._find_meaning(meaning, node.attr)
                    if isinstance(inner, Name):
                        yield _Reference(node, ast.unparse(node) if inner.file == meaning.name else "", inner)
                elif meaning is not None:
                    yield _Reference(node.value, node.value.id, meaning)
                continue
            for name in (node.id,) if isinstance(node, ast.Name) else iter_bound_here(node):
                if isinstance(meaning := self._find_meaning(file, name), Name):
                    yield _Reference(node, name, meaning)

    # ---------------------------------------------------------------------------------------------- joining

    def join_files(self, group: Sequence[str]) -> Linked:
        """Return the text of files that import from each other."""
        references = {name: list(self._iter_references(self.files[name], self.files[name].tree.body)) for name in group}
        named = self._name_all(group, references)
        linked = Linked()
        lines: list[str] = []
        for file in map(self.files.__getitem__, group):
            edits = list(self._edit_imports(file, named))
            spelled: dict[str, str] = {}
            imports: dict[str, str] = {}
            for reference in references[file.name]:
                new = named[reference.name]
                if new != reference.spelled and reference.spelled:
                    spelled[new] = reference.spelled
                if new != reference.spelled or isinstance(reference.node, ast.Attribute):
                    edits += iter_renamings(reference.node, reference.spelled, new)
                if reference.name.file != file.name:
                    imports[new] = self._write_import(file, reference, new)
            for name in filter(lambda n: self._is_foreign(file, n), file.bound):
                new = named[Name(file.name, name)]
                if new != name:
                    spelled[new] = name
                    edits += [Edit(locate_node(n), new) for n in iter_reads(file.tree, name)]
            linked.starts[file.name] = len(lines)
            linked.spelled[file.name], linked.imports[file.name] = spelled, imports
            lines += apply_edits(file.text, edits)
        linked.text = "\n".join(lines) + "\n"
        return linked

    def _is_foreign(self, file: _File, name: str) -> bool:
        """Return whether a name is imported, and not from a file."""
        return file.find_import(name) is not None and self._find_meaning(file, name) is None

    def _name_all(self, group: Sequence[str], references: Mapping[str, list[_Reference]]) -> dict[Name, str]:
        """Return what the text calls each name of the files."""
        files = [self.files[name] for name in group]
        taken = {i for f in files for i in (*f.identifiers, *f.bound)}
        otherwise = {r.name for name in group for r in references[name] if r.spelled != r.name.name}
        meanings: dict[str, set[object]] = {}
        own: list[Name] = []
        for file in files:
            for name in file.bound:
                meaning: object = self._find_meaning(file, name)
                if meaning is None:
                    meaning = self._describe_import(file, name)
                if meaning == Name(file.name, name) or self._is_foreign(file, name):
                    own.append(Name(file.name, name))
                if not isinstance(meaning, _File):
                    meanings.setdefault(name, set()).add(meaning)
        found = {}
        for here in own:
            found[here] = here.name
            if len(meanings[here.name]) > 1 or here in otherwise:
                stem = re.sub(r"\W", "_", "_".join(self.modules.locations[here.file].module) or "init")
                new = f"{here.name}__{stem}"
                while new in taken:
                    new += "_"
                taken.add(new)
                found[here] = new
        return found

    def _edit_imports(self, file: _File, named: Mapping[Name, str]) -> Iterator[Edit]:
        """Yield imports without what they bring from files, and with the names of the text."""
        for node in file.imports:
            left = []
            for alias in node.names:
                name = name_alias(alias)
                meaning = self._find_meaning(file, name) if alias.name != "*" else None
                if not isinstance(meaning, Name) or meaning == Name(file.name, name):
                    new = named.get(Name(file.name, name), name)
                    plain = isinstance(node, ast.Import) and "." in alias.name and not alias.asname
                    left.append(alias if new == name or plain else ast.alias(alias.name, new))
            if left != node.names:
                kept: ast.stmt = ast.Pass()
                if left and isinstance(node, ast.ImportFrom):
                    kept = ast.ImportFrom(node.module, left, node.level)
                elif left:
                    kept = ast.Import(left)
                yield Edit(locate_node(node), ast.unparse(kept))

    def _write_import(self, file: _File, reference: _Reference, new: str) -> str:
        """Return the import that brings a name to a file, in the form for the port."""
        other, name = self.files[reference.name.file], reference.name.name
        local, _, last = reference.spelled.rpartition(".")
        path = self._write_module_path(file, other, reference.spelled.partition(".")[0])
        if not local:
            bound = last or new
            return f"from {path} import {name}" + (f" as {bound}" if bound != name else "")
        package, dot, module = path.rpartition(".")
        if not dot:
            return f"import {path}" + (f" as {local}" if local != path else "")
        package = package + "." if not package.strip(".") and path[0] == "." else package
        return f"from {package} import {module}" + (f" as {local}" if local != module else "")

    def _write_module_path(self, file: _File, other: _File, name: str) -> str:
        """Return how a file names the module of another in an import: from the folder if it does so, else by dots."""
        found = file.find_import(name)
        statement = found[0] if found else next(iter(file.stars), None)
        module, level = getattr(statement, "module", None), getattr(statement, "level", 0)
        last = [found[1].name] if found else []
        brought, kind = None, "dots"
        for spelled in (module, ".".join(([module] if module else []) + last)):
            if spelled and brought is None:
                brought, kind = self.modules.find(file.name, spelled, level)
        parts = self.modules.locations[other.name].module
        dots = self.modules.write_dots(file.name, parts)
        if kind == "folder":
            return ".".join(parts)
        return dots[1:] if kind == "next" and not dots.startswith("..") else dots

    def _describe_import(self, file: _File, name: str) -> object:
        """Return what a name means that is imported from elsewhere: two files may mean the same."""
        found = file.find_import(name)
        assert found is not None
        statement, alias = found
        if isinstance(statement, ast.Import):
            return alias.name if alias.asname else name
        return (
            self.modules.locations[file.name].package if statement.level else (),
            statement.level,
            statement.module,
            alias.name,
        )
