# ruff: noqa: E501 - a line for each case
"""Counts how many of liger-kernel's Functions `fnjax port` ports: Triton's interpreter next to jitted JAX.

    python benchmarks/port_triton.py FOLDER [--witness PYTHON] [--class NAME]... [--ports FOLDER]

FOLDER is where liger-kernel 0.8.5 lies unpacked: `pip download --no-deps liger-kernel==0.8.5` and unzip. PYTHON has
PyTorch, triton 3.5.1 and numpy 2.2.6: there the original runs under TRITON_INTERPRET=1. What liger_kernel.ops offers
on a GPU of NVIDIA's is ported as one folder; each class then runs on small inputs, outputs and gradients. Equal means
within 1e-5 of the largest value.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

# Alternatives for other devices and in other languages than Triton, which have the same classes once more.
LEFT_OUT = ("backends", "cute", "cutedsl", "cutile")
LIMIT = 1e-5
ROOT = Path(__file__).parents[1]


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Random numbers, float32."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def whole(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Random integers below `high`."""
    return np.random.default_rng(seed).integers(0, high, shape)


def logs(*shape: int, seed: int = 0) -> np.ndarray:
    """Logarithms of probabilities."""
    x = floats(*shape, seed=seed)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def chances(*shape: int, seed: int = 0) -> np.ndarray:
    """Probabilities."""
    return np.exp(logs(*shape, seed=seed))


