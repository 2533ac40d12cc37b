"""Python that branches on a tensor's value.

What: `if` on a tensor becomes jax.lax.cond where its branches only give variables new values, or both return; checks
that raise run where the value is known, that is outside jit; conditional expressions become jnp.where or jax.lax.cond;
a `try` around a matrix that PyTorch may refuse (cholesky, inv, solve) asks whether the result is finite; of a `try`
that imports what the port does without its handler stays.
Before: `if x.sum() > 0: x = x * 2`
After: `x = jax.lax.cond(jnp.sum(x) > 0, lambda: x * 2, lambda: x)`
Safety: only where both branches give the same variables tensors; branches on Python values stay as they are.
Limits: branches of which one returns and the other does not, or that keep something on ctx, run un-jitted only; a `try`
of another form around such a matrix is a finding, for JAX gives NaN where PyTorch raises.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.facts import UNKNOWN, Value, decided, join_values, merged
from fnjax.port.located import nodes
from fnjax.port.naming import imported
from fnjax.port.operations import MISSING, code, fit, literal
from fnjax.port.rules.conditions import blocked, split, split_expression, split_return, without_continue
from fnjax.port.rules.kept_choices import kept_behind, zeros_for_none
from fnjax.port.rules.loops import ONLY
from fnjax.port.rules.registry import expression, statement
from fnjax.port.rules.statements import bind_target
from fnjax.port.rules.traced_branches import (
    DROPPED,
    alike,
    chosen_number,
    chosen_value,
    is_message,
    last_return,
    only_raises,
    predicate,
    scalar_for,
    shaped,
    traced_branch,
)
from fnjax.port.walk import Statements, Term, Uncompressed, Walk, leaves, lines_of, names, parse, placed

_SINGLES = (None, True, False)


@expression(cst.IfExp)
def conditional(walk: Walk, node: cst.IfExp) -> Term:
    """`a if c else b`."""
    if (copied := _copied(walk, node)) is not None:
        return walk.expr(copied)
    guarded = split_expression(walk, node)
    if guarded is not None:
        made: Term = conditional(walk, guarded)
        return made
    test = walk.expr(node.test)
    if test.node is not node.test and code(test.node) in {"True", "False"}:
        return walk.expr(node.body if code(test.node) == "True" else node.orelse)
    with walk.perhaps():
        narrowed = _narrowed(walk, node.test)
        body, orelse = (_assuming(walk, n, narrowed, i) for i, n in enumerate((node.body, node.orelse), 1))
    if test.value.mask or body.value.mask or orelse.value.mask:
        raise Uncompressed
    value, branch = replace(join_values(body.value, orelse.value), number=""), walk.branch(node)
    walk.state.decide_anew(branch)
    if test.value.traced:
        walk.sink.imports |= {"jax", "jnp"}
        texts = [code(fit(t.node, 1)) for t in (test, body, orelse)]
        if chosen_number(body.value, orelse.value, open_=True) and test.value.guard is None:
            chosen = replace(chosen_value(body.value, orelse.value), place=walk.fresh(node))
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
            return Term(
                parse("jax.lax.cond({}, lambda: {}, lambda: {})".format(*texts)), replace(value, place=walk.fresh(node))
            )
        walk.report(node, "untraced", f"this conditional expression {ONLY}")
    value = decided(value, [body.value, orelse.value], branch)
    if code(body.node) == code(orelse.node) and isinstance(node.test, (cst.Name, cst.Attribute)):
        return Term(body.node, replace(value, literal=MISSING))  # `x if inplace else x.clone()`
    return Term(walk.rebuilt(node), replace(value, literal=MISSING))


def _copied(walk: Walk, node: cst.IfExp) -> cst.BaseExpression | None:
    """The copy of `x.clone() if flag else x`, where x is only read again behind `if flag:`."""
    for side, (copy, other) in enumerate(((node.body, node.orelse), (node.orelse, node.body))):
        if not isinstance(other, cst.Name) or code(copy) != f"{other.value}.clone()" or walk.loops:
            continue
        place = walk.lookup(other.value).place
        if place is None or not place.local:  # the caller's
            continue
        flag, read = code(node.test), walk.routine.reads.get(other.value, ())
        chosen = [n for n in nodes(walk.routine.node) if isinstance(n, cst.If) and code(n.test) == flag]
        behind = {i for n in chosen if (b := n.orelse if side else n.body) for i in walk.routine.nodes_in(b)}
        behind |= {i for block in (node, *walk.untaken) for i in walk.routine.nodes_in(block)}
        position = walk.program.source.position
        once = isinstance(node.test, cst.Name) and len(walk.routine.given.get(flag, ())) <= 1
        if once and all(id(n) in behind or position(n) < position(node) for n in read):
            return copy
    return None


def _assuming(walk: Walk, node: cst.BaseExpression, narrowed: tuple[str, Value, Value] | None, side: int) -> Term:
    """An expression behind a question whether Python has decided a condition."""
    value = None if narrowed is None else walk.lookup(narrowed[0])
    if narrowed is None or value is None or not (value.guard is not None or value.optional):
        return walk.expr(node)
    start, walk.state = walk.state, walk.state.copy()
    walk.state.variables[narrowed[0]] = narrowed[side]  # type: ignore[assignment] # a value
    found = walk.expr(node)
    walk.state = start
    return found


@statement(cst.If)
def branch(walk: Walk, node: cst.If) -> Statements | None:
    """`if c: ...`."""
    guarded = None if only_raises(node) else split(walk, node)
    if guarded is not None:
        return branch(walk, guarded) or [guarded]
    test = walk.expr(node.test)
    if test.node is not node.test and code(test.node) in {"True", "False"}:
        return _decided(walk, node, code(test.node) == "True")
    if test.value.mask:
        raise Uncompressed
    if test.value.traced:
        node = blocked(walk, node)
        made = traced_branch(walk, node, test) or _keeping(walk, node, test)
        if made is not None:
            return made
        walk.report(node.test, "untraced", f"this `if` {ONLY}")
    orelse = node.orelse
    if isinstance(orelse, cst.If):
        bodies: list[cst.BaseSuite | None] = [node.body, cst.IndentedBlock([orelse])]
    else:
        bodies = [node.body, orelse.body if orelse else None]
    narrowed = _narrowed(walk, node.test)
    first, second = _both(walk, bodies, narrowed)
    assert first is not None
    if test.node is node.test and first is node.body and (second is None or second is bodies[1]):
        return [node]
    if (
        orelse is None
        and _passes(first)
        and not _passes(node.body)
        and isinstance(node.test, (cst.Name, cst.Attribute))
    ):
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


def _passes(block: cst.BaseSuite) -> bool:
    """Whether a block does nothing."""
    lines = lines_of(block)
    return all(isinstance(s, cst.SimpleStatementLine) and all(isinstance(n, cst.Pass) for n in s.body) for s in lines)


def _keeping(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """An `if` on a tensor whose branches keep something on ctx."""
    found = kept_behind(walk, node)
    if found is None:
        return None
    choice, behind, own = found
    walk.waiting |= own
    made = traced_branch(walk, choice, test) if choice else []
    walk.waiting -= own
    return None if made is None else [*made, *walk.block(behind)]


def _decided(walk: Walk, node: cst.If, answer: bool) -> Statements:
    """What is left of an `if` whose condition the port knows."""
    if not answer and isinstance(node.orelse, cst.If):
        return walk.block([node.orelse])
    taken = node.body if answer else node.orelse.body if node.orelse else cst.IndentedBlock([])
    if isinstance(taken, cst.SimpleStatementSuite):
        return walk.block([cst.SimpleStatementLine(taken.body)])
    return walk.block(list(taken.body))  # type: ignore[arg-type] # statements of a block


def _both(
    walk: Walk, bodies: list[cst.BaseSuite | None], narrowed: tuple[str, Value, Value] | None
) -> list[cst.BaseSuite | None]:
    if narrowed is None:
        return walk.branches(bodies)
    name, yes, no = narrowed
    start = walk.state
    made: list[cst.BaseSuite | None] = []
    ends = []
    for body, value in zip(bodies, (yes, no), strict=True):
        walk.state = start.copy()
        walk.state.variables[name] = value
        with walk.taking(body, bodies):
            made.append(None if body is None else walk.body(body))
        if body is None or not leaves(body):
            ends.append(walk.state)
    walk.state = merged(ends, walk.branch(walk.current)) if ends else start
    if len(ends) == 2 and start.variables[name].guard is not None and walk.state.version(name) == start.version(name):
        walk.state.variables[name] = start.variables[name]
    return made


def _narrowed(walk: Walk, test: cst.BaseExpression) -> tuple[str, Value, Value] | None:
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
    return (found[0], found[2], found[1]) if negative else found


def early_return(walk: Walk, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """`if t: return a` and then other statements up to `return b`, where t is a tensor's value."""
    first, rest = blocked(walk, body[index]), list(body[index + 1 :])
    if not isinstance(first, cst.If) or first.orelse is not None or not isinstance(first.body, cst.IndentedBlock):
        return None
    if last_return(rest) is None or not any(isinstance(n, cst.Return) for n in nodes(first.body)):
        return None
    with walk.rehearsal():
        walk.memo.clear()
        traced = walk.expr(first.test).value.traced
    if not traced:
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
    start, here = walk.state.copy(), {walk.program.source.position(n) for n in nodes(inner.test)}
    with walk.rehearsal():
        walk.branches([first.body])
        traced = any(f.code == "untraced" and (f.line, f.col) in here for f in walk.sink.findings)
    walk.state = start
    if not traced:
        return None
    both = first.with_changes(body=cst.IndentedBlock([*block, *rest]))
    return walk.block([placed(walk, both, first), *rest]), 1 + len(rest)


