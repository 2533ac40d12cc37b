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

from fnjax.port.facts import UNKNOWN, Value, decided, join_values, merged
from fnjax.port.naming import targets
from fnjax.port.operations import MISSING, code, fit, literal
from fnjax.port.records import nodes
from fnjax.port.rules.conditions import placed, split, split_expression, split_return, without_continue
from fnjax.port.rules.loops import ONLY, carries, define, written_in
from fnjax.port.rules.registry import expression, statement
from fnjax.port.rules.statements import bind_target
from fnjax.port.walk import Statements, Term, Uncompressed, Walk, leaves, line, names, parse

_SINGLES = (None, True, False)


@expression(cst.IfExp)
def conditional(walk: Walk, node: cst.IfExp) -> Term:
    """`a if c else b`."""
    guarded = split_expression(walk, node)
    if guarded is not None:
        made: Term = conditional(walk, guarded)
        return made
    test = walk.expr(node.test)
    walk.conditional += 1
    narrowed = _narrowed(walk, node.test)
    body, orelse = (_assuming(walk, n, narrowed, i) for i, n in enumerate((node.body, node.orelse), 1))
    walk.conditional -= 1
    if test.value.mask or body.value.mask or orelse.value.mask:
        raise Uncompressed
    value, branch = replace(join_values(body.value, orelse.value), number=""), walk.branch(node)
    walk.state.decide_anew(branch)
    if test.value.traced:
        walk.sink.imports |= {"jax", "jnp"}
        texts = [code(fit(t.node, 1)) for t in (test, body, orelse)]
        if _chosen_number(body.value, orelse.value, open_=True) and test.value.guard is None:
            chosen = replace(chosen_value(body.value, orelse.value), place=walk.fresh(node))
            return Term(parse("jnp.where({}, {}, {})".format(*texts)), chosen)
        if (
            body.value.is_tensor
            and orelse.value.is_tensor
            and alike(body.value, orelse.value)
            and test.value.guard is None
        ):
            for i, one, other in ((1, body, orelse), (2, orelse, body)):
                if isinstance(other.node, (cst.Name, cst.Attribute)) and _scalar_for(one.value, other.value):
                    texts[i] = code(_shaped(walk, one.node, other.node, {code(other.node): other.value}))
            return Term(
                parse("jax.lax.cond({}, lambda: {}, lambda: {})".format(*texts)), replace(value, place=walk.fresh(node))
            )
        walk.report(node, "untraced", f"this conditional expression {ONLY}")
    value = decided(value, [body.value, orelse.value], branch)
    if code(body.node) == code(orelse.node) and isinstance(node.test, (cst.Name, cst.Attribute)):
        return Term(body.node, replace(value, literal=MISSING))  # `x if inplace else x.clone()`
    return Term(walk.rebuilt(node), replace(value, literal=MISSING))


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
    guarded = None if _only_raises(node) else split(walk, node)
    if guarded is not None:
        return branch(walk, guarded) or [guarded]
    test = walk.expr(node.test)
    if test.node is not node.test and code(test.node) in {"True", "False"}:
        return _decided(walk, node, code(test.node) == "True")
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


