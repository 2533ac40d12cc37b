"""Report on a loaded file: which functions were lowered, and which names fnjax.torch does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from fnjax._torch_ops.syntax.trees import RUNTIME
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.errors import NotSupported
from fnjax.torch.loading.torch_modules import LibraryModule


def list_lowered(names: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions, and of the methods of classes, whose control flow was lowered."""
    members = dict(names)
    for name, value in names.items():
        if isinstance(value, type):
            members |= {f"{name}.{n}": getattr(m, "__func__", m) for n, m in vars(value).items()}
    codes = {name: getattr(member, "__code__", None) for name, member in members.items()}
    return [n for n, c in codes.items() if c and any(v.startswith("__fnjax_") and v != RUNTIME for v in c.co_varnames)]


def list_absent(tree: ast.Module, names: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the lines that read a name which does not exist, or that failed, with the reasons.

    Args:
        tree: the file as it is written.
        names: its global names.
    """
    nodes: Iterator[Any] = ast.walk(tree)
    return sorted({(node.lineno, _describe(e)) for node in nodes for e in _find_refusals(node, tree, names)})


def _find_refusals(node: Any, tree: ast.Module, names: Mapping[str, Any]) -> Iterator[NotSupported]:
    bound: list[str] = []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        bound = [(a.asname or a.name).partition(".")[0] for a in node.names]
    elif isinstance(node, ast.Assign) and node in tree.body:
        bound = [ast.unparse(t) for t in node.targets]
    yield from (found.refuse() for found in map(names.get, bound) if isinstance(found, Missing))
    path = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    try:
        while path and isinstance(value, LibraryModule):
            value = getattr(value, path.pop())
    except NotSupported as e:
        yield e


def _describe(refusal: NotSupported) -> str:
    return f"{refusal.what}; {refusal.remedy}" if refusal.remedy else refusal.what
