"""Random draws take a key.

What: a Function that draws random numbers gets a new last argument `key`, and its backward returns one more None;
helpers
that draw get a parameter `key`.
Before: `mask = torch.rand_like(x) < p`
After: `mask = jax.random.uniform(key, x.shape, dtype=x.dtype) < p`
Safety: where there are several draws each splits its own key off. The numbers are others than PyTorch's; their
distribution is the same. A note tells of the new argument.
Limits: after `*args` no argument can follow, and in a comprehension or a lambda one key would serve several draws;
these are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.walk import Statements, Stop, Walk, parse_line


def make_key(walk: Walk, node: cst.CSTNode) -> cst.BaseExpression:
    """Return a key that nothing else uses."""
    if walk.here.repeated:
        message = "draws in a comprehension or a lambda would share one key: write a loop, or a function"
        raise Stop(node, "random", message)
    walk.routine.draws = True
    walk.sink.keys += 1
    walk.sink.imports.add("jax")
    key = walk.program.key_name
    if not walk.routine.draws_often and not walk.here.loops and walk.sink.keys == 1:
        return cst.Name(key)
    if walk.sink.keys > 1 or walk.here.loops:
        walk.routine.draws_often = True
    here = walk.before.reserve_numbers("key")
    subkey = _name_subkey(key) + (f"_{here}" if here > 1 else "")
    walk.before.append(_make_key_split(key, subkey))
    return cst.Name(subkey)


def make_own_key(walk: Walk, block: Statements) -> tuple[Statements, list[str]]:
    """Return the statement that gives a function of this block its own key, if the block splits keys."""
    key = walk.program.key_name
    if key not in walk.program.list_bound(cst.IndentedBlock(block)):
        return [], []
    return [_make_key_split(key, _name_subkey(key))], [f"{key}={_name_subkey(key)}"]


def _name_subkey(key: str) -> str:
    return f"sub{key.lstrip('_')}"


def _make_key_split(key: str, subkey: str) -> cst.SimpleStatementLine:
    return parse_line(f"{key}, {subkey} = jax.random.split({key})")