def early_continue(walk: Walk, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """`if t: continue` in the block of a loop and what follows it, where t is a tensor's value."""
    first = body[index]
    if not walk.loops or getattr(walk.loops[-1], "body", cst.IndentedBlock([])).body is not body:
        return None
    made = without_continue(body[index:]) if isinstance(first, cst.If) else None
    if made is None or len(made) != 1:
        return None
    start = walk.state.copy()
    with walk.rehearsal():
        walk.memo.clear()
        traced = walk.expr(first.test).value.traced  # type: ignore[attr-defined] # an If
    walk.state = start
    if not traced:
        return None
    return walk.statement(placed(walk, made[0], first)), len(body) - index


@statement(cst.Assert)
def asserted(walk: Walk, node: cst.Assert) -> Statements | None:
    """`assert c, "message"`."""
    test = walk.expr(node.test)
    message = walk.expr(node.msg) if node.msg else None
    if test.value.traced:
        walk.sink.imports.add("jax")
        walk.note(node, "check", "this check of a tensor's value runs outside jit only")
        made = node.with_changes(
            test=parse(f"isinstance(check := {code(fit(test.node, 1))}, jax.core.Tracer) or check")
        )
        return [cst.SimpleStatementLine([made.with_changes(msg=message.node) if message else made])]
    if test.node is node.test and (message is None or message.node is node.msg):
        return [cst.SimpleStatementLine([node])]
    made = node.with_changes(test=test.node)
    return [cst.SimpleStatementLine([made.with_changes(msg=message.node) if message else made])]


# What PyTorch refuses for the values of a matrix; and what it may fail at, which is rare.
_REFUSING = frozenset({"cholesky", "inverse", "inv", "solve", "lu_solve", "tensorinv", "tensorsolve"})
_FAILING = frozenset({"svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "symeig", "pinverse", "pinv", "lstsq"})


def _unfailing(walk: Walk, node: cst.Try) -> None:
    """A handler for values at which PyTorch raises and JAX gives NaN."""
    calls = [n for n in nodes(node.body) if isinstance(n, cst.Call)]
    for call in calls:
        name = _method(call)
        if name in _REFUSING | _FAILING:
            raises = all(isinstance(n, cst.Raise) for h in node.handlers for s in h.body.body[-1:] for n in s.children)
            severity = "note" if raises or name in _FAILING else "error"
            message = f"PyTorch's {name} raises for some matrices, JAX's gives NaN there: this except is not reached"
            walk.report(call, "untraced", message, severity)


_OF_NUMBERS = frozenset({"ValueError", "ZeroDivisionError", "OverflowError", "ArithmeticError", "FloatingPointError"})
_DIVIDING = (cst.Divide, cst.Modulo, cst.FloorDivide)


def _never_raised(walk: Walk, node: cst.Try) -> None:
    """A handler for what numbers of Python or checks raise, where the port has an array."""
    if all(_only_tells(h.body) for h in node.handlers):
        return
    kinds = {n for h in node.handlers if h.type for n in names(h.type)}
    parts = list(nodes(node.body))
    checks = [n.test for n in parts if isinstance(n, cst.Assert) or (isinstance(n, cst.If) and only_raises(n))]
    asked = [n.right for n in parts if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, _DIVIDING)]
    asked += [
        n.args[0].value
        for n in parts
        if isinstance(n, cst.Call) and n.args and walk.name_of(n.func).startswith("math.")
    ]
    start = walk.state.copy()
    with walk.rehearsal():
        walk.body(node.body)
        reached = [n for n in checks if walk.expr(n).value.traced]
        reached += [n for n in asked if kinds & _OF_NUMBERS and walk.expr(n).value.python]
    walk.state = start
    for n in reached[:1]:
        walk.report(n, "untraced", "this raises for values, and an array does not: the except is not reached under jit")


def _asked(walk: Walk, node: cst.Try) -> list[Any] | None:
    """`try: L = torch.linalg.cholesky(x)` with what follows it, and its handler, as an `if` on the result."""
    first = node.body.body[0]
    rest: list[Any] = list(node.body.body[1:])
    small = first.body[0] if isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1 else None
    handler = node.handlers[0] if len(node.handlers) == 1 else None
    calls = [n for n in nodes(node.body) if isinstance(n, cst.Call) and _method(n) in _REFUSING | _FAILING]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or calls != [small.value] or handler is None:
        return None
    target = small.targets[0].target
    blocks = isinstance(node.body, cst.IndentedBlock) and isinstance(handler.body, cst.IndentedBlock)
    if node.orelse is not None or node.finalbody is not None or _method(calls[0]) not in _REFUSING or not blocks:
        return None
    if not isinstance(target, cst.Name) or target.value in walk.state.variables:  # what the handler leaves as it was
        target = cst.Name(walk.unused("found"))
        rest.insert(0, cst.SimpleStatementLine([small.with_changes(value=target)]))
        first = cst.SimpleStatementLine([small.with_changes(targets=[cst.AssignTarget(target)])])
    left: list[Any] = []
    for s in handler.body.body:
        only = s.body[0] if isinstance(s, cst.SimpleStatementLine) else s
        if is_message(only):
            walk.note(only, "dropped", DROPPED)
        elif handler.name is not None and code(handler.name.name) in names(only):
            return None
        elif not isinstance(only, cst.Pass):
            left.append(s)
    test = f"{target.value}.isfinite().all()"
    made: list[Any] = [first]
    if left:
        orelse = cst.Else(cst.IndentedBlock(rest)) if rest else None
        made.append(cst.If(cst.parse_expression(f"not {test}"), cst.IndentedBlock(left), orelse))
    elif rest:
        made.append(cst.If(cst.parse_expression(test), cst.IndentedBlock(rest)))
    return [placed(walk, s, node) for s in made]


_WITHOUT = frozenset({"", "ImportError", "ModuleNotFoundError", "Exception"})


def _without_module(walk: Walk, node: cst.Try) -> Statements | None:
    """`try: import other`, where the port imports no such module: what its handler says."""
    opening = node.body.body[0]
    first = opening.body[0] if isinstance(opening, cst.SimpleStatementLine) else opening
    if not isinstance(first, (cst.Import, cst.ImportFrom)):
        return None
    taken = next((h for h in node.handlers if (code(h.type) if h.type else "") in _WITHOUT), None)
    roots = {full.split(".")[0] for _, full in imported(first)}
    missing = roots - _PRESENT - sys.stdlib_module_names
    if not missing or taken is None or taken.name is not None or node.finalbody is not None:
        return None
    walk.note(node, "dropped", f"the port does without {min(missing)}: it takes what stands for the lack of it")
    return walk.block(lines_of(taken.body))


_PRESENT = frozenset({"torch", "numpy", "scipy", "jax", "fnjax", "einops"})


def _only_tells(block: cst.BaseSuite) -> bool:
    """Whether a handler prints and raises, and does nothing else."""
    small = [x for s in lines_of(block) for x in (s.body if isinstance(s, cst.SimpleStatementLine) else [s])]
    return isinstance(small[-1], cst.Raise) and all(is_message(x) for x in small[:-1])


def _method(node: cst.Call) -> str:
    return code(node.func).rpartition(".")[2]


@statement(cst.Try)
def attempt(walk: Walk, node: cst.Try) -> Statements | None:
    """`try: ... except ...:`."""
    if (without := _without_module(walk, node)) is not None:
        return without
    if (asked := _asked(walk, node)) is not None:
        return [s for statement_ in asked for s in walk.statement(statement_)]
    if node.handlers:
        _unfailing(walk, node)
        _never_raised(walk, node)
    start = walk.state.copy()
    telling = [h.body for h in node.handlers if _only_tells(h.body)]
    with walk.taking(node.body, telling):
        body = walk.body(node.body)
    ends = [walk.state.copy()] if not leaves(node.body) else []
    handlers = []
    start.join(walk.state)
    for handler in node.handlers:
        walk.state = start.copy()
        if handler.name is not None:
            bind_target(walk, handler.name.name, Value("object"), handler)
        made = walk.body(handler.body)
        handlers.append(handler if made is handler.body else handler.with_changes(body=made))
        if not leaves(handler.body):
            ends.append(walk.state)
    walk.state = merged(ends, walk.branch(walk.current)) if ends else start
    changes: dict[str, object] = {"body": body, "handlers": handlers}
    for part in ("orelse", "finalbody"):
        block = getattr(node, part)
        if block is not None:
            changes[part] = block.with_changes(body=walk.body(block.body))
    return [node.with_changes(**changes)]


__all__ = ["UNKNOWN"]