def angles(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of a rotary embedding."""
    theta = np.arange(rows)[:, None] / 10 ** (np.arange(width // 2) / width)
    both = np.concatenate([theta, theta], 1).astype(np.float32)[None]
    return np.cos(both), np.sin(both)


def cases() -> list[tuple[str, str, tuple[Any, ...], tuple[int, ...]]]:
    """Return module, class, arguments, and which of these are differentiated; a class may occur several times."""
    x, w, b = floats(3, 5, 48), floats(48, seed=1), floats(48, seed=2)
    labels = whole(37, 6)
    some = np.where(np.arange(6) % 3 == 1, -100, labels)
    cos, sin = angles(7, 16)
    q, k, v = (floats(2, 3, 20, 16, seed=i) for i in range(3))
    turns = (floats(7, 8) + 1j * floats(7, 8, seed=1)).astype(np.complex64)
    experts = np.stack([whole(4, 9), 3 - whole(4, 9)], 1)
    mask = (np.arange(6) < np.array([[6], [4]])).astype(np.float32)
    tokens = whole(37, 2, 6)
    grpo = (floats(2, 7, 37), logs(2, 6, seed=1), logs(2, 6, seed=2), tokens, floats(2), mask, 0.9, 0.04, 0.2, 0.2)
    mhc = (
        floats(5, 4, 24),
        floats(96, 24, seed=1, scale=0.1),
        floats(24, seed=2),
        *(np.array(a, np.float32) for a in (1, 0.5, 0.7)),
    )
    scaled = (floats(6, 24), floats(37, 24, seed=1), labels)
    return [
        ("attn_res", "LigerAttnResFunction", (floats(3, 2, 5, 48), w, b, 1e-6), (0, 1, 2)),
        ("cross_entropy", "LigerCrossEntropyFunction", (floats(6, 37), some, None), (0,)),
        ("cross_entropy", "LigerCrossEntropyFunction", (floats(6, 37), labels, chances(37), -100, 1e-4, 0.1, "sum", 30.0, True, True, True), (0,)),
        ("cross_entropy", "LigerCrossEntropyFunction", (floats(6, 37), some, None, -100, 0.0, 0.1, "none"), (0,)),
        ("dyt", "LigerDyTFunction", (x, np.float32([0.7]), w, b), (0, 1, 2, 3)),
        ("experimental.embedding", "LigerEmbeddingFunction", (floats(19, 24), whole(19, 3, 5)), (0,)),
        ("fused_add_rms_norm", "LigerFusedAddRMSNormFunction", (x, floats(3, 5, 48, seed=3), w, 1e-6), (0, 1, 2)),
        ("fused_ce_tvd", "LigerFusedCETVDFunction", (floats(6, 37), floats(6, 37, seed=1), some), (0,)),
        ("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction", (floats(6, 24), floats(37, 24, seed=1), some, floats(37, seed=2)), (0, 1, 3)),
        ("fused_linear_jsd", "LigerFusedLinearJSDFunction", (floats(6, 24), floats(37, 24, seed=1), floats(6, 24, seed=2), floats(37, 24, seed=3), some), (0, 1)),
        ("fused_linear_kl_div", "LigerFusedLinearKLDivFunction", (floats(6, 24), floats(37, 24, seed=1), chances(6, 37)), (0, 1)),
        ("fused_linear_scaled_cross_entropy", "_FusedLinearPPOFallbackFunction", (*scaled, 0.9, -100, True), (0, 1)),
        ("fused_linear_scaled_cross_entropy", "_FusedLinearPPOFallbackFunction", (*scaled, 0.9, -100, False), (0, 1)),
        ("fused_linear_scaled_cross_entropy", "_TensorParallelFusedLinearPPOFallbackFunction", (*scaled, 0.9, -100, True, None), (0, 1)),
        ("fused_moe", "LigerFusedMoEFunction", (floats(9, 24), floats(4, 64, 24, seed=1), floats(4, 24, 32, seed=2), experts, chances(9, 2)), (0, 1, 2, 4)),
        ("fused_neighborhood_attention", "LigerFusedNeighborhoodAttentionFunction", (q, k, v, 5, 1, None), (0, 1, 2)),
        ("fused_neighborhood_attention", "LigerFusedNeighborhoodAttentionFunction", (q, k, v, 3, 2, 0.3), (0, 1, 2)),
        ("geglu", "LigerGELUMulFunction", (x, floats(3, 5, 48, seed=3)), (0, 1)),
        ("group_norm", "LigerGroupNormFunction", (floats(3, 6, 20), floats(6, seed=1), floats(6, seed=2), 6, 2, 1e-5), (0, 1, 2)),
        ("grpo_loss", "GrpoLossFunction", (*grpo, False), (0,)),
        ("grpo_loss", "GrpoLossFunction", (*grpo, True, "dapo", None, False), (0,)),
        ("jsd", "LigerJSDFunction", (logs(6, 37), logs(6, 37, seed=1), some), (0,)),
        ("kl_div", "LigerKLDivLossFunction", (logs(6, 37), chances(6, 37, seed=1)), (0,)),
        ("kl_div", "LigerKLDivLossFunction", (logs(6, 37), logs(6, 37, seed=1), "none", True), (0,)),
        ("layer_norm", "LigerLayerNormFunction", (x, w, b, 1e-6), (0, 1, 2)),
        ("llama4_rope", "LigerLlama4RopeFunction", (floats(2, 7, 4, 16), floats(2, 7, 2, 16, seed=1), turns), (0, 1)),
        ("mhc", "LigerMHCCoeffsFunction", (*mhc, True, 5, 1e-6, 1e-4, 1e-6, 2.0), (0, 1, 2, 3, 4, 5)),
        ("mhc", "LigerMHCPreFunction", (floats(5, 4, 24), floats(5, 4, seed=1)), (0, 1)),
        ("mhc", "LigerMHCPostResFunction", (floats(5, 4, 24), floats(5, 24, seed=1), floats(5, 4, seed=2), floats(5, 4, 4, seed=3)), (0, 1, 2, 3)),
        ("mlp", "LigerMLPFunction", (floats(2, 6, 32), *(floats(32, 32, seed=i) for i in (1, 2, 3))), (0, 1, 2, 3)),
        ("modulated_rms_norm", "LigerModulatedRMSNormFunction", (x, w, floats(3, 48, seed=3), floats(3, 48, seed=4), 1e-6), (0, 1, 2, 3)),
        ("multi_token_attention", "LigerMultiTokenAttentionFunction", (floats(2, 3, 8, 8), floats(3, 3, 3, 3, seed=1), floats(3, seed=2), 1, 1), (0, 1, 2)),
        ("poly_norm", "LigerPolyNormFunction", (x, floats(3, seed=1), np.array(0.3, np.float32), 1e-6, True), (0, 1, 2)),
        ("qwen2vl_mrope", "LigerQwen2VLMRopeFunction", (floats(2, 4, 7, 16), floats(2, 2, 7, 16, seed=1), np.tile(cos, (3, 2, 1, 1)), np.tile(sin, (3, 2, 1, 1)), [2, 3, 3]), (0, 1)),
        ("relu_squared", "LigerReLUSquaredFunction", (x,), (0,)),
        ("rms_norm", "LigerRMSNormFunction", (x, w, 1e-6), (0, 1)),
        ("rms_norm", "LigerRMSNormFunction", (x, w, 1e-6, 1.0, "gemma", False, True), (0, 1)),
        ("rms_norm", "LigerRMSNormFunction", (x, None, 1e-6, 0.0, "none"), (0,)),
        ("rope", "LigerRopeFunction", (floats(2, 4, 7, 16), floats(2, 2, 7, 16, seed=1), cos, sin), (0, 1)),
        ("softmax", "LigerSoftmaxFunction", (x,), (0,)),
        ("sparsemax", "LigerSparsemaxFunction", (x, -1), (0,)),
        ("swiglu", "LigerSiLUMulFunction", (x, floats(3, 5, 48, seed=3)), (0, 1)),
        ("swiglu", "LigerSiLUMulFunction", (x, floats(3, 5, 48, seed=3), 0.7, 1.3), (0, 1)),
        ("swiglu", "LigerFusedGateUpSiLUMulFunction", (floats(15, 64),), (0,)),
        ("tiled_mlp", "LigerTiledMLPFunction", (), ()),
        ("tvd", "LigerTVDLossFunction", (chances(6, 37), chances(6, 37, seed=1), some), (0,)),
        ("vocab_parallel_cross_entropy", "LigerVocabParallelCEFunction", (floats(3, 2, 37), whole(37, 3, 2), None, -100, 0.1, "megatron", "mean"), (0,)),
    ]  # fmt: skip


def main() -> int:
    """Port, run, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--witness", default=sys.executable)
    parser.add_argument("--class", dest="names", action="append")
    parser.add_argument("--ports", type=Path, help="where ports lie that were made before")
    options = parser.parse_args()
    wanted = [c for c in cases() if not options.names or c[1] in options.names]
    with tempfile.TemporaryDirectory() as place:
        ports = options.ports or Path(place, "ports")
        left = {} if options.ports else port(options.folder, Path(place, "picked"), ports)
        jobs, answers = Path(place, "jobs.pickle"), Path(place, "answers.pickle")
        jobs.write_bytes(pickle.dumps(wanted))
        witness = [options.witness, str(Path(__file__).with_name("triton_witness.py"))]
        env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run([*witness, str(options.folder), str(jobs), str(answers)], env=env, check=True)
        theirs = pickle.loads(answers.read_bytes())
        sys.path.insert(0, str(ports))
        verdicts: dict[str, list[str]] = {}
        for case, his in zip(wanted, theirs, strict=True):
            found = judged(case, his, left)
            verdicts.setdefault(case[1], []).append(found)
            print(f"{case[1]}: {found}", flush=True)
    right = [n for n, found in verdicts.items() if all(f.startswith("equal") for f in found)]
    wrong = [n for n, found in verdicts.items() if any(f.startswith("WRONG") for f in found)]
    print(f"{len(right)} of {len(verdicts)} classes are equal; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def port(folder: Path, picked: Path, ports: Path) -> dict[str, str]:
    """Port the folder; for each class the first thing that was left for the hand."""
    package = folder / "liger_kernel"
    files = [*package.glob("ops/*.py"), *package.glob("ops/experimental/*.py"), *package.glob("backends/*.py")]
    for path in [package / "utils.py", *files]:
        target = picked / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (picked / "liger_kernel/ops/__init__.py").unlink()  # it looks for implementations when it is imported
    start = time.perf_counter()
    report = picked / "report.json"
    command = [sys.executable, "-m", "fnjax", "port", str(picked), "-o", str(ports), "--report", str(report)]
    subprocess.run(command, capture_output=True, check=False)
    print(f"ported in {time.perf_counter() - start:.0f} s")
    left = {}
    for cls in _classes(json.loads(report.read_text())):
        errors = [f for f in cls["findings"] if f["severity"] == "error"]
        if errors:
            left[cls["name"]] = f"{errors[0]['line']} {errors[0]['message']}".replace(str(picked), "")
            left[cls["name"]] += f", and {len(errors) - 1} more" if errors[1:] else ""
    return left


def _classes(report: Any) -> list[Any]:
    """Return the classes in a report, of all files."""
    if isinstance(report, dict) and "classes" in report:
        return list(report["classes"])
    parts = report.values() if isinstance(report, dict) else report if isinstance(report, list) else ()
    return [c for part in parts for c in _classes(part)]


def judged(case: tuple[Any, ...], his: Any, left: dict[str, str]) -> str:
    """Return the outcome of one case."""
    module, name, args, argnums = case
    if not args:
        return "not run: its arguments are modules"
    if name in left:
        return f"left for the hand: {left[name]}"
    if isinstance(his, str):
        return f"not run by the witness: {his}"
    try:
        mine = run(module, name, args, argnums, his)
    except Exception as error:  # noqa: BLE001 - of any class
        return f"fails: {type(error).__name__}: {str(error)[:300]}"
    worst = 0.0
    for a, b in zip(mine, his["arrays"], strict=True):
        if a.shape != b.shape:
            return f"WRONG: shape {a.shape} for {b.shape}"
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0)
    return f"{'equal' if worst <= LIMIT else 'WRONG'} {worst:.1e}"


def run(module: str, name: str, args: tuple[Any, ...], argnums: tuple[int, ...], his: Any) -> list[np.ndarray]:
    """Compute outputs and gradients of the port, under jit."""
    import jax
    import jax.numpy as jnp

    function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply
    traced = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]

    @jax.jit
    def both(arrays: list[Any], cotangents: list[Any]) -> list[Any]:
        def at(*chosen: Any) -> list[Any]:
            given = list(args)
            for i, a in zip(traced, arrays, strict=True):
                given[i] = a
            for i, a in zip(argnums, chosen, strict=True):
                given[i] = a
            outs = function(*given)
            outs = outs if isinstance(outs, tuple) else (outs,)
            kept = [o for o in outs if o is not None]
            others.append([o for o in kept if not jnp.issubdtype(o.dtype, jnp.inexact)])
            return [o for o in kept if jnp.issubdtype(o.dtype, jnp.inexact)]

        others: list[list[Any]] = []
        outs, back = jax.vjp(at, *(arrays[traced.index(i)] for i in argnums))
        cotangents = [c.astype(o.dtype) if o.size else jnp.zeros_like(o) for c, o in zip(cotangents, outs, strict=True)]
        return [*outs, *back(cotangents)]

    made = both([jnp.asarray(args[i]) for i in traced], [jnp.asarray(c) for c in his["cotangents"]])
    return [np.asarray(a) for a in made]


if __name__ == "__main__":
    sys.exit(main())
