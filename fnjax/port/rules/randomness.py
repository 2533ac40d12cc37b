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

from fnjax.port.operations import code
from fnjax.port.walk import Stop, Walk, line


def fresh_key(walk: Walk, node: cst.CSTNode) -> cst.BaseExpression:
    """A key that nothing else uses."""
    if walk.repeated:
        message = "draws in a comprehension or a lambda would share one key: write a loop, or a function"
        raise Stop(node, "random", message)
    walk.routine.draws = True
    walk.sink.keys += 1
    walk.sink.imports.add("jax")
    key = walk.program.key_name
    if not walk.routine.draws_often and not walk.loops and walk.sink.keys == 1:
        return cst.Name(key)
    if walk.sink.keys > 1 or walk.loops:
        walk.routine.draws_often = True
    here = sum(f"jax.random.split({key})" in code(s) for s in walk.before)
    subkey = f"sub{key.lstrip('_')}" + (f"_{here + 1}" if here else "")
    walk.before.append(line(f"{key}, {subkey} = jax.random.split({key})"))
    return cst.Name(subkey)
