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
from typing import Any

import libcst as cst

from fnjax.port.analysis.registry import statement
from fnjax.port.analysis.walk import Statements, Term, Walk, find_names, list_statements, parse, parse_line, place_at
from fnjax.port.known.facts import STATIC, State, Value
from fnjax.port.rewrite.control.carried_loops import port_carried_loop
from fnjax.port.rewrite.statements.views import Views, add_counter, find_views, forget_round
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.rewrite.values.conditions import put_blocks_on_lines, split_condition
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import unparse
from fnjax.port.tree.located import find_small_statement, list_children, list_nodes

ONLY = "branches on a tensor's value, which is unknown under jit; this runs un-jitted only"


@statement(cst.For, general=True)
def port_for_loop(walk: Walk, node: cst.For) -> Statements | None:
    """`for i in range(n):`."""
    items = walk.port(node.iter)
    one = iterate_over(walk, node.iter, items.value)
    ended = _port_for_with_break(walk, node, one)
    if ended is not None:
        return ended
    views = find_views(walk, node)
    if views is not None:
        return _port_loop_over_views(walk, node, items, views)
    body = walk.walk_loop(node, lambda: bind_target(walk, node.target, one, node), node.body).made
    orelse = node.orelse and node.orelse.with_changes(body=walk.port_body(node.orelse.body))
    if orelse is None and _can_be_dropped(walk, node, body):
        return []
    if body is node.body and items.node is node.iter and orelse is node.orelse:
        return [node]
    return [node.with_changes(iter=items.node, body=body, orelse=orelse)]


def only_passes(block: cst.BaseSuite) -> bool:
    """Whether a block does nothing."""
    lines = list_statements(block)
    return all(isinstance(s, cst.SimpleStatementLine) and all(isinstance(n, cst.Pass) for n in s.body) for s in lines)


def _can_be_dropped(walk: Walk, node: cst.For, body: cst.BaseSuite) -> bool:
    """Whether nothing is left of a loop that only spoke to PyTorch: `for t in inputs: t.requires_grad_()`."""
    pure = not any(isinstance(n, (cst.Call, cst.Yield, cst.Await)) for n in list_nodes(node.iter))
    return (
        pure and only_passes(body) and body is not node.body and not any(map(walk.is_live, iter_targets(node.target)))
    )


def _port_loop_over_views(walk: Walk, node: cst.For, items: Term, views: Views) -> Statements:
    """A loop that may write to the views that it iterates over."""

    def enter() -> None:
        forget_round(walk, views)
        bind_target(walk, node.target, views.value, node)

    with walk.await_reads({views.counter}):
        body = walk.walk_loop(node, enter, node.body).made
    forget_round(walk, views)
    orelse = node.orelse and node.orelse.with_changes(body=walk.port_body(node.orelse.body))
    same = body is node.body and items.node is node.iter and orelse is node.orelse
    made = node if same else node.with_changes(iter=items.node, body=body, orelse=orelse)
    return [add_counter(views, made)]


@statement(cst.While, general=True)
def port_while_loop(walk: Walk, node: cst.While, runs: str = "") -> Statements | None:
    """`while c: ...`; `runs` is what says that it has a first round, where that is known."""
    ended = _port_endless_loop(walk, node) or _port_guarded_loop(walk, node)
    if ended is not None:
        return ended
    tests: list[Term] = []

    def enter() -> None:
        tests.append(walk.port(node.test))

    probing = walk.here.probing
    if _tests_tensor(walk, node, enter) and not probing and (made := port_carried_loop(walk, node, runs)) is not None:
        return made
    with walk.walk_apart() as found:
        body = walk.walk_loop(node, enter, node.body).made
    test = tests[-1]
    if not walk.asking[node.test] and not probing:
        walk.asking[node.test] = walk.is_traced(test.value)  # behind several rounds
        if walk.asking[node.test] and (made := port_carried_loop(walk, node, runs)) is not None:
            return made
    walk.adopt_region(found)
    if walk.asking[node.test]:
        walk.report(node.test, "untraced", f"this `while` {ONLY}")
    orelse = node.orelse and node.orelse.with_changes(body=walk.port_body(node.orelse.body))
    if body is node.body and test.node is node.test and orelse is None:
        return [node]
    return [node.with_changes(test=test.node, body=body, orelse=orelse)]


def _tests_tensor(walk: Walk, node: cst.While, enter: Callable[[], None]) -> bool:
    """Whether the test asks for a tensor's value, at once or when the first round is over."""
    if not walk.asking.get(node.test):
        asks = _is_test_traced(walk, node.test, walk.state)
        if not asks and node.test not in walk.asking:  # it is not known that no later round does
            asks = _is_test_traced(walk, node.test, walk.probe_round(node, enter).end)
        walk.asking[node.test] = asks
    return walk.asking[node.test]


