"""A PyTorch process that runs the cases of a job in a gloo group, and writes outputs and gradients.

Run as a script, so that the processes wait for PyTorch alone: `python gloo.py RANK COUNT JOBS RESULT`.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GROUP = "\0group"  # the process group among arguments


def main(rank: int, count: int, jobs: str, result: str) -> None:
    """Run the cases of a job.

    Args:
        rank: of this process.
        count: of processes.
        jobs: a file of pickled cases, see devices.py.
        result: the file to write: for each case outputs and gradients, or the error.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = Path(result).with_name("store")  # by which the processes find each other
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    found: list[dict[str, Any]] = []
    for case, load_function in iter_cases(jobs):
        try:
            function = load_function()
            found.append({mode: _run_case(function, case, mode, rank) for mode in ("own", "shared")})
        except Exception as e:  # noqa: BLE001 - whatever the user's code raises is a result of the comparison
            found.append({"error": f"{type(e).__name__}: {e}"})
    Path(result).write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


def iter_cases(jobs: str) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Yield the cases of a file, each with a function that loads what is called; each setup runs once."""
    spaces: dict[str, dict[str, Any]] = {}

    def load_function(case: dict[str, Any]) -> Any:
        if case["setup"] not in spaces:
            space: dict[str, Any] = {"__name__": "setup"}
            exec(case["setup"], space)
            spaces[case["setup"]] = space
        return eval(case["expression"], spaces[case["setup"]])

    for case in pickle.loads(Path(jobs).read_bytes()):
        yield case, functools.partial(load_function, case)


def _run_case(function: Any, case: dict[str, Any], mode: str, rank: int) -> dict[str, Any]:
    """Return outputs, and the gradients of each output's cotangents: each rank's own, and the mean of all."""
    import numpy as np
    import torch
    import torch.distributed as dist

    pairs = zip(case["args"][rank], case["args"][0], strict=True)
    given = [own if mode == "own" or type(own) is int else a for own, a in pairs]

    def called() -> tuple[list[Any], list[Any]]:
        leaves: dict[int, Any] = {
            i: torch.tensor(a, requires_grad=i in case["selected"])
            for i, a in enumerate(given)
            if isinstance(a, np.ndarray)
        }
        # A function may write to its arguments, but not to a leaf.
        args: list[Any] = [
            leaves.get(i, dist.group.WORLD if isinstance(a, str) and a == GROUP else a) for i, a in enumerate(given)
        ]
        args = [a * 1 if i in case["selected"] else a for i, a in enumerate(args)]
        out = function(*args, **case["kwargs"])
        members = out if isinstance(out, (tuple, list)) else (out,)
        for handle in members:
            if isinstance(handle, dist.Work):
                handle.wait()
        return [leaves[i] for i in case["selected"]], [o for o in members if isinstance(o, torch.Tensor)]

    _, outputs = called()
    found: dict[str, Any] = {"outputs": [o.detach().numpy().copy() for o in outputs], "gradients": []}
    for k, output in enumerate(outputs):
        row = []
        if output.requires_grad:
            vectors = [make_cotangent(output.shape, r, k, str(output.dtype)[6:]) for r in range(dist.get_world_size())]
            for vector in (vectors[rank], (sum(vectors) / len(vectors)).astype(vectors[0].dtype)):
                leaves, again = called()
                grads: Any = torch.autograd.grad(again[k], leaves, torch.tensor(vector), allow_unused=True)
                row.append([None if g is None else g.numpy().copy() for g in grads])
        found["gradients"].append(row)
    return found


def make_cotangent(shape: Any, rank: int, index: int, dtype: str) -> Any:
    """Return the gradient of an output of a rank, the same in PyTorch and JAX."""
    from fnjax._check.streams import make_stream

    return make_stream("cotangents", rank, index).normal(size=tuple(shape)).astype(dtype)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
