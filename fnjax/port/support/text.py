"""The source text of support functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def _functions() -> dict[str, tuple[str, ast.FunctionDef]]:
    """The support functions, each as text and as a tree."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno]), node
    return found


@cache
def _read(name: str) -> frozenset[str]:
    """The names that a support function reads."""
    return frozenset(n.id for n in ast.walk(_functions()[name][1]) if isinstance(n, ast.Name))


def support(needs: Iterable[str]) -> tuple[dict[str, str], frozenset[str]]:
    """The support functions of these names and those that they call.

    Returns:
        Their source texts by name, callees first; and those of jax, jnp, np and math that they need imported.
    """
    texts: dict[str, str] = {}
    imports: set[str] = set()

    def add(name: str) -> None:
        functions, read = _functions(), _read(name)
        for other in sorted(read & functions.keys() - {name} - texts.keys()):
            add(other)
        texts[name], _ = functions[name]
        imports.update(read & {"jax", "jnp", "np", "math"})

    for name in sorted(needs):
        if name not in texts:
            add(name)
    return texts, frozenset(imports)
