"""A loop that ends on a tensor's value as jax.lax.while_loop.

What: what the iterations give new values is carried from one to the next; a number that becomes an array begins as one;
what only the iterations make gets its shape from a first iteration outside.
Before: `v = 0` and `while err > tol: v = v * d + x; err = v.norm()`
After: `v, err = jax.lax.while_loop(more, step, (jnp.full_like(x, v), err))`
Safety: what a round begins with is an array of one shape and dtype, as JAX checks when it runs.
Limits: see the rules of loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.effects import NOTHING, find_effects
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, list_statements, parse_line
from fnjax.port.analysis.program import list_nodes
from fnjax.port.known.facts import Value
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import bracket, unparse

_NUMBERS = frozenset({"int", "float", "bool"})


def port_carried_loop(ev: Evaluator, node: cst.While, runs: str) -> Statements | None:
    """Return the loop as jax.lax.while_loop; None where it is no such loop."""
    if node.orelse is not None or any(isinstance(n, cst.NamedExpr) for n in list_nodes(node)):
        return None
    with ev.speculate() as found:
        found.made = _port_carried(ev, node, runs)
    draws = found.diagnostics.keys != ev.diagnostics.keys
    if found.made is None or found.untraced or found.before or draws:  # untraced: of a counter, as an array
        return None
    ev.diagnostics.imports.add("jax")
    found.effects = NOTHING  # but for what the translation does
    made: Statements = ev.commit(found)
    return made


def _port_carried(ev: Evaluator, node: cst.While, runs: str) -> Statements | None:
    """Return the loop with all that it hands on as arrays from the first iteration on, in the state that this gives."""
    for name in _list_loop_variables(ev, node):  # known from an earlier iteration of a loop around this one
        ev.state.variables.pop(name, None)
    for name, value in ev.state.variables.items():  # whose shapes stay as they are
        if value.kind != "static" and value.memref is not None and not value.like:
            ev.state.variables[name] = replace(value, like=ev.mark_shape(node, f" {name}"))
    start, tests = ev.state.variables.copy(), list[Expr]()

    def enter() -> None:
        for name in ev.state.variables.keys() - start.keys():  # what a round makes stays in it
            del ev.state.variables[name]
        tests.append(ev.port(node.test))

    begins = ev.begins.get(node) or _choose_forms(ev, node, start, enter)
    if begins is None:
        return None
    _bind_forms(ev, node, start, begins)
    any_iteration = ev.evaluate_loop(node, enter, node.body)
    written = any_iteration.effects.carried
    if written is None or not begins or {n for n in start if n in written} - begins.keys():
        return None
    new = sorted(n for n in written - begins.keys() if ev.is_live(n))  # the first iteration gives them their shapes
    if (new and not runs) or not any_iteration.effects.surely.issuperset(new):
        return None
    if not all(can_be_carried(any_iteration.end.variables[n]) for n in new):
        return None
    ev.begins[node] = begins
    return _write_while_loop(ev, tests[-1], any_iteration.made, begins, new, runs)


_AS_IT_IS, _REAL = "", "float()"


def _choose_forms(
    ev: Evaluator, node: cst.While, start: dict[str, Value], enter: Callable[[], None]
) -> dict[str, str] | None:
    """As what each variable begins that the iterations hand on: as it is, as a float, or in the shape of another."""
    bound = ev.program.list_bound(node.body)
    begins = {n: _AS_IT_IS for n, value in start.items() if n in bound and can_be_carried(value)}
    for _ in range(_TRIES):
        with ev.speculate():
            _bind_forms(ev, node, start, begins)
            first = ev.evaluate_iteration(node, enter, node.body)
        found: dict[str, str] = {}
        for name in (n for n in start if n in (first.effects.carried or ())):
            with ev.speculate(first.end):
                form = _choose_form(ev, node, name, begins.get(name, _AS_IT_IS), start)
            if form is None or not can_be_carried(start[name]):
                return None
            found[name] = form
        if found == begins:
            return found
        begins = found
    return None


_TRIES = 5  # the form of one variable may depend on that of another


def _choose_form(ev: Evaluator, node: cst.While, name: str, form: str, start: dict[str, Value]) -> str | None:
    """As what a variable had better begin, of which a round has made what it is here; None for what is not an array."""
    value, end = start[name], ev.look_up(name)
    if value.kind != "static":
        return _AS_IT_IS
    if form in start:
        return form if end.like == start[form].like else None
    given = [
        s
        for s in list_nodes(node.body)
        if isinstance(s, (cst.Assign, cst.AugAssign)) and name in find_effects([s]).gives
    ]
    taken = [(s, ev.port(s.value).value) for s in given]
    if end.rank == 0 and form == _AS_IT_IS and value.dtype == "int" and _becomes_real(end, taken):
        return _REAL
    if end.rank == 0 and (end.dtype == value.dtype or (form == _REAL and end.dtype != "int")):
        return form
    likes = {v.like for v in (end, *(v for _, v in taken))} - {""}
    shaped = (n for n, v in start.items() if v.like in likes and v.memref and n.isidentifier())
    if (other := next(shaped, None)) is not None:  # `v = 0` and `v = v * decay + x`
        return other
    return None if value.dtype != "bool" and end.is_tensor and end.rank != 0 else _AS_IT_IS


def _becomes_real(end: Value, taken: list[tuple[Any, Value]]) -> bool:
    """Whether an integer is one no more after a round: `t = 1` and `t *= 0.5`, where an array would stay one."""
    added = {v.dtype for s, v in taken if isinstance(s, cst.AugAssign)} - {"bool"}
    divided = any(isinstance(s, cst.AugAssign) and isinstance(s.operator, cst.DivideAssign) for s, _ in taken)
    return divided or not {end.dtype, *added} <= {"int"}


def _bind_forms(ev: Evaluator, node: cst.While, start: dict[str, Value], begins: dict[str, str]) -> None:
    """Bind the variables to the arrays that they begin as."""
    for name, form in begins.items():
        value = start[name]
        if form in start:
            value = replace(start[form], kind="tensor", memref=None)
        elif value.kind == "static":
            value = Value("tensor", "float" if form == _REAL else value.dtype, 0)
        ev.bind_name(name, replace(value, kind="tensor", number=""), node)


def _list_loop_variables(ev: Evaluator, node: cst.While) -> set[str]:
    """Return the variables of the source that only this loop gives values."""
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
    inside = {id(n) for n in list_nodes(node)}
    found: dict[bool, set[str]] = {True: set(), False: {p.name.value for p in ev.routine.parameters}}
    for n in list_nodes(ev.routine.node.body):
        if isinstance(n, kinds):
            found[id(n) in inside] |= set(iter_targets(n.target))
    return found[True] - found[False]


def _write_while_loop(
    ev: Evaluator, test: Expr, body: cst.BaseSuite, begins: dict[str, str], new: list[str], runs: str
) -> Statements:
    if ev.surely_differentiated:
        message = "JAX takes no gradient of a loop that ends on a value: let it run for a fixed number of rounds"
        ev.report(ev.current, "autograd", message)
    more, step, carry = map(ev.make_unused_name, ("more", "step", "carry"))
    condition = (
        unparse(bracket(test.node, 1)) if test.value.dtype == "bool" else f"{unparse(bracket(test.node, 7))} != 0"
    )
    if test.value.is_tensor and test.value.rank != 0:  # of one entry
        condition = f"({condition}).reshape(())"
    together = ", ".join([*begins, *new])
    single = len(begins) + len(new) == 1
    parameter = together if single else carry
    opening: Statements = [] if single else [parse_line(f"{together} = {carry}")]
    ends = [parse_line(f"return {condition}"), parse_line(f"return {together}")]
    inner = list_statements(body)
    made: Statements = [
        make_function(more, parameter, [*opening, ends[0]]),
        make_function(step, parameter, [*opening, *inner, ends[1]]),
    ]
    firsts = {_AS_IT_IS: "{}", _REAL: "float({})"}
    if any(form not in firsts for form in begins.values()):
        ev.diagnostics.imports.add("jnp")
    texts = [firsts.get(form, f"jnp.full_like({form}, {{}})").format(name) for name, form in begins.items()]
    initial = ", ".join([*texts, *("None" for _ in new)])
    initial = initial if single else f"({initial})"
    if new:
        initial = f"{step}({initial})" if runs == "True" else f"{step}({initial}) if {runs} else {initial}"
    last = parse_line(f"{together} = jax.lax.while_loop({more}, {step}, {initial})")
    return [*made, last.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def make_function(name: str, parameters: str, block: Statements) -> cst.FunctionDef:
    """Return a function inside a function."""
    made = cst.parse_statement(f"def {name}({parameters}):\n    pass\n")
    assert isinstance(made, cst.FunctionDef)
    return made.with_changes(body=cst.IndentedBlock(block), leading_lines=[cst.EmptyLine(indent=False)])


def can_be_carried(value: Value) -> bool:
    """Return whether a variable can be what a round begins with: an array or a number."""
    if value.kind == "static":
        return value.dtype in _NUMBERS and value.parts is None and value.element is None
    return value.is_tensor or (value.kind == "unknown" and value.memref is not None)
