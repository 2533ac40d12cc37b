"""Loops as jax.lax.while_loop and jax.lax.fori_loop.

What: a loop that ends on a tensor's value, and a counting loop that fills arrays, become functions of the variables
that their iterations write; what only the iterations make gets its shape from a first iteration outside.
Before: `for i in range(1, n): for j in range(1, m): R[i, j] = D[i, j] + R[i - 1, j - 1]`
After: `R = jax.lax.fori_loop(1, n, step_i, R)` of `def step_i(i, R): ...; return R`
Safety: what an iteration begins with is an array of one shape and dtype, as JAX checks when it runs; a counting loop
only becomes one where arrays keep their memory, and where its counter serves as an index and in arithmetic.
Limits: numbers that become arrays of other shapes; counting loops whose bounds are written out, whose slices and shapes
depend on the counter, that fill lists, or that hand on arrays which each iteration makes. These stay Python's, and jit
unrolls them: a note says so where a tensor's size says how long they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.effects import NOTHING, find_effects, find_flow
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, find_names, list_statements
from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.rewrite.control.jumps import Lowered, lower_loop
from fnjax.port.rewrite.control.regions import (
    can_be_carried,
    make_call,
    make_function,
    make_line,
    make_names,
    make_predicate,
    make_return,
    make_row,
    set_apart,
)
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, fill, read_literal, unparse
from fnjax.port.tree.located import list_children, list_nodes


def port_carried_loop(ev: Evaluator, node: cst.For | cst.While, lowered: Lowered | None = None) -> Statements | None:
    """Return the loop as one of JAX's; None where it stays Python's.

    Args:
        ev: the evaluator.
        node: the loop.
        lowered: what it was before its jumps were lowered.
    """
    if node.orelse is not None or list_nodes(node, cst.NamedExpr):
        return None
    counts = isinstance(node, cst.For)
    with ev.speculate() as found:
        found.made = _port_counted(ev, node) if isinstance(node, cst.For) else _port_carried(ev, node, lowered)
    draws = found.diagnostics.keys != ev.diagnostics.keys
    failed = found.untraced or (counts and any(f.severity == "error" for f in found.diagnostics.findings))
    if found.made is None or found.before or draws or failed:
        return None
    ev.diagnostics.imports.add("jax")
    found.effects = NOTHING  # but for those of the translation
    made: Statements = ev.commit(found)
    return made


def _make_step(name: str, counter: list[str], carried: list[str], block: Statements) -> cst.FunctionDef:
    """Return a function of a loop's counter and of the variables that it carries."""
    opening: Statements = [] if len(carried) == 1 else [make_line(make_names(carried), cst.Name("carry"))]
    return make_function(name, [*counter, *carried] if len(carried) == 1 else [*counter, "carry"], [*opening, *block])


# ----------------------------------------------------------------------------------------- loops that end on a value


def _port_carried(ev: Evaluator, node: cst.While, lowered: Lowered | None) -> Statements | None:
    """Return `while c: ...` as jax.lax.while_loop; all that it carries is an array from the first iteration on."""
    for name in _list_loop_variables(ev, node):  # known from an earlier iteration of a loop around this one
        ev.state.variables.pop(name, None)
    start, tests = ev.state.variables.copy(), list[Expr]()
    runs, inner = (lowered.runs, lowered.list_inner()) if lowered else (None, set[str]())

    def enter() -> None:
        for name in ev.state.variables.keys() - start.keys():  # what an iteration makes stays in it
            del ev.state.variables[name]
        tests.append(ev.port(node.test))

    carried = ev.begins.get(node) or _choose_carried(ev, node, start, enter)
    _bind_carried(ev, node, start, carried)
    region = ev.evaluate_loop(node, enter, node.body)
    written, end = region.effects.carried, region.end.variables
    if written is None or not carried or {n for n in start if n in written} - carried.keys():
        return None
    if not all(can_be_carried(start[n]) for n in carried):
        return None
    ev.begins[node] = carried
    carried = {n: dtype for n, dtype in carried.items() if n in written or start[n].kind == "static"}
    if not all(start[n].kind != "static" or _stays_number(end[n], dtype) for n, dtype in carried.items()):
        return None
    new = sorted(n for n in written - carried.keys() if ev.is_live(n))  # the first iteration determines their shapes
    if new and runs is None:
        return None
    if not region.effects.surely.issuperset(new) or not all(can_be_carried(end[n]) for n in new):
        return None
    more, step = ev.make_unused_name("more"), ev.make_unused_name("step")
    names, test = [*carried, *new], tests[-1]
    condition = test.node if test.value.dtype == "bool" else fill("A != 0", A=test.node)
    functions = [
        _make_step(more, [], names, [make_return(make_predicate(Expr(condition, test.value)))]),
        _make_step(step, [], names, [*list_statements(region.made), make_return(make_names(names))]),
    ]
    firsts = [_write_first(ev, n, start[n], dtype, n in inner) for n, dtype in carried.items()]
    initial = make_row([*firsts, *(cst.Name("None") for _ in new)])
    if new and runs is not None:
        initial, empty = make_call(step, initial), initial
        initial = initial if read_literal(runs) is True else fill("A if B else C", A=initial, B=runs, C=empty)
    loop = make_call("jax.lax.while_loop", cst.Name(more), cst.Name(step), initial)
    return [*functions, set_apart(make_line(make_names(names), loop))]


