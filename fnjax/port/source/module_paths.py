"""Modules of a folder: which file an import names, and imports in the form that a port can have."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fnjax.port.source.edits import Edit, apply_edits, locate_node

Parts = tuple[str, ...]


class Place(NamedTuple):
    """Where a file is.

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
        self.places = {name: _place_file(name, root) for name, root in roots.items()}
        self.names = {(p.folder, p.module): name for name, p in self.places.items()}

    def find(self, name: str, module: str, level: int = 0) -> tuple[str | None, str]:
        """Return the file of a module that a file imports, if it is one of these, and what it is named from.

        That is `folder`, `above` (the folder's own names come first), `next` (the file's own package) or `dots`.
        """
        folder, package, _ = self.places[name]
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
        package, shared = self.places[name].package, 0
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
                module = self.places[found].module
                dots = self.write_dots(name, module if path == node.module else module[:-1])
                return ast.unparse(node).replace(f"from {node.module} ", f"from {dots} ", 1)
        return ast.unparse(node)

    def _write_alias(self, name: str, alias: ast.alias) -> str:
        found, kind = self.find(name, alias.name)
        if found is None or kind != "above" or not alias.asname or not self.places[found].module:
            return ast.unparse(ast.Import([alias]))
        *package, last = self.places[found].module
        return f"from {self.write_dots(name, tuple(package))} import {ast.unparse(ast.alias(last, alias.asname))}"


def _place_file(name: str, root: str) -> Place:
    folder = Path(root).resolve()
    parts = Path(name).resolve().relative_to(folder).with_suffix("").parts
    return Place(folder.parts, parts[:-1], parts[:-1] if parts[-1] == "__init__" else parts)


def _name_modules(text: str, tree: ast.Module, is_known: Callable[[str], bool]) -> str:
    """Return the text with `import pkg.util as pkg_util` for `import pkg.util`, and what is read of it."""
    nodes = list(ast.walk(tree))
    aliases = [(n, a) for n in nodes if isinstance(n, ast.Import) for a in n.names]
    plain = [a.name for _, a in aliases if not a.asname]
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    edits = []
    for root in {p.partition(".")[0] for p in plain}:
        paths = {p: p.replace(".", "_") for p in plain if p.partition(".")[0] == root}
        uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == root]
        reads = [(n, paths[p]) for n in nodes if isinstance(n, ast.Attribute) and (p := ast.unparse(n)) in paths]
        known = all("." in p and is_known(p) for p in paths) and len(reads) == len(uses)
        if known and not names & {*paths.values()} and not any(isinstance(n, ast.arg) and n.arg == root for n in nodes):
            edits += [Edit(locate_node(n), new) for n, new in reads]
            for node in {n: None for n, a in aliases if a.name in paths and not a.asname}:
                named = [ast.alias(a.name, a.asname or paths.get(a.name)) for a in node.names]
                edits.append(Edit(locate_node(node), ast.unparse(ast.Import(named))))
    return "\n".join(apply_edits(text, edits)) if edits else text
