"""Pieces of Python's syntax trees that lowering makes and looks for."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

RUNTIME = "__fnjax_run__"
ARRAYS = "__fnjax_arrays__"  # a builtin name of files that have no arrays of JAX
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Names:
    """Generator of new names of variables."""

    def __init__(self) -> None:
        self.count = 0

    def new(self, what: str) -> str:
        """Return a name that no source has, and that a class does not mangle."""
        self.count += 1
        return f"__fnjax_{what}_{self.count}__"


def walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return the nodes of statements that belong to their scope: not those of inner functions and comprehensions."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.ClassDef):
            waiting += [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += [*getattr(node, "decorator_list", ()), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.comprehension):
            waiting += [node.iter, *node.ifs]
        else:
            waiting += ast.iter_child_nodes(node)


def list_written(body: Iterable[ast.AST]) -> set[str]:
    """Return the names that statements bind or delete."""
    found = set[str]()
    for node in walk(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found


def list_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement."""
    if isinstance(statement, SCOPES):
        return []
    found = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
    found += [inner.body for name in ("handlers", "cases") for inner in getattr(statement, name, ())]
    return [b for b in found if b]


def map_parts(
    statement: ast.stmt, block: Callable[[list[ast.stmt]], list[ast.stmt]], expression: Callable[[Any], Any]
) -> Any:
    """Return a copy of a statement with functions applied to its blocks and to its other expressions."""
    made = copy.copy(statement)
    for name, value in ast.iter_fields(statement):
        new: Any
        if name in {"body", "orelse", "finalbody"} and isinstance(value, list):
            new = block(value) or ([ast.copy_location(ast.Pass(), statement)] if value else [])
        elif name in {"handlers", "cases"}:
            new = [map_parts(inner, block, expression) for inner in value]
        elif isinstance(value, list):
            new = [expression(v) if isinstance(v, ast.AST) else v for v in value]
        else:
            new = expression(value) if isinstance(value, ast.AST) else value
            if name == "subject":  # of a match statement, which reads its type
                new = call("known", new)
        setattr(made, name, new)
    return made


def load(name: str) -> ast.Name:
    """Return the value of a variable."""
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr) -> ast.Assign:
    """Return an assignment to a variable."""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def bind(name: str, value: ast.expr) -> ast.NamedExpr:
    """Return `(name := value)`."""
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def call(function: str, *args: ast.expr) -> ast.Call:
    """Return a call of the runtime."""
    return ast.Call(ast.Attribute(load(RUNTIME), function, ast.Load()), list(args), [])


def delay(value: ast.expr, *args: str) -> ast.Lambda:
    """Return `lambda *args: value`."""
    return ast.Lambda(ast.arguments([], [ast.arg(a) for a in args], None, [], [], None, []), value)


def compare(name: str, operator: ast.cmpop, value: bool) -> ast.Compare:
    """Return `name is True`, or another comparison with a bool."""
    return ast.Compare(load(name), [operator], [ast.Constant(value)])
