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

import libcst as cst

from fnjax.port.facts import UNKNOWN, Value, join_values
from fnjax.port.naming import targets
from fnjax.port.operations import MISSING, code, fit
from fnjax.port.records import nodes
from fnjax.port.rules.loops import ONLY, carries, define, written_in
from fnjax.port.rules.registry import expression, statement
from fnjax.port.rules.statements import bind_target
from fnjax.port.walk import Statements, Term, Uncompressed, Walk, leaves, line, names, parse


def decided(walk: Walk, test: Term) -> bool | None:
    """What a condition surely is."""
    return test.value.literal if isinstance(test.value.literal, bool) else None


@expression(cst.IfExp)
def conditional(walk: Walk, node: cst.IfExp) -> Term:
    """`a if c else b`."""
    test = walk.expr(node.test)
    walk.conditional += 1
    body, orelse = walk.expr(node.body), walk.expr(node.orelse)
    walk.conditional -= 1
    if test.value.mask or body.value.mask or orelse.value.mask:
        raise Uncompressed
    value = replace(join_values(body.value, orelse.value), number="")
    if test.value.traced:
        walk.sink.imports |= {"jax", "jnp"}
        texts = [code(fit(t.node, 1)) for t in (test, body, orelse)]
        if body.value.kind == orelse.value.kind == "static" and body.value.parts is None and orelse.value.parts is None:
            if "unknown" not in (body.value.dtype, orelse.value.dtype):
                return Term(parse("jnp.where({}, {}, {})".format(*texts)), Value("tensor", value.dtype, 0))
        elif body.value.is_tensor and orelse.value.is_tensor:
            return Term(
                parse("jax.lax.cond({}, lambda: {}, lambda: {})".format(*texts)), replace(value, place=walk.fresh(node))
            )
        walk.report(node, "untraced", f"this conditional expression {ONLY}")
    return Term(walk.rebuilt(node), replace(value, literal=MISSING))


@statement(cst.If)
def branch(walk: Walk, node: cst.If) -> Statements | None:
    """`if c: ...`."""
    test = walk.expr(node.test)
    if test.value.mask:
        raise Uncompressed
    if test.value.traced:
        made = _traced(walk, node, test)
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


def _both(
    walk: Walk, bodies: list[cst.BaseSuite | None], narrowed: tuple[str, Value, Value] | None
) -> list[cst.BaseSuite | None]:
    if narrowed is None:
        return walk.branches(bodies)
    name, yes, no = narrowed
    from fnjax.port.facts import merged

    start = walk.state
    made: list[cst.BaseSuite | None] = []
    ends = []
    for body, value in zip(bodies, (yes, no), strict=True):
        walk.state = start.copy()
        walk.state.variables[name] = value
        made.append(None if body is None else walk.body(body))
        if body is None or not leaves(body):
            ends.append(walk.state)
    walk.state = merged(ends) if ends else start
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
                replace(value, kind="tensor"),
                replace(value, kind="static" if value.kind == "unknown" else value.kind),
            )
    elif isinstance(inner, cst.Comparison) and len(inner.comparisons) == 1 and isinstance(inner.left, cst.Name):
        operator, other = inner.comparisons[0].operator, inner.comparisons[0].comparator
        name = inner.left.value
        value = walk.state.variables.get(name)
        if value is not None and code(other) == "None" and isinstance(operator, (cst.Is, cst.IsNot)):
            nothing = Value("static", literal=None)
            found = (name, nothing, value) if isinstance(operator, cst.Is) else (name, value, nothing)
    if found is None:
        return None
    return (found[0], found[2], found[1]) if negative else found


