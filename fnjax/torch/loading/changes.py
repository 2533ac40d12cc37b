"""Search for the objects that statements may change."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from fnjax._torch_ops.syntax.trees import list_written, walk

# Methods that change lists, dictionaries and sets.
CHANGING = frozenset({
    "append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "add", "discard", "popitem", "sort",
    "reverse", "appendleft", "popleft",
})  # fmt: skip


def _find_path(node: ast.AST) -> tuple[str, ...]:
    """Return the path of an object by names: `("a", "b")` for `a.b`, `("a",)` for `a[0]`; () for a call."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        path = _find_path(node.value)
        return (*path, node.attr) if path and isinstance(node, ast.Attribute) else path
    return ()


def _changes(call: ast.Call) -> bool:
    """Return whether a call changes an object, judged by its name: `x.zero_()`, `init.zeros_(x)`, `l.append(x)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in CHANGING or (name.endswith("_") and not name.endswith("__"))


def list_changed(
    body: Iterable[ast.AST], functions: Mapping[str, ast.FunctionDef], seen: set[str]
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each object that statements may change, and whether it is assigned to.

    A call whose result is dropped may change all objects that it names.

    Args:
        body: the statements.
        functions: the functions that the file defines, by name; calls of them are followed.
        seen: the names of the functions that were followed already.
    """
    for node in walk(body):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield _find_path(node), True
        elif isinstance(node, ast.Expr) or (isinstance(node, ast.Call) and _changes(node)):
            yield from ((_find_path(n), False) for n in walk([node]) if isinstance(n, (ast.Name, ast.Attribute)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {*functions} - seen:
            seen.add(node.func.id)
            function = functions[node.func.id]
            outer = {n for s in walk(function.body) if isinstance(s, ast.Global) for n in s.names}
            yield from (((n,), True) for n in outer)
            own = list_written(function.body) | {a.arg for a in walk([function.args]) if isinstance(a, ast.arg)}
            yield from (
                (path, bound)
                for path, bound in list_changed(function.body, functions, seen)
                if path and path[0] not in own - outer
            )
