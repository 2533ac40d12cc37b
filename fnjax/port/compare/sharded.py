"""A JAX process that runs the cases of a job on several devices inside shard_map, in three modes.

Run as a module in a process of its own, in which XLA_FLAGS sets the number of devices.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fnjax.port.compare.devices import MODES
from fnjax.port.compare.gloo import GROUP, iter_cases, make_cotangent

AXIS = "devices"


def main(jobs: str, result: str) -> None:
    """Run the cases of a job, each in the three modes."""
    found = []
    for case, load_function in iter_cases(jobs):
        row: dict[str, Any] = {}
        for mode in MODES:
            try:
                row[mode] = run_sharded(load_function(), case, mode, row.get("varying", {}).get("given", []))
            except Exception as e:  # noqa: BLE001 - whatever the user's code raises is a result of the comparison
                row[mode] = {"error": f"{type(e).__name__}: {e}"}
        found.append(row)
    Path(result).write_bytes(pickle.dumps(found))


def run_sharded(function: Callable[..., Any], case: dict[str, Any], mode: str, split: list[str]) -> dict[str, Any]:
    """Return outputs and gradients of each device, and the cotangents of the outputs.

    An output that varies is given each device its `own`. One that a sum has made the same for all is given the `mean`,
    as its gradient is the same for all processes in PyTorch. One that is the same for all because the inputs are is
    given the `sum`, as JAX sums what its copies are given.

    Args:
        function: apply of a port.
        case: what it is called with.
        mode: one of MODES.
        split: the cotangents of the outputs in the mode before, where inputs vary.
    """
    count, given = len(case["args"]), case["args"]
    mesh = jax.make_mesh((count,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = [i for i, a in enumerate(given[0]) if isinstance(a, np.ndarray)]
    selected = [i for i in arrays if i in case["selected"]]
    static = [AXIS if isinstance(a, str) and a == GROUP else a for a in given[0]]
    by_rank = [i for i, a in enumerate(given[0]) if type(a) is int and len({row[i] for row in given}) > 1]
    kinds: list[str] = []

    def inside(*operands: Any) -> Any:
        values = dict(zip(arrays, operands if mode == "shared" else [a[0] for a in operands], strict=True))
        values |= {i: jnp.asarray([row[i] for row in given], "int32")[jax.lax.axis_index(AXIS)] for i in by_rank}

        def outputs(*differentiated: Any) -> list[Any]:
            full = {**values, **dict(zip(selected, differentiated, strict=True))}
            out = function(*[full.get(i, a) for i, a in enumerate(static)], **case["kwargs"])
            members = out if isinstance(out, (tuple, list)) else (out,)
            return [o for o in members if isinstance(o, jax.Array)]

        found, pullback = jax.vjp(outputs, *(values[i] for i in selected))
        own = [mode == "unchecked" or AXIS in _list_varying_axes(o) for o in found]
        before = split if len(split) == len(found) else ["mean"] * len(found)
        kinds[:] = ["own" if o else "sum" if b == "own" else "mean" for o, b in zip(own, before, strict=True)]
        vectors = [_make_vector(o, k, count, kinds[k]) for k, o in enumerate(found)]
        return [_make_varying(x, mode)[None] for x in (*found, *pullback(vectors))]

    shared = mode == "shared"
    spec = PartitionSpec() if shared else PartitionSpec(AXIS)
    operands = [given[0][i] if shared else np.stack([a[i] for a in given]) for i in arrays]
    call = jax.shard_map(inside, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(AXIS), check_vma=mode != "unchecked")
    found = [np.asarray(x) for x in jax.jit(call)(*operands)]
    return {"outputs": found[: len(kinds)], "gradients": found[len(kinds) :], "given": kinds}


def _make_vector(output: Any, index: int, count: int, kind: str) -> Any:
    """Return the cotangent of an output on this device."""
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        return np.zeros(output.shape, jax.dtypes.float0)
    all_ = np.stack([make_cotangent(output.shape, r, index, str(output.dtype)) for r in range(count)])
    if kind == "own":
        return jnp.asarray(all_)[jax.lax.axis_index(AXIS)]
    return jnp.asarray(all_.sum(0) / (count if kind == "mean" else 1)).astype(output.dtype)


def _list_varying_axes(x: Any) -> Any:
    return jax.typeof(x).mat.varying


def _make_varying(x: Any, mode: str) -> Any:
    """Return what each device has, as a value that varies."""
    if jnp.issubdtype(x.dtype, jax.dtypes.float0):
        x = jnp.zeros(x.shape)
    return x if mode == "unchecked" or AXIS in _list_varying_axes(x) else jax.lax.pcast(x, AXIS, to="varying")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
