"""Functions with collectives: PyTorch in gloo processes compared with JAX on as many forced devices.

Both sides run in processes of their own. The comparison is made three times: without JAX's checks of what varies, with
them, and with them where all devices share their inputs. Each process has cotangents of its own, but for an output that
a sum has made the same for all: there each has the mean. Of inputs that devices share, JAX's gradient is PyTorch's
total: the one that all processes have, or where they differ their sum.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fnjax.port.compare.gloo import GROUP

MODES = ("unchecked", "varying", "shared")


@dataclass(frozen=True, slots=True)
class Case:
    """A call of a Function on each device.

    Attributes:
        original: an expression for its apply in PyTorch, and a text that is executed before it.
        ported: the same in JAX.
        args: for each device the arguments; GROUP is replaced by the process group, or the axis.
        kwargs: keyword arguments.
        selected: which arguments are differentiated; by default all arrays of floating point numbers.
    """

    original: tuple[str, str]
    ported: tuple[str, str]
    args: Sequence[Sequence[Any]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    selected: Sequence[int] | None = None

    def make_job(self, side: tuple[str, str]) -> dict[str, Any]:
        """Return the job of a process."""
        floats = [i for i, a in enumerate(self.args[0]) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        selected = floats if self.selected is None else [i for i in floats if i in self.selected]
        args = [list(a) for a in self.args]
        return {
            "expression": side[0],
            "setup": side[1],
            "args": args,
            "kwargs": dict(self.kwargs),
            "selected": selected,
        }


def run_gloo(cases: Sequence[Case], seconds: float = 240) -> list[list[dict[str, Any]]]:
    """Return PyTorch's results, for each case those of each process.

    Raises:
        RuntimeError: a process failed, or did not end in time.
    """
    count, script = len(cases[0].args), str(Path(__file__).with_name("gloo.py"))
    commands = [[script, str(rank), str(count)] for rank in range(count)]
    found = _run_processes("PyTorch", commands, [c.make_job(c.original) for c in cases], seconds, {})
    return [list(ranks) for ranks in zip(*found, strict=True)]


def run_devices(cases: Sequence[Case], seconds: float = 300) -> list[dict[str, Any]]:
    """Return JAX's results, for each case those of the three modes.

    Raises:
        RuntimeError: the process failed, or did not end in time.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={len(cases[0].args)}".strip()
    commands = [["-m", "fnjax.port.compare.sharded"]]
    jobs = [c.make_job(c.ported) for c in cases]
    (found,) = _run_processes("JAX", commands, jobs, seconds, {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
    return found


def _run_processes(
    name: str, commands: Sequence[list[str]], jobs: list[Any], seconds: float, environment: Mapping[str, str]
) -> list[list[Any]]:
    """Run Python with the arguments of each command, and the files of jobs and results; return the results."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jobs").write_bytes(pickle.dumps(jobs))
        results = [Path(folder, f"result{i}") for i in range(len(commands))]
        processes = [
            subprocess.Popen(
                [sys.executable, *command, str(Path(folder, "jobs")), str(result)],
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command, result in zip(commands, results, strict=True)
        ]
        try:
            errors = [p.communicate(timeout=seconds)[1] for p in processes]
        except subprocess.TimeoutExpired as e:
            raise RuntimeError(f"{name} did not end in {seconds:.0f} s") from e
        finally:
            for p in processes:
                p.kill()
        if not all(r.exists() for r in results):
            raise RuntimeError(f"{name} failed:\n" + "\n".join(e[-3000:] for e in errors if e))
        return [pickle.loads(r.read_bytes()) for r in results]


def measure_differences(theirs: Sequence[Mapping[str, Any]], ours: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each mode the largest difference of each array, in parts of the largest value; or the error."""
    found: dict[str, dict[str, Any]] = {}
    errors = [r["error"] for r in theirs if "error" in r]
    for mode in MODES:
        error = errors[0] if errors else ours[mode].get("error")
        found[mode] = {"error": error} if error else dict(_compare_mode(theirs, ours[mode], mode))
    return found


def _compare_mode(theirs: Sequence[Mapping[str, Any]], ours: Mapping[str, Any], mode: str) -> Any:
    runs = [r["shared" if mode == "shared" else "own"] for r in theirs]
    if len(runs[0]["outputs"]) != len(ours["outputs"]):
        yield "outputs", float("inf")
        return
    for k, output in enumerate(ours["outputs"]):
        yield f"output {k}", _measure_distance([r["outputs"][k] for r in runs], output)
    for i, gradient in enumerate(ours["gradients"]):
        total: list[Any] = [np.zeros(gradient.shape[1:])] * len(runs)
        for k, given in enumerate(ours["given"]):
            rows = [r["gradients"][k] for r in runs]
            grads = [row[given == "mean"][i] if row else None for row in rows]
            total = [t if g is None else t + g for t, g in zip(total, grads, strict=True)]
        if mode == "shared" and not _are_alike(total):
            total = [sum(total)] * len(runs)
        yield f"gradient {i}", _measure_distance(total, gradient)


def _are_alike(arrays: Sequence[Any]) -> bool:
    scale = max(float(np.max(np.abs(a), initial=0)) for a in arrays)
    return all(np.allclose(a, arrays[0], rtol=0, atol=1e-5 * scale) for a in arrays)


def _measure_distance(theirs: Sequence[Any], ours: Any) -> float:
    """Return the largest difference, in parts of the largest value of PyTorch's."""
    if any(t.shape != o.shape for t, o in zip(theirs, ours, strict=True)):
        return float("inf")
    wide = np.stack([np.asarray(t, np.float64) for t in theirs])
    scale = float(np.max(np.abs(wide), initial=0)) or 1.0
    worst = float(np.max(np.abs(wide - np.asarray(ours, np.float64)), initial=0)) / scale
    return float("inf") if np.isnan(worst) else worst


__all__ = ["GROUP", "MODES", "Case", "measure_differences", "run_devices", "run_gloo"]
