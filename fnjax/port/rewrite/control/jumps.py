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

from fnjax.port.analysis.evaluator import Evaluator, find_names, parse, parse_line, place_at
from fnjax.port.analysis.registry import block
from fnjax.port.analysis.traces import Made
from fnjax.port.rewrite.control.kept_choices import put_zeros_for_none
from fnjax.port.rewrite.control.regions import find_last_return
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.rewrite.values.conditions import negate, put_blocks_on_lines, split_return
from fnjax.port.torch import bracket, unparse
from fnjax.port.tree.located import list_nodes
from fnjax.port.tree.skeleton import Kept, close_blocks, list_jumps, list_lines, open_blocks
from fnjax.torch._jumps import LoopJumps, Returns, move_rest
from fnjax.torch._syntax import assign, load

Loop = cst.For | cst.While
_OWN = (cst.Break, cst.Continue)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A loop without jumps.

    Attributes:
        begins: what its own variables are before it.
        loop: the loop.
        ending: its `else` as statements.
        runs: what says that it has a first iteration; empty where that is not known.
    """

    begins: dict[str, str]
    loop: Any
    ending: list[Any]
    runs: str

    def list_inner(self) -> set[str]:
        """Return its own variables that nothing reads after it."""
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
    """Return whether some iteration needs a tensor's concrete value at one of these places.

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
    begins, runs = dict[str, str](), ""
    if skipped:
        begins[skipped] = "False"
        body.insert(0, place_at(ev, parse_line(f"{skipped} = {done or False}"), node))  # which is False here
    ending = list_lines(node.orelse.body) if node.orelse else []
    if done and ending:
        ending = [place_at(ev, cst.If(parse(f"not {done}"), cst.IndentedBlock(ending)), node)]
    loop: Any = node.with_changes(body=cst.IndentedBlock(body), orelse=None)
    if isinstance(node, cst.While):
        test = bracket(node.test, 5)
        if done and unparse(test) in {"True", "1"}:
            test, runs = parse(f"not {done}"), "True"
        elif done:
            test = cst.BooleanOperation(parse(f"not {done}"), cst.And(), test)
        loop = loop.with_changes(test=test)
    elif done and (counted := _count(ev, node)) is not None:
        counter, first, last, runs = counted
        name = unparse(node.target)
        body.append(parse_line(f"{counter} = {counter} + 1"))
        if counter != name != "_":
            body.insert(0, parse_line(f"{name} = {counter}"))
            begins[name] = first
        begins[counter] = first
        loop = cst.While(parse(f"{counter} < {last} and not {done}"), cst.IndentedBlock(body))
    elif done:
        loop = loop.with_changes(body=cst.IndentedBlock([cst.If(parse(f"not {done}"), cst.IndentedBlock(body))]))
    if done:
        begins[done] = "False"
    return Lowered(begins, place_at(ev, loop, node), ending, runs)


def _count(ev: Evaluator, node: cst.For) -> tuple[str, str, str, str] | None:
    """Return the counter of `for i in range(n)`, its bounds, and what says that there is an iteration."""
    call = node.iter
    if not isinstance(call, cst.Call) or not isinstance(node.target, cst.Name) or len(call.args) > 2:
        return None
    if ev.find_name(call.func) != "builtins.range":
        return None
    bounds = [unparse(a.value) for a in call.args]
    first, last = bounds if len(bounds) == 2 else ("0", bounds[0])
    name = node.target.value
    given = name in ev.program.list_bound(node.body) or (ev.is_live(name) and _is_read_after(ev, node))
    counter = _name_flag(ev, "n" if given else "i") if given or name == "_" else name
    several = first.isdigit() and last.isdigit() and int(first) < int(last)
    return counter, first, last, "True" if several else f"{first} < {last}"


def _is_read_after(ev: Evaluator, node: cst.For) -> bool:
    inside, locate = ev.routine.list_names_in(node), ev.program.source.locate
    reads = ev.routine.reads.get(unparse(node.target), ())
    return any(id(n) not in inside and locate(n) > locate(node) for n in reads)


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
                asked = cst.Call(cst.Name("bool"), [cst.Arg(test.node.test)]) if plain else test.node.test
                made.append(assign(flag, Kept(asked)))
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
    """Translate a statement that may return, with all that follows it, where a tensor's value says whether it does."""
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
    return isinstance(loop, cst.While) and unparse(loop.test) in {"True", "1"} and not _list_own(loop, cst.Break)


def _break_off(ev: Evaluator, loop: Loop, rest: list[Any]) -> tuple[list[Any], set[str]] | None:
    """Return a loop with breaks and, after it, its returns; with the variables that these read."""
    flags: dict[str, str] = {}  # by what is returned
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
