"""Pieces of Python's syntax trees that lowering makes and looks for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

RUNTIME = "__fnjax_run__"
BUILTINS = frozenset(
    {"int", "float", "bool", "range", "isinstance", "max", "min", "round", "abs", "sum", "any", "all", "len"}
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Names:
    """Generator of new names of variables."""

    def __init__(self) -> None:
        self.count = 0

    def new(self, what: str) -> str:
        """Return a name that no source has."""
        self.count += 1
        return f"__fnjax_{what}_{self.count}"


def walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return the nodes of statements, without those of inner functions and classes."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def load(name: str) -> ast.Name:
    """Return the value of a variable."""
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr) -> ast.Assign:
    """Return an assignment to a variable."""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def call(function: str, *args: ast.expr) -> ast.Call:
    """Return a call of the runtime."""
    return ast.Call(ast.Attribute(load(RUNTIME), function, ast.Load()), list(args), [])


def negate(name: str) -> ast.expr:
    """Return `not name`."""
    return ast.UnaryOp(ast.Not(), load(name))