def _traced(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """The form of an `if` on a tensor that jit can trace."""
    if _only_raises(node):
        return _check(walk, node, test)
    for form in (_cond, _by_functions):
        start, found = walk.state.copy(), list(walk.sink.findings)
        made = form(walk, node, test)
        if made is not None:
            return made
        walk.state, walk.sink.findings = start, found
    return None


def _only_raises(node: cst.If) -> bool:
    return node.orelse is None and all(
        isinstance(s, cst.SimpleStatementLine) and all(_harmless(x) for x in s.body) for s in node.body.body
    )


def _harmless(node: cst.CSTNode) -> bool:
    is_message = isinstance(node, cst.Expr) and (
        code(node).startswith(("print(", "warnings.warn(")) or ".warning(" in code(node)
    )
    return isinstance(node, cst.Raise) or is_message


def _check(walk: Walk, node: cst.If, test: Term) -> Statements:
    """A check runs where the value is known."""
    walk.sink.imports.add("jax")
    body = walk.branches([node.body])[0]
    walk.note(node.test, "check", "this check of a tensor's value runs outside jit only")
    condition = code(fit(test.node, 1))
    if isinstance(test.node, cst.Name):
        new = parse(f"not isinstance({condition}, jax.core.Tracer) and {condition}")
    else:
        new = parse(f"not isinstance(check := {condition}, jax.core.Tracer) and check")
    return [node.with_changes(test=new, body=body)]


def _assigned(body: cst.BaseSuite | None) -> dict[str, cst.BaseExpression] | None:
    """The plain assignments of which a block consists."""
    found: dict[str, cst.BaseExpression] = {}
    for s in body.body if body else ():
        for small in s.body if isinstance(s, cst.SimpleStatementLine) else [s]:
            if (
                isinstance(small, cst.Assign)
                and len(small.targets) == 1
                and isinstance(small.targets[0].target, cst.Name)
            ):
                found[small.targets[0].target.value] = small.value
            elif isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
                symbol = code(small.operator).strip().removesuffix("=")
                found[small.target.value] = parse(f"{small.target.value} {symbol} ({code(small.value)})")
            elif not isinstance(small, (cst.Pass, cst.Expr)) or (
                isinstance(small, cst.Expr) and not isinstance(small.value, (cst.SimpleString, cst.Ellipsis))
            ):
                return None
    return found


def _single_return(body: cst.BaseSuite) -> cst.BaseExpression | None:
    only = body.body[0] if len(body.body) == 1 else None
    small = only.body[0] if isinstance(only, cst.SimpleStatementLine) and len(only.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None


def _cond(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    orelse = node.orelse
    if isinstance(orelse, cst.If):
        return None
    start = walk.state.copy()
    before = list(walk.before)
    with walk.rehearsal():
        first, second = walk.branches([node.body, orelse.body if orelse else None])
    after = walk.state
    assert first is not None
    walk.state = start.copy()
    sides = [_assigned(first), _assigned(second)]
    returns = [_single_return(first), _single_return(second) if second else None]
    if all(r is not None for r in returns):
        walk.branches([node.body, orelse.body if orelse else None])
        walk.state = after
        walk.sink.imports.add("jax")
        yes, no = (code(fit(r, 1)) for r in returns if r is not None)
        return [line(f"return jax.lax.cond({code(fit(test.node, 1))}, lambda: {yes}, lambda: {no})")]
    if any(s is None for s in sides) or test.value.rank not in {0, None}:
        walk.state = start
        return None
    changed = sorted({n for s in sides if s for n in s})
    lengths = [len([x for x in (b.body if b else ()) if not isinstance(x, cst.Pass)]) for b in (first, second)]
    many = any(s is not None and len(s) != n for s, n in zip(sides, lengths, strict=True))
    if many or any(n not in start.variables and not all(s and n in s for s in sides) for n in changed):
        walk.state = start
        return None
    if not all(
        after.variables[n].kind in {"tensor", "unknown"}
        and (n not in start.variables or start.variables[n].kind in {"tensor", "unknown"})
        for n in changed
    ):
        walk.state = start
        return None
    used = {n for s in sides if s for k, v in s.items() for n in names(v) if n in s and n != k}
    if used or len(changed) > 3 or not changed:
        walk.state = start
        return None
    walk.branches([node.body, orelse.body if orelse else None])
    walk.before = before
    walk.state = after
    walk.sink.imports.add("jax")
    lambdas = []
    for side in sides:
        values = [code(fit((side or {}).get(n, cst.Name(n)), 1)) for n in changed]
        lambdas.append(f"lambda: {values[0]}" if len(changed) == 1 else f"lambda: ({', '.join(values)})")
    return [line(f"{', '.join(changed)} = jax.lax.cond({code(fit(test.node, 1))}, {lambdas[0]}, {lambdas[1]})")]


def _by_functions(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """The two blocks as functions, of which jax.lax.cond calls one."""
    orelse = node.orelse
    blocks: list[cst.BaseSuite] = [node.body]
    if orelse is not None:
        blocks.append(cst.IndentedBlock([orelse]) if isinstance(orelse, cst.If) else orelse.body)
    start, keys = walk.state.copy(), walk.sink.keys
    made = [b for b in walk.branches(list(blocks) if len(blocks) > 1 else [node.body, None]) if b is not None]
    after = walk.state
    walk.state = start
    bodies = [_lines(b) for b in made]
    returns = [_last_return(b) for b in bodies]
    if len(bodies) == 2 and all(r is not None for r in returns):
        bodies = [b[:-1] for b in bodies]
    elif any(r is not None for r in returns):
        return None
    written = [written_in(cst.IndentedBlock(b)) for b in bodies]
    if any(w is None for w in written) or walk.sink.keys != keys:
        return None
    every = {n for w in written if w is not None for n in w}
    own = {n for n in every if _own(walk, node, blocks, n)}
    given = sorted(n for n in every if n in start.variables and n not in own)
    if all(r is not None for r in returns):
        results = [code(fit(r, 1)) for r in returns if r is not None]
        taken = "return"
    else:
        changed = sorted(n for n in every if walk.live(n) and n not in own)
        both = written[0] & written[1] if len(written) == 2 else set()  # type: ignore[operator] # none is None
        new = {n: after.variables[n] for n in changed}
        if not changed or any(n not in start.variables and n not in both for n in changed):
            return None
        if not all(carries(v) or _was_number(v, start.variables.get(n)) for n, v in new.items()):
            return None
        results = [", ".join(changed)] * 2
        taken = f"{', '.join(changed)} ="
        for n, value in new.items():
            after.variables[n] = (
                value if value.is_tensor else Value("tensor", value.dtype, value.rank, place=value.place)
            )
            if value.place is None:
                walk.bind(n, Value("tensor", value.dtype, 0), node)
                after.variables[n] = walk.state.variables[n]
    walk.state = after
    walk.sink.imports.add("jax")
    functions = [
        define(name, ", ".join(given), [*block, line(f"return {result}")])
        for name, block, result in zip(("positive", "negative"), [*bodies, []], results, strict=False)
    ]
    arguments = ", ".join([code(fit(test.node, 1)), "positive", "negative", *given])
    last = line(f"{taken} jax.lax.cond({arguments})")
    return [*functions, last.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def _own(walk: Walk, node: cst.If, blocks: list[cst.BaseSuite], name: str) -> bool:
    """Whether a variable is only used in these blocks, and gets its value in them before it is read."""
    inside = walk.routine.nodes_in(node)
    found = walk.routine.reads.get(name, ())
    if not found or any(id(n) not in inside for n in found):  # of the porter's own, or used elsewhere
        return False
    for block in blocks:
        first = next(
            (s for s in block.body if any(isinstance(n, cst.Name) and n.value == name for n in nodes(s))), None
        )
        small = first.body[0] if isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1 else None
        bound = {n for t in small.targets for n in targets(t.target)} if isinstance(small, cst.Assign) else set()
        if first is not None and (name not in bound or name in names(small.value)):  # type: ignore[union-attr] # an Assign
            return False
    return True


def _lines(body: cst.BaseSuite) -> Statements:
    """The statements of a block."""
    if isinstance(body, cst.IndentedBlock):
        return list(body.body)
    return [cst.SimpleStatementLine(body.body)]  # type: ignore[arg-type] # one line


def _last_return(block: Statements) -> cst.BaseExpression | None:
    last = block[-1] if block else None
    small = last.body[0] if isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None


def _was_number(after: Value, before: Value | None) -> bool:
    """Whether a variable is a number on one side and an array on the other."""
    numbers = {"int", "float", "bool"}
    return after.parts is None and after.element is None and before is not None and before.dtype in numbers


def early_return(walk: Walk, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """`if t: return a` and then other statements up to `return b`, where t is a tensor's value."""
    first, rest = body[index], list(body[index + 1 :])
    if not isinstance(first, cst.If) or first.orelse is not None or not isinstance(first.body, cst.IndentedBlock):
        return None
    if _last_return(list(first.body.body)) is None or _last_return(rest) is None:
        return None
    with walk.rehearsal():
        walk.memo.clear()
        traced = walk.expr(first.test).value.traced
    if not traced:
        return None
    both = first.with_changes(orelse=cst.Else(cst.IndentedBlock(rest)))
    walk.program.source.positions[both] = walk.program.source.position(first)
    return walk.statement(both), 1 + len(rest)


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


@statement(cst.Try)
def attempt(walk: Walk, node: cst.Try) -> Statements | None:
    """`try: ... except ...:`."""
    start = walk.state.copy()
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
    from fnjax.port.facts import merged

    walk.state = merged(ends) if ends else start
    changes: dict[str, object] = {"body": body, "handlers": handlers}
    for part in ("orelse", "finalbody"):
        block = getattr(node, part)
        if block is not None:
            changes[part] = block.with_changes(body=walk.body(block.body))
    return [node.with_changes(**changes)]


__all__ = ["UNKNOWN"]
