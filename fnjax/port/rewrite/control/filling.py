"""Nested loops that fill arrays, as jax.lax.fori_loop: under jit Python's would be unrolled, each entry a node.

What: a `for i in range(n)` around another, whose iterations only write to entries of arrays, as dynamic programs do.
Before: `for i in range(1, n): for j in range(1, m): R[i, j] = D[i, j] + R[i - 1, j - 1]`
After: `R = jax.lax.fori_loop(1, n, step_i, R)` of `def step_i(i, R): ...; return R`
Safety: only where all that a round leaves after are arrays of which it has set entries, and where its numbers serve as
indices and in arithmetic.
Limits: loops that end early, bounds that depend on the loop around, slices and shapes that depend on the round, lists;
these stay Python's. So do loops of fixed bounds such as `range(3)`.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.effects import NOTHING, find_flow
from fnjax.port.analysis.evaluator import Evaluator, Statements, find_names, list_statements, parse_line
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.control.carried_loops import make_function
from fnjax.port.rewrite.control.jumps import lower_loop
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, bracket, read_literal, unparse
from fnjax.port.tree.located import list_children, list_nodes


class _KeepLoop(Exception):  # noqa: N818 - no error, as Stop
    """A loop of the nest has to stay Python's, and with it all."""


@statement(cst.For)
def port_filling_loop(ev: Evaluator, node: cst.For) -> Statements | None:
    """Translate `for i in range(n): for j in range(m): R[i, j] = ...`."""
    nest = [node, *(n for n in list_nodes(node.body) if isinstance(n, cst.For))]
    if any(outer in ev.here.filling for outer in ev.here.loops):
        return _make_iteration_function(ev, node)
    if len(nest) < 2 or ev.here.probing or not all(_is_counting_loop(ev, n) for n in nest):
        return None
    fixed = all(read_literal(a.value) is not MISSING for n in nest for a in n.iter.args)  # type: ignore[attr-defined] # a call
    if fixed or not _can_count_in_arrays(ev, node, {unparse(n.target) for n in nest}) or _hands_on_numbers(ev, node):
        return None
    try:
        with ev.speculate() as found:
            found.made = _make_iteration_function(ev, node)
    except _KeepLoop:
        return None
    if (
        found.before
        or found.diagnostics.keys != ev.diagnostics.keys
        or any(f.severity == "error" for f in found.diagnostics.findings)
    ):
        return None
    found.effects = NOTHING  # but for what the translation does
    ev.diagnostics.imports.add("jax")
    made: Statements = ev.commit(found)
    return made


