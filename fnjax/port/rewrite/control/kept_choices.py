"""What branches on a tensor's value keep on ctx, and gradients that only one of them has.

What: attributes of ctx that both branches set, and what one of them saves, are kept behind the branches; a backward
that returns no gradients for some values returns zeros there.
Before: `if x.sum() > 0: ctx.flipped = True` with `else: ctx.flipped = False`
After: `ctx.flipped = jnp.sum(x) > 0`
Safety: what only one branch saves has no reader after the other, where PyTorch has nothing saved; zeros are what
PyTorch takes a None for.
Limits: an attribute that one branch alone sets runs un-jitted only.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.analysis.walk import Walk, line, lines_of, placed
from fnjax.port.analysis.walk import names as names_in
from fnjax.port.known.facts import SAVED
from fnjax.port.rewrite.control.traced_branches import last_return
from fnjax.port.rewrite.values.conditions import negated
from fnjax.port.rewrite.values.context import is_ctx
from fnjax.port.torch import code, fit
from fnjax.port.tree.located import nodes


def kept_behind(walk: Walk, node: cst.If) -> tuple[cst.If | None, list[Any], set[str]] | None:
    """An `if` whose branches keep things on ctx, without that, the statements that do it behind, their variables."""
    if isinstance(node.orelse, cst.If):
        return None
    blocks = [[*lines_of(b)] if b else [] for b in (node.body, node.orelse and node.orelse.body)]
    # Each branch is to set the same attributes, as variables leave jax.lax.cond and writes to ctx do not: a branch that
    # leaves one alone sets it to what it was.
    names = [{_attribute(walk, s) for s in block} - {""} for block in blocks]
    for block, missing in zip(blocks, (names[1] - names[0], names[0] - names[1]), strict=True):
        for name in sorted(missing):
            found = walk.state.variables.get(f"ctx.{name.partition('.')[2]}")
            if found is not None:
                kept = line(f"{name} = {found.literal if isinstance(found.literal, bool) else name}")
                block.insert(len(block) - (last_return(block) is not None), kept)
    names = [{_attribute(walk, s) for s in block} - {""} for block in blocks]
    saves = [[s for s in block if _saves(walk, s)] for block in blocks]
    if names[0] != names[1] or not (names[0] or any(saves)) or len({code(s) for s in saves[0] + saves[1]}) > 1:
        return None
    results = [r for r in map(last_return, blocks) if r is not None]
    if len(results) == 2 and saves[0] != saves[1]:
        _name_results(walk, blocks, results)
    if len(results) == 1 or sum(isinstance(n, cst.Return) for n in nodes(node)) != len(results):
        return None
    bound = [walk.program.bound_in(cst.IndentedBlock(block)) for block in blocks]
    saved = (saves[0] + saves[1])[:1]
    read = {n.value for s in saved for n in nodes(s) if isinstance(n, cst.Name)}
    if any(n in bound[0] ^ bound[1] and n not in walk.state.variables for n in read):
        return None
    later = [s for block, found in zip(blocks, saves, strict=True) if found for s in block[block.index(found[0]) :]]
    read_again = [n for s in nodes(node) if isinstance(s, cst.Assign) for n in nodes(s.value) if code(n) in names[0]]
    if any(read & walk.program.bound_in(s) for s in later) or read_again or (saved and SAVED in walk.state.variables):
        return None
    answers = {} if names_in(node.test) & (bound[0] | bound[1]) else _answers(walk, node, blocks)
    own = {name: walk.unused(name.partition(".")[2]) for name in sorted(names[0]) if name not in answers}
    made = [
        [
            s if not name else _renamed(s, own[name])
            for s in block
            if not _saves(walk, s) and (name := _attribute(walk, s)) not in answers
        ]
        for block in blocks
    ]
    given = {**{name: cst.Name(variable) for name, variable in own.items()}, **answers}
    behind = [*saved, *(line(f"{name} = {code(given[name])}") for name in sorted(given))]
    own |= {name: name for name in read & (bound[0] | bound[1])}
    if results:
        same = len({code(r) for r in results}) == 1 and code(results[0]) in own
        result = code(results[0]) if same else walk.unused("result")
        for block, given_back in zip(made, results, strict=True):
            block[-1:] = [] if code(given_back) == result else [line(f"{result} = {code(given_back)}")]
        behind.append(line(f"return {result}"))
        own[result] = result
    orelse = cst.Else(cst.IndentedBlock(made[1])) if made[1] else None
    choice = node.with_changes(body=cst.IndentedBlock(made[0] or [line("pass")]), orelse=orelse)
    return placed(walk, choice, node) if any(made) else None, [placed(walk, s, node) for s in behind], set(own.values())


def _name_results(walk: Walk, blocks: list[list[Any]], results: list[cst.BaseExpression]) -> None:
    """A variable that one branch gives back and the other does not know: what that gives back takes its name."""
    bound = [walk.program.bound_in(cst.IndentedBlock(block)) for block in blocks]
    for i, result in enumerate(results):
        if isinstance(result, cst.Name) and result.value in bound[i] - bound[1 - i] - walk.state.variables.keys():
            blocks[1 - i][-1:] = [line(f"{result.value} = {code(results[1 - i])}"), line(f"return {result.value}")]
            results[1 - i] = result
            return


def _answers(walk: Walk, node: cst.If, blocks: list[list[Any]]) -> dict[str, cst.BaseExpression]:
    """The attributes that are True in one branch and False in the other: the condition itself."""
    first, second = ({_attribute(walk, s): code(s.body[0].value) for s in b if _attribute(walk, s)} for b in blocks)
    pairs = {name: (first[name], second.get(name)) for name in first}
    tests = {("True", "False"): node.test, ("False", "True"): negated(node.test)}
    return {name: tests[pair] for name, pair in pairs.items() if pair in tests}


def _small(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line."""
    return statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None


