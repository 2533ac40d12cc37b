"""References to the top level of a file, by the rules of Python's scopes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SCOPES = (*NAMED, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def name_alias(alias: ast.alias) -> str:
    """Return the name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def iter_inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, those of inner scopes left out (what they bind in this one comes along)."""
    waiting = [*ast.iter_child_nodes(node)][::-1]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, SCOPES):
            waiting += [*ast.iter_child_nodes(child)][::-1]


def iter_bound_here(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node itself binds in its scope."""
    if isinstance(node, NAMED):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (name_alias(a) for a in node.names if a.name != "*")
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    elif isinstance(node, ast.Global):
        yield from node.names


def collect_bound(statement: ast.AST) -> set[str]:
    """Return the names that a statement binds in its scope, `*` where it imports all of a module."""
    nodes = [statement] if isinstance(statement, SCOPES) else [statement, *iter_inside(statement)]
    everything = {"*"} if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*" else set[str]()
    return everything.union(*map(iter_bound_here, nodes))


def iter_top_level_references(nodes: Iterable[ast.AST], hidden: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """Yield the names and attributes (`b.f`), definitions and `global` statements that refer to the top level.

    Args:
        nodes: where they are.
        hidden: the names that mean something else there.
    """
    for node in nodes:
        base = node.value if isinstance(node, ast.Attribute) else node
        if isinstance(base, ast.Name):
            if base.id not in hidden:
                yield node
            continue
        if isinstance(node, ast.Global):
            yield node
        if not isinstance(node, SCOPES):
            yield from iter_top_level_references(ast.iter_child_nodes(node), hidden)
            continue
        if isinstance(node, NAMED) and node.name not in hidden:
            yield node
        outside, parameters, body = _split_scope(node)
        yield from iter_top_level_references(outside, hidden)
        inside = [*iter_inside(node)]
        own = parameters | {n for inner in inside for n in iter_bound_here(inner)}
        own -= {n for inner in inside if isinstance(inner, ast.Global) for n in inner.names}
        for part in body:  # methods do not see what the class binds
            method = isinstance(node, ast.ClassDef) and isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from iter_top_level_references([part], hidden if method else hidden | own)


def _split_scope(node: ast.AST) -> tuple[list[ast.AST], set[str], list[ast.AST]]:
    """Return the nodes of a scope outside of it (defaults, decorators), its parameters, and the nodes inside."""
    body = getattr(node, "body", None)
    if body is None:  # a comprehension
        return [], set(), list(ast.iter_child_nodes(node))
    outside = [*getattr(node, "decorator_list", ()), *getattr(node, "bases", ()), *getattr(node, "keywords", ())]
    outside += filter(None, [getattr(node, "returns", None)])
    parameters: set[str] = set()
    given = getattr(node, "args", None)
    if isinstance(given, ast.arguments):
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
        outside += [*given.defaults, *filter(None, given.kw_defaults), *(a.annotation for a in every if a.annotation)]
        parameters = {a.arg for a in every}
    return outside, parameters, body if isinstance(body, list) else [body]


def iter_reads(tree: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield the places that read a name of the top level."""
    for node in iter_top_level_references([tree]):
        base = node.value if isinstance(node, ast.Attribute) else node
        if isinstance(base, ast.Name) and base.id == name:
            yield base
