"""Names that statements bind, and objects that they may change."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Methods that change lists, dictionaries and sets; those of tensors end in an underscore.
_CHANGING = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
_CHANGING |= {"remove", "reverse", "setdefault", "sort", "update"}


def list_names(node: ast.AST) -> Iterator[str]:
    """Return the names that a top-level statement binds, without local names of functions and classes."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        yield node.name
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name).partition(".")[0] for a in node.names)
    elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            yield from list_names(child)


def walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return the nodes of statements, without those of functions and classes that they define."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _find_path(node: ast.AST) -> tuple[str, ...]:
    """Return the names that lead to an object: `("a", "b")` of `a.b`, `("a",)` of `a[0]`; () of a call."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        path = _find_path(node.value)
        return (*path, node.attr) if path and isinstance(node, ast.Attribute) else path
    return ()


def _changes(call: ast.Call) -> bool:
    """Return whether a call changes something, by its name: `x.zero_()`, `init.zeros_(x)`, `l.append(x)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in _CHANGING or (name.endswith("_") and not name.endswith("__"))


def list_changed(
    body: Iterable[ast.AST], functions: Mapping[str, ast.FunctionDef], seen: set[str]
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Return the objects that statements may change: the names that lead to each, and whether it is assigned to.

    A statement that is a call, whose result is dropped, may change whatever it names.

    Args:
        body: the statements.
        functions: those that the file defines, by name: what they change counts where they are called.
        seen: the functions that were looked at.
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
            own = {n for s in function.body for n in list_names(s)} | {
                a.arg for a in walk([function.args]) if isinstance(a, ast.arg)
            }
            yield from (
                (path, bound)
                for path, bound in list_changed(function.body, functions, seen)
                if path and path[0] not in own - outer
            )
