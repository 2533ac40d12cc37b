"""Loops, also those that end on a tensor's value.

What: `while` on a tensor's value, and a loop over `range` or `while` with jumps on one (see jumps), become
jax.lax.while_loop where their blocks only give variables new values; other loops stay Python's.
Before: `while err > tol: y = f(y); err = (y - g).abs().max()`
After: `y, err = jax.lax.while_loop(more, step, (y, err))`
Safety: what an iteration begins with is an array of one shape and dtype, as JAX checks when it runs; what is made in an
iteration stays in it.
Limits: iterations that append to lists, keep something on ctx or draw random numbers run outside jit only.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, list_statements
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import LIST, Value
from fnjax.port.known.state import State
from fnjax.port.rewrite.control.carried_loops import counts_entries, is_counted_late, port_carried_loop
from fnjax.port.rewrite.control.jumps import is_left_on_value, lower_loop
from fnjax.port.rewrite.control.regions import make_line
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.source.naming import PUTTING, iter_targets
from fnjax.port.torch import fill, read_literal
from fnjax.port.tree.located import list_nodes, list_small_statements
from fnjax.port.tree.skeleton import list_jumps

BRANCHES = "branches on a tensor's value, which is unknown under jit"


_UNROLLED = "jit unrolls this loop: where it is long, write its body as a function for jax.lax.scan or fori_loop"


@statement(cst.For, general=True)
def port_for_loop(ev: Evaluator, node: cst.For) -> Statements | None:
    """Translate `for i in range(n):`."""
    if is_counted_late(ev, node) and (made := port_carried_loop(ev, node)) is not None:
        return made
    items = ev.port(node.iter)
    one = iterate_over(ev, node.iter, items.value)
    if is_left_on_value(ev, node) and (lowered := _port_lowered(ev, node)) is not None:
        return lowered
    if counts_entries(ev, node) and not ev.here.loops:
        ev.note(node.iter, "unrolled", _UNROLLED)
    body = ev.evaluate_loop(node, lambda: bind_target(ev, node.target, one, node), node.body).made
    orelse = node.orelse and node.orelse.with_changes(body=ev.port_body(node.orelse.body))
    if orelse is None and _can_be_dropped(ev, node, body):
        return []
    if body is node.body and items.node is node.iter and orelse is node.orelse:
        return [node]
    return [node.with_changes(iter=items.node, body=body, orelse=orelse)]


def only_passes(block: cst.BaseSuite) -> bool:
    """Return whether a block does nothing."""
    return all(isinstance(n, cst.Pass) for n in list_small_statements(list_statements(block)))


def _can_be_dropped(ev: Evaluator, node: cst.For, body: cst.BaseSuite) -> bool:
    """Return whether a loop has no effect in JAX: `for t in inputs: t.requires_grad_()`."""
    pure = not any(isinstance(n, (cst.Call, cst.Yield, cst.Await)) for n in list_nodes(node.iter))
    return pure and only_passes(body) and body is not node.body and not any(map(ev.is_live, iter_targets(node.target)))


@statement(cst.While, general=True)
def port_while_loop(ev: Evaluator, node: cst.While) -> Statements | None:
    """Translate `while c: ...`."""
    if is_left_on_value(ev, node) and (lowered := _port_lowered(ev, node)) is not None:
        return lowered
    tests: list[Expr] = []

    def enter() -> None:
        tests.append(ev.port(node.test))

    probing = ev.here.probing
    if _tests_tensor(ev, node, enter) and not probing and (made := port_carried_loop(ev, node)) is not None:
        return made
    with ev.speculate() as found:
        body = ev.evaluate_loop(node, enter, node.body).made
    test = tests[-1]
    if not ev.asking[node.test] and not probing:
        ev.asking[node.test] = ev.is_traced(test.value)  # after several iterations
        if ev.asking[node.test] and (made := port_carried_loop(ev, node)) is not None:
            return made
    ev.commit(found)
    if ev.asking[node.test]:
        ev.report_untraced(node.test, f"this `while` {BRANCHES}{explain_lengths(ev, node)}")
    orelse = node.orelse and node.orelse.with_changes(body=ev.port_body(node.orelse.body))
    if body is node.body and test.node is node.test and orelse is None:
        return [node]
    return [node.with_changes(test=test.node, body=body, orelse=orelse)]


def _tests_tensor(ev: Evaluator, node: cst.While, enter: Callable[[], None]) -> bool:
    """Return whether the test needs a concrete value, before or after the first iteration."""
    if not ev.asking.get(node.test):
        asks = _is_test_traced(ev, node.test, ev.state)
        if not asks and node.test not in ev.asking:  # a later iteration may
            asks = _is_test_traced(ev, node.test, ev.probe_iteration(node, enter).end)
        ev.asking[node.test] = asks
    return ev.asking[node.test]


def _is_test_traced(ev: Evaluator, test: cst.BaseExpression, start: State) -> bool:
    with ev.speculate(start):
        return ev.is_traced(ev.port(test).value)


def explain_lengths(ev: Evaluator, node: cst.If | cst.While) -> str:
    """Return the lists whose lengths a test decides as well, as the end of a message; empty where there are none."""
    jumps = isinstance(node, cst.If) and list_jumps(node, (cst.Break, cst.Continue, cst.Return))
    around = ev.here.loops[-1:] if jumps else [node]
    methods = [n.func for loop in around for n in list_nodes(loop, cst.Call) if isinstance(n.func, cst.Attribute)]
    grown = {m.value.value for m in methods if m.attr.value in PUTTING and isinstance(m.value, cst.Name)}
    lists = ", ".join(sorted(n for n in grown if ev.look_up(n).name == LIST))
    return f", and so is the length of {lists}: fill an array of fixed length instead" if lists else ""


def _port_lowered(ev: Evaluator, node: cst.For | cst.While) -> Statements | None:
    """Translate a loop with jumps as the loop without them; None where it stays one of Python's."""
    lowered = lower_loop(ev, node)
    if lowered is None:
        return None
    carries, begins = isinstance(lowered.loop, cst.While), lowered.begins
    if isinstance(lowered.loop, cst.For) and begins:  # it goes on through its items when it has ended
        if any(map(ev.is_live, iter_targets(lowered.loop.target))):
            return None
        begins = {name: fill("jnp.array(A)", A=value) for name, value in begins.items()}
    with ev.speculate() as found, ev.await_reads({*begins}):
        ev.current = lowered.loop
        ev.diagnostics.imports |= set() if carries or not begins else {"jnp"}
        for name in begins:
            dtype = "bool" if read_literal(lowered.begins[name]) is False else "int"
            ev.bind_name(name, Value("static", dtype) if carries else Value("tensor", dtype, 0), node)
        made = port_carried_loop(ev, lowered.loop, lowered) if carries else ev.port_statement(lowered.loop)
        opening = [make_line(cst.Name(name), value) for name, value in begins.items()]
        found.made = None if made is None else [*opening, *made, *ev.port_block(lowered.ending)]
    return None if found.made is None or found.untraced else ev.commit(found)
