"""Loops, also those that end on a tensor's value.

What: `while` on a tensor's value, and `for i in range(n)` and `while True` with one or more `break`s on one, become
jax.lax.while_loop where their blocks only give variables new values; other loops stay Python's.
Before: `while err > tol: y = f(y); err = (y - g).abs().max()`
After: `y, err = jax.lax.while_loop(more, step, (y, err))`
Safety: what a round begins with is an array of one shape and dtype, as JAX checks when it runs; what is made in a round
stays in it.
Limits: rounds that append to lists, keep something on ctx, draw random numbers or return run un-jitted only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.facts import STATIC, UNKNOWN, State, Value
from fnjax.port.naming import targets
from fnjax.port.operations import code, fit
from fnjax.port.program import nodes
from fnjax.port.rules.conditions import parted
from fnjax.port.rules.registry import statement
from fnjax.port.rules.statements import bind_target, element_of
from fnjax.port.rules.views import Views, counted, views_of
from fnjax.port.walk import Statements, Term, Walk, line, lines_of, names, parse, placed

ONLY = "branches on a tensor's value, which is unknown under jit; this runs un-jitted only"
_NUMBERS = frozenset({"int", "float", "bool"})


@statement(cst.For)
def for_loop(walk: Walk, node: cst.For) -> Statements | None:
    """`for i in range(n):`."""
    items = walk.expr(node.iter)
    one = element_of(walk, node.iter, items.value)
    ended = _with_break(walk, node, one)
    if ended is not None:
        return ended
    views = views_of(walk, node)
    if views is not None:
        return _over_views(walk, node, items, views)
    body = walk.loop(node, lambda: bind_target(walk, node.target, one, node), node.body)
    orelse = node.orelse and node.orelse.with_changes(body=walk.body(node.orelse.body))
    if body is node.body and items.node is node.iter and orelse is node.orelse:
        return [node]
    return [node.with_changes(iter=items.node, body=body, orelse=orelse)]


def _over_views(walk: Walk, node: cst.For, items: Term, views: Views) -> Statements:
    """A loop that may write to the views that it iterates over."""
    walk.waiting.add(views.counter)
    body = walk.loop(node, lambda: bind_target(walk, node.target, views.value, node), node.body)
    walk.waiting.discard(views.counter)
    for name in targets(node.target):  # what the last round has seen
        value = walk.state.variables.get(name)
        if value is not None and value.place is not None:
            walk.state.variables[name] = replace(value, place=value.place.doubtful)
    orelse = node.orelse and node.orelse.with_changes(body=walk.body(node.orelse.body))
    same = body is node.body and items.node is node.iter and orelse is node.orelse
    made = node if same else node.with_changes(iter=items.node, body=body, orelse=orelse)
    return [counted(views, made)]


@statement(cst.While)
def while_loop(walk: Walk, node: cst.While) -> Statements | None:
    """`while c: ...`."""
    ended = _endless(walk, node) or _guarded(walk, node)
    if ended is not None:
        return ended
    start = walk.state.copy()
    tests: list[Term] = []

    def enter() -> None:
        walk.memo.clear()
        tests.append(walk.expr(node.test))

    findings = list(walk.sink.findings)
    body = walk.loop(node, enter, node.body)
    test = tests[-1]
    if test.value.traced or _later_traced(walk, node, start):
        after, reported = walk.state, walk.sink.findings
        walk.state, walk.sink.findings = start, findings
        made = _traced(walk, node)
        if made is not None:
            return made
        walk.state, walk.sink.findings = after, reported
        walk.report(node.test, "untraced", f"this `while` {ONLY}")
    if body is node.body and test.node is node.test:
        return [node]
    return [node.with_changes(test=test.node, body=body)]


def _later_traced(walk: Walk, node: cst.While, start: State) -> bool:
    """Whether the test asks for a tensor's value when the first round is over."""
    after, walk.state = walk.state, start.copy()
    with walk.rehearsal():
        walk.body(node.body)
        walk.memo.clear()
        found = walk.expr(node.test).value.traced
    walk.state = after
    return found


