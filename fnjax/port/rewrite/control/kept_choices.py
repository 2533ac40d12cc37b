"""Attributes of ctx that branches on a tensor's value set, and gradients that only one of them has.

What: attributes of ctx that both branches set, and what one of them saves, are kept after the branches; a backward
that returns no gradients for some values returns zeros there.
Before: `if x.sum() > 0: ctx.flipped = True` with `else: ctx.flipped = False`
After: `ctx.flipped = jnp.sum(x) > 0`
Safety: what only one branch saves has no reader after the other, where PyTorch has nothing saved; zeros are what
PyTorch takes a None for.
Limits: an attribute that one branch alone sets runs outside jit only.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, list_statements, place_at
from fnjax.port.known.facts import SAVED
from fnjax.port.rewrite.control.regions import find_last_return, make_line, make_return, make_row
from fnjax.port.rewrite.values.context import is_ctx, name_ctx_attribute
from fnjax.port.torch import fill, read_literal
from fnjax.port.torch.expressions import is_same_text
from fnjax.port.tree.located import find_small_statement, list_nodes


def carry_context_writes(ev: Evaluator, node: cst.If) -> tuple[cst.If, list[Any], set[str]] | None:
    """Return an `if` whose blocks write variables in the place of ctx, what writes these to ctx, and the variables.

    None where its blocks leave ctx as it is, or where not both of them write the same.
    """
    blocks = [[*list_statements(b)] if b else [] for b in (node.body, node.orelse and node.orelse.body)]
    targets = [{_find_set_attribute(ev, s) for s in block} - {""} for block in blocks]
    saved = [s for block in blocks for s in block if _saves_for_backward(ev, s)]
    results = [r for r in map(find_last_return, blocks) if r is not None]
    read_again = any(name_ctx_attribute(ev, n) in targets[0] | targets[1] for n in _list_read_attributes(node))
    if isinstance(node.orelse, cst.If) or not (any(targets) or saved) or read_again:
        return None
    if len(results) == 1 or len(list_nodes(node, cst.Return)) != len(results):
        return None
    variables = {n.value for n in list_nodes(saved[0], cst.Name)} if saved else set()
    named = [r.value for r in results if isinstance(r, cst.Name) and r.value in variables]
    both = [isinstance(r, cst.Name) and r.value == named[0] for r in results] if named else []
    free = len(saved) == 1 or all(both)  # no block saves what it has had before
    result = named[0] if named and free else ev.make_unused_name("result")
    for block, value in zip(blocks, results, strict=False):
        bound = isinstance(value, cst.Name) and value.value == result
        block[-1:] = [] if bound else [make_line(cst.Name(result), value)]
    if not _saves_alike(ev, blocks, saved):
        return None
    places = {name_ctx_attribute(ev, t.target): t.target for t in list_nodes(node, cst.AssignTarget)}
    own = {name: ev.make_unused_name(name.partition(".")[2]) for name in sorted(targets[0] | targets[1])}
    made: list[list[Any]] = []
    for block, set_here in zip(blocks, targets, strict=True):
        kept = [s for s in block if not _saves_for_backward(ev, s)]
        made.append([_rename_target(s, own.get(_find_set_attribute(ev, s), "")) for s in kept])
        for name in sorted(own.keys() - set_here):  # a block that leaves an attribute alone sets it to what it was
            found = ev.state.variables.get(name)
            if found is None:
                return None
            known = isinstance(found.literal, bool)
            made[-1].insert(0, make_line(cst.Name(own[name]), cst.Name(str(found.literal)) if known else places[name]))
    after = [*saved[:1], *(make_line(places[name], cst.Name(variable)) for name, variable in own.items())]
    after += [make_return(cst.Name(result))] if results else []
    variables |= {*own.values(), result}
    first, second = (cst.IndentedBlock(block or [cst.SimpleStatementLine([cst.Pass()])]) for block in made)
    choice = node.with_changes(body=first, orelse=cst.Else(second) if made[1] else None)
    return place_at(ev, choice, node), [place_at(ev, s, node) for s in after], variables


def _list_read_attributes(node: cst.If) -> list[cst.Attribute]:
    written = {id(t.target) for t in list_nodes(node, cst.AssignTarget)}
    return [n for n in list_nodes(node, cst.Attribute) if id(n) not in written]


def _saves_alike(ev: Evaluator, blocks: list[list[Any]], saved: list[Any]) -> bool:
    """Return whether what the blocks save can be saved after them: it is the same, and known after either."""
    read = {n.value for s in saved for n in list_nodes(s, cst.Name)}
    bound = [ev.program.list_bound(cst.IndentedBlock(block)) for block in blocks]
    later = [s for block in blocks for one in saved if one in block for s in block[block.index(one) :]]
    unknown = read & (bound[0] ^ bound[1]) - ev.state.variables.keys()
    rebound = any(read & ev.program.list_bound(s) for s in later)
    calls = [s.body[0].value for s in saved]  # which the same names follow: they have one value after either block
    once = all(is_same_text(calls[0], call) for call in calls) and not (saved and SAVED in ev.state.variables)
    return once and not (unknown or rebound)


def _find_set_attribute(ev: Evaluator, statement: cst.CSTNode) -> str:
    """Return the attribute of ctx that a statement sets."""
    small = find_small_statement(statement)
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    return name_ctx_attribute(ev, target) if target is not None else ""


def _rename_target(statement: Any, name: str) -> Any:
    if not name:
        return statement
    small = statement.body[0]
    target = small.targets[0].with_changes(target=cst.Name(name))
    return statement.with_changes(body=[small.with_changes(targets=[target])])


def _saves_for_backward(ev: Evaluator, statement: cst.CSTNode) -> bool:
    small = find_small_statement(statement)
    func = small.value.func if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value == "save_for_backward" and is_ctx(ev, func.value)


def put_zeros_for_none(ev: Evaluator, first: cst.If, rest: list[Any]) -> list[Any] | None:
    """Translate `if t: return None, None` of a backward, and what follows it, as gradients that are 0 if t is true."""
    taken = find_last_return(list_statements(first.body))
    given = find_last_return(rest)
    if ev.routine.role != "backward" or len(list_statements(first.body)) > 1 or taken is None or given is None:
        return None
    nothing = [e.value for e in taken.elements] if isinstance(taken, cst.Tuple) else [taken]
    gradients = [e.value for e in given.elements] if isinstance(given, cst.Tuple) else [given]
    if any(read_literal(n) is not None for n in nothing) or len(gradients) != len(nothing):
        return None
    with ev.speculate() as found:
        ev.port_block(rest)
    values = [v for end in found.returns for v in (end.parts if isinstance(given, cst.Tuple) and end.parts else (end,))]
    if len(values) != len(gradients):
        return None
    none = [read_literal(g) is None for g in gradients]
    if any(v.null.optional or not (v.is_tensor or no) for v, no in zip(values, none, strict=True)):
        return None
    test, opening = first.test, []
    if not isinstance(test, cst.Name):
        test = cst.Name(ev.make_unused_name("skipped"))
        opening = [make_line(test, first.test)]
    made = [g if no else fill("G.masked_fill(C, 0)", G=g, C=test) for g, no in zip(gradients, none, strict=True)]
    return [place_at(ev, s, first) for s in [*opening, *rest[:-1], make_return(make_row(made))]]