def _is_test_traced(walk: Walk, test: cst.BaseExpression, start: State) -> bool:
    with walk.walk_apart(start):
        return walk.is_traced(walk.port(test).value)


def _port_for_with_break(walk: Walk, node: cst.For, one: Value) -> Statements | None:
    """`for i in range(n): ...; if t: break`, where t is a tensor's value, as a `while`."""
    call = node.iter
    if node.orelse is not None or not isinstance(node.target, cst.Name):
        return None
    if not isinstance(call, cst.Call) or walk.find_name(call.func) != "builtins.range" or len(call.args) > 2:
        return None
    name = node.target.value
    if not is_left_by(walk, node, cst.Break, lambda: bind_target(walk, node.target, one, node)) or walk.here.probing:
        return None
    if name != "_" and walk.is_live(name) and _is_read_after(walk, node):
        return None
    return _port_flagged_loop(
        walk, node, *walk.keep_one(("while", node), lambda: _make_counted_while(walk, node, name))
    )


def _make_counted_while(walk: Walk, node: Any, name: str) -> tuple[cst.While, dict[str, str], Statements, str]:
    """`for i in range(n)` with breaks as a `while`, its own variables, what goes before it and says that it runs."""
    call, done = node.iter, walk.make_unused_name("done")
    counter = name if name != "_" else walk.make_unused_name("i")
    bounds = [unparse(a.value) for a in call.args]
    first, last = bounds if len(bounds) == 2 else ("0", bounds[0])
    made: Statements = [
        *_replace_breaks(done, list(_put_breaks_on_lines(walk, node).body.body)),
        parse_line(f"{counter} = {counter} + 1"),
    ]
    loop = place_at(walk, cst.While(parse(f"{counter} < {last} and not {done}"), cst.IndentedBlock(made)), node)
    opening: Statements = [parse_line(f"{counter} = {first}"), parse_line(f"{done} = False")]
    several = first.isdigit() and last.isdigit() and int(first) < int(last)
    return loop, {counter: "int", done: "bool"}, opening, "True" if several else f"{first} < {last}"


def _port_flagged_loop(
    walk: Walk, node: cst.CSTNode, loop: cst.While, own: dict[str, str], opening: Statements, runs: str
) -> Statements | None:
    """The translation of a loop that a variable ends; None where the loop stays one of Python's."""
    with walk.walk_apart() as found, walk.await_reads({n for n, kind in own.items() if kind == "bool"}):
        walk.current = loop
        for name, kind in own.items():
            walk.bind_name(name, Value("static", kind), node)
        found.made = port_carried_loop(walk, loop, runs)
    return None if found.made is None else [*opening, *walk.adopt_region(found)]


def _port_endless_loop(walk: Walk, node: cst.While) -> Statements | None:
    """`while True: ...; if t: break`, where t is a tensor's value."""
    if (
        unparse(node.test) not in {"True", "1"}
        or node.orelse is not None
        or not isinstance(node.body, cst.IndentedBlock)
    ):
        return None
    if not is_left_by(walk, node, cst.Break, lambda: None) or walk.here.probing:
        return None
    done = walk.make_unused_name("done")
    block = cst.IndentedBlock(_replace_breaks(done, list(_put_breaks_on_lines(walk, node).body.body)))
    loop = walk.keep_one(("while", node), lambda: place_at(walk, cst.While(parse(f"not {done}"), block), node))
    return _port_flagged_loop(walk, node, loop, {done: "bool"}, [parse_line(f"{done} = False")], "True")


def _port_guarded_loop(walk: Walk, node: cst.While) -> Statements | None:
    """`while k is not None and t: ...`, where the rounds leave Python's part of the test as it is."""
    found = split_condition(walk, node.test) if node.orelse is None else None
    if (
        found is None
        or found[2] is not False
        or find_names(found[0]) & (walk.program.list_bound(node) | _list_handled(node))
    ):
        return None
    loop = node.with_changes(test=found[1], leading_lines=[])
    return walk.port_statement(place_at(walk, cst.If(found[0], cst.IndentedBlock([loop])), node))


def _list_handled(node: cst.While) -> set[str]:
    """The variables whose objects a round may change: `rows.pop()`, `rows[0] = r`, `del rows[0]`, `grow(rows)`."""
    found: set[str] = set()
    for n in list_nodes(node.body):
        match n:
            case cst.Call():
                parts = [n.func, *(a.value for a in n.args)]
            case cst.AssignTarget() | cst.AugAssign() | cst.Del():
                parts = [n.target]
            case _:
                continue
        found |= {name for part in parts if not isinstance(part, cst.Call) for name in find_names(part)}
    return found


