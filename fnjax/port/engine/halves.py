"""Which statements of a file become JAX source, where some of its classes cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import libcst as cst

from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.program import Class, Program
from fnjax.port.result import Finding, PortedClass
from fnjax.port.source.naming import collect_read_names, iter_bindings, list_changed_names
from fnjax.port.tree.located import list_nodes

_DIFFERS = "it takes a key, or returns what it writes to"


class Halves(NamedTuple):
    """The two halves of a port.

    Attributes:
        classes: the classes and operators, those that could not be translated as "as_is".
        top_items: the statements of the JAX half.
        in_jax: the names of the classes, operators and wrappers in it.
        shared: those of them that the other half may call as PyTorch calls them; it has the others for itself.
        bound: all names in it.
        kept: the names that the other half must have.
    """

    classes: tuple[PortedClass, ...]
    top_items: dict[cst.CSTNode, TopItem]
    in_jax: frozenset[str]
    shared: frozenset[str]
    bound: frozenset[str]
    kept: frozenset[str]


def divide(
    program: Program,
    functions: Sequence[Class],
    classes: Sequence[PortedClass],
    top_items: Mapping[cst.CSTNode, TopItem],
    find_file: Callable[[cst.CSTNode], str] = lambda statement: "",
) -> Halves:
    """Divide a file: what is translated whole, with all that it needs, and the rest.

    Args:
        program: the file.
        functions: its classes and operators.
        classes: what became of each.
        top_items: the translated statements.
        find_file: what returns the name of a statement's file, where several are ported together.
    """
    broken = {c.top for c, made in zip(functions, classes, strict=True) if made.status != "ported"}
    while True:
        halves = _divide(program, functions, classes, top_items, broken)
        shared = _find_shared_state(program, top_items, halves)
        whole = [c for c in functions if c.top not in broken]
        closed = {c: close(program, [c.top], top_items) for c in whole} if shared else {}
        torn = {
            c: _describe_state(s) for c, found in closed.items() if (s := next((s for s in shared if s in found), None))
        }
        for c in whole:
            if c.name in halves.in_jax - halves.shared and _is_read_elsewhere(program, c, halves, find_file):
                torn[c] = f"PyTorch source of another file calls {c.name}, whose apply differs in JAX: {_DIFFERS}"
        if not torn:
            return halves
        found = [(*program.source.locate(c.node), "unknown", torn[c]) if c in torn else None for c in functions]
        classes = [
            replace(m, findings=(*m.findings, Finding(*f))) if f else m for m, f in zip(classes, found, strict=True)
        ]
        broken |= {c.top for c in torn}


def _describe_state(statement: cst.CSTNode) -> str:
    names = ", ".join(sorted(_list_bound([statement])))
    return f"functions change {names}, and some that read or change it stay PyTorch source: they must share it"


def _is_read_elsewhere(program: Program, cls: Class, halves: Halves, find_file: Callable[[cst.CSTNode], str]) -> bool:
    """Return whether PyTorch source of another file reads a class."""
    others = (s for s in program.source.tree.body if s not in halves.top_items and find_file(s) != find_file(cls.top))
    return cls.name in collect_read_names(s for s in others if isinstance(s, (cst.FunctionDef, cst.ClassDef)))


def _divide(
    program: Program,
    functions: Sequence[Class],
    classes: Sequence[PortedClass],
    top_items: Mapping[cst.CSTNode, TopItem],
    broken: set[cst.CSTNode],
) -> Halves:
    """Divide a file with these statements of classes in the other half."""
    made = tuple(replace(m, status="as_is") if c.top in broken else m for c, m in zip(functions, classes, strict=True))
    roots = [s for c in functions if c.top not in broken for s in _list_statements(program, c) if s in top_items]
    lost = {s for c in functions if c.top in broken for s in _list_statements(program, c)}
    selected = close(program, roots, top_items)
    needed = close(program, lost, top_items)
    for statement in top_items.keys() - needed - selected.keys():  # wrappers of classes
        closed = close(program, [statement], top_items)
        if not closed.keys() & broken:
            selected |= closed
            roots.append(statement)
    own = {s: u for s, u in top_items.items() if s in selected}
    in_jax = _list_bound(roots)
    shared = in_jax - _list_bound(_list_called_otherwise(program, functions, roots, top_items))
    kept = _list_bound(lost) | {n for s in lost if not _list_bound([s]) for n in collect_read_names([s])}
    return Halves(made, own, in_jax, shared, _list_bound(own), kept - in_jax)


def _list_called_otherwise(
    program: Program,
    functions: Sequence[Class],
    roots: Sequence[cst.CSTNode],
    top_items: Mapping[cst.CSTNode, TopItem],
) -> list[cst.CSTNode]:
    """Return classes and wrappers of the JAX half that take a key, or return what the source writes to an argument."""
    operators = {c.top for c in functions if "::" in c.name}  # called by name, as before
    forwards = {s: [program.find_method(c, "forward") for c in functions if c.top is s] for s in roots}
    known = {s: [r for r in (*forwards[s], program.routines.get(s)) if r is not None] for s in roots}
    own = {
        s
        for s, routines in known.items()
        if any(r.writes or r.gives or r.draws or program.draws_random_numbers(r) for r in routines)
    } - operators
    return [s for s in roots if s not in operators and close(program, [s], top_items).keys() & own] if own else []


def _find_shared_state(program: Program, top_items: Mapping[cst.CSTNode, TopItem], halves: Halves) -> list[cst.CSTNode]:
    """Return what functions of the file change, and both halves would have for themselves: `_scale = 1.0`."""
    definitions, in_jax, twice = program.source.definitions, halves.top_items, halves.in_jax - halves.shared
    state = {n for f in list_nodes(program.source.tree, cst.FunctionDef) for n in list_changed_names(f, definitions)}
    others = [
        s for s in program.source.tree.body if s not in in_jax and (s in top_items or isinstance(s, cst.ClassDef))
    ]
    own = [s for s in in_jax if _list_bound([s]) & twice]
    seen = collect_read_names(s for s in [*others, *own] if isinstance(s, (cst.FunctionDef, cst.ClassDef))) & state
    return [s for s in in_jax if not isinstance(s, (cst.FunctionDef, cst.ClassDef)) and _list_bound([s]) & seen]


def _list_statements(program: Program, cls: Class) -> list[cst.CSTNode]:
    own = (s for s in program.source.providers.get(cls.name, ()) if not isinstance(s, cst.ClassDef))
    return [cls.top, *cls.next_to, *own]


def _list_bound(statements: Iterable[cst.CSTNode]) -> frozenset[str]:
    return frozenset(n for s in statements for n, _ in iter_bindings(s))


def close(
    program: Program,
    roots: Iterable[cst.CSTNode],
    top_items: Mapping[cst.CSTNode, TopItem],
    but: cst.CSTNode | None = None,
) -> dict[cst.CSTNode, TopItem]:
    """Return statements with all that they need, without one of them."""
    found: dict[cst.CSTNode, TopItem] = {}
    waiting = list(roots)
    while waiting:
        statement = waiting.pop()
        if statement is not but and statement in top_items and statement not in found:
            top_item = found[statement] = top_items[statement]
            waiting += list_providers(program, top_item.list_names_read(), top_item)
    return found


def list_providers(program: Program, names: Iterable[str], top_item: TopItem) -> list[cst.CSTNode]:
    """Return the statements that bind names, and those that define the operators that a statement looks up."""
    operators = [c for n in top_item.list_operators() if (c := program.classes.get(n)) is not None]
    named = [s for n in names for s in program.source.providers.get(n, ())]
    return named + [s for c in operators for s in (c.top, *c.next_to)]