def _traced(walk: Walk, node: cst.While) -> Statements | None:
    """The loop as jax.lax.while_loop; None where it is no such loop."""
    if node.orelse is not None or any(isinstance(n, cst.NamedExpr) for n in nodes(node)):
        return None
    for name in _only_here(walk, node):  # known from an earlier round of a loop around this one
        walk.state.variables.pop(name, None)
    start = walk.state.copy()

    def alone() -> None:
        for name in walk.state.variables.keys() - start.variables.keys():  # what a round makes stays in it
            del walk.state.variables[name]

    with walk.rehearsal():
        rehearsed = walk.loop(node, alone, node.body)
    ends, walk.state = walk.round.variables, start.copy()
    written = written_in(rehearsed)
    if written is None:
        return None
    carried = {n: n for n in start.variables if n in written}  # with what each begins
    new = sorted(n for n in written - carried.keys() if walk.live(n))  # the first round gives them their shapes
    if not carried or not all(n in _given_always(rehearsed) for n in new):
        return None
    if not all(carries(start.variables[n]) for n in carried):
        return None

    def end(name: str, value: Value) -> Value:
        walk.bind(name, value, node)
        with walk.rehearsal():
            walk.loop(node, alone, node.body)
        walk.state = start.copy()
        return walk.round.variables.get(name, UNKNOWN)

    firsts = {n: _first(n, start.variables, ends.get(n, UNKNOWN), end) for n in carried}
    for name, (text, value) in firsts.items():
        carried[name] = text
        walk.sink.imports |= {"jnp"} if text.startswith("jnp.") else set()
        walk.bind(name, replace(value, number=""), node)
    tests: list[Term] = []

    def enter() -> None:
        alone()
        walk.memo.clear()
        tests.append(walk.expr(node.test))

    keys, before, known = walk.sink.keys, len(walk.before), list(walk.sink.findings)
    body = walk.loop(node, enter, node.body)
    last = written_in(body)
    if any(f.code == "untraced" and f not in known for f in walk.sink.findings):  # of a counter, as one
        return None
    if walk.sink.keys != keys or len(walk.before) != before or last is None or not last <= written:
        return None
    if not all(n in walk.state.variables and carries(walk.state.variables[n]) for n in new):
        return None
    walk.sink.imports.add("jax")
    return _emitted(walk, tests[-1], body, carried, new)


def _only_here(walk: Walk, node: cst.While) -> set[str]:
    """The variables of the source that only this loop gives values."""
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
    inside = {id(n) for n in nodes(node)}
    found: dict[bool, set[str]] = {True: set(), False: {p.name.value for p in walk.routine.parameters}}
    for n in nodes(walk.routine.node.body):
        if isinstance(n, kinds):
            found[id(n) in inside] |= set(targets(n.target))
    return found[True] - found[False]


def _first(name: str, start: dict[str, Value], found: Value, end: Callable[[str, Value], Value]) -> tuple[str, Value]:
    """What a variable begins with, an array of the dtype and shape that a round gives it, and what is known of it."""
    value = start[name]
    if value.kind != "static":
        return name, replace(value, kind="tensor")
    number = Value("tensor", value.dtype, 0)
    if found.dtype == value.dtype and (found.kind == "static" or found.rank == 0):
        return name, number
    real = replace(number, dtype="float")
    if value.dtype == "int" and (last := end(name, real)).rank == 0 and last.dtype == "float":  # `t = 1` and `t *= 0.5`
        return f"float({name})", real
    alike = {v.like: (n, v) for n, v in start.items() if v.like and v.is_tensor and n.isidentifier()}
    for like, (other, shaped) in alike.items():  # `v = 0` and `v = v * decay + x`
        if end(name, replace(shaped, place=None)).like == like:
            return f"jnp.full_like({other}, {name})", replace(shaped, place=value.place)
    return name, number


def _given_always(body: cst.BaseSuite) -> set[str]:
    """The variables that each round gives a value, whatever its tests say."""
    small = (x for s in body.body if isinstance(s, cst.SimpleStatementLine) for x in s.body)
    return {n for x in small if isinstance(x, cst.Assign) for t in x.targets for n in targets(t.target)}


