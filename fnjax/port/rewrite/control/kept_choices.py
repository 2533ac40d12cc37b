"""What branches on a tensor's value keep on ctx, and gradients that only one of them has.

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

from fnjax.port.analysis.evaluator import Evaluator, find_names, list_statements, parse_line, place_at
from fnjax.port.known.facts import SAVED
from fnjax.port.rewrite.control.traced_branches import find_last_return
from fnjax.port.rewrite.values.conditions import negate
from fnjax.port.rewrite.values.context import is_ctx
from fnjax.port.torch import bracket, unparse
from fnjax.port.tree.located import find_small_statement, list_nodes


def move_kept_behind(ev: Evaluator, node: cst.If) -> tuple[cst.If | None, list[Any], set[str]] | None:
    """Move what the branches of an `if` keep on ctx after it; return the rest, the statements and their variables."""
    if isinstance(node.orelse, cst.If):
        return None
    blocks = [[*list_statements(b)] if b else [] for b in (node.body, node.orelse and node.orelse.body)]
    # Each branch is to set the same attributes, as variables leave jax.lax.cond and writes to ctx do not: a branch that
    # leaves one alone sets it to what it was.
    names = [{_find_set_attribute(ev, s) for s in block} - {""} for block in blocks]
    for block, missing in zip(blocks, (names[1] - names[0], names[0] - names[1]), strict=True):
        for name in sorted(missing):
            found = ev.state.variables.get(f"ctx.{name.partition('.')[2]}")
            if found is not None:
                kept = parse_line(f"{name} = {found.literal if isinstance(found.literal, bool) else name}")
                block.insert(len(block) - (find_last_return(block) is not None), kept)
    names = [{_find_set_attribute(ev, s) for s in block} - {""} for block in blocks]
    saves = [[s for s in block if _saves_for_backward(ev, s)] for block in blocks]
    if names[0] != names[1] or not (names[0] or any(saves)) or len({unparse(s) for s in saves[0] + saves[1]}) > 1:
        return None
    results = [r for r in map(find_last_return, blocks) if r is not None]
    if len(results) == 2 and saves[0] != saves[1]:
        _name_results(ev, blocks, results)
    if len(results) == 1 or sum(isinstance(n, cst.Return) for n in list_nodes(node)) != len(results):
        return None
    bound = [ev.program.list_bound(cst.IndentedBlock(block)) for block in blocks]
    saved = (saves[0] + saves[1])[:1]
    read = {n.value for s in saved for n in list_nodes(s) if isinstance(n, cst.Name)}
    if any(n in bound[0] ^ bound[1] and n not in ev.state.variables for n in read):
        return None
    later = [s for block, found in zip(blocks, saves, strict=True) if found for s in block[block.index(found[0]) :]]
    read_again = [
        n for s in list_nodes(node) if isinstance(s, cst.Assign) for n in list_nodes(s.value) if unparse(n) in names[0]
    ]
    if any(read & ev.program.list_bound(s) for s in later) or read_again or (saved and SAVED in ev.state.variables):
        return None
    answers = {} if find_names(node.test) & (bound[0] | bound[1]) else _find_answers(ev, node, blocks)
    own = {name: ev.make_unused_name(name.partition(".")[2]) for name in sorted(names[0]) if name not in answers}
    made = [
        [
            s if not name else _rename_target(s, own[name])
            for s in block
            if not _saves_for_backward(ev, s) and (name := _find_set_attribute(ev, s)) not in answers
        ]
        for block in blocks
    ]
    given = {**{name: cst.Name(variable) for name, variable in own.items()}, **answers}
    after = [*saved, *(parse_line(f"{name} = {unparse(given[name])}") for name in sorted(given))]
    own |= {name: name for name in read & (bound[0] | bound[1])}
    if results:
        same = len({unparse(r) for r in results}) == 1 and unparse(results[0]) in own
        result = unparse(results[0]) if same else ev.make_unused_name("result")
        for block, given_back in zip(made, results, strict=True):
            block[-1:] = [] if unparse(given_back) == result else [parse_line(f"{result} = {unparse(given_back)}")]
        after.append(parse_line(f"return {result}"))
        own[result] = result
    orelse = cst.Else(cst.IndentedBlock(made[1])) if made[1] else None
    choice = node.with_changes(body=cst.IndentedBlock(made[0] or [parse_line("pass")]), orelse=orelse)
    return (
        place_at(ev, choice, node) if any(made) else None,
        [place_at(ev, s, node) for s in after],
        set(own.values()),
    )


def _name_results(ev: Evaluator, blocks: list[list[Any]], results: list[cst.BaseExpression]) -> None:
    """Name what one branch gives back after a variable that the other does not know."""
    bound = [ev.program.list_bound(cst.IndentedBlock(block)) for block in blocks]
    for i, result in enumerate(results):
        if isinstance(result, cst.Name) and result.value in bound[i] - bound[1 - i] - ev.state.variables.keys():
            blocks[1 - i][-1:] = [
                parse_line(f"{result.value} = {unparse(results[1 - i])}"),
                parse_line(f"return {result.value}"),
            ]
            results[1 - i] = result
            return


def _find_answers(ev: Evaluator, node: cst.If, blocks: list[list[Any]]) -> dict[str, cst.BaseExpression]:
    """Return the attributes that are True in one branch and False in the other: the condition itself."""
    first, second = (
        {_find_set_attribute(ev, s): unparse(s.body[0].value) for s in b if _find_set_attribute(ev, s)} for b in blocks
    )
    pairs = {name: (first[name], second.get(name)) for name in first}
    tests = {("True", "False"): node.test, ("False", "True"): negate(node.test)}
    return {name: tests[pair] for name, pair in pairs.items() if pair in tests}


def _find_set_attribute(ev: Evaluator, statement: cst.CSTNode) -> str:
    """Return the attribute of ctx that a statement sets."""
    small = find_small_statement(statement)
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    return unparse(target) if isinstance(target, cst.Attribute) and is_ctx(ev, target.value) else ""


def _rename_target(statement: Any, name: str) -> Any:
    small = statement.body[0]
    target = small.targets[0].with_changes(target=cst.Name(name))
    return statement.with_changes(body=[small.with_changes(targets=[target])])


def _saves_for_backward(ev: Evaluator, statement: cst.CSTNode) -> bool:
    small = find_small_statement(statement)
    func = small.value.func if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value == "save_for_backward" and is_ctx(ev, func.value)


def put_zeros_for_none(ev: Evaluator, first: cst.If, rest: list[Any]) -> list[Any] | None:
    """Translate `if t: return None, None` of a backward, and what follows it, as gradients that are 0 where t."""
    taken = find_last_return(list_statements(first.body))
    given = find_last_return(rest)
    if ev.routine.role != "backward" or len(list_statements(first.body)) > 1 or taken is None or given is None:
        return None
    nothing = [e.value for e in taken.elements] if isinstance(taken, cst.Tuple) else [taken]
    gradients = [e.value for e in given.elements] if isinstance(given, cst.Tuple) else [given]
    if any(unparse(n) != "None" for n in nothing) or len(gradients) != len(nothing):
        return None
    with ev.speculate() as found:
        ev.port_block(rest)
    values = [v for end in found.returns for v in (end.parts if isinstance(given, cst.Tuple) and end.parts else (end,))]
    if len(values) != len(gradients):
        return None
    if any(
        v.null.optional or not (v.is_tensor or unparse(g) == "None") for v, g in zip(values, gradients, strict=True)
    ):
        return None
    test, opening = first.test, []
    if not isinstance(test, cst.Name):
        test = cst.Name(ev.make_unused_name("skipped"))
        opening = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(test)], first.test)])]
    made = [
        unparse(g) if unparse(g) == "None" else f"{unparse(bracket(g))}.masked_fill({unparse(test)}, 0)"
        for g in gradients
    ]
    return [place_at(ev, s, first) for s in [*opening, *rest[:-1], parse_line(f"return {', '.join(made)}")]]
