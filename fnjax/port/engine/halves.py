"""Which statements of a file become JAX source, where some of its classes cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import libcst as cst

from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.program import Class, Program
from fnjax.port.result import Finding, PortedClass
from fnjax.port.rewrite.calls.pytorch_calls import stays_pytorch
from fnjax.port.source.naming import collect_read_names, iter_bindings

_DEFINITIONS = (cst.FunctionDef, cst.ClassDef)


class Halves(NamedTuple):
    """The two halves of a port: JAX source, and PyTorch source in a block that fnjax.torch executes.

    Attributes:
        classes: the classes and operators; those in the block have the status "as_is".
        top_items: the statements that are JAX source.
        in_jax: the names of the classes, operators and wrappers that these define.
        shared: the names of `in_jax` that the block may call as PyTorch calls them; of the others it has a copy.
        bound: all names that the JAX source binds.
        kept: the names that the block must bind.
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
    """Divide a file into the statements that are translated whole, with all that they need, and the rest.

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
        whole = [c for c in functions if c.top not in broken]
        torn = _find_torn(program, whole, top_items, halves) | _find_called_elsewhere(program, whole, halves, find_file)
        if not torn:
            return halves
        classes = [
            replace(m, findings=(*m.findings, Finding(*program.source.locate(c.node), "unknown", torn[c])))
            if c in torn
            else m
            for c, m in zip(functions, classes, strict=True)
        ]
        broken |= {c.top for c in torn}


def _find_torn(
    program: Program, classes: Sequence[Class], top_items: Mapping[cst.CSTNode, TopItem], halves: Halves
) -> dict[Class, str]:
    """Return the classes that need a global variable which both halves would have and functions change, with a reason.

    Such as `_scale = 1.0`, which a function of each half reads or changes.
    """
    in_jax, twice = halves.top_items, halves.in_jax - halves.shared
    others: list[cst.CSTNode] = [
        s for s in program.source.tree.body if s not in in_jax and (s in top_items or isinstance(s, cst.ClassDef))
    ]
    others += [s for s in in_jax if _list_bound([s]) & twice]
    state = program.changed_in_functions
    seen = state & collect_read_names(s for s in others if isinstance(s, _DEFINITIONS)) if state else state
    shared = [s for s in in_jax if not isinstance(s, _DEFINITIONS) and _list_bound([s]) & seen]
    found = {}
    for cls in classes if shared else ():
        closed = close(program, [cls.top], top_items)
        for statement in [s for s in shared if s in closed][:1]:
            names = ", ".join(sorted(_list_bound([statement])))
            found[cls] = (
                f"functions change {names}, and some that read or change it stay PyTorch source: they must share it"
            )
    return found


def _find_called_elsewhere(
    program: Program, classes: Sequence[Class], halves: Halves, find_file: Callable[[cst.CSTNode], str]
) -> dict[Class, str]:
    """Return the classes whose apply differs in JAX and that PyTorch source of another file calls, with a reason."""
    differing = [c for c in classes if c.name in halves.in_jax - halves.shared]
    read: dict[str, set[str]] = defaultdict(set)  # by file
    for statement in program.source.tree.body if differing else ():
        if statement not in halves.top_items and isinstance(statement, _DEFINITIONS):
            read[find_file(statement)] |= collect_read_names([statement])
    return {
        c: f"PyTorch source of another file calls {c.name}, whose apply differs in JAX: "
        "it takes a key, or returns what it writes to"
        for c in differing
        if any(c.name in names for file, names in read.items() if file != find_file(c.top))
    }


def _divide(
    program: Program,
    functions: Sequence[Class],
    classes: Sequence[PortedClass],
    top_items: Mapping[cst.CSTNode, TopItem],
    broken: set[cst.CSTNode],
) -> Halves:
    """Divide a file; the classes of the statements `broken` stay PyTorch source."""
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
    kept |= {n for u in own.values() for n in u.list_names_read() if stays_pytorch(program, n)}
    return Halves(made, own, in_jax, shared, _list_bound(own), kept - in_jax)


def _list_called_otherwise(
    program: Program,
    functions: Sequence[Class],
    roots: Sequence[cst.CSTNode],
    top_items: Mapping[cst.CSTNode, TopItem],
) -> list[cst.CSTNode]:
    """Return classes and wrappers of the JAX half that take a key, or return what the source writes to an argument."""
    operators = {c.top for c in functions if "::" in c.name}  # called by name, as before
    methods = [(c.top, program.find_method(c, "forward")) for c in functions]
    routines = [*methods, *((s, program.routines.get(s)) for s in roots)]
    own = {
        s for s, r in routines if r and (r.writes or r.gives or r.draws or program.draws_random_numbers(r))
    } - operators
    return (
        [s for s in roots if s not in operators and not own.isdisjoint(close(program, [s], top_items))] if own else []
    )


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
    """Return statements with all that they depend on; `but` is left out."""
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