def _emitted(walk: Walk, test: Term, body: cst.BaseSuite, carried: dict[str, str], new: list[str]) -> Statements:
    if walk.differentiated:
        message = "JAX takes no gradient of a loop that ends on a value: let it run for a fixed number of rounds"
        walk.report(walk.current, "autograd", message)
    more, step, carry = map(walk.unused, ("more", "step", "carry"))
    condition = code(fit(test.node, 1)) if test.value.dtype == "bool" else f"{code(fit(test.node, 7))} != 0"
    if test.value.is_tensor and test.value.rank != 0:  # of one entry
        condition = f"({condition}).reshape(())"
    together = ", ".join([*carried, *new])
    single = len(carried) + len(new) == 1
    parameter = together if single else carry
    opening: Statements = [] if single else [line(f"{together} = {carry}")]
    ends = [line(f"return {condition}"), line(f"return {together}")]
    inner = lines_of(body)
    made: Statements = [
        define(more, parameter, [*opening, ends[0]]),
        define(step, parameter, [*opening, *inner, ends[1]]),
    ]
    initial = ", ".join([*carried.values(), *("None" for _ in new)])
    initial = initial if single else f"({initial})"
    initial = f"{step}({initial})" if new else initial
    last = line(f"{together} = jax.lax.while_loop({more}, {step}, {initial})")
    return [*made, last.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def define(name: str, parameters: str, block: Statements) -> cst.FunctionDef:
    """A function inside a function."""
    made = cst.parse_statement(f"def {name}({parameters}):\n    pass\n")
    assert isinstance(made, cst.FunctionDef)
    return made.with_changes(body=cst.IndentedBlock(block), leading_lines=[cst.EmptyLine(indent=False)])


def carries(value: Value) -> bool:
    """Whether a variable can be what a round begins with: an array or a number."""
    if value.kind == "static":
        return value.dtype in _NUMBERS and value.parts is None and value.element is None
    return value.is_tensor or (value.kind == "unknown" and value.place is not None)


def written_in(body: cst.BaseSuite, looped: bool = False) -> set[str] | None:
    """The variables that a translated block, or a loop's, gives new values; None if it does something else."""
    found: set[str] = set()
    for s in body.body:
        for small in s.body if isinstance(s, cst.SimpleStatementLine) else [s]:
            if isinstance(small, cst.Assign):
                places = [t.target for t in small.targets]
            elif isinstance(small, (cst.AugAssign, cst.AnnAssign)) and small.value is not None:
                places = [small.target]
            elif isinstance(small, cst.If):  # of Python's
                blocks = [small.body, *otherwise(small)]
                inner = [written_in(b, looped) for b in blocks]
                if any(w is None for w in inner):
                    return None
                found |= {n for w in inner for n in w or ()}
                continue
            elif isinstance(small, cst.For) and small.orelse is None:  # of Python's
                repeated = written_in(small.body, looped=True)
                if repeated is None:
                    return None
                found |= repeated | set(targets(small.target))
                continue
            elif (
                isinstance(small, (cst.Pass, cst.FunctionDef))
                or (looped and isinstance(small, (cst.Break, cst.Continue)))
                or (isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.Ellipsis)))
            ):
                continue
            else:
                return None
            for place in places:
                bound = set(targets(place))
                if not bound or any(isinstance(n, (cst.Attribute, cst.Subscript)) for n in nodes(place)):
                    return None
                found |= bound
    return found


def otherwise(node: cst.If) -> list[cst.BaseSuite]:
    """The block of `else`, or that of `elif` as a block."""
    orelse = node.orelse
    return [cst.IndentedBlock([orelse])] if isinstance(orelse, cst.If) else [orelse.body] if orelse else []


def _with_break(walk: Walk, node: cst.For, one: Value) -> Statements | None:
    """`for i in range(n): ...; if t: break`, where t is a tensor's value, as a `while`."""
    call = node.iter
    if node.orelse is not None or not isinstance(node.target, cst.Name):
        return None
    if not isinstance(call, cst.Call) or walk.name_of(call.func) != "builtins.range" or len(call.args) > 2:
        return None
    found = _leaving(walk, node, lambda: bind_target(walk, node.target, one, node))
    if found is None or (node.target.value != "_" and walk.live(node.target.value) and _read_after(walk, node)):
        return None
    start, done = found
    counter = node.target.value if node.target.value != "_" else walk.unused("i")
    bounds = [code(a.value) for a in call.args]
    first, last = bounds if len(bounds) == 2 else ("0", bounds[0])
    made: Statements = [*_until(done, list(node.body.body)), line(f"{counter} = {counter} + 1")]
    loop = cst.While(parse(f"{counter} < {last} and not {done}"), cst.IndentedBlock(made))
    opening: Statements = [line(f"{counter} = {first}"), line(f"{done} = False")]
    walk.bind(counter, Value("static", "int"), node)
    walk.bind(done, Value("static", "bool"), node)
    return _ended(walk, node, start, loop, done, opening)


def _ended(
    walk: Walk, node: cst.CSTNode, start: State, loop: cst.While, done: str, opening: Statements
) -> Statements | None:
    """The translation of a loop that a variable ends; None where the loop stays one of Python's."""
    for new in nodes(loop):
        walk.program.source.positions.setdefault(new, walk.program.source.position(node))
    outer, found = walk.current, list(walk.sink.findings)
    walk.current = loop
    walk.waiting.add(done)
    translated = while_loop(walk, loop)
    walk.waiting.discard(done)
    if translated is None or isinstance(translated[-1], cst.While):
        walk.state = State(start.variables, start.versions)
        walk.current, walk.sink.findings = outer, found
        return None
    return [*opening, *translated]


