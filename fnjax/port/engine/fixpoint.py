"""The fixpoint of a file: its top-level items are evaluated until their function summaries no longer change."""

from __future__ import annotations

import itertools
from functools import partial

import libcst as cst

from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.program import Class, Program, Routine
from fnjax.port.engine.top_items import evaluate_top_item, find_top_item, is_import, translate_top_items
from fnjax.port.result import Finding
from fnjax.port.rewrite.functions import function_definitions
from fnjax.port.source.naming import Source
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

_ITERATIONS = 3  # and one for each function, until the function summaries must have reached a fixpoint
_DEEP = 30  # functions that call each other are evaluated before those that call them


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
        for other in (*cls.next_to, *_list_readers(source, cls.name)):
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


def solve_part(program: Program, functions: list[Class], part: frozenset[cst.CSTNode]) -> dict[cst.CSTNode, TopItem]:
    """Return the top-level items of a part, with its summaries at a fixpoint; one that still changes is a finding.

    A statement is evaluated again only if a summary that it depends on has changed: what a forward
    leaves on ctx is known before its backward is evaluated, so that one iteration is enough for most classes.
    """
    known: dict[cst.CSTNode, TopItem] = {}

    def evaluate_first(node: cst.CSTNode) -> None:
        helper = isinstance(node, cst.FunctionDef) and node in part
        if helper and node not in known and node not in program.evaluating and len(program.evaluating) < _DEEP:
            find_top_item(program, node, known)
        elif (method := program.routines.get(node)) and method.owner and method.owner.top is program.top_item:
            program.members.get(node, lambda: None)()

    program.evaluate_first = evaluate_first
    inside = [n for s in part for n in list_nodes(s, cst.FunctionDef, cst.ClassDef)]
    for number in itertools.count():
        routines = [program.routines[n] for n in inside if n in program.routines]
        iterations = _ITERATIONS + len(routines)
        stale = {s: changed for s, top_item in known.items() if (changed := top_item.list_changed())}
        if number and (not stale or number > 2 * iterations):
            break
        for routine in routines:
            # Later they are joined, to reach a fixpoint.
            routine.begin_iteration(known if number >= iterations else known.keys() - stale)
        for statement in stale:
            del known[statement]
        top_items = translate_top_items(program, functions, part, known)
        for name in sorted({n for u in top_items.values() for n in u.called}):
            called = program.find_routine(name)  # where its call could not be translated yet, no statement reads it
            asked = called is not None and (called.result is None or (called.hands and not called.gives))
            if called is not None and asked and called.node not in known:
                known[called.node] = evaluate_top_item(program, called.node, partial(_evaluate_alone, program, called))
        program.values.clear()
    if stale:
        _report_divergence(program, top_items, set().union(*stale.values()))
    return top_items


def _evaluate_alone(program: Program, routine: Routine) -> TopItem:
    """Evaluate a function whose summary its callers need, although no statement of the port reads its name yet."""
    made, ev = function_definitions.port_routine(program, routine)
    return TopItem(routine.node, [made], ev.diagnostics, ev.called)


def _report_divergence(program: Program, top_items: dict[cst.CSTNode, TopItem], changing: set[str]) -> None:
    """Report each function, or class, of which the last iteration has still found something new."""
    message = "what this gives and is given depends on itself in a way that the porter cannot follow; write it out"
    for top_item in top_items.values():
        for n in list_nodes(top_item.origin, cst.FunctionDef, cst.ClassDef):
            if any(name == n.name.value or name.endswith(f".{n.name.value}") for name in changing):
                top_item.diagnostics.findings.append(Finding(*program.source.locate(n), "unknown", message))
