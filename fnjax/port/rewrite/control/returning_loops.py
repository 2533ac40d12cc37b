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

from fnjax.port.analysis.walk import Statements, Walk, line, names, placed
from fnjax.port.rewrite.control.loops import leaves_by, of_loop
from fnjax.port.rewrite.control.traced_branches import last_return
from fnjax.port.rewrite.values.binding import bind_target, element_of
from fnjax.port.torch import code
from fnjax.port.tree.located import nodes


def returning_loop(walk: Walk, body: Sequence[Any], index: int) -> tuple[Statements, int] | None:
    """A loop that returns, with all that follows it."""
    loop, rest = body[index], list(body[index + 1 :])
    if not isinstance(loop, (cst.For, cst.While)) or loop.orelse is not None or last_return(rest) is None:
        return None
    found = [n for s in loop.body.body for n in nodes(s) if isinstance(n, cst.Return)]
    own = [n for s in loop.body.body for n in of_loop(s) if isinstance(n, cst.Return)]
    if len(own) != len(found) or len({code(n) for n in found}) != 1:
        return None
    if not leaves_by(walk, loop, cst.Return, lambda: _enter(walk, loop)) or walk.here.probing:
        return None
    value = found[0].value
    same = code(rest[0]).strip() == code(found[0]).strip()
    flag = "" if same else walk.unused("ended")
    made: list[Any] = walk.always(("breaking", loop), lambda: _breaking_off(walk, loop, flag, found[0]))
    walk.asking |= {s: True for s in made if isinstance(s, type(loop))}
    kept = names(value) | {flag} if value is not None else {flag}
    with walk.await_reads(kept), walk.apart() as whole:
        whole.made = walk.block([*made, *rest])
    return None if whole.untraced else (walk.adopt(whole), 1 + len(rest))


def _enter(walk: Walk, loop: cst.For | cst.While) -> None:
    if isinstance(loop, cst.While):
        walk.expr(loop.test)
    else:
        bind_target(walk, loop.target, element_of(walk, loop.iter, walk.expr(loop.iter).value), loop)


def _breaking_off(walk: Walk, loop: cst.For | cst.While, flag: str, end: cst.Return) -> list[Any]:
    """The loop with breaks; with `flag`, what it returns stands behind it."""
    broken = placed(walk, loop.with_changes(body=_breaking(flag, loop.body)), loop)
    if not flag:
        return [broken]
    returned = cst.If(cst.Name(flag), cst.IndentedBlock([cst.SimpleStatementLine([end])]))
    return [line(f"{flag} = False"), broken, placed(walk, returned, loop)]


def _breaking(flag: str, block: cst.BaseSuite) -> cst.BaseSuite:
    """`break` in place of `return x`, with a variable that says so."""
    made: list[Any] = []
    for s in block.body:
        if isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[-1], cst.Return):
            made += [line(f"{flag} = True")] if flag else []
            made.append(s.with_changes(body=[cst.Break()]))
            continue
        changes: dict[str, Any] = {}
        if isinstance(s, (cst.If, cst.With)):
            changes["body"] = _breaking(flag, s.body)
        if isinstance(s, cst.If) and s.orelse is not None:
            other = _breaking(flag, cst.IndentedBlock([s.orelse])).body[0] if isinstance(s.orelse, cst.If) else None
            changes["orelse"] = other or s.orelse.with_changes(body=_breaking(flag, s.orelse.body))
        made.append(s.with_changes(**changes) if changes else s)
    return block.with_changes(body=made)
