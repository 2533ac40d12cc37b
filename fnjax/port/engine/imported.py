"""What the port runs when it is imported: statements of the top level, and decorators.

What was left for the hand is None there, and so is what is made of it; a file must be importable for the sake of the
classes that are ported.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.analysis.program import Program
from fnjax.port.analysis.terms import Unit, parse_line
from fnjax.port.result import Finding
from fnjax.port.torch import unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_children, list_nodes


def only_compiles(program: Program, statement: cst.CSTNode) -> bool:
    """Whether an `if` or a `try` does nothing but `f = torch.jit.script(f)` and its like, whichever way it goes."""
    if not isinstance(statement, (cst.If, cst.Try)):
        return False
    small = list_nodes(statement, cst.BaseSmallStatement)
    given = [n for n in small if isinstance(n, cst.Assign)]
    if not given or any(not isinstance(n, (cst.Assign, cst.Pass)) for n in small):
        return False
    for n in given:
        call = n.value
        if not isinstance(call, cst.Call) or program.resolve_name(call.func) not in {
            "torch.compile",
            "torch.jit.script",
        }:
            return False
        if len(n.targets) != 1 or not call.args or unparse(n.targets[0].target) != unparse(call.args[0].value):
            return False
    return True


def drop_left_over(program: Program, units: dict[cst.CSTNode, Unit]) -> None:
    """What the top level makes of something that was left for the hand is left, too: importing the port runs it."""
    left = {n: u.sink.findings for u in units.values() if _is_left_for_hand(u) for n in program.list_bound(u.origin)}
    waiting = bool(left)
    while waiting:
        waiting = False
        for unit in units.values():
            bound = program.list_bound(unit.origin)
            if isinstance(unit.origin, cst.FunctionDef):
                found = _drop_decorators(unit, set(left))
            elif isinstance(unit.origin, cst.ClassDef) or not bound:
                continue
            else:
                read = {n for s in unit.made for n in _iter_names_read_on_import(s)} & unit.list_names_read()
                found = sorted(read & set(left) - bound)
            if not found:
                continue
            message = f"{found[0]} is left for the hand, and this reads it while the file is imported"
            finding = Finding(*program.source.locate(unit.origin), "unknown", message)
            unit.sink.findings += [*left[found[0]], finding]
            if not isinstance(unit.origin, cst.FunctionDef):
                unit.made = [parse_line(f"{n} = None") for n in sorted(bound)]
                left |= dict.fromkeys(bound, unit.sink.findings)
                waiting = True


def _drop_decorators(unit: Unit, left: set[str]) -> list[str]:
    """Take a function's decorators away that read what was left; which names these are."""
    found: set[str] = set()
    for i, made in enumerate(unit.made):
        if isinstance(made, cst.FunctionDef):
            kept = [d for d in made.decorators if not find_names(d.decorator) & left]
            found |= {n for d in made.decorators for n in find_names(d.decorator) & left}
            unit.made[i] = made.with_changes(decorators=kept) if len(kept) < len(made.decorators) else made
    return sorted(found)


def _iter_names_read_on_import(node: cst.CSTNode) -> Iterator[str]:
    """The names outside the bodies of functions."""
    if isinstance(node, cst.Name):
        yield node.value
    elif not isinstance(node, (cst.FunctionDef, cst.Lambda)):
        for child in list_children(node):
            yield from _iter_names_read_on_import(child)


def _is_left_for_hand(unit: Unit) -> bool:
    """Whether the top level has None where this statement could not be translated."""
    if isinstance(unit.origin, (cst.FunctionDef, cst.ClassDef)) or not unit.made:
        return False
    return unit.sink.left


def iter_run_on_import(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and what runs below it: the body of a function waits for its call, as a lambda does that no call takes."""
    if isinstance(node, cst.Call):
        yield from list_nodes(node)
    elif not isinstance(node, (cst.FunctionDef, cst.Lambda)):
        for child in list_children(node):
            yield from iter_run_on_import(child)
