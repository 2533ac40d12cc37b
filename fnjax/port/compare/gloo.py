"""One process of PyTorch's: runs the cases of a job in a gloo group, and leaves outputs and gradients.

Run as a script, so that the processes wait for PyTorch alone: `python gloo.py JOB RANK COUNT STORE RESULT`.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

GROUP = "\0group"  # in the place of arguments


def main(job: str, rank: int, count: int, store: str, result: str) -> None:
    """Run the cases of a job.

    Args:
        job: a pickled list of cases, see devices.py.
        rank: of this process.
        count: of processes.
        store: the file by which they find each other.
        result: what to write: for each case outputs and gradients, or the error.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    cases = pickle.loads(Path(job).read_bytes())
    spaces: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for case in cases:
        try:
            if case["setup"] not in spaces:
                space: dict[str, Any] = {"__name__": "setup"}
                exec(case["setup"], space)
                spaces[case["setup"]] = space
            function = eval(case["expression"], spaces[case["setup"]])
            found.append({mode: _run_case(function, case, mode, rank) for mode in ("own", "shared")})
        except Exception as e:  # noqa: BLE001 - whatever the user's code raises is a result of the comparison
            found.append({"error": f"{type(e).__name__}: {e}"})
    Path(result).write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


def _run_case(function: Any, case: dict[str, Any], mode: str, rank: int) -> dict[str, Any]:
    """Return outputs, and the gradients of each output's cotangents: each rank's own, and the mean of all."""
    import numpy as np
    import torch
    import torch.distributed as dist

    pairs = zip(case["args"][rank], case["args"][0], strict=True)
    given = [own if mode == "own" or type(own) is int else a for own, a in pairs]

    def called() -> tuple[list[Any], list[Any]]:
        leaves: dict[int, Any] = {
            i: torch.tensor(a, requires_grad=i in case["chosen"])
            for i, a in enumerate(given)
            if isinstance(a, np.ndarray)
        }
        # What it is given may be written to: a leaf may not.
        args: list[Any] = [
            leaves.get(i, dist.group.WORLD if isinstance(a, str) and a == GROUP else a) for i, a in enumerate(given)
        ]
        args = [a * 1 if i in case["chosen"] else a for i, a in enumerate(args)]
        out = function(*args, **case["kwargs"])
        members = out if isinstance(out, (tuple, list)) else (out,)
        for handle in members:
            if isinstance(handle, dist.Work):
                handle.wait()
        return [leaves[i] for i in case["chosen"]], [o for o in members if isinstance(o, torch.Tensor)]

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
    """Return what both sides take for the gradient of an output of a rank."""
    from fnjax._check.streams import make_stream

    return make_stream("cotangents", rank, index).normal(size=tuple(shape)).astype(dtype)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
