"""Parameters and places of JAX's own equations, which change with its version."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.interpreters.partial_eval import partial_eval_jaxpr_custom_rules

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.types import Eqn, Jaxpr


class Scan(NamedTuple):
    """Parsed `jax.lax.scan` equation: fixed, carried and scanned operands → carried and stacked results.

    Attributes:
        body: one iteration, on one slice of the scanned operands.
        n_fixed: how many operands are fixed.
        n_carried: how many are carried.
        options: length, reverse and unroll.
    """

    body: Jaxpr
    n_fixed: int
    n_carried: int
    options: dict[str, Any]


def read_scan(eqn: Eqn) -> Scan:
    """Return the parts of a scan equation."""
    params, body = eqn.params, open_jaxpr(eqn.params["jaxpr"])
    # The names of these numbers change with JAX; scanned operands have one more dimension outside.
    n_scanned = sum(v.aval.ndim != b.aval.ndim for v, b in zip(eqn.invars, body.invars, strict=True))
    n_carried = sum(v.aval.ndim == b.aval.ndim for v, b in zip(eqn.outvars, body.outvars, strict=True))
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    return Scan(params["jaxpr"], len(eqn.invars) - n_scanned - n_carried, n_carried, options)


def read_while(eqn: Eqn) -> tuple[Jaxpr, Jaxpr, int, int]:
    """Return the condition and the body of a `jax.lax.while_loop`, and the numbers of their constants."""
    params = eqn.params
    return params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"]


def read_branches(eqn: Eqn) -> Sequence[Jaxpr]:
    """Return the branches of a `jax.lax.cond` or `switch`, in the order of the index operand."""
    return list(eqn.params["branches"])


class ShardMap(NamedTuple):
    """Parsed `jax.shard_map` equation.

    Attributes:
        body: the program of each device.
        in_specs: how the operands are split.
        out_specs: how the results are assembled.
        axes: the mesh axes over which it splits, in the order of the mesh.
        options: its other arguments.
    """

    body: Jaxpr
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    axes: Sequence[Any]
    options: dict[str, Any]


def read_shard_map(eqn: Eqn) -> ShardMap:
    """Return the parts of a shard_map equation."""
    params = eqn.params
    mesh, axes = params["mesh"], params["newly_manual_axes"]
    options = {"mesh": mesh, "axis_names": set(axes), "check_vma": params["check_vma"]}
    ordered = [name for name in mesh.axis_names if name in axes]
    return ShardMap(open_jaxpr(params["jaxpr"]), params["in_specs"], params["out_specs"], ordered, options)


def bind_remat(eqn: Eqn, body: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Evaluate another body under the `jax.checkpoint` of an equation, with the same policy."""
    return list(eqn.primitive.bind(*args, **{**eqn.params, "jaxpr": open_jaxpr(body)}))


def change_to_call(eqn: Eqn, program: Jaxpr, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Return an equation changed to a call of a program without effects, for which JAX has rules."""
    params = {"call_jaxpr": program}
    return eqn.replace(
        primitive=primitives.closed_call_p, invars=operands, outvars=results, params=params, effects=set()
    )


class SplitCall(NamedTuple):
    """Equation that is a call of a program, split under a policy of `jax.checkpoint`.

    Attributes:
        first: the program of the first computation: operands → results and saved values.
        results: the variables of these.
        second: the program of the recomputation: saved values, operands → results that are recomputed.
        saved: the variables of the saved values.
        recomputed: for each result whether it is.
    """

    first: Any
    results: list[Any]
    second: Any
    saved: list[Any]
    recomputed: Sequence[bool]


def split_call(eqn: Eqn, policy: Any) -> SplitCall:
    """Split an equation that is a call, whose operands are known and instantiated."""
    n = len(eqn.invars)
    rule: Any = partial_eval_jaxpr_custom_rules[primitives.closed_call_p]
    known, staged, _, recomputed, _ = rule(policy, [False] * n, [True] * n, eqn)
    first, second = known.params["call_jaxpr"], staged.params["call_jaxpr"]
    return SplitCall(first, known.outvars, second, staged.invars[: len(staged.invars) - n], recomputed)


def user_location(eqn: Eqn) -> str:
    """Return file and line of the user's code that made an equation, ` at layers.py:12`, or the empty string."""
    traceback = eqn.source_info.traceback
    for frame in [] if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_LIBRARIES):
            return f" at {frame.file_name}:{frame.line_num}"
    return ""


@contextmanager
def located_anew() -> Iterator[None]:
    """Have the equations that are traced in the block located where they are traced.

    While JAX lowers, or evaluates a program, new equations get the place of the equation that is lowered.
    """
    outer, inner = source_info_util.user_context(None), source_info_util.user_context(None)
    with outer:
        with inner:
            inner.prev = source_info_util.new_source_info()  # the state that it restores
        yield


_LIBRARIES = tuple(f"{folder}{os.sep}" for module in (jax, sys.modules["fnjax"]) for folder in module.__path__)


def is_callback(eqn: Eqn) -> bool:
    """Return whether an equation calls back to Python."""
    return "callback" in eqn.primitive.name
