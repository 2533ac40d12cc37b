"""Counts the Functions with collectives of megatron-core that `fnjax port` ports: four processes next to four devices.

    python benchmarks/port_devices.py FOLDER

FOLDER is where megatron-core 0.16.1 lies unpacked: `pip download --no-deps megatron-core==0.16.1` and unzip. Its
Functions are ported as one folder, and each runs in PyTorch and in JAX in three modes; see
fnjax/port/compare/devices.py. Equal means within 1e-6 of the largest value.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fnjax.port.compare.devices import GROUP, MODES, Case, measure_differences, run_devices, run_gloo

FILES = ("tensor_parallel/mappings.py", "tensor_parallel/utils.py", "tensor_parallel/layers.py")
FILES += (
    "tensor_parallel/cross_entropy.py",
    "fusions/fused_cross_entropy.py",
    "utils.py",
    "parallel_state.py",
    "jit.py",
)
DEVICES = 4


def main(folder: str) -> int:
    """Port, run, count."""
    source = Path(folder)
    with tempfile.TemporaryDirectory() as place:
        picked, ports = Path(place, "picked"), Path(place, "ports")
        for name in FILES:
            target = picked / "megatron/core" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((source / "megatron/core" / name).read_bytes())
        command = [sys.executable, "-m", "fnjax", "port", str(picked), "-o", str(ports)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        errors = [line for line in done.stderr.splitlines() if " note: " not in line]
        print("\n".join(f"left: {line.removeprefix(str(picked))}" for line in errors))
        cases = dict(_cases(source, ports))
        theirs, ours = run_gloo(list(cases.values())), run_devices(list(cases.values()))
    good: dict[str, bool] = {}
    for name, his, mine in zip(cases, theirs, ours, strict=True):
        found = measure_differences(his, mine)
        words = []
        for mode in MODES:
            error = found[mode].get("error")
            worst = "" if error else max(found[mode].values(), default=0.0)
            equal = not error and float(worst) <= 1e-6
            cls = name.split(" ")[0]
            good[cls] = good.get(cls, True) and equal
            words.append(f"{mode} {'equal' if equal else (error and error[:300]) or found[mode]}")
        print(f"{name}: {'; '.join(words)}")
    print(f"{sum(good.values())} of {len(good)} classes are equal in all three modes")
    return 0 if sum(good.values()) >= len(good) - 1 else 1


def _cases(source: Path, ports: Path) -> list[tuple[str, Case]]:
    setup = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(source)!r})
import torch
torch.cuda.current_device = lambda: "cpu"
from megatron.core import parallel_state
parallel_state.initialize_model_parallel({DEVICES})
parallel_state._set_global_memory_buffer()
import megatron.core.tensor_parallel.mappings as mappings
import megatron.core.tensor_parallel.layers as layers
import megatron.core.tensor_parallel.cross_entropy as cross_entropy
import megatron.core.fusions.fused_cross_entropy as fused_cross_entropy
"""
    setup = setup.replace("parallel_state._set_global_memory_buffer()\n", "")
    mine = f"""
import sys
sys.path.insert(0, {str(ports)!r})
import megatron.core.tensor_parallel.mappings as mappings
import megatron.core.tensor_parallel.layers as layers
import megatron.core.tensor_parallel.cross_entropy as cross_entropy
import megatron.core.fusions.fused_cross_entropy as fused_cross_entropy
mappings.AXIS_NAME = "devices"  # the other modules share it
"""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    def case(expression: str, *make: object) -> Case:
        args = [[m() if callable(m) else m for m in make] for _ in range(DEVICES)]
        return Case((f"{expression}.apply", setup), (f"{expression}.apply", mine), args)

    def x() -> np.ndarray:
        return floats(8, 4, 8)

    found = [(f"mappings.{n}", case(f"mappings.{n}", x, GROUP)) for n in _PLAIN]
    found += [
        ("mappings._GatherFromSequenceParallelRegion", case("mappings._GatherFromSequenceParallelRegion", x, GROUP)),
        (
            "mappings._GatherFromSequenceParallelRegion split",
            case("mappings._GatherFromSequenceParallelRegion", x, GROUP, False, None, True),
        ),
        (
            "mappings._ReduceScatterToSequenceParallelRegion",
            case("mappings._ReduceScatterToSequenceParallelRegion", x, GROUP),
        ),
        ("mappings._AllToAll", case("mappings._AllToAll", GROUP, x, None, None)),
        ("mappings._AllToAll sizes", case("mappings._AllToAll", GROUP, x, [2, 2, 2, 2], [2, 2, 2, 2])),
    ]
    for reduced in (True, False):
        name = "layers.LinearWithFrozenWeight"
        given = (lambda: floats(4, 8), lambda: floats(6, 8), lambda: floats(6), reduced, GROUP)
        found.append((f"{name} {reduced}", Case(*_both(name, setup, mine), _made(*given), selected=[0])))
    name = "layers.LinearWithGradAccumulationAndAsyncCommunication"
    for reduced, sequence in ((True, False), (False, True), (False, False)):
        linear = (lambda: floats(4, 3, 8), lambda: floats(6, 8), lambda: floats(6), False, reduced, sequence)
        given = (*linear, None, None, GROUP)
        found.append((f"{name} {reduced} {sequence}", Case(*_both(name, setup, mine), _made(*given))))

    def target() -> np.ndarray:
        return rng.integers(0, 32, (5, 3))

    for smoothing in (0.0, 0.1):
        given = (lambda: floats(5, 3, 8), target, smoothing)
        name = "cross_entropy._VocabParallelCrossEntropy"
        if not smoothing:
            found.append((name, Case(*_both(name, setup, mine), _made(*given))))
    name = "fused_cross_entropy._VocabParallelCrossEntropy"
    found.append((name, Case(*_both(name, setup, mine), _made(lambda: floats(5, 3, 8), target, GROUP))))
    return found


def _both(name: str, setup: str, mine: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (f"{name}.apply", setup), (f"{name}.apply", mine)


def _made(*make: object) -> list[list[object]]:
    return [[m() if callable(m) else m for m in make] for _ in range(DEVICES)]


_PLAIN = (
    "_CopyToModelParallelRegion",
    "_ReduceFromModelParallelRegion",
    "_ScatterToModelParallelRegion",
    "_GatherFromModelParallelRegion",
    "_ScatterToSequenceParallelRegion",
    "_AllGatherFromTensorParallelRegion",
    "_ReduceScatterToTensorParallelRegion",
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
