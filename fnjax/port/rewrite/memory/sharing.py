"""The variables and containers that share memory with what is written to, and are read again.

Safety: containers that hold it are findings if they are read again.
Limits: memory that the attributes of objects share is not followed.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Stop, find_names
from fnjax.port.known.facts import SAVED, MemRef, Value
from fnjax.port.source.naming import iter_targets
from fnjax.port.tree.located import list_nodes


def find_holders(ev: Evaluator, memref: MemRef) -> dict[str, MemRef]:
    """Return the variables that share memory with a memory reference."""
    return {
        name: value.memref
        for name, value in ev.state.variables.items()
        if value.memref and value.memref.storage & memref.storage
    }


def list_bound_by(ev: Evaluator, node: cst.CSTNode) -> list[str]:
    """Return the variables that take a call's result."""
    small = ev.current.body[0] if isinstance(ev.current, cst.SimpleStatementLine) else ev.current
    if not isinstance(small, cst.Assign) or small.value is not node:
        return []
    return [name for t in small.targets for name in iter_targets(t.target)]


def list_seeing(ev: Evaluator, node: cst.CSTNode, memref: MemRef) -> list[str]:
    """Return the variables that share memory and are read after a call, those of its result left out."""
    bound = list_bound_by(ev, node)
    return [n for n in find_holders(ev, memref) if n not in bound and ev.is_live(n, node)]


def list_containers(ev: Evaluator, node: cst.CSTNode, memref: MemRef) -> list[str]:
    """Return the lists and other containers that hold this memory and are read again."""
    return [
        name
        for name, value in ev.state.variables.items()
        if value.memref is None
        and not value.storages.isdisjoint(memref.storage)
        and (name == SAVED or ev.is_live(name, node))
        and not is_unpacked(ev, name, value, memref)
    ]


def is_unpacked(ev: Evaluator, name: str, value: Value, memref: MemRef) -> bool:
    """Return whether variables were unpacked from a container, as `ctx.saved_tensors`, and this is not read again."""
    saved = all(s.startswith("kept:ctx.saved") for s in value.storages)
    if name == SAVED or (value.parts is None and not saved):  # backward reads what was saved
        return False
    if name.startswith("ctx."):
        attributes = {name.removeprefix("ctx.")} | (
            {"saved_tensors", "saved_variables"} if name == "ctx.saved" else set()
        )
        reads: list[cst.CSTNode] = [
            n for n in list_nodes(ev.routine.node) if isinstance(n, cst.Attribute) and n.attr.value in attributes
        ]
    else:
        reads = [*ev.routine.reads.get(name, ())]
    here = ev.program.source.locate(ev.current)
    looped = {id(n) for loop in ev.here.loops for n in list_nodes(loop)}
    again = any(ev.program.source.locate(n) > here or id(n) in looped for n in reads)
    return not again and all(s.startswith(("arg:", "kept:")) for s in value.storages)


def check_reads_before(ev: Evaluator, node: cst.CSTNode, holders: Mapping[str, MemRef]) -> None:
    """Check that an expression does not read the memory before it writes to it: the port writes first."""
    position = ev.program.source.locate
    if not isinstance(node, cst.Call) or not isinstance(ev.current, (cst.SimpleStatementLine, cst.BaseSmallStatement)):
        return
    for part in list_nodes(ev.current, cst.Call, cst.BinaryOperation, cst.UnaryOperation, cst.Comparison):
        if position(part) >= position(node) or any(n is node for n in list_nodes(part)):
            continue
        read = find_names(part) & set(holders)
        if read and ev.port(part).value.kind != "static":
            message = f"this reads {min(read)!r} before the same statement writes to it; give it a name first"
            raise Stop(part, "alias", message)
