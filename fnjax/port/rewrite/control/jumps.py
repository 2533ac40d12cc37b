"""Jumps that depend on a tensor's value.

What: break, continue and return in a loop become flags (the pass of fnjax.torch), so that it is a loop that JAX can
carry; what follows an `if` that returns goes to its other branch.
Before: `for i in range(n): y = f(y); if y.max() < t: return 2 * y` and then `return y`
After: `y, i, ended = jax.lax.while_loop(more, step, (y, i, ended))` and `return jax.lax.cond(ended, ...)`
Safety: what a loop returns is computed after it, from variables that nothing has changed since.
Limits: loops of which an iteration cannot be carried, and jumps in `try` and `match`, run outside jit only.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from fnjax._torch_ops.syntax.trees import assign, load
from fnjax.port.analysis.evaluator import Evaluator, find_names, place_at
from fnjax.port.analysis.regions import Made
from fnjax.port.analysis.registry import block
from fnjax.port.rewrite.control.flags import LoopJumps, Returns, move_rest
from fnjax.port.rewrite.control.kept_choices import put_zeros_for_none
from fnjax.port.rewrite.control.regions import find_last_return, make_line
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.rewrite.values.conditions import negate, put_blocks_on_lines, split_return
from fnjax.port.torch import bracket, fill, read_literal, unparse
from fnjax.port.tree.located import list_nodes
from fnjax.port.tree.skeleton import Kept, close_blocks, list_jumps, list_lines, open_blocks

Loop = cst.For | cst.While
_OWN = (cst.Break, cst.Continue)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A loop without jumps.

    Attributes:
        begins: the initial values of its counter and flags, by name.
        loop: the loop.
        ending: its `else` as statements.
        runs: the condition under which it has a first iteration; None where that is not known.
    """

    begins: dict[str, cst.BaseExpression]
    loop: Any
    ending: list[Any]
    runs: cst.BaseExpression | None

    def list_inner(self) -> set[str]:
        """Return the names in `begins` that `ending` does not read."""
        return self.begins.keys() - {n for s in self.ending for n in find_names(s)}


def is_left_on_value(ev: Evaluator, node: Loop) -> bool:
    """Return whether a jump of a loop depends on a tensor's value."""
    jumps = {id(n) for n in _list_jumps(node)}
    around = (
        [n.test for n in list_nodes(node.body, cst.If) if any(id(j) in jumps for j in list_nodes(n))] if jumps else []
    )
    if not around:
        return False
    if not ev.asking.get(node):
        here = {ev.program.source.locate(n) for test in around for n in list_nodes(test)}
        ev.asking[node] = _is_asked_at(ev, node, here)
    return ev.asking[node] and not ev.here.probing


def _list_jumps(node: Any) -> list[cst.CSTNode]:
    return [*_list_own(node, *_OWN), *list_jumps(node, (cst.Return,))]


def _list_own(node: Loop, *kinds: type[cst.CSTNode]) -> list[cst.CSTNode]:
    return [n for s in node.body.body for n in list_jumps(s, kinds)]


def _is_asked_at(ev: Evaluator, node: Loop, here: set[tuple[int, int]]) -> bool:
    """Return whether some iteration needs a tensor's concrete value at one of these locations.

    A value that the first iteration needs is needed by later ones.
    """

    def enter() -> None:
        if isinstance(node, cst.While):
            ev.port(node.test)
        else:
            bind_target(ev, node.target, iterate_over(ev, node.iter, ev.port(node.iter).value), node)

    # A loop that is known here has no such first iteration.
    if node not in ev.asking and ev.probe_iteration(node, enter).diagnostics.concrete & here:
        return True
    with ev.speculate() as settled:
        ev.evaluate_loop(node, enter, node.body)
    return bool(settled.diagnostics.concrete & here)


# --------------------------------------------------------------------------------------- break and continue


def lower_loop(ev: Evaluator, node: Loop) -> Lowered | None:
    """Return a loop without break and continue, a counting one as a `while`; None where it returns, or has a `try`."""

    def lower() -> Lowered | None:
        done, skipped = (_name_flag(ev, w) if _list_own(node, kind) else "" for w, kind in _FLAGS.items())
        opened = open_blocks(list_lines(node.body), _OWN)
        if opened is None or list_jumps(node, (cst.Return,)):
            return None
        body = LoopJumps(done, skipped).lower(opened)
        skips = skipped in _list_read(body)
        body = _tidy(body, {done, skipped} if skips else {done}, set() if skips else {skipped})
        made = _write_lowered(ev, node, done, skipped if skips else "", body)
        ev.substitutes["lowered", made.loop] = True
        return made

    lowered: Lowered | None = ev.keep_one(("jumps", node), lower)
    return lowered


