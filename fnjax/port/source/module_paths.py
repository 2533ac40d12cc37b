"""Modules of a folder: which file an import names, and imports in the form that a port can have."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fnjax.port.source.edits import Edit, apply_edits, locate_node

Parts = tuple[str, ...]


class FileLocation(NamedTuple):
    """Location of a file among the packages that are ported together.

    Attributes:
        folder: the folder that the modules are named from.
        package: the package of the file, named from there.
        module: the file itself as a module.
    """

    folder: Parts
    package: Parts
    module: Parts


class Modules:
    """The files by their modules.

    Args:
        roots: for each file the folder that its modules are named from.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        self.locations = {name: _locate_file(name, root) for name, root in roots.items()}
        self.names = {(p.folder, p.module): name for name, p in self.locations.items()}

    def find(self, name: str, module: str, level: int = 0) -> tuple[str | None, str]:
        """Return the file of a module that a file imports, if it is one of these, and what it is named from.

        That is `folder`, `above` (the folder's own names come first), `next` (the file's own package) or `dots`.
        """
        folder, package, _ = self.locations[name]
        parts = tuple(module.split(".")) if module else ()
        if level:
            start = package[: len(package) - level + 1]
            return self.names.get((folder, (*start, *parts))) if level - 1 <= len(package) else None, "dots"
        if parts[0] in sys.stdlib_module_names or parts[0] == "torch":
            return None, ""
        for skipped in range(len(parts) + 1):
            if skipped == 0 or folder[-skipped:] == parts[:skipped]:
                found = self.names.get((folder, parts[skipped:]))
                if found is not None:
                    return found, "above" if skipped else "folder"
        return self.names.get((folder, (*package, *parts))), "next"

    def write_dots(self, name: str, module: Parts) -> str:
        """Return how a file names a module of its folder by dots."""
        package, shared = self.locations[name].package, 0
        while shared < min(len(package), len(module) - 1) and package[shared] == module[shared]:
            shared += 1
        return "." * (len(package) - shared + 1) + ".".join(module[shared:])

    def normalize_imports(self, name: str, text: str) -> str:
        """Return the text of a file with imports that hold wherever its port is; each line stays a line.

        `import pkg.util` becomes `import pkg.util as pkg_util`, and what is read of it with it; where `pkg` is the
        folder itself, that and `from pkg.util import half` become `from . import util as pkg_util` and
        `from .util import half`.
        """
        try:
            text = _name_modules(text, ast.parse(text), lambda path: self.find(name, path)[0] is not None)
            nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Import, ast.ImportFrom))]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
        made = [(n, self._write_import(name, n)) for n in nodes]
        edits = [Edit(locate_node(n), new) for n, new in made if new != ast.unparse(n)]
        return "\n".join(apply_edits(text, edits)) if edits else text

    def _write_import(self, name: str, node: ast.Import | ast.ImportFrom) -> str:
        """Return an import, by dots if it names the folder itself."""
        if isinstance(node, ast.Import):
            return "; ".join(self._write_alias(name, alias) for alias in node.names)
        if node.level or node.module is None:
            return ast.unparse(node)
        for path in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
            found, kind = self.find(name, path)
            if found is not None and kind == "above":
                module = self.locations[found].module
                dots = self.write_dots(name, module if path == node.module else module[:-1])
                return ast.unparse(node).replace(f"from {node.module} ", f"from {dots} ", 1)
        return ast.unparse(node)

    def _write_alias(self, name: str, alias: ast.alias) -> str:
        found, kind = self.find(name, alias.name)
        if found is None or kind != "above" or not alias.asname or not self.locations[found].module:
            return ast.unparse(ast.Import([alias]))
        *package, last = self.locations[found].module
        return f"from {self.write_dots(name, tuple(package))} import {ast.unparse(ast.alias(last, alias.asname))}"


def _locate_file(name: str, root: str) -> FileLocation:
    folder = Path(root).resolve()
    parts = Path(name).resolve().relative_to(folder).with_suffix("").parts
    return FileLocation(folder.parts, parts[:-1], parts[:-1] if parts[-1] == "__init__" else parts)


def _name_modules(text: str, tree: ast.Module, is_known: Callable[[str], bool]) -> str:
    """Return the text with `import pkg.util as pkg_util` for `import pkg.util`, and what is read of it."""
    nodes = list(ast.walk(tree))
    imports = [n for n in nodes if isinstance(n, ast.Import) and any(not a.asname for a in n.names)]
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    edits, imported = [], dict[ast.Import, list[ast.alias]]()
    for root in sorted({a.name.partition(".")[0] for n in imports for a in n.names if not a.asname}):
        reads: dict[ast.AST, tuple[ast.Attribute, str]] = {}  # by the name that each begins with the longest path
        for node in reversed(nodes):
            path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Attribute) and path.startswith(f"{root}.") and is_known(path):
                reads[next(n for n in ast.walk(node) if isinstance(n, ast.Name))] = node, path
        paths = {path for _, path in reads.values()}
        uses = sum(isinstance(n, ast.Name) and n.id == root for n in nodes)
        if not reads or len(reads) != uses or names & {p.replace(".", "_") for p in paths}:
            continue
        if any(isinstance(n, ast.arg) and n.arg == root for n in nodes):
            continue
        edits += [Edit(locate_node(node), path.replace(".", "_")) for node, path in reads.values()]
        brought = {n: {a.name for a in n.names if not a.asname and a.name.partition(".")[0] == root} for n in imports}
        others = paths.difference(*brought.values())  # what no import names comes with the first of them
        for statement, own in brought.items():
            if own:
                named = [ast.alias(p, p.replace(".", "_")) for p in sorted((paths & own) | others)]
                kept = [a for a in imported.get(statement, statement.names) if a.asname or a.name not in own]
                imported[statement] = kept + named
                others = set()
    edits += [Edit(locate_node(n), ast.unparse(ast.Import(a)) if a else "pass") for n, a in imported.items()]
    return "\n".join(apply_edits(text, edits)) if edits else text
