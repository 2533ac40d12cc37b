"""The source text of support functions."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

MODULES = frozenset({"jax", "jnp", "np"}) | sys.stdlib_module_names


@cache
def _functions() -> dict[str, str]:
    """Return the source texts of the support functions."""
    found = {}
    for path in sorted(files("fnjax._torch_ops.jax_functions").iterdir(), key=lambda path: path.name):
        text = path.read_text(encoding="utf-8") if path.name.endswith(".py") else ""
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


@cache
def _names_read(name: str) -> frozenset[str]:
    """Return the names of its file and of modules that a support function reads."""
    return frozenset(_read(symtable.symtable(_functions()[name], name, "exec")))


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names from outside that functions read."""
    for inner in table.get_children():
        yield from (s.get_name() for s in inner.get_symbols() if s.is_global())
        yield from _read(inner)


def support(needs: Iterable[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Return the support functions of these names and those that they call.

    Returns:
        Their source texts by name, callees first; and the modules that they need imported: jax, jnp, np, Python's.
    """
    texts: dict[str, str] = {}
    imports: set[str] = set()

    def add(name: str) -> None:
        functions, read = _functions(), _names_read(name)
        for other in sorted(read & functions.keys() - {name} - texts.keys()):
            add(other)
        texts[name] = functions[name]
        imports.update(read & MODULES)

    for name in sorted(needs):
        if name not in texts:
            add(name)
    return texts, frozenset(imports)
