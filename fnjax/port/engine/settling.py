"""What functions of a file say of each other: its units are translated until that no longer changes."""

from __future__ import annotations

import itertools
from functools import partial

import libcst as cst

from fnjax.port.analysis.program import Class, Program, Routine
from fnjax.port.analysis.terms import Unit
from fnjax.port.engine.imported import ImportRun
from fnjax.port.engine.units import find_unit, is_import, translate_units, walk_unit
from fnjax.port.result import Finding
from fnjax.port.rewrite.functions import function_definitions
from fnjax.port.source.naming import Source
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

_ROUNDS = 3  # beside one for each function, until what functions say of each other must have settled
_DEEP = 30  # functions that call each other are walked before those that call them


def find_parts(program: Program, functions: list[Class]) -> list[frozenset[cst.CSTNode]]:
    """Return the statements of the top level that depend on each other."""
    source = program.source
    found: list[frozenset[cst.CSTNode]] = []
    by_name: dict[str, list[cst.CSTNode]] = {}
    linked: dict[cst.CSTNode, set[cst.CSTNode]] = {s: set() for s in source.tree.body}
    for statement in source.tree.body:
        for name in {n.value for n in list_nodes(statement, cst.Name)} & source.providers.keys():
            by_name.setdefault(name, []).append(statement)
    for name, users in by_name.items():
        for provider in source.providers[name]:
            if not is_import(provider):
                linked[provider].update(users)
                for user in users:
                    linked[user].add(provider)
    for cls in functions:
        for other in (*cls.beside, *_list_readers(source, cls.name)):
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


def _list_readers(source: Source, qualname: str) -> list[cst.CSTNode]:
    """Return the statements that look an operator up, as `torch.ops.mylib.scale`."""
    spelled = f"ops.{qualname.replace('::', '.')}"
    return [s for s in source.tree.body if spelled in unparse(s)] if "::" in qualname else []


def settle_part(program: Program, functions: list[Class], part: frozenset[cst.CSTNode]) -> dict[cst.CSTNode, Unit]:
    """Return the units of a part, when its functions say nothing new of each other; what they still do is a finding.

    A statement is walked again only if somebody who was asked for it would answer something else by now: what a forward
    leaves on ctx is known before its backward is walked, so that one round is enough for most classes.
    """
    known: dict[cst.CSTNode, Unit] = {}

    def walk_first(node: cst.CSTNode) -> None:
        helper = isinstance(node, cst.FunctionDef) and node in part
        if helper and node not in known and node not in program.walking and len(program.walking) < _DEEP:
            find_unit(program, node, known)
        elif (method := program.routines.get(node)) and method.owner and method.owner.top is program.unit:
            program.members.get(node, lambda: None)()

    program.walk_first = walk_first
    inside = [n for s in part for n in list_nodes(s, cst.FunctionDef, cst.ClassDef)]
    for number in itertools.count():
        routines = [program.routines[n] for n in inside if n in program.routines]
        rounds = _ROUNDS + len(routines)
        stale = {s: changed for s, unit in known.items() if (changed := unit.list_changed())}
        if number and (not stale or number > 2 * rounds):
            break
        for routine in routines:
            routine.begin_round(known if number >= rounds else known.keys() - stale)  # later they are joined, to settle
        for statement in stale:
            del known[statement]
        units = translate_units(program, functions, part, known)
        for name in sorted({n for u in units.values() for n in u.called}):
            called = program.find_routine(name)  # where its call could not be translated yet, no statement reads it
            asked = called is not None and (called.result is None or (called.hands and not called.gives))
            if called is not None and asked and called.node not in known:
                known[called.node] = walk_unit(program, called.node, partial(_walk_alone, program, called))
        program.values.clear()
    ImportRun(program, units).drop_unportable()
    if stale:
        _report_unsettled(program, units, set().union(*stale.values()))
    return units


def _walk_alone(program: Program, routine: Routine) -> Unit:
    """Return a function that stands in the port, if at all, as part of something else."""
    made, walk = function_definitions.port_routine(program, routine)
    return Unit(routine.node, [made], walk.sink, walk.called)


def _report_unsettled(program: Program, units: dict[cst.CSTNode, Unit], changing: set[str]) -> None:
    """Report each function, or class, of which the last round has still found something new."""
    message = "what this gives and is given depends on itself in a way that the porter cannot follow; write it out"
    for unit in units.values():
        for n in list_nodes(unit.origin, cst.FunctionDef, cst.ClassDef):
            if any(name == n.name.value or name.endswith(f".{n.name.value}") for name in changing):
                unit.sink.findings.append(Finding(*program.source.locate(n), "unknown", message))
