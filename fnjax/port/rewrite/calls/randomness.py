"""Random draws take a key.

What: a Function that draws random numbers gets a new last argument `key`, and its backward returns one more None;
helpers that draw get a parameter `key`.
Before: `mask = torch.rand_like(x) < p`
After: `mask = jax.random.uniform(key, x.shape, dtype=x.dtype) < p`
Safety: where there are several draws each splits its own key off. The numbers differ from PyTorch's; their
distribution is the same. A note tells of the new argument.
Limits: after `*args` no argument can follow, and in a comprehension or a lambda one key would serve several draws;
these are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Stop, parse_line


def make_key(ev: Evaluator, node: cst.CSTNode) -> cst.BaseExpression:
    """Return a key that nothing else uses."""
    if ev.here.repeated:
        message = "draws in a comprehension or a lambda would share one key: write a loop, or a function"
        raise Stop(node, "random", message)
    ev.routine.draws = True
    ev.diagnostics.keys += 1
    ev.diagnostics.imports.add("jax")
    key = ev.program.key_name
    if not ev.routine.draws_often and not ev.here.loops and ev.diagnostics.keys == 1:
        return cst.Name(key)
    if ev.diagnostics.keys > 1 or ev.here.loops:
        ev.routine.draws_often = True
    subkey = ev.make_unused_name(f"sub{key.lstrip('_')}")
    ev.before.append(parse_line(f"{key}, {subkey} = jax.random.split({key})"))
    return cst.Name(subkey)