def _attribute(walk: Walk, statement: cst.CSTNode) -> str:
    """The attribute of ctx that a statement sets."""
    small = _small(statement)
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    return code(target) if isinstance(target, cst.Attribute) and is_ctx(walk, target.value) else ""


def _renamed(statement: Any, name: str) -> Any:
    small = statement.body[0]
    target = small.targets[0].with_changes(target=cst.Name(name))
    return statement.with_changes(body=[small.with_changes(targets=[target])])


def _saves(walk: Walk, statement: cst.CSTNode) -> bool:
    small = _small(statement)
    func = small.value.func if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value == "save_for_backward" and is_ctx(walk, func.value)


def zeros_for_none(walk: Walk, first: cst.If, rest: list[Any]) -> list[Any] | None:
    """`if t: return None, None` of a backward, and what follows it, as gradients that are 0 where t."""
    taken = last_return(lines_of(first.body))
    given = last_return(rest)
    if walk.routine.role != "backward" or len(lines_of(first.body)) > 1 or taken is None or given is None:
        return None
    nothing = [e.value for e in taken.elements] if isinstance(taken, cst.Tuple) else [taken]
    gradients = [e.value for e in given.elements] if isinstance(given, cst.Tuple) else [given]
    if any(code(n) != "None" for n in nothing) or len(gradients) != len(nothing):
        return None
    with walk.apart() as found:
        walk.block(rest)
    values = [v for end in found.returns for v in (end.parts if isinstance(given, cst.Tuple) and end.parts else (end,))]
    if len(values) != len(gradients):
        return None
    if any(v.optional or not (v.is_tensor or code(g) == "None") for v, g in zip(values, gradients, strict=True)):
        return None
    test, opening = first.test, []
    if not isinstance(test, cst.Name):
        test = cst.Name(walk.unused("skipped"))
        opening = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(test)], first.test)])]
    made = [code(g) if code(g) == "None" else f"{code(fit(g))}.masked_fill({code(test)}, 0)" for g in gradients]
    return [placed(walk, s, first) for s in [*opening, *rest[:-1], line(f"return {', '.join(made)}")]]
