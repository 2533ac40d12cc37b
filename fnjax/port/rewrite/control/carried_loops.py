"""A loop that ends on a tensor's value as jax.lax.while_loop.

What: what the rounds give new values is carried from one to the next; a number that becomes an array begins as one;
what only the rounds make gets its shape from a first round outside.
Before: `v = 0` and `while err > tol: v = v * d + x; err = v.norm()`
After: `v, err = jax.lax.while_loop(more, step, (jnp.full_like(x, v), err))`
Safety: what a round begins with is an array of one shape and dtype, as JAX checks when it runs.
Limits: see the rules of loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.effects import NOTHING
from fnjax.port.analysis.program import nodes
from fnjax.port.analysis.walk import Statements, Term, Walk, line, lines_of
from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.source.naming import targets
from fnjax.port.torch import code, fit

_NUMBERS = frozenset({"int", "float", "bool"})


def carried_loop(walk: Walk, node: cst.While, runs: str) -> Statements | None:
    """The loop as jax.lax.while_loop; None where it is no such loop."""
    with walk.apart() as found:
        found.made = _carried(walk, node, runs)
    found.effects = NOTHING  # but for what the translation does
    made: Statements | None = None if found.made is None else walk.adopt(found)
    return made


def _carried(walk: Walk, node: cst.While, runs: str) -> Statements | None:
    if node.orelse is not None or any(isinstance(n, cst.NamedExpr) for n in nodes(node)):
        return None
    for name in _only_here(walk, node):  # known from an earlier round of a loop around this one
        walk.state.variables.pop(name, None)
    for name, value in walk.state.variables.items():  # whose shapes stay as they are
        if value.kind != "static" and value.place is not None and not value.like:
            walk.state.variables[name] = replace(value, like=walk.mark(node, f" {name}"))
    start = walk.state.copy()

    def alone() -> None:
        for name in walk.state.variables.keys() - start.variables.keys():  # what a round makes stays in it
            del walk.state.variables[name]

    with walk.apart():
        rehearsed = walk.loop(node, alone, node.body)
    ends, written = rehearsed.end.variables, rehearsed.effects.carried
    if written is None:
        return None
    carried = {n: n for n in start.variables if n in written}  # with what each begins
    new = sorted(n for n in written - carried.keys() if walk.live(n))  # the first round gives them their shapes
    if not carried or not all(n in rehearsed.effects.surely for n in new) or (new and not runs):
        return None
    if not all(carries(start.variables[n]) for n in carried):
        return None

    firsts: dict[str, tuple[str, Value]] = {}

    def end(name: str, value: Value) -> Value:
        with walk.apart():
            for known, (_, first) in {**firsts, name: ("", value)}.items():
                walk.bind(known, replace(first, number=""), node)
            return walk.loop(node, alone, node.body).end.variables.get(name, UNKNOWN)

    for _ in range(2):  # what one variable is may depend on another
        for name in [n for n in carried if n not in firsts]:
            if (found := _first(name, start.variables, ends.get(name, UNKNOWN), end)) is not None:
                firsts[name] = found
    if len(firsts) < len(carried):
        return None
    for name, (text, value) in firsts.items():
        carried[name] = text
        walk.sink.imports |= {"jnp"} if text.startswith("jnp.") else set()
        walk.bind(name, replace(value, number=""), node)
    tests: list[Term] = []

    def enter() -> None:
        alone()
        tests.append(walk.expr(node.test))

    keys = walk.sink.keys
    body = walk.loop(node, enter, node.body)
    last = body.effects.carried
    if any(f.code == "untraced" for f in walk.sink.findings):  # of a counter, as one
        return None
    if walk.sink.keys != keys or walk.before or last is None or not last <= written:
        return None
    if not all(n in walk.state.variables and carries(walk.state.variables[n]) for n in new):
        return None
    walk.sink.imports.add("jax")
    return _emitted(walk, tests[-1], body.made, carried, new, runs)


def _only_here(walk: Walk, node: cst.While) -> set[str]:
    """The variables of the source that only this loop gives values."""
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
    inside = {id(n) for n in nodes(node)}
    found: dict[bool, set[str]] = {True: set(), False: {p.name.value for p in walk.routine.parameters}}
    for n in nodes(walk.routine.node.body):
        if isinstance(n, kinds):
            found[id(n) in inside] |= set(targets(n.target))
    return found[True] - found[False]


def _first(
    name: str, start: dict[str, Value], found: Value, end: Callable[[str, Value], Value]
) -> tuple[str, Value] | None:
    """What a variable begins with, an array of the dtype and shape that a round gives it, and what is known of it."""
    value = start[name]
    if value.kind != "static":
        return name, replace(value, kind="tensor")
    number = Value("tensor", value.dtype, 0)
    if found.dtype == value.dtype and (found.kind == "static" or found.rank == 0):
        return name, number
    if value.dtype == "float" and (last := end(name, number)).rank == 0 and last.dtype == "float":
        return name, number
    real = replace(number, dtype="float")
    if value.dtype == "int" and (last := end(name, real)).rank == 0 and last.dtype != "int":  # `t = 1` and `t *= 0.5`
        return f"float({name})", real
    alike = {v.like: (n, v) for n, v in start.items() if v.like and v.place and n.isidentifier()}
    for like, (other, shaped) in alike.items():  # `v = 0` and `v = v * decay + x`
        whole = replace(shaped, kind="tensor", place=None)
        if end(name, whole).like == like:
            return f"jnp.full_like({other}, {name})", whole
    return None if value.dtype != "bool" and found.is_tensor and found.rank != 0 else (name, number)


def _emitted(
    walk: Walk, test: Term, body: cst.BaseSuite, carried: dict[str, str], new: list[str], runs: str
) -> Statements:
    if walk.here.differentiated:
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
    if new:
        initial = f"{step}({initial})" if runs == "True" else f"{step}({initial}) if {runs} else {initial}"
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


def otherwise(node: cst.If) -> list[cst.BaseSuite]:
    """The block of `else`, or that of `elif` as a block."""
    orelse = node.orelse
    return [cst.IndentedBlock([orelse])] if isinstance(orelse, cst.If) else [orelse.body] if orelse else []