_FLAGS: dict[str, type[cst.CSTNode]] = {"done": cst.Break, "skipped": cst.Continue}


def _name_flag(ev: Evaluator, name: str, taken: Container[str] = ()) -> str:
    """Return a name that neither the routine nor a loop around has for its own variable."""
    around = sum(("lowered", n) in ev.substitutes or bool(_list_jumps(n)) for n in ev.here.loops)
    names = (name if i == 1 else f"{name}_{i}" for i in itertools.count(1 + around))
    return next(n for n in names if n not in ev.taken and n not in taken)


def _write_lowered(ev: Evaluator, node: Loop, done: str, skipped: str, opened: list[ast.stmt]) -> Lowered:
    body = [place_at(ev, s, node) for s in close_blocks(opened)]
    begins: dict[str, cst.BaseExpression] = {}
    runs: cst.BaseExpression | None = None
    not_done = cst.UnaryOperation(cst.Not(), cst.Name(done)) if done else None
    if skipped:
        begins[skipped] = cst.Name("False")
        opening = make_line(cst.Name(skipped), cst.Name(done or "False"))  # `done` is False here
        body.insert(0, place_at(ev, opening, node))
    ending = list_lines(node.orelse.body) if node.orelse else []
    if not_done and ending:
        ending = [place_at(ev, cst.If(not_done, cst.IndentedBlock(ending)), node)]
    loop: Any = node.with_changes(body=cst.IndentedBlock(body), orelse=None)
    if isinstance(node, cst.While):
        if not_done and _is_true(node.test):
            loop, runs = loop.with_changes(test=not_done), cst.Name("True")
        elif not_done:
            loop = loop.with_changes(test=cst.BooleanOperation(not_done, cst.And(), bracket(node.test, 5)))
    elif not_done and (bounds := _find_bounds(ev, node)) is not None:
        name, (first, last) = node.target, bounds
        counter = _name_counter(ev, node)
        body.append(make_line(counter, fill("I + 1", I=counter)))
        if name.value not in {counter.value, "_"}:  # type: ignore[attr-defined] # a name
            body.insert(0, make_line(name, counter))
            begins[name.value] = first  # type: ignore[attr-defined] # a name
        begins[counter.value] = first
        loop = cst.While(fill("I < N and D", I=counter, N=last, D=not_done), cst.IndentedBlock(body))
        known = [read_literal(b) for b in bounds]
        several = all(isinstance(b, int) for b in known) and known[0] < known[1]  # type: ignore[operator] # integers
        runs = cst.Name("True") if several else fill("A < B", A=first, B=last)
    elif not_done:
        loop = loop.with_changes(body=cst.IndentedBlock([cst.If(not_done, cst.IndentedBlock(body))]))
    if done:
        begins[done] = cst.Name("False")
    return Lowered(begins, place_at(ev, loop, node), ending, runs)


