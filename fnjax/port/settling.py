"""What functions of a file say of each other: its units are translated until that no longer changes."""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.located import nodes
from fnjax.port.naming import Source
from fnjax.port.operations import code
from fnjax.port.program import Class, Program
from fnjax.port.result import Finding
from fnjax.port.rules import definitions
from fnjax.port.terms import Unit
from fnjax.port.units import is_import, translate_units

_ROUNDS = 3  # beside one for each function, until what functions say of each other must have settled


def find_parts(program: Program, functions: list[Class]) -> list[frozenset[cst.CSTNode]]:
    """The statements of the top level that have to do with each other: what one tells may be news to the others."""
    source = program.source
    found: list[frozenset[cst.CSTNode]] = []
    by_name: dict[str, list[cst.CSTNode]] = {}
    linked: dict[cst.CSTNode, set[cst.CSTNode]] = {s: set() for s in source.tree.body}
    for statement in source.tree.body:
        for name in {n.value for n in nodes(statement) if isinstance(n, cst.Name)} & source.providers.keys():
            by_name.setdefault(name, []).append(statement)
    for name, users in by_name.items():
        for provider in source.providers[name]:
            if not is_import(provider):
                linked[provider].update(users)
                for user in users:
                    linked[user].add(provider)
    for cls in functions:
        for other in (*cls.beside, *_readers(source, cls.name)):
            linked[cls.top].add(other)
            linked[other].add(cls.top)
    for cls in functions:
        if not any(cls.top in part for part in found):
            part, waiting = set(), [cls.top]
            while waiting:
                if (first := waiting.pop()) not in part:
                    part.add(first)
                    waiting += linked[first]
            found.append(frozenset(part))
    return found


def _readers(source: Source, qualname: str) -> list[cst.CSTNode]:
    """The statements that look an operator up, as `torch.ops.mylib.scale`."""
    spelled = f"ops.{qualname.replace('::', '.')}"
    return [s for s in source.tree.body if spelled in code(s)] if "::" in qualname else []


def settle(program: Program, functions: list[Class], part: frozenset[cst.CSTNode]) -> dict[cst.CSTNode, Unit]:
    """The units of a part, when its functions say nothing new of each other; what they still do is a finding."""
    number = 0
    inside = [n for s in part for n in nodes(s) if isinstance(n, (cst.FunctionDef, cst.ClassDef))]
    while True:
        before = _known(program, inside)
        routines = [program.routines[n] for n in inside if n in program.routines]
        for known in routines:
            known.said = dict(known.arguments)
            if number < _ROUNDS + len(routines):  # in later rounds they are joined, to settle
                known.arguments.clear()
        units = translate_units(program, functions, part)
        for name in sorted({n for u in units.values() for n in u.called}):
            routine = program.called(name)  # where its call could not be translated yet, no statement reads it
            if routine is not None and routine.result is None and routine.node not in units:
                definitions.port_routine(program, routine)
        after = _known(program, inside)
        if after == before:
            return units
        if number > 2 * (_ROUNDS + len(routines)):
            _unsettled(program, units, before, after)
            return units
        number += 1
        program.values.clear()


def _unsettled(program: Program, units: dict[cst.CSTNode, Unit], before: Any, after: Any) -> None:
    """A finding for each function, or class, of which the last round has still told something new."""
    changing = {name for old, new in zip(before, after, strict=True) for name in new if new[name] != old.get(name)}
    message = "what this gives and is given depends on itself in a way that the porter cannot follow; write it out"
    for unit in units.values():
        for n in nodes(unit.origin):
            named = isinstance(n, (cst.FunctionDef, cst.ClassDef)) and n.name.value
            if named and any(name == named or name.endswith(f".{named}") for name in changing):
                unit.sink.findings.append(Finding(*program.source.position(n), "unknown", message))


def _known(program: Program, inside: list[Any]) -> Any:
    routines = [r for n in inside if (r := program.routines.get(n)) is not None]
    return {
        r.name: (dict(r.arguments), r.result, r.draws, r.draws_often, r.writes, r.differentiated, r.derived)
        for r in routines
    }, {c.name: dict(c.facts) for n in inside if (c := program.by_node.get(n)) is not None}
