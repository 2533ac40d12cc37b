"""Python that branches on a tensor's value.

What: `if` on a tensor becomes jax.lax.cond where its branches only give variables new values, or both return; checks
that raise run where the value is known, that is outside jit; conditional expressions become jnp.where or jax.lax.cond.
Before: `if x.sum() > 0: x = x * 2`
After: `x = jax.lax.cond(jnp.sum(x) > 0, lambda: x * 2, lambda: x)`
Safety: only where both branches give the same variables tensors; branches on Python values stay as they are.
Limits: branches of which one returns and the other does not, or that keep something on ctx, run un-jitted only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.registry import expression, statement
from fnjax.port.analysis.walk import Narrowed, Statements, Term, Walk, leaves, parse, placed
from fnjax.port.known.facts import UNKNOWN, Value, decided, join_values
from fnjax.port.rewrite.control.branch_values import alike, chosen_number, chosen_value, scalar_for, shaped
from fnjax.port.rewrite.control.kept_choices import kept_behind, zeros_for_none
from fnjax.port.rewrite.control.loops import ONLY, passes
from fnjax.port.rewrite.control.traced_branches import last_return, only_raises, predicate, traced_branch
from fnjax.port.rewrite.values.conditions import (
    blocked,
    split,
    split_expression,
    split_return,
    without_continue,
)
from fnjax.port.torch import MISSING, code, fit, literal
from fnjax.port.tree.located import nodes

_SINGLES = (None, True, False)


@expression(cst.IfExp, general=True)
def conditional(walk: Walk, node: cst.IfExp) -> Term:
    """`a if c else b`."""
    if (copied := _copied(walk, node)) is not None:
        return walk.expr(copied)
    guarded = split_expression(walk, node)
    if guarded is not None:
        made: Term = conditional(walk, guarded)
        return made
    test = walk.expr(node.test)
    if (known := test.answer) is not None:
        return walk.expr(node.body if known else node.orelse)
    with walk.perhaps():
        narrowed = _narrowed(walk, node.test)
        body, orelse = (_assuming(walk, n, narrowed, i) for i, n in enumerate((node.body, node.orelse)))
    walk.need_entries(test.value, body.value, orelse.value)
    value, branch = replace(join_values(body.value, orelse.value), number=""), walk.branch(node)
    walk.state.decide_anew(branch)
    value = decided(value, [body.value, orelse.value], branch)
    if walk.traced(test.value):
        walk.sink.imports |= {"jax", "jnp"}
        texts = [code(fit(t.node, 1)) for t in (test, body, orelse)]
        if chosen_number(body.value, orelse.value, open_=True) and test.value.guard is None:
            chosen = replace(chosen_value(body.value, orelse.value), place=value.place or walk.fresh(node))
            return Term(parse("jnp.where({}, {}, {})".format(*texts)), chosen)
        if (
            body.value.is_tensor
            and orelse.value.is_tensor
            and alike(body.value, orelse.value)
            and test.value.guard is None
        ):
            for i, one, other in ((1, body, orelse), (2, orelse, body)):
                if isinstance(other.node, (cst.Name, cst.Attribute)) and scalar_for(one.value, other.value):
                    texts[i] = code(shaped(walk, one.node, other.node, {code(other.node): other.value}))
            texts[0] = predicate(test)
            return Term(parse("jax.lax.cond({}, lambda: {}, lambda: {})".format(*texts)), value)
        walk.report(node, "untraced", f"this conditional expression {ONLY}")
    acts = (n for n in nodes(node.test) if isinstance(n, (cst.Call, cst.NamedExpr)))
    if code(body.node) == code(orelse.node) and all(code(n).startswith("isinstance(") for n in acts):
        return Term(body.node, replace(value, literal=MISSING))  # `x if inplace else x.clone()`
    return Term(walk.rebuilt(node), replace(value, literal=MISSING))


def _copied(walk: Walk, node: cst.IfExp) -> cst.BaseExpression | None:
    """The copy of `x.clone() if flag else x`, where x is only read again behind `if flag:`."""
    for side, (copy, other) in enumerate(((node.body, node.orelse), (node.orelse, node.body))):
        if not isinstance(other, cst.Name) or code(copy) != f"{other.value}.clone()" or walk.here.loops:
            continue
        place = walk.lookup(other.value).place
        if place is None or not place.local:  # the caller's
            continue
        flag, read = code(node.test), walk.routine.reads.get(other.value, ())
        chosen = [n for n in nodes(walk.routine.node) if isinstance(n, cst.If) and code(n.test) == flag]
        behind = {i for n in chosen if (b := n.orelse if side else n.body) for i in walk.routine.nodes_in(b)}
        behind |= {i for block in (node, *walk.here.untaken) for i in walk.routine.nodes_in(block)}
        position = walk.program.source.position
        once = isinstance(node.test, cst.Name) and len(walk.routine.given.get(flag, ())) <= 1
        if once and all(id(n) in behind or position(n) < position(node) for n in read):
            return copy
    return None


def _assuming(walk: Walk, node: cst.BaseExpression, narrowed: Narrowed, side: int) -> Term:
    """An expression behind a question whether Python has decided a condition."""
    value = None if narrowed is None else walk.lookup(narrowed[0])
    if narrowed is None or value is None or not (value.guard is not None or value.optional):
        return walk.expr(node)
    with walk.scope() as variables:
        variables[narrowed[0]] = narrowed[1][side]
        return walk.expr(node)


@statement(cst.If, general=True)
def branch(walk: Walk, node: cst.If) -> Statements | None:
    """`if c: ...`."""
    guarded = None if only_raises(node) else split(walk, node)
    if guarded is not None:
        return branch(walk, guarded) or [guarded]
    test = walk.expr(node.test)
    if (known := test.answer) is not None:
        return _decided(walk, node, known)
    walk.need_entries(test.value)
    if walk.traced(test.value):
        node = blocked(walk, node)
        made = _keeping(walk, node, test)
        if made is not None:
            return made
        walk.report(node.test, "untraced", f"this `if` {ONLY}")
    orelse, bodies = node.orelse, [node.body, walk.otherwise(node)]
    first, second = _both(walk, bodies, _narrowed(walk, node.test))
    assert first is not None
    if test.node is node.test and first is node.body and (second is None or second is bodies[1]):
        return [node]
    if orelse is None and passes(first) and not passes(node.body) and isinstance(node.test, (cst.Name, cst.Attribute)):
        return []
    new_else: cst.Else | cst.If | None = None
    if isinstance(orelse, cst.If):
        assert second is not None
        only = second.body[0] if len(second.body) == 1 else None
        new_else = only if isinstance(only, cst.If) else cst.Else(second)
        if second.body and second.body[0] is orelse:
            new_else = orelse
    elif orelse is not None and second is not None:
        new_else = orelse.with_changes(body=second)
    space = node.whitespace_before_test if not node.whitespace_before_test.empty else cst.SimpleWhitespace(" ")
    return [node.with_changes(test=fit(test.node, 1), body=first, orelse=new_else, whitespace_before_test=space)]


def _keeping(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """The form of an `if` on a tensor that jit can trace; what its branches keep on ctx is kept behind it."""
    found = kept_behind(walk, node)
    if found is None:
        return traced_branch(walk, node, test)
    choice, behind, own = found
    with walk.await_reads(own):
        made = traced_branch(walk, choice, test) if choice else []
    return None if made is None else [*made, *walk.block(behind)]


def _decided(walk: Walk, node: cst.If, answer: bool) -> Statements:
    """What is left of an `if` whose condition the port knows."""
    if not answer and isinstance(node.orelse, cst.If):
        return walk.block([node.orelse])
    taken = node.body if answer else node.orelse.body if node.orelse else cst.IndentedBlock([])
    if isinstance(taken, cst.SimpleStatementSuite):
        return walk.block([cst.SimpleStatementLine(taken.body)])
    return walk.block(list(taken.body))  # type: ignore[arg-type] # statements of a block


def _both(walk: Walk, bodies: list[cst.BaseSuite | None], narrowed: Narrowed) -> list[cst.BaseSuite | None]:
    start, ways = walk.state, walk.ways(bodies, narrowed)
    walk.join(ways)
    if narrowed is not None and not any(way.leaves for way in ways):
        name = narrowed[0]
        if start.variables[name].guard is not None and walk.state.version(name) == start.version(name):
            walk.state.variables[name] = start.variables[name]
    return [way.made for way in ways]


def _narrowed(walk: Walk, test: cst.BaseExpression) -> Narrowed:
    """What `isinstance(x, torch.Tensor)` and `x is None` say of a variable in the branches."""
    negative = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
    inner = test.expression if isinstance(test, cst.UnaryOperation) and negative else test
    found: tuple[str, Value, Value] | None = None
    if isinstance(inner, cst.Call) and len(inner.args) in {1, 2} and isinstance(inner.args[0].value, cst.Name):
        name = inner.args[0].value.value
        value = walk.state.variables.get(name)
        called = walk.name_of(inner.func)
        if value is not None and (
            called == "torch.is_tensor"
            or (called == "builtins.isinstance" and walk.name_of(inner.args[-1].value) == "torch.Tensor")
        ):
            found = (
                name,
                replace(value, kind="tensor", left_out=False),
                replace(value, kind="static" if value.kind == "unknown" else value.kind),
            )
    elif isinstance(inner, cst.Comparison) and len(inner.comparisons) == 1 and isinstance(inner.left, cst.Name):
        operator, other = inner.comparisons[0].operator, inner.comparisons[0].comparator
        name = inner.left.value
        value = walk.state.variables.get(name)
        if (
            value is not None
            and any(literal(other) is s for s in _SINGLES)
            and isinstance(operator, (cst.Is, cst.IsNot))
        ):
            only = Value("static", "unknown" if literal(other) is None else "bool", literal=literal(other))
            other_one = replace(value, guard=None, optional=False, left_out=False)
            found = (name, only, other_one) if isinstance(operator, cst.Is) else (name, other_one, only)
    elif isinstance(inner, cst.Name):
        value = walk.state.variables.get(inner.value)
        if value is not None and value.kind == "static" and value.dtype == "bool":
            found = (inner.value, replace(value, literal=True), replace(value, literal=False))
    if found is None:
        return None
    name, yes, no = found
    return name, (no, yes) if negative else (yes, no)


def _asks_tensor(walk: Walk, node: cst.If) -> bool:
    """Whether an `if` asks for a tensor's value."""
    with walk.apart():
        return walk.traced(walk.expr(node.test).value)