def _find_bounds(ev: Evaluator, node: cst.For) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return the bounds of `for i in range(n)`; None where iterations change what these read, and of other loops."""
    call, name = node.iter, node.target
    if not isinstance(call, cst.Call) or not isinstance(name, cst.Name) or ev.find_name(call.func) != "builtins.range":
        return None
    bounds = [a.value for a in call.args]
    if len(bounds) > 2 or find_names(bounds[-1]) & {name.value, *ev.program.list_bound(node.body)}:
        return None
    return (cst.Integer("0") if len(bounds) == 1 else bounds[0]), bounds[-1]


def _name_counter(ev: Evaluator, node: cst.For) -> cst.Name:
    """Return the counter of a loop: its own variable, if only the loop has it."""
    name = unparse(node.target)
    given = name in ev.program.list_bound(node.body) or (ev.is_live(name) and _is_read_after(ev, node))
    return cst.Name(_name_flag(ev, "n" if given else "i") if given or name == "_" else name)


def _is_read_after(ev: Evaluator, node: cst.For) -> bool:
    inside, locate = ev.routine.list_names_in(node), ev.program.source.locate
    reads = ev.routine.reads.get(unparse(node.target), ())
    return any(id(n) not in inside and locate(n) > locate(node) for n in reads)


def _is_true(test: cst.BaseExpression) -> bool:
    """Return whether a condition always holds: `while True`, `while 1`."""
    found = read_literal(test)
    return isinstance(found, int) and bool(found)


def _list_read(body: list[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _tidy(body: list[ast.stmt], read: set[str], unread: set[str]) -> list[ast.stmt]:
    """Return statements with `flag = test` for an `if` that sets a flag, and without flags that nothing reads."""
    made: list[ast.stmt] = []
    for statement in body:
        for name in ("body", "orelse"):
            if getattr(statement, name, None):
                setattr(statement, name, _tidy(getattr(statement, name), read, unread))
        match statement:
            case ast.Assign([ast.Name(flag)]) if flag in unread:
                continue
            case ast.If(Kept() as test, [*before, ast.Assign([ast.Name(flag)])], orelse) if flag in read:
                plain = isinstance(test.node.test, cst.Comparison)
                value = cst.Call(cst.Name("bool"), [cst.Arg(test.node.test)]) if plain else test.node.test
                made.append(assign(flag, Kept(value)))
                if before:
                    made.append(ast.If(load(flag), before, orelse))
                elif orelse:
                    made.append(ast.If(ast.UnaryOp(ast.Not(), load(flag)), orelse, []))
            case ast.If(Kept() as test, [], orelse):
                if orelse:
                    other = test.node.with_changes(test=bracket(negate(test.node.test), 1))
                    made.append(ast.If(Kept(other), orelse, []))
            case _:
                made.append(statement)
    return made


# ---------------------------------------------------------------------------------------------------- return


@block(cst.If, cst.For, cst.While)
def port_returns(ev: Evaluator, body: Sequence[Any], index: int) -> Made:
    """Translate a statement that returns for some values of a tensor, with all that follows it."""
    first, rest = put_blocks_on_lines(ev, body[index]), list(body[index + 1 :])
    if not isinstance(first, (cst.If, cst.For, cst.While)) or not list_jumps(first, (cst.Return,)):
        return None
    if not isinstance(first, cst.If):
        return _port_returning_loop(ev, first, rest)
    if find_last_return(rest) is None or not _asks_tensor(ev, first):
        return None
    if first.orelse is None and find_last_return(list_lines(first.body)) is not None:
        if (zeros := put_zeros_for_none(ev, first, rest)) is not None:
            return ev.port_block(zeros), 1 + len(rest)
        if (guarded := split_return(ev, first, rest)) is not None:
            return ev.port_block(guarded), 1 + len(rest)
    opened: Any = open_blocks([first], (cst.Return,))
    if opened is None or move_rest(opened[0], [ast.Expr(Kept(s)) for s in rest], (ast.Return,)):
        return None
    return ev.port_statement(place_at(ev, close_blocks(opened)[0], first)), 1 + len(rest)


def _asks_tensor(ev: Evaluator, node: cst.If) -> bool:
    with ev.speculate():
        return ev.is_traced(ev.port(node.test).value)


def _port_returning_loop(ev: Evaluator, loop: Loop, rest: list[Any]) -> Made:
    """Return a loop that returns as one that breaks, and after it what it returns."""
    if find_last_return(rest) is None and not _is_endless(loop):
        return None
    if not is_left_on_value(ev, loop):
        return None
    found = ev.keep_one(("returns", loop), lambda: _break_off(ev, loop, rest))
    if found is None:
        return None
    made, kept = found
    with ev.await_reads(kept), ev.speculate() as whole:
        whole.made = ev.port_block([*made, *rest])
    return None if whole.untraced else (ev.commit(whole), 1 + len(rest))


def _is_endless(loop: Loop) -> bool:
    return isinstance(loop, cst.While) and _is_true(loop.test) and not _list_own(loop, cst.Break)


def _break_off(ev: Evaluator, loop: Loop, rest: list[Any]) -> tuple[list[Any], set[str]] | None:
    """Return a loop with breaks and, after it, its returns; with the variables that these read."""
    flags: dict[str, str] = {}  # by the source of what is returned: after the loop, what reads the same is the same
    ends: list[Any] = []

    def leave(node: ast.Return) -> list[ast.stmt]:
        assert isinstance(node.value, Kept)
        text = unparse(node.value.node).strip()
        if text not in flags:
            flags[text] = _name_flag(ev, "ended", flags.values())
            ends.append(node.value.node)
        return [assign(flags[text], ast.Constant(True))]

    def left() -> ast.expr:
        tests: list[ast.expr] = [load(flag) for flag in flags.values()]
        return tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)

    opened = open_blocks([loop], (cst.Return,))
    if opened is None:
        return None
    lowered = Returns(leave, left).lower(opened, in_loop=False)
    after: list[Any] = [
        ast.If(load(flag), [ast.Expr(Kept(end))], []) for flag, end in zip(flags.values(), ends, strict=True)
    ]
    if _is_endless(loop):
        after[-1:] = after[-1].body
    elif len(ends) == 1 and unparse(rest[0]).strip() in flags:
        after = []
    opening = [assign(flag, ast.Constant(False)) for flag in flags.values()]
    block = [*opening, *lowered, *after]
    read = {*flags.values()} & _list_read(block)
    made = [place_at(ev, s, loop) for s in close_blocks(_tidy(block, read, {*flags.values()} - read))]
    ev.asking |= {s: True for s in made if isinstance(s, type(loop))}
    return made, {*flags.values(), *(name for end in ends for name in find_names(end))}
