"""Which `while` waits for memory: what decides about its next turn is read from the loop itself."""

import ast
import functools


@functools.cache
def decisive(node):
    """The names that decide whether a `while` goes on, and whether each turn makes them of the turn before.

    A turn that leaves these names and memory as they were is repeated for ever. Where no name depends on itself, as in
    `while tl.load(flag) == 0: turns += 1`, memory alone decides: such a loop waits for what other programs write.
    """
    sources: dict[str, set[str]] = {}
    _read(node.body, set(), sources)
    found, todo = set(), _loaded(node.test)
    while todo:
        name = todo.pop()
        if name in sources and name not in found:
            found.add(name)
            todo |= sources[name]
    return tuple(sorted(found)), any(_reaches(name, name, sources) for name in found)


def _read(statements, around, sources):
    """For each name that statements set, the names that its value is made of; `around` decides whether it is set."""
    for node in statements:
        if isinstance(node, ast.If | ast.While):
            inner = around | _loaded(node.test)
        elif isinstance(node, ast.For):
            inner = around | _loaded(node.iter)
            _set(node.target, inner, sources)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            own = _loaded(node.value) | around
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _set(target, own | (_named(target) if isinstance(node, ast.AugAssign) else set()), sources)
            continue
        else:
            continue
        for part in (node.body, node.orelse):
            _read(part, inner, sources)


def _set(target, made_of, sources):
    for name in _named(target):
        sources.setdefault(name, set()).update(made_of)


def _named(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _loaded(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _reaches(name, goal, sources):
    seen, todo = set(), set(sources.get(name, ()))
    while todo:
        one = todo.pop()
        if one == goal:
            return True
        if one not in seen:
            seen.add(one)
            todo |= sources.get(one, set())
    return False
