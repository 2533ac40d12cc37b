"""Pieces of Python's syntax trees that lowering makes and looks for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

RUNTIME = "__fnjax_run__"
BUILTINS = frozenset(
    {"int", "float", "bool", "range", "isinstance", "max", "min", "round", "abs", "sum", "any", "all", "len", "sorted"}
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


class Closure(NamedTuple):
    """A function defined within another: its name, its node, and the variables of the other that it may have."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    captured: set[str]


def list_closures(body: Iterable[ast.AST]) -> list[Closure]:
    """Return the functions that statements define under a name."""
    found = list[Closure]()
    for node in walk(body):
        if isinstance(node, ast.FunctionDef):
            found.append(Closure(node.name, node, _list_captured(node, node.body)))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            captured = _list_captured(node.value, [node.value.body])
            found += [Closure(t.id, node.value, captured) for t in node.targets if isinstance(t, ast.Name)]
    return found


def _list_captured(function: ast.FunctionDef | ast.Lambda, body: Iterable[ast.AST]) -> set[str]:
    own = [*walk(body)]
    bound = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)}
    bound |= {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound -= {name for n in own if isinstance(n, ast.Nonlocal) for name in n.names}
    return {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} - bound


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