def is_left_by(walk: Walk, node: cst.For | cst.While, way: type[cst.CSTNode], enter: Any) -> bool:
    """Whether a loop is left early, by break or by return, and only where tests of a tensor's value say so."""
    lines = _put_breaks_on_lines(walk, node)
    inside = [n for s in lines.body.body for n in iter_own_nodes(s)]
    around = [
        n for n in inside if isinstance(n, (cst.If, cst.With)) and any(isinstance(m, way) for m in iter_own_nodes(n))
    ]
    returning = any(isinstance(n, cst.Return) for s in node.body.body for n in list_nodes(s))
    leaving = way is cst.Break and (returning or any(isinstance(n, cst.Continue) for n in inside))
    if not around or leaving or not all(isinstance(n.body, cst.IndentedBlock) for n in around):
        return False
    if not walk.asking.get(node):
        here = {walk.program.source.locate(n) for b in around if isinstance(b, cst.If) for n in list_nodes(b.test)}
        walk.asking[node] = _asks_at(walk, node, enter, here, carries=way is cst.Break)
    return walk.asking[node]


def _asks_at(walk: Walk, node: cst.For | cst.While, enter: Any, here: set[tuple[int, int]], carries: bool) -> bool:
    """Whether some round asks for a tensor's value at one of these places; what the first asks, later ones do."""
    if node not in walk.asking:  # else it is known that no first round does
        first = walk.probe_round(node, enter)
        if carries and first.effects.acts:
            return False
        if first.is_untraced_at(here):
            return True
    with walk.walk_apart() as settled:
        walk.walk_loop(node, enter, node.body)
    return settled.is_untraced_at(here) and not (carries and settled.effects.acts)


def _put_breaks_on_lines(walk: Walk, node: Any) -> Any:
    """The loop with `if c: break` on two lines."""

    def made() -> Any:
        block = [put_blocks_on_lines(walk, s) for s in node.body.body]
        same = all(a is b for a, b in zip(block, node.body.body, strict=True))
        return node if same else place_at(walk, node.with_changes(body=node.body.with_changes(body=block)), node)

    return walk.keep_one(("lines", node), made)


def iter_own_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a statement that belong to the loop that it stands in, not to one of its own."""
    yield node
    if not isinstance(node, (cst.For, cst.While, cst.FunctionDef, cst.Lambda)):
        for child in reversed(list_children(node)):
            yield from iter_own_nodes(child)


def _replace_breaks(done: str, block: list[Any]) -> Statements:
    """The statements of a round, with a variable that says whether one of its tests has ended the loop."""
    first = next((i for i, s in enumerate(block) if any(isinstance(n, cst.Break) for n in iter_own_nodes(s))), None)
    if first is None:
        return block
    branch, after = block[first], _replace_breaks(done, block[first + 1 :])
    if isinstance(branch, cst.SimpleStatementLine):
        return [*block[:first], parse_line(f"{done} = True")]
    if not _ends_with_break(branch):
        return [*block[:first], _replace_inner_breaks(done, branch), *_write_rest(done, [], after)]
    plain = isinstance(branch.test, cst.Comparison)
    asked = cst.Call(cst.Name("bool"), [cst.Arg(branch.test)]) if plain else branch.test
    test = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(done))], asked)])
    return [*block[:first], test, *_write_rest(done, list(branch.body.body)[:-1], after)]


def _replace_inner_breaks(done: str, node: Any) -> Any:
    """An `if` or `with` whose blocks set the variable where they ended the loop."""
    changes: dict[str, Any] = {"body": node.body.with_changes(body=_replace_breaks(done, list(node.body.body)))}
    if isinstance(node, cst.If) and node.orelse is not None:
        changes["orelse"] = _replace_inner_breaks(done, node.orelse)
    return node.with_changes(**changes)


def _write_rest(done: str, at_end: Statements, after: Statements) -> Statements:
    """What follows the test: one block when the loop ends, another when it goes on."""
    if not at_end and not after:
        return []
    if not at_end:
        return [cst.If(parse(f"not {done}"), cst.IndentedBlock(after))]
    orelse = cst.Else(cst.IndentedBlock(after)) if after else None
    return [cst.If(cst.Name(done), cst.IndentedBlock(at_end), orelse)]


def _ends_with_break(node: cst.CSTNode) -> bool:
    """Whether this is an `if` whose block ends with break."""
    if not isinstance(node, cst.If) or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return False
    return isinstance(find_small_statement(node.body.body[-1]), cst.Break)


def _is_read_after(walk: Walk, node: cst.For) -> bool:
    assert isinstance(node.target, cst.Name)
    inside = walk.routine.list_names_in(node)
    here = walk.program.source.locate(node)
    reads = walk.routine.reads.get(node.target.value, ())
    return any(id(n) not in inside and walk.program.source.locate(n) > here for n in reads)


__all__ = ["STATIC", "port_for_loop", "port_while_loop"]