def early_return(walk: Walk, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """`if t: return a` and then other statements up to `return b`, where t is a tensor's value."""
    first, rest = blocked(walk, body[index]), list(body[index + 1 :])
    if not isinstance(first, cst.If) or first.orelse is not None or not isinstance(first.body, cst.IndentedBlock):
        return None
    if last_return(rest) is None or not any(isinstance(n, cst.Return) for n in nodes(first.body)):
        return None
    if not _asks_tensor(walk, first):
        return _return_behind(walk, first, rest)
    if last_return(list(first.body.body)) is None:
        return None
    if (zeros := zeros_for_none(walk, first, rest)) is not None:
        return walk.block(zeros), 1 + len(rest)
    guarded = split_return(walk, first, rest)
    if guarded is not None:
        return walk.block(guarded), 1 + len(rest)
    both = first.with_changes(orelse=cst.Else(cst.IndentedBlock(rest)))
    walk.program.source.positions[both] = walk.program.source.position(first)
    return walk.statement(both), 1 + len(rest)


def _return_behind(walk: Walk, first: cst.If, rest: list[Any]) -> tuple[Statements, int] | None:
    """`if c: ...; if t: return a` and what follows it, where c is of Python: what follows stands in both ways."""
    block: list[Any] = list(first.body.body)
    inner = block[-1]
    if not isinstance(inner, cst.If) or inner.orelse is not None or not leaves(inner.body):
        return None
    here = {walk.program.source.position(n) for n in nodes(inner.test)}
    with walk.apart() as found:
        walk.branches([first.body])
    if not found.untraced_at(here):
        return None
    both = first.with_changes(body=cst.IndentedBlock([*block, *rest]))
    return walk.block([placed(walk, both, first), *rest]), 1 + len(rest)


def early_continue(walk: Walk, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """`if t: continue` in the block of a loop and what follows it, where t is a tensor's value."""
    first = body[index]
    if not walk.here.loops or getattr(walk.here.loops[-1], "body", cst.IndentedBlock([])).body is not body:
        return None
    made = without_continue(body[index:]) if isinstance(first, cst.If) else None
    if made is None or len(made) != 1:
        return None
    if not _asks_tensor(walk, first):  # type: ignore[arg-type] # an If
        return None
    return walk.statement(placed(walk, made[0], first)), len(body) - index


@statement(cst.Assert, general=True)
def asserted(walk: Walk, node: cst.Assert) -> Statements | None:
    """`assert c, "message"`."""
    test = walk.expr(node.test)
    message = walk.expr(node.msg) if node.msg else None
    if walk.traced(test.value):
        walk.sink.imports.add("jax")
        walk.note(node, "check", "this check of a tensor's value runs outside jit only")
        name = walk.unused("check")
        new = parse(f"isinstance({name} := {code(fit(test.node, 1))}, jax.core.Tracer) or {name}")
        made = node.with_changes(test=new)
        return [cst.SimpleStatementLine([made.with_changes(msg=message.node) if message else made])]
    if test.node is node.test and (message is None or message.node is node.msg):
        return [cst.SimpleStatementLine([node])]
    made = node.with_changes(test=test.node)
    return [cst.SimpleStatementLine([made.with_changes(msg=message.node) if message else made])]


__all__ = ["UNKNOWN"]
