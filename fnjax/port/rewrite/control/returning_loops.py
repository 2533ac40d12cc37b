"""Loops that return where a tensor's value says so.

What: a loop that returns becomes one that breaks; what it returns stands behind it, behind a question where the
function ends otherwise with something else. That loop then becomes jax.lax.while_loop.
Before: `for i in range(n): y = f(y); if y.max() < t: return y` and then `return y`
After: `y, i, done = jax.lax.while_loop(more, step, (y, i, done))` and `return y`
Safety: only where the loop gets a form that jit can trace, and all its returns give the same expression.
Limits: loops in loops that return, and loops with several returns that differ, run un-jitted only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from fnjax.port.analysis.walk import Statements, Walk, find_names, parse_line, place_at
from fnjax.port.rewrite.control.loops import is_left_by, iter_own_nodes
from fnjax.port.rewrite.control.traced_branches import find_last_return
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes


def port_returning_loop(walk: Walk, body: Sequence[Any], index: int) -> tuple[Statements, int] | None:
    """A loop that returns, with all that follows it."""
    loop, rest = body[index], list(body[index + 1 :])
    if not isinstance(loop, (cst.For, cst.While)) or loop.orelse is not None or find_last_return(rest) is None:
        return None
    found = [n for s in loop.body.body for n in list_nodes(s) if isinstance(n, cst.Return)]
    own = [n for s in loop.body.body for n in iter_own_nodes(s) if isinstance(n, cst.Return)]
    if len(own) != len(found) or len({unparse(n) for n in found}) != 1:
        return None
    if not is_left_by(walk, loop, cst.Return, lambda: _enter_round(walk, loop)) or walk.here.probing:
        return None
    value = found[0].value
    same = unparse(rest[0]).strip() == unparse(found[0]).strip()
    flag = "" if same else walk.make_unused_name("ended")
    made: list[Any] = walk.keep_one(("breaking", loop), lambda: _break_off(walk, loop, flag, found[0]))
    walk.asking |= {s: True for s in made if isinstance(s, type(loop))}
    kept = find_names(value) | {flag} if value is not None else {flag}
    with walk.await_reads(kept), walk.walk_apart() as whole:
        whole.made = walk.port_block([*made, *rest])
    return None if whole.untraced else (walk.adopt_region(whole), 1 + len(rest))


def _enter_round(walk: Walk, loop: cst.For | cst.While) -> None:
    if isinstance(loop, cst.While):
        walk.port(loop.test)
    else:
        bind_target(walk, loop.target, iterate_over(walk, loop.iter, walk.port(loop.iter).value), loop)


def _break_off(walk: Walk, loop: cst.For | cst.While, flag: str, end: cst.Return) -> list[Any]:
    """The loop with breaks; with `flag`, what it returns stands behind it."""
    broken = place_at(walk, loop.with_changes(body=_replace_returns(flag, loop.body)), loop)
    if not flag:
        return [broken]
    returned = cst.If(cst.Name(flag), cst.IndentedBlock([cst.SimpleStatementLine([end])]))
    return [parse_line(f"{flag} = False"), broken, place_at(walk, returned, loop)]


def _replace_returns(flag: str, block: cst.BaseSuite) -> cst.BaseSuite:
    """`break` in place of `return x`, with a variable that says so."""
    made: list[Any] = []
    for s in block.body:
        if isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[-1], cst.Return):
            made += [parse_line(f"{flag} = True")] if flag else []
            made.append(s.with_changes(body=[cst.Break()]))
            continue
        changes: dict[str, Any] = {}
        if isinstance(s, (cst.If, cst.With)):
            changes["body"] = _replace_returns(flag, s.body)
        if isinstance(s, cst.If) and s.orelse is not None:
            other = (
                _replace_returns(flag, cst.IndentedBlock([s.orelse])).body[0] if isinstance(s.orelse, cst.If) else None
            )
            changes["orelse"] = other or s.orelse.with_changes(body=_replace_returns(flag, s.orelse.body))
        made.append(s.with_changes(**changes) if changes else s)
    return block.with_changes(body=made)