def _make_iteration_function(ev: Evaluator, node: cst.For) -> Statements:
    """Return the loop as a function of its round and of the arrays that it fills, and the call of fori_loop."""
    lowered = lower_loop(ev, node)  # without its continue
    if lowered is None or lowered.begins:
        raise _KeepLoop
    node, index, start = lowered.loop, unparse(node.target), ev.state.copy()
    exprs = [ev.port(a.value) for a in node.iter.args]  # type: ignore[attr-defined] # a call
    if any(t.value.is_tensor for t in exprs):  # jax.grad does not go through loops of so many rounds
        raise _KeepLoop
    bounds = [unparse(bracket(t.node, 1)) for t in exprs]
    with ev.enter(filling=ev.here.filling | {node}):
        any_iteration = ev.evaluate_loop(node, lambda: _enter_iteration(ev, node), node.body)
    body, written = any_iteration.made, any_iteration.effects.carried
    kept = _list_kept(ev, node, {*(written or ()), index})
    carried = [n for n in start.variables if n in kept]
    filled = all(_keeps_array(start.variables[n], any_iteration.end.variables[n]) for n in carried)
    if not carried or len(carried) < len(kept) or not filled:
        raise _KeepLoop
    step, carry = ev.make_unused_name(f"step_{index}"), ev.make_unused_name("carry")
    together, single = ", ".join(carried), len(carried) == 1
    opening: Statements = [] if single else [parse_line(f"{together} = {carry}")]
    counter = index
    first, last = bounds[:2] if len(bounds) > 1 else ("0", bounds[0])
    if len(bounds) > 2:  # fori_loop counts up by one
        counter = ev.make_unused_name("n")
        value = f"{first} - {counter}" if bounds[2] == "-1" else f"{first} + {bounds[2]} * {counter}"
        opening.append(parse_line(f"{index} = {value.removeprefix('0 + ')}"))
        first, last = "0", _write_iteration_count(*bounds)
    block = [*opening, *list_statements(body), parse_line(f"return {together}")]
    block[0] = block[0].with_changes(leading_lines=[])
    made = make_function(step, f"{counter}, {together if single else carry}", block)
    initial = together if single else f"({together})"
    loop = parse_line(f"{together} = jax.lax.fori_loop({first}, {last}, {step}, {initial})")
    return [made, loop.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def _keeps_array(start: Value, end: Value) -> bool:
    """Whether a round leaves the array that it began with, with other entries; or perhaps that, or another like it."""
    if start.memref is None or end.memref is None or start.memref == end.memref:
        return start.memref == end.memref
    alike = all(getattr(start, f) == getattr(end, f) for f in ("kind", "dtype", "exact", "rank"))
    return alike and start.memref.storage <= end.memref.storage


def _hands_on_numbers(ev: Evaluator, node: cst.For) -> bool:
    """Return whether the iterations hand on what begins as no array: a number, or nothing."""
    kept = _list_kept(ev, node, ev.program.list_bound(node.body))
    return any(n not in ev.state.variables or ev.state.variables[n].kind == "static" for n in kept)


def _list_kept(ev: Evaluator, node: cst.For, own: set[str]) -> set[str]:
    """Return the variables of a loop's own that its next iteration, or what is after it, reads."""
    first, _ = find_flow(node.body)
    return {n for n in own if (n in first and n != unparse(node.target)) or _is_read_outside(ev, node, n)}


def _is_counting_loop(ev: Evaluator, node: cst.For) -> bool:
    """Return whether a loop counts, by a step that is written out, and nothing leaves it before its end."""
    call = node.iter
    leaving = any(isinstance(n, (cst.Break, cst.Return)) for n in list_nodes(node.body))
    if leaving or node.orelse is not None or not isinstance(node.target, cst.Name) or not isinstance(call, cst.Call):
        return False
    plain = all(a.keyword is None and not a.star for a in call.args)
    steps = [read_literal(a.value) for a in call.args[2:]]
    return plain and all(isinstance(s, int) and s for s in steps) and ev.find_name(call.func) == "builtins.range"


def _can_count_in_arrays(ev: Evaluator, node: cst.For, counters: set[str]) -> bool:
    """Return whether loop counters may be arrays: nothing takes a power of them, or the entry of a list."""
    for n in list_nodes(node.body):
        if isinstance(n, cst.Assign) and _list_names_outside_indices(n.value) & counters:
            counters |= {name for t in n.targets for name in iter_targets(t.target)}
        elif isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Power, cst.LeftShift, cst.RightShift)):
            if _list_names_outside_indices(n) & counters:
                return False
        elif isinstance(n, cst.Subscript) and len(n.slice) == 1 and find_names(n.slice[0]) & counters:
            root = n.value
            while isinstance(root, cst.Subscript):
                root = root.value
            value = ev.state.variables.get(unparse(root))
            if value is None or not value.is_tensor:
                return False
    return True


def _list_names_outside_indices(node: cst.CSTNode) -> set[str]:
    """Return the names in an expression but for those in indices."""
    if isinstance(node, cst.Subscript):
        return _list_names_outside_indices(node.value)
    below = list_children(node)
    return {n for child in below for n in _list_names_outside_indices(child)} if below else find_names(node)


def _enter_iteration(ev: Evaluator, node: cst.For) -> None:
    """Enter an iteration, whose number is an array under jit."""
    name = unparse(node.target)
    ev.bind_name(name, replace(Value("tensor", "int", 0), memref=ev.make_memref(node)), node)


def _is_read_outside(ev: Evaluator, node: cst.For, name: str) -> bool:
    """Return whether a variable is read after a loop, or in the next round of one around it."""
    inside, position = ev.routine.list_names_in(node), ev.program.source.locate
    around = frozenset().union(*(ev.routine.list_names_in(outer) for outer in ev.here.loops))
    reads = [n for n in ev.routine.reads.get(name, ()) if id(n) not in inside]
    return any(id(n) in around or position(n) > position(node) for n in reads)


def _write_iteration_count(first: str, last: str, step: str) -> str:
    """Return how many rounds `range(first, last, step)` has, or less than none where it has none."""
    plain = all(c.isalnum() or c in "_.[] -" for c in first)
    if step == "-1" and plain and last == "0":
        return first
    if step == "-1" and plain and last == "-1":
        return first.removesuffix(" - 1") if first.endswith(" - 1") else f"{first} + 1"
    return f"len(range({first}, {last}, {step}))"
