"""Run liger-kernel's own Functions in PyTorch: port_triton.py starts this under TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fnjax.port.compare.interpreter import prepare_interpreter


def main(folder: str, jobs: str, answers: str) -> None:
    """Run the cases, and write down their outputs, cotangents and gradients."""
    sys.path.insert(0, folder)
    prepare_interpreter()
    import liger_kernel.ops  # noqa: F401 - its modules look for their alternatives through it

    importlib.import_module("liger_kernel.ops.dyt").infer_device = lambda: "cuda"  # it knows no other
    found = [run(*case) for case in pickle.loads(Path(jobs).read_bytes())]
    Path(answers).write_bytes(pickle.dumps(found))


def run(module: str, name: str, args: tuple[Any, ...], argnums: tuple[int, ...]) -> dict[str, Any] | str:
    """One case."""
    if not args:
        return "no arguments"
    try:
        cls = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
        given = [torch.from_numpy(a.copy()) if isinstance(a, np.ndarray) else a for a in args]
        for i in argnums:
            given[i].requires_grad_()
        copies = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]  # some write to what they are given
        outs = cls.apply(*copies)
        outs = [o for o in (outs if isinstance(outs, tuple) else (outs,)) if o is not None and o.is_floating_point()]
        arrays = [o.detach().numpy().copy() for o in outs]
        rng = np.random.default_rng(7)
        cotangents = [np.asarray(rng.normal(size=o.shape), np.float32) for o in arrays]
        chosen = [(o, torch.from_numpy(c.copy())) for o, c in zip(outs, cotangents, strict=True) if o.requires_grad]
        cotangents = [c if o.requires_grad else 0 * c for o, c in zip(outs, cotangents, strict=True)]
        grads = torch.autograd.grad([o for o, _ in chosen], [given[i] for i in argnums], [c for _, c in chosen])
        return {"arrays": arrays + [g.detach().numpy().copy() for g in grads], "cotangents": cotangents}
    except Exception as error:  # noqa: BLE001 - of any class
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"


if __name__ == "__main__":
    main(*sys.argv[1:])