def _choose_carried(
    ev: Evaluator, node: cst.While, start: dict[str, Value], enter: Callable[[], None]
) -> dict[str, str]:
    """Return the variables that a loop carries, with the dtypes of their initial values."""
    bound = ev.program.list_bound(node.body)
    found = {n: "" for n, value in start.items() if n in bound and can_be_carried(value)}
    with ev.speculate():
        _bind_carried(ev, node, start, found)
        first = ev.evaluate_iteration(node, enter, node.body)
    found |= {n: "" for n in start if n in first.effects.binds}  # memory that it writes to, too
    with ev.speculate(first.end):
        return {n: _find_dtype(ev, node, n, start[n]) for n in found}


def _find_dtype(ev: Evaluator, node: cst.While, name: str, start: Value) -> str:
    """Return the dtype that a carried variable begins with: of an integer that becomes a real number, float."""
    end = ev.look_up(name)
    if start.kind != "static" or start.dtype != "int" or end.rank != 0:
        return start.dtype
    given = [n for n in list_nodes(node.body, cst.AugAssign) if name in find_effects([n]).binds]
    divided = any(isinstance(n.operator, cst.DivideAssign) for n in given)
    dtypes = {end.dtype, *(ev.port(n.value).value.dtype for n in given)} - {"bool"}
    return "float" if divided or not dtypes <= {"int"} else "int"


def _stays_number(end: Value, dtype: str) -> bool:
    """Return whether what began as a number of this dtype is one after an iteration, as far as is known."""
    return dtype == "bool" or not end.is_tensor or (end.rank == 0 and end.dtype in {dtype, "unknown"})


def _write_first(ev: Evaluator, name: str, start: Value, dtype: str, inner: bool) -> cst.BaseExpression:
    """Return the initial value of a carried variable; a number that is read after the loop becomes an array.

    jax.lax.while_loop returns a value that no iteration changes as it was given, and `~False` is not what `~array` is.
    """
    template = "float(A)" if start.kind == "static" and start.dtype == "int" and dtype == "float" else "A"
    if start.kind == "static" and not inner:
        ev.diagnostics.imports.add("jnp")
        template = f"jnp.asarray({template})"
    return fill(template, A=cst.Name(name))


def _bind_carried(ev: Evaluator, node: cst.While, start: dict[str, Value], carried: dict[str, str]) -> None:
    """Bind the variables to the arrays that they begin as."""
    for name, dtype in carried.items():
        value = start[name]
        if value.kind == "static":
            value = Value("tensor", dtype or value.dtype, 0)
        ev.bind_name(name, replace(value, kind="tensor", number=""), node)


def _list_loop_variables(ev: Evaluator, node: cst.While) -> set[str]:
    """Return the variables of the source that only this loop assigns."""
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
    inside = {id(n) for n in list_nodes(node)}
    found: dict[bool, set[str]] = {True: set(), False: {p.name.value for p in ev.routine.parameters}}
    for n in list_nodes(ev.routine.node.body, *kinds):
        found[id(n) in inside] |= set(iter_targets(n.target))
    return found[True] - found[False]


# ---------------------------------------------------------------------------------------------------- counting loops


def is_counted_late(ev: Evaluator, node: cst.For) -> bool:
    """Return whether to carry a counting loop whose bounds are no literals: a nested one, or up to a tensor's size."""
    nest = [node, *list_nodes(node.body, cst.For)]
    if ev.here.probing or not all(_is_counting(ev, n) for n in nest):
        return False
    fixed = all(read_literal(a.value) is not MISSING for n in nest for a in n.iter.args)  # type: ignore[attr-defined] # a call
    if fixed or not (len(nest) > 1 or ev.here.loops or counts_entries(ev, node)) or _hands_on_new(ev, node):
        return False
    return _can_count_in_arrays(ev, node, {unparse(n.target) for n in nest})


def _hands_on_new(ev: Evaluator, node: cst.For) -> bool:
    """Return whether a loop carries variables that assignments bind anew; this needs no evaluation."""
    made = {name for n in list_nodes(node.body, cst.AssignTarget) for name in iter_targets(n.target)}
    return bool(made & find_flow(node.body)[0]) or any(map(ev.is_live, made))