def _traced(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """The form of an `if` on a tensor that jit can trace."""
    if _only_raises(node):
        return _check(walk, node, test)
    if test.value.guard is not None:  # Python's part could not be asked first
        return None
    ends = _ends(walk, node)
    if ends is None:
        return None
    for form in (_cond, _by_functions):
        start, found = walk.state.copy(), list(walk.sink.findings)
        made = form(walk, node, test, ends)
        if made is not None:
            return made
        walk.state, walk.sink.findings = start, found
    return None


Ends = list[dict[str, Value]]


def _ends(walk: Walk, node: cst.If) -> Ends | None:
    """The variables after either branch; None where they cannot be arrays of one dtype and shape."""
    orelse = node.orelse
    blocks: list[cst.BaseSuite | None] = [node.body, orelse.body if isinstance(orelse, cst.Else) else None]
    if isinstance(orelse, cst.If):
        blocks[1] = cst.IndentedBlock([orelse])
    start, returns = walk.state, []
    ends: Ends = []
    with walk.rehearsal():
        for block in blocks:
            walk.state, known = start.copy(), len(walk.returns)
            walk.branches([block])
            ends.append(walk.state.variables)
            returns.append(walk.returns[known:])
            del walk.returns[known:]
    walk.state = start
    if not all(alike(a, b) for a in returns[0] for b in returns[1]):
        return None
    written = {n for n in walk.program.bound_in(node) if n in ends[0] and n in ends[1] and walk.live(n)}
    return ends if all(alike(ends[0][n], ends[1][n]) for n in written) else None


def _number(value: Value) -> bool:
    """Whether this is a number, or perhaps one and perhaps an array."""
    plain = value.parts is None and value.element is None
    return plain and (value.mixed or (value.kind == "static" and value.dtype in {"int", "float", "bool"}))


def _chosen_number(a: Value, b: Value, open_: bool = False) -> bool:
    """Whether one of two values is a number, and the other is one or an array, or may be (`open_`)."""
    others = [v for v in (a, b) if not _number(v) and not v.is_tensor]
    return (_number(a) or _number(b)) and all(open_ and v.kind == "unknown" and v.place is not None for v in others)


_NARROW = frozenset({"float16", "bfloat16", "int8", "uint8", "int16"})


def alike(a: Value, b: Value) -> bool:
    """Whether two arrays may have one dtype and shape, as far as they are known."""
    if a.parts is not None and b.parts is not None:
        return len(a.parts) == len(b.parts) and all(map(alike, a.parts, b.parts))
    if not (a.is_tensor and b.is_tensor):
        return not (a.is_tensor and b.literal is None) and not (b.is_tensor and a.literal is None)
    if a.optional != b.optional:
        return False
    dtypes = {a.dtype, b.dtype}
    exact = {a.exact, b.exact}
    if len(dtypes) == 2 and ("bool" in dtypes or "unknown" not in dtypes):
        return False
    if len(exact) == 2 and exact & _NARROW and not any(e.startswith("?") for e in exact):
        return False
    return (a.rank == b.rank or None in (a.rank, b.rank)) and not (_entry_of(a, b) or _entry_of(b, a))


def _entry_of(a: Value, b: Value) -> bool:
    """Whether one array is made of some entries of the other."""
    if a.place is None or b.place is None or a.place.storage != b.place.storage or not a.place.starts(b.place):
        return False
    return any(isinstance(s.expression, cst.Subscript) for s in b.place.steps[len(a.place.steps) :])


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


def _in_shape(
    walk: Walk, blocks: Sequence[cst.BaseSuite | None], start: dict[str, Value], ends: Ends
) -> list[cst.BaseSuite | None]:
    """Scalars take the shape of what they replace, which may be (1,): `x.max()` becomes `x.max().reshape(m.shape)`."""
    bound = [[walk.program.bound_in(s) for s in _lines(b)] if b else [] for b in (*blocks, None)]
    made = []
    for side, block in enumerate(blocks):
        other = {n for names_ in bound[1 - side] for n in names_}
        scalars = {
            n: start[n]
            for n, end in ends[side].items()
            if n in start and n not in other and sum(n in b for b in bound[side]) == 1 and _scalar_for(end, start[n])
        }
        lines = [_with_shapes(walk, s, scalars) for s in _lines(block)] if block and scalars else []
        made.append(cst.IndentedBlock(lines) if lines else block)
    return made


def _with_shapes(walk: Walk, statement: cst.BaseStatement, scalars: dict[str, Value]) -> cst.BaseStatement:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return statement
    target, value = small.targets[0].target, small.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = list(zip(target.elements, value.elements, strict=True))
        parts = [v.with_changes(value=_shaped(walk, v.value, t.value, scalars)) for t, v in pairs]
        new: cst.BaseExpression = value.with_changes(elements=parts)
    else:
        new = _shaped(walk, value, target, scalars)
    return statement.with_changes(body=[small.with_changes(value=new)])


def _scalar_for(new: Value, old: Value) -> bool:
    """Whether a scalar takes the place of an array of which no shape is known."""
    return new.is_tensor and new.rank == 0 and old.rank is None and old.place is not None


def _shaped(
    walk: Walk, value: cst.BaseExpression, target: cst.BaseExpression, scalars: dict[str, Value]
) -> cst.BaseExpression:
    """What the variable takes, in the shape that it has."""
    name = code(target)
    if name not in scalars or code(value) == name:
        return value
    if not scalars[name].is_tensor:
        walk.sink.imports.add("jnp")
    return parse(
        f"{code(fit(value))}.reshape({name}.shape)"
        if scalars[name].is_tensor
        else f"{code(fit(value))}.reshape(jnp.shape({name}))"
    )


def _single_return(body: cst.BaseSuite) -> cst.BaseExpression | None:
    only = body.body[0] if len(body.body) == 1 else None
    small = only.body[0] if isinstance(only, cst.SimpleStatementLine) and len(only.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None


def _cond(walk: Walk, node: cst.If, test: Term, ends: Ends) -> Statements | None:
    orelse = node.orelse
    if isinstance(orelse, cst.If):
        return None
    start = walk.state.copy()
    before = list(walk.before)
    with walk.rehearsal():
        first, second = walk.branches([node.body, orelse.body if orelse else None])
    after = walk.state
    walk.state = start.copy()
    first, second = _in_shape(walk, (first, second), start.variables, ends)
    assert first is not None
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
    numbers = any(_chosen_number(ends[0][n], ends[1][n]) for n in changed)
    if numbers and not all(
        (ends[0][n].is_tensor and ends[1][n].is_tensor) or _chosen_number(ends[0][n], ends[1][n]) for n in changed
    ):
        walk.state = start
        return None
    if not numbers and not all(
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
    if numbers:  # jnp.where gives both sides one dtype
        walk.sink.imports.add("jnp")
        condition, values = code(fit(test.node, 1)), []
        for n in changed:
            texts = [code(fit((side or {}).get(n, cst.Name(n)), 1)) for side in sides]
            values.append(f"jnp.where({condition}, {texts[0]}, {texts[1]})")
            walk.bind(n, chosen_value(ends[0][n], ends[1][n]), node)
        return [line(f"{', '.join(changed)} = {', '.join(values)}")]
    walk.sink.imports.add("jax")
    lambdas = []
    for side in sides:
        values = [code(fit((side or {}).get(n, cst.Name(n)), 1)) for n in changed]
        lambdas.append(f"lambda: {values[0]}" if len(changed) == 1 else f"lambda: ({', '.join(values)})")
    return [line(f"{', '.join(changed)} = jax.lax.cond({code(fit(test.node, 1))}, {lambdas[0]}, {lambdas[1]})")]


def _widened(a: Value, b: Value) -> bool:
    """Whether one of two values is a whole number and the other perhaps an array of others."""
    number, array = (a, b) if b.is_tensor else (b, a)
    return array.is_tensor and number.kind == "static" and number.dtype in {"int", "bool"} and a.dtype != b.dtype


def chosen_value(a: Value, b: Value) -> Value:
    """What jnp.where of two numbers or arrays gives."""
    arrays = [v for v in (a, b) if v.is_tensor] or [a, b]
    dtypes = {v.dtype for v in (a, b)}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float" if dtypes <= {"int", "bool", "float"} else "unknown"
    rank = arrays[0].rank if len(arrays) == 1 or arrays[0].rank == arrays[1].rank else None
    known = all(v.kind == "static" for v in (a, b))
    return Value("tensor", dtype, 0 if known else rank)


def _by_functions(walk: Walk, node: cst.If, test: Term, ends: Ends) -> Statements | None:
    """The two blocks as functions, of which jax.lax.cond calls one."""
    orelse = node.orelse
    blocks: list[cst.BaseSuite] = [node.body]
    if orelse is not None:
        blocks.append(cst.IndentedBlock([orelse]) if isinstance(orelse, cst.If) else orelse.body)
    start, keys = walk.state.copy(), walk.sink.keys
    made = [b for b in walk.branches(list(blocks) if len(blocks) > 1 else [node.body, None]) if b is not None]
    after = walk.state
    walk.state = start
    bodies = [_lines(b) for b in _in_shape(walk, made, start.variables, ends) if b is not None]
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
        if any(_widened(ends[0][n], ends[1][n]) for n in new if n in ends[0] and n in ends[1]):
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
    if _last_return(rest) is None or not any(isinstance(n, cst.Return) for n in nodes(first.body)):
        return None
    with walk.rehearsal():
        walk.memo.clear()
        traced = walk.expr(first.test).value.traced
    if not traced:
        return _return_behind(walk, first, rest)
    if _last_return(list(first.body.body)) is None:
        return None
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
    walk.state = merged(ends, walk.branch(walk.current)) if ends else start
    changes: dict[str, object] = {"body": body, "handlers": handlers}
    for part in ("orelse", "finalbody"):
        block = getattr(node, part)
        if block is not None:
            changes[part] = block.with_changes(body=walk.body(block.body))
    return [node.with_changes(**changes)]


__all__ = ["UNKNOWN"]
