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

from collections.abc import Iterator
from typing import Any

import libcst as cst

from fnjax.port.analysis.registry import statement
from fnjax.port.analysis.walk import Statements, Term, Walk, line, names, parse, placed
from fnjax.port.known.facts import STATIC, State, Value
from fnjax.port.rewrite.control.carried_loops import carried_loop
from fnjax.port.rewrite.statements.views import Views, counted, forget_round, views_of
from fnjax.port.rewrite.values.binding import bind_target, element_of
from fnjax.port.rewrite.values.conditions import blocked, parted
from fnjax.port.source.naming import targets
from fnjax.port.torch import code
from fnjax.port.tree.located import children, nodes

ONLY = "branches on a tensor's value, which is unknown under jit; this runs un-jitted only"


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
    if orelse is None and _drops(walk, node, body):
        return []
    if body is node.body and items.node is node.iter and orelse is node.orelse:
        return [node]
    return [node.with_changes(iter=items.node, body=body, orelse=orelse)]


def _drops(walk: Walk, node: cst.For, body: cst.BaseSuite) -> bool:
    """Whether nothing is left of a loop that only spoke to PyTorch: `for t in inputs: t.requires_grad_()`."""
    pure = not any(isinstance(n, (cst.Call, cst.Yield, cst.Await)) for n in nodes(node.iter))
    left = [code(s).strip() for s in body.body]
    return pure and left == ["pass"] and body is not node.body and not any(map(walk.live, targets(node.target)))


def _over_views(walk: Walk, node: cst.For, items: Term, views: Views) -> Statements:
    """A loop that may write to the views that it iterates over."""

    def enter() -> None:
        forget_round(walk, views)
        bind_target(walk, node.target, views.value, node)

    with walk.await_reads({views.counter}):
        body = walk.loop(node, enter, node.body)
    forget_round(walk, views)
    orelse = node.orelse and node.orelse.with_changes(body=walk.body(node.orelse.body))
    same = body is node.body and items.node is node.iter and orelse is node.orelse
    made = node if same else node.with_changes(iter=items.node, body=body, orelse=orelse)
    return [counted(views, made)]


@statement(cst.While)
def while_loop(walk: Walk, node: cst.While, runs: str = "") -> Statements | None:
    """`while c: ...`; `runs` is what says that it has a first round, where that is known."""
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
    if walk.traced(test.value) or _later_traced(walk, node, start):
        after, reported = walk.state, walk.sink.findings
        walk.state, walk.sink.findings = start, findings
        made = carried_loop(walk, node, runs)
        if made is not None:
            return made
        walk.state, walk.sink.findings = after, reported
        walk.report(node.test, "untraced", f"this `while` {ONLY}")
    orelse = node.orelse and node.orelse.with_changes(body=walk.body(node.orelse.body))
    if body is node.body and test.node is node.test and orelse is None:
        return [node]
    return [node.with_changes(test=test.node, body=body, orelse=orelse)]


def _later_traced(walk: Walk, node: cst.While, start: State) -> bool:
    """Whether the test asks for a tensor's value when the first round is over."""
    with walk.supposing():
        walk.state = start.copy()
        walk.body(node.body)
        walk.memo.clear()
        return walk.traced(walk.expr(node.test).value)


def _with_break(walk: Walk, node: cst.For, one: Value) -> Statements | None:
    """`for i in range(n): ...; if t: break`, where t is a tensor's value, as a `while`."""
    call = node.iter
    if node.orelse is not None or not isinstance(node.target, cst.Name):
        return None
    if not isinstance(call, cst.Call) or walk.name_of(call.func) != "builtins.range" or len(call.args) > 2:
        return None
    target, node = node.target, _on_lines(walk, node)
    found = _leaving(walk, node, lambda: bind_target(walk, target, one, node))
    if found is None or (target.value != "_" and walk.live(target.value) and _read_after(walk, node)):
        return None
    start, done = found
    counter = target.value if target.value != "_" else walk.unused("i")
    bounds = [code(a.value) for a in call.args]
    first, last = bounds if len(bounds) == 2 else ("0", bounds[0])
    made: Statements = [*_until(done, list(node.body.body)), line(f"{counter} = {counter} + 1")]
    loop = cst.While(parse(f"{counter} < {last} and not {done}"), cst.IndentedBlock(made))
    opening: Statements = [line(f"{counter} = {first}"), line(f"{done} = False")]
    walk.bind(counter, Value("static", "int"), node)
    walk.bind(done, Value("static", "bool"), node)
    several = first.isdigit() and last.isdigit() and int(first) < int(last)
    return _ended(walk, node, start, loop, done, opening, "True" if several else f"{first} < {last}")


def _ended(
    walk: Walk, node: cst.CSTNode, start: State, loop: cst.While, done: str, opening: Statements, runs: str
) -> Statements | None:
    """The translation of a loop that a variable ends; None where the loop stays one of Python's."""
    for new in nodes(loop):
        walk.program.source.positions.setdefault(new, walk.program.source.position(node))
    outer, found = walk.current, list(walk.sink.findings)
    walk.current = loop
    with walk.await_reads({done}):
        translated = while_loop(walk, loop, runs)
    if translated is None or isinstance(translated[-1], cst.While):
        walk.state = State(start.variables, start.versions)
        walk.current, walk.sink.findings = outer, found
        return None
    return [*opening, *translated]


def _endless(walk: Walk, node: cst.While) -> Statements | None:
    """`while True: ...; if t: break`, where t is a tensor's value."""
    if code(node.test) not in {"True", "1"} or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return None
    node = _on_lines(walk, node)
    found = _leaving(walk, node, lambda: None)
    if found is None:
        return None
    start, done = found
    loop = cst.While(parse(f"not {done}"), cst.IndentedBlock(_until(done, list(node.body.body))))
    walk.bind(done, Value("static", "bool"), node)
    return _ended(walk, node, start, loop, done, [line(f"{done} = False")], "True")


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
    with walk.supposing() as sink:
        walk.loop(node, enter, node.body)
    traced = any(f.code == "untraced" and (f.line, f.col) in here for f in sink.findings)
    return (walk.state.copy(), walk.unused("done")) if traced else None


def _on_lines(walk: Walk, node: Any) -> Any:
    """The loop with `if c: break` on two lines."""
    block = [blocked(walk, s) for s in node.body.body]
    same = all(a is b for a, b in zip(block, node.body.body, strict=True))
    return node if same else placed(walk, node.with_changes(body=node.body.with_changes(body=block)), node)


def of_loop(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a statement that belong to the loop that it stands in, not to one of its own."""
    yield node
    if not isinstance(node, (cst.For, cst.While, cst.FunctionDef, cst.Lambda)):
        for child in reversed(children(node)):
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