def counts_entries(ev: Evaluator, node: cst.For) -> bool:
    """Return whether the size of a tensor says how many iterations a loop has."""
    given = [n for n in list_nodes(ev.routine.node, cst.Assign) if _reads_size(n.value)]
    sized = {name for n in given for t in n.targets for name in iter_targets(t.target)}
    return _reads_size(node.iter) or bool(find_names(node.iter) & sized)


def _reads_size(node: cst.BaseExpression) -> bool:
    return any(n.attr.value in {"shape", "size"} for n in list_nodes(node, cst.Attribute))


def _port_counted(ev: Evaluator, node: cst.For) -> Statements | None:
    """Return `for i in range(n): ...` as jax.lax.fori_loop."""
    lowered = lower_loop(ev, node)  # without its continue
    if lowered is None or lowered.begins:
        return None
    node, start, index = lowered.loop, ev.state.variables.copy(), unparse(lowered.loop.target)
    bounds = [ev.port(a.value) for a in node.iter.args]  # type: ignore[attr-defined] # a call
    if any(b.value.is_tensor for b in bounds):  # jax.grad does not go through loops with such bounds
        return None
    value = Value("tensor", "int", 0)
    region = ev.evaluate_loop(node, lambda: ev.bind_name(index, value, node), node.body)
    written, block = region.effects.carried, list_statements(region.made)
    again = find_flow(region.made)[0] - {index}
    carried = sorted(n for n in {*(written or ()), index} if n in again or ev.is_live(n))
    if (
        written is None
        or not carried
        or not all(_keeps_array(start.get(n), region.end.variables.get(n, UNKNOWN)) for n in carried)
    ):
        return None
    (first, last), counter = _read_bounds(bounds), index
    if len(bounds) > 2:  # fori_loop counts up by one
        counter = ev.make_unused_name("n")
        parts = {"A": first, "B": bounds[2].node, "N": cst.Name(counter)}
        down = read_literal(bounds[2].node) == -1
        block.insert(0, make_line(cst.Name(index), fill("A - N" if down else "A + B * N", **parts)))
        first, last = cst.Integer("0"), fill("len(range(A, C, B))", **parts, C=last)
    step = ev.make_unused_name(f"step_{index}")
    made = _make_step(step, [counter], carried, [*block, make_return(make_names(carried))])
    loop = make_call("jax.lax.fori_loop", first, last, cst.Name(step), make_names(carried))
    return [made, set_apart(make_line(make_names(carried), loop))]


def _read_bounds(bounds: list[Expr]) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    return (cst.Integer("0"), bounds[0].node) if len(bounds) == 1 else (bounds[0].node, bounds[1].node)


def _keeps_array(start: Value | None, end: Value) -> bool:
    """Return whether an iteration leaves the array that it began with, with other elements, or one like it."""
    if start is None or start.memref is None or end.memref is None:
        return False
    alike = all(getattr(start, f) == getattr(end, f) for f in ("kind", "dtype", "exact", "rank"))
    return start.memref == end.memref or (alike and start.memref.storage <= end.memref.storage)


def _is_counting(ev: Evaluator, node: cst.For) -> bool:
    """Return whether a loop counts, by a step that is written out, and nothing leaves it before its end."""
    call = node.iter
    if list_nodes(node.body, cst.Break, cst.Return) or not isinstance(call, cst.Call) or node.orelse is not None:
        return False
    plain = isinstance(node.target, cst.Name) and all(a.keyword is None and not a.star for a in call.args)
    steps = [read_literal(a.value) for a in call.args[2:]]
    return plain and all(isinstance(s, int) and s for s in steps) and ev.find_name(call.func) == "builtins.range"


def _can_count_in_arrays(ev: Evaluator, node: cst.For, counters: set[str]) -> bool:
    """Return whether counters may be arrays: nothing takes a power of them, or indexes a list by them."""
    for n in list_nodes(node.body, cst.Assign, cst.BinaryOperation, cst.Subscript):
        if isinstance(n, cst.Assign) and _list_names_outside_indices([n.value]) & counters:
            counters |= {name for t in n.targets for name in iter_targets(t.target)}
        elif isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Power, cst.LeftShift, cst.RightShift)):
            if _list_names_outside_indices([n]) & counters:
                return False
        elif isinstance(n, cst.Subscript) and len(n.slice) == 1 and find_names(n.slice[0]) & counters:
            root = n.value
            while isinstance(root, cst.Subscript):
                root = root.value
            if not ev.look_up(unparse(root)).is_tensor:
                return False
    return True


def _list_names_outside_indices(nodes: Iterable[Any]) -> set[str]:
    """Return the names in expressions but for those in indices."""
    found: set[str] = set()
    for node in nodes:
        below = (node.value,) if isinstance(node, cst.Subscript) else list_children(node)
        found |= _list_names_outside_indices(below) if below else find_names(node)
    return found
