"""The steps of a forward that backward computes again: what they read and make, and where the computation begins."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, find_names
from fnjax.port.known.facts import list_memrefs
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes


def find_inputs(
    ev: Evaluator, inputs: cst.BaseExpression, read: frozenset[str], steps: Sequence[cst.BaseStatement]
) -> list[str] | None:
    """Return the variables of which gradients are taken, `*params` for the tensors of a list.

    Args:
        ev: the evaluation.
        inputs: what torch.autograd.grad is given.
        read: the names that the computation reads.
        steps: its statements.

    Returns:
        The variables, or None where these are not known.
    """
    found = _read_container(ev, inputs, read, steps) if isinstance(inputs, cst.Name) else inputs
    elements = found.elements if isinstance(found, (cst.Tuple, cst.List)) else [cst.Element(found)] if found else []
    names = [
        f"{'*' * isinstance(e, cst.StarredElement)}{e.value.value}" for e in elements if isinstance(e.value, cst.Name)
    ]
    return names if names and len(names) == len(elements) else None


def _read_container(
    ev: Evaluator, container: cst.Name, read: frozenset[str], steps: Sequence[cst.BaseStatement]
) -> cst.BaseExpression | None:
    """Return the inputs of a computation: their container, or the variables that its entries have.

    The function that is differentiated gets either. None where the computation reads both, since a gradient through the
    other would be lost, or where it cannot be told which variables the entries are.
    """
    position, found = ev.program.source.locate, list[tuple[cst.CSTNode, list[cst.BaseExpression]]]()
    inside = frozenset().union(*(ev.routine.list_names_in(s) for s in steps))
    for n in (n for n in list_nodes(ev.routine.node) if isinstance(n, cst.Assign)):
        for target in (t.target for t in n.targets if not (ev.routine.list_names_in(t) & inside)):
            if unparse(target) == container.value and isinstance(n.value, (cst.Tuple, cst.List)):
                found.append((n, [_read_marked(e.value) for e in n.value.elements]))
            elif unparse(n.value) == container.value and isinstance(target, cst.Tuple):
                found.append((n, [e.value for e in target.elements]))
            elif isinstance(n.value, cst.Subscript) and unparse(n.value.value) == container.value:
                found.append((n, [target, cst.Ellipsis()]))  # one of its entries
    used = [(n, entries) for n, entries in found if read & {e.value for e in entries if isinstance(e, cst.Name)}]
    if not used:
        whole = [entries for _, entries in found if all(isinstance(e, cst.Name) for e in entries)]
        listed = len(whole) == 1 and container.value not in read and {unparse(e) for e in whole[0]} <= list_tensors(ev)
        return cst.Tuple([cst.Element(e) for e in whole[0]]) if listed else container
    (made, entries), *others = used
    variables = {e.value for e in entries if isinstance(e, cst.Name)}
    if others or container.value in read or len(variables) < len(entries) or not variables <= list_tensors(ev):
        return None
    again = (n for n in list_nodes(ev.routine.node) if isinstance(n, cst.BaseSmallStatement) and n is not made)
    if any(variables & ev.program.list_bound(n) for n in again if position(made) < position(n) < position(steps[0])):
        return None
    return cst.Tuple([cst.Element(e) for e in entries])


def is_read_by_other_name(
    ev: Evaluator, wanted: list[str], read: frozenset[str], steps: Sequence[cst.BaseStatement]
) -> bool:
    """Return whether the computation reads an input by another name too: `z = x`, or an entry of `args = [x, w]`."""
    position = ev.program.source.locate
    inside = frozenset().union(*(ev.routine.list_names_in(s) for s in steps))
    assigned = [n for n in list_nodes(ev.routine.node) if isinstance(n, cst.Assign)]
    same = set(wanted)  # the inputs, and what is made of them as they are
    for n in (n for n in assigned if not ev.routine.list_names_in(n) & inside):
        value = n.value.value if isinstance(n.value, cst.Subscript) else n.value
        parts = [_read_marked(e.value) for e in value.elements] if isinstance(value, (cst.Tuple, cst.List)) else [value]
        sources = {e.value for e in parts if isinstance(e, cst.Name)}
        given = {name for t in n.targets for name in iter_targets(t.target)}
        entry = isinstance(n.value, cst.Subscript) or isinstance(n.targets[0].target, cst.Tuple)
        if entry:  # that of a tensor is a new one
            sources -= {s for s in sources if ev.look_up(s).is_tensor}
        anew = {w for m in assigned if position(m) > position(n) for w in ev.program.list_bound(m)}
        if (given - anew) & set(wanted) and sources & read - set(wanted):
            return True
        same |= given if sources & same - anew else set()
    return bool(same & read - set(wanted))


def _read_marked(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `x` for `x.requires_grad_()`, which is x."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return node
    return _read_marked(node.func.value) if node.func.attr.value == "requires_grad_" else node


def list_tensors(ev: Evaluator) -> set[str]:
    """Return the variables that are tensors here, or may be."""
    return {n for n, v in ev.state.variables.items() if v.kind in {"tensor", "unknown"}}


def split_steps(
    ev: Evaluator, steps: Sequence[cst.BaseStatement], wanted: list[str]
) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement]] | None:
    """Return the statements up to the last that makes one of the wanted variables, and those that are differentiated.

    A statement in between that computes with a wanted variable comes after them, if none of them has to do with it.
    """
    last = max((i for i, s in enumerate(steps) if _makes_leaf(ev, s, wanted)), default=-1)
    opening: list[cst.BaseStatement] = []
    computing: list[cst.BaseStatement] = []
    made = {w for w in wanted if not any(_makes_leaf(ev, s, [w]) for s in steps)}  # those that there are already
    for i, s in enumerate(steps):
        bound, read, block = ev.program.list_bound(s), find_names(s), cst.IndentedBlock(computing)
        waits = bool(bound & find_names(block) or (bound | read) & ev.program.list_bound(block))
        leaf = _makes_leaf(ev, s, wanted)
        if i <= last and leaf and waits:
            return None
        outside = i <= last and (leaf or not (waits or read & made))
        (opening if outside else computing).append(s)
        made |= {w for w in wanted if leaf and w in bound | read}
    return opening, computing


def list_static_steps(ev: Evaluator, steps: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Return those of the steps that compute Python's values, and neither need nor change the others."""
    found, others = list[cst.BaseStatement](), list[cst.BaseStatement]()
    with ev.speculate(), ev.enter(grad_enabled=False):
        for s in steps:
            ev.port_statement(s)
            bound = ev.program.list_bound(s)
            values = [ev.state.variables[n] for n in bound if n in ev.state.variables]
            plain = isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], cst.Assign) and values
            anew = any(bound & ev.program.list_bound(t) for t in steps if t is not s)
            static = all(v.kind == "static" and not list_memrefs(v) for v in values)
            block = cst.IndentedBlock(others)
            waits = bound & find_names(block) or find_names(s) & ev.program.list_bound(block)
            (found if plain and static and not anew and not waits else others).append(s)
    return found


def _makes_leaf(ev: Evaluator, node: cst.BaseStatement, wanted: list[str]) -> bool:
    """Return whether this is `x = x.detach().requires_grad_()`, `x.requires_grad_()` or `x.requires_grad = True`."""
    marks = any(isinstance(n, cst.Attribute) and n.attr.value.startswith("requires_grad") for n in list_nodes(node))
    return bool(ev.program.list_bound(node) & set(wanted)) or (marks and bool(find_names(node) & set(wanted)))