def _endless(walk: Walk, node: cst.While) -> Statements | None:
    """`while True: ...; if t: break`, where t is a tensor's value."""
    if code(node.test) not in {"True", "1"} or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return None
    found = _leaving(walk, node, lambda: None)
    if found is None:
        return None
    start, done = found
    loop = cst.While(parse(f"not {done}"), cst.IndentedBlock(_until(done, list(node.body.body))))
    walk.bind(done, Value("static", "bool"), node)
    return _ended(walk, node, start, loop, done, [line(f"{done} = False")])


def _guarded(walk: Walk, node: cst.While) -> Statements | None:
    """`while k is not None and t: ...`, where the rounds leave Python's part of the test as it is."""
    found = parted(walk, node.test) if node.orelse is None else None
    if found is None or found[2] is not False or names(found[0]) & set(walk.program.bound_in(node)):
        return None
    loop = node.with_changes(test=found[1], leading_lines=[])
    return walk.statement(placed(walk, cst.If(found[0], cst.IndentedBlock([loop])), node))


def _leaving(walk: Walk, node: cst.For | cst.While, enter: Any) -> tuple[State, str] | None:
    """The state and a name for the variable that ends a loop that is only left by tests of a tensor's value."""
    around = [n for s in node.body.body for n in of_loop(s) if isinstance(n, (cst.If, cst.With))]
    around = [n for n in around if any(isinstance(inner, cst.Break) for inner in of_loop(n))]
    leaving = any(isinstance(n, cst.Return) for s in node.body.body for n in nodes(s))
    leaving |= any(isinstance(n, cst.Continue) for s in node.body.body for n in of_loop(s))
    if not around or leaving or not all(isinstance(n.body, cst.IndentedBlock) for n in around):
        return None
    here = {walk.program.source.position(n) for b in around if isinstance(b, cst.If) for n in nodes(b.test)}
    start = walk.state.copy()
    with walk.rehearsal():
        walk.loop(node, enter, node.body)
        traced = any(f.code == "untraced" and (f.line, f.col) in here for f in walk.sink.findings)
    walk.state = start.copy()
    return (start, walk.unused("done")) if traced else None


def of_loop(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a statement that belong to the loop that it stands in, not to one of its own."""
    yield node
    if not isinstance(node, (cst.For, cst.While, cst.FunctionDef, cst.Lambda)):
        for child in node.children:
            yield from of_loop(child)


def _until(done: str, block: list[Any]) -> Statements:
    """The statements of a round, with a variable that says whether one of its tests has ended the loop."""
    first = next((i for i, s in enumerate(block) if any(isinstance(n, cst.Break) for n in of_loop(s))), None)
    if first is None:
        return block
    branch, after = block[first], _until(done, block[first + 1 :])
    if isinstance(branch, cst.SimpleStatementLine):
        return [*block[:first], line(f"{done} = True")]
    if not _breaks(branch):
        return [*block[:first], _ending(done, branch), *_rest(done, [], after)]
    plain = isinstance(branch.test, cst.Comparison)
    asked = cst.Call(cst.Name("bool"), [cst.Arg(branch.test)]) if plain else branch.test
    test = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(done))], asked)])
    return [*block[:first], test, *_rest(done, list(branch.body.body)[:-1], after)]


def _ending(done: str, node: Any) -> Any:
    """An `if` or `with` whose blocks set the variable where they ended the loop."""
    changes: dict[str, Any] = {"body": node.body.with_changes(body=_until(done, list(node.body.body)))}
    if isinstance(node, cst.If) and node.orelse is not None:
        changes["orelse"] = _ending(done, node.orelse)
    return node.with_changes(**changes)


def _rest(done: str, at_end: Statements, after: Statements) -> Statements:
    """What follows the test: one block when the loop ends, another when it goes on."""
    if not at_end and not after:
        return []
    if not at_end:
        return [cst.If(parse(f"not {done}"), cst.IndentedBlock(after))]
    orelse = cst.Else(cst.IndentedBlock(after)) if after else None
    return [cst.If(cst.Name(done), cst.IndentedBlock(at_end), orelse)]


def _breaks(node: cst.CSTNode) -> bool:
    """Whether this is an `if` whose block ends with break."""
    if not isinstance(node, cst.If) or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return False
    last = node.body.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1 and isinstance(last.body[0], cst.Break)


def _read_after(walk: Walk, node: cst.For) -> bool:
    assert isinstance(node.target, cst.Name)
    inside = walk.routine.nodes_in(node)
    here = walk.program.source.position(node)
    reads = walk.routine.reads.get(node.target.value, ())
    return any(id(n) not in inside and walk.program.source.position(n) > here for n in reads)


__all__ = ["STATIC", "for_loop", "while_loop"]
