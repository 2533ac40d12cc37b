"""Counts how many custom operators of public packages `fnjax port` ports: PyTorch next to JAX, eager and jitted.

    pip download --no-deps -d WHEELS executorch==1.5.1 litert-torch==0.10.0 torch-tensorrt==2.14.0 spikingjelly==2.0.0
    for wheel in WHEELS/*.whl; do unzip -qo $wheel -d FOLDER; done
    (mlcg is no package there: src/mlcg of github.com/ClementiGroup/mlcg at 3eed724, as FOLDER/mlcg)
    python benchmarks/port_library.py FOLDER [--op NAME]... [--ports FOLDER]

The operators are plain ones: their bodies, mlcg's as register_kernel("cpu") gives them next to Triton's, are calls of
PyTorch and NumPy that run on a CPU. PyTorch's own are taken from the installed PyTorch. The list was written down
before the first of them was ported. Of each package the files below are ported as one folder; in PyTorch they are
imported as they are, with stand-ins for modules that are not there. Each operator gets the same numbers on both
sides: results, the new values of what it mutates, and gradients where it has a derivative. Equal means within 1e-5 of
the largest value.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1e-5
ROOT = Path(__file__).parents[1]

# What is ported of each package: the files with operators and those that they call.
FILES = {
    "torch 2.13.0": (
        "torch/testing/_internal/custom_op_db.py",
        "torch/onnx/ops/_impl.py",
        "torch/onnx/ops/_dtype_mappings.py",
    ),
    "executorch 1.5.1": (
        "executorch/backends/mlx/custom_ops.py",
        "executorch/backends/mlx/custom_kernel_ops/gated_delta_rule.py",
        "executorch/backends/apple/metal/ops/gated_delta_rule.py",
        "executorch/examples/models/llama/source_transformation/sdpa.py",
        "executorch/extension/llm/custom_ops/preprocess_custom_ops.py",
        "executorch/backends/transforms/channels_last_ops.py",
        "executorch/backends/vulkan/custom_ops_lib.py",
        "executorch/backends/vulkan/patterns/__init__.py",
        "executorch/backends/vulkan/patterns/rope.py",
        "executorch/backends/qualcomm/builders/custom_ops.py",
        "executorch/backends/cadence/aot/ops_registrations.py",
        "executorch/backends/cadence/aot/ref_implementations.py",
    ),
    "litert-torch 0.10.0": (
        "litert_torch/generative/custom_ops/bmm_4d.py",
        "litert_torch/generative/custom_ops/dynamic_update_slice.py",
        "litert_torch/generative/layers/moe.py",
        "litert_torch/generative/export_hf/model_ext/qwen3_5/gated_delta_rule.py",
        "litert_torch/backend/experimental/torch_tfl/_ops.py",
        "litert_torch/backend/experimental/torch_tfl/torch_library_utils.py",
    ),
    "mlcg 3eed724": (
        "mlcg/geometry/__init__.py",
        "mlcg/geometry/internal_coordinates.py",
        "mlcg/nn/kernels/utils.py",
        "mlcg/nn/kernels/models/linear/tanh_linear.py",
        "mlcg/nn/kernels/models/prior/dihedral.py",
        "mlcg/nn/kernels/models/prior/harmonic_angles.py",
        "mlcg/nn/kernels/models/prior/harmonic_bonds.py",
        "mlcg/nn/kernels/models/prior/repulsion.py",
        "mlcg/nn/kernels/models/prior/utils.py",
        "mlcg/nn/kernels/models/schnet/cfconv.py",
        "mlcg/nn/kernels/models/schnet/cfconv_backward.py",
        "mlcg/nn/kernels/models/schnet/cfconv_double_backward.py",
        "mlcg/nn/kernels/radial_basis/gaussian.py",
        "mlcg/nn/kernels/radial_basis/gaussian_backward.py",
    ),
    "torch-tensorrt 2.14.0": ("torch_tensorrt/dynamo/lowering/passes/fuse_pad_into_convolution.py",),
    "spikingjelly 2.0.0": (
        "spikingjelly/_ops/spike_compress/cpu.py",
        "spikingjelly/_ops/spike_compress/validation.py",
    ),
}


@dataclasses.dataclass
class Case:
    """One call of an operator."""

    module: str  # several, where one defines what another implements
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    grads: tuple[int, ...] = ()  # the arguments that are differentiated: () where no derivative is registered
    mutates: tuple[int, ...] = ()
    ignore: tuple[int, ...] = ()  # results that are memory nobody wrote to


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Random numbers, float32."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def whole(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Random integers below `high`."""
    return np.random.default_rng(seed).integers(0, high, shape)


def angles(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of a rotary embedding, (rows, width)."""
    theta = np.arange(rows)[:, None] / 10 ** (np.arange(width) / width)
    return np.cos(theta).astype(np.float32), np.sin(theta).astype(np.float32)


def cases() -> Iterator[Case]:
    """Return the operators with their arguments; one may occur several times."""
    yield from _pytorch()
    yield from _executorch()
    yield from _channels_last()
    yield from _vulkan()
    yield from _cadence()
    yield from _litert()
    yield from _mlcg()
    module = "torch_tensorrt.dynamo.lowering.passes.fuse_pad_into_convolution"
    name = "tensorrt::conv_asym_pad"
    image, kernel = floats(2, 4, 7, 8), floats(6, 2, 3, 3, seed=1)
    yield Case(module, name, (image, kernel, floats(6, seed=2), [1, 2], [2, 0], [0, 1], [1, 1], 2))
    yield Case(
        module,
        name,
        (floats(1, 2, 4, 5, 6), floats(3, 2, 2, 2, 2, seed=1), None, [1, 1, 1], [2, 0, 1], [0, 0, 1], [1, 2, 1], 1),
    )
    module = "spikingjelly._ops.spike_compress.cpu"
    yield Case(module, "sj_spike_compress::cpu_forward", (whole(2, 3, 7).astype(np.float32),))
    yield Case(module, "sj_spike_compress::cpu_unpack", (whole(256, 3).astype(np.uint8), [3, 7], "torch.float32"))


def _pytorch() -> Iterator[Case]:
    module, x, y = "torch.testing._internal.custom_op_db", floats(3, 4), floats(3, 4, seed=1)
    order = np.argsort(x, axis=1)
    yield Case(module, "_torch_testing::numpy_cube", (x,), grads=(0,))
    yield Case(module, "_torch_testing::numpy_mul", (x, y), grads=(0, 1))
    yield Case(module, "_torch_testing::numpy_mul_scalar", (x,), {"scalar": 3.14}, grads=(0,))
    yield Case(module, "_torch_testing::numpy_sort", (x, 1), grads=(0,))
    yield Case(module, "_torch_testing::numpy_take", (x, order, np.argsort(order, axis=1), 1), grads=(0,))
    yield Case(module, "_torch_testing::numpy_nonzero", ((x > 0).astype(np.float32),))
    yield Case(module, "_torch_testing::numpy_view_copy", (x, [2, 6]), grads=(0,))
    yield Case(module, "_torch_testing::numpy_cat", ([x, y], 1), grads=(0,))
    yield Case(module, "_torch_testing::numpy_split_copy", (x, [1, 3], 1), grads=(0,))
    yield Case(module, "_torch_testing::numpy_split_copy_with_int", (x, [1, 3], 1), grads=(0,))
    corners = np.random.default_rng(2).uniform(0, 28, (12, 2))
    boxes = np.concatenate([corners, corners + 4], 1).astype(np.float32)
    yield Case(module, "_torch_testing::numpy_nms", (boxes, floats(12, seed=3), 0.3))
    module, name = "torch.onnx.ops._impl", "onnx::RotaryEmbedding.opset23"
    cos, sin = angles(9, 4)
    places = whole(9, 2, 5)
    yield Case(module, name, (floats(2, 3, 5, 8), cos, sin, places))
    yield Case(module, name, (floats(2, 5, 24), cos[places], sin[places]), {"interleaved": True, "num_heads": 3})
    q, k, v = floats(2, 4, 5, 8), floats(2, 2, 6, 8, seed=1), floats(2, 2, 6, 8, seed=2)
    yield Case(module, "onnx::Attention.opset23", (q, k, v))
    yield Case(
        module, "onnx::Attention.opset23", (q, k, v, floats(5, 6, seed=3)), {"softcap": 2.0, "qk_matmul_output_mode": 3}
    )


def _executorch() -> Iterator[Case]:
    module = "executorch.backends.mlx.custom_ops"
    q, k, v = floats(1, 4, 3, 8), floats(1, 2, 10, 8, seed=1), floats(1, 2, 10, 8, seed=2)
    cache, new = floats(1, 2, 10, 8), floats(1, 2, 3, 8, seed=1)
    yield Case(module, "mlx::kv_cache_update", (cache, new, 4), mutates=(0,), ignore=(0,))
    yield Case(module, "mlx::kv_cache_update", (cache, new, 8, 10), mutates=(0,), ignore=(0,))
    yield Case(module, "mlx::custom_sdpa", (q, k, v, 2), {"is_causal": True})
    yield Case(module, "mlx::custom_sdpa", (q, k, v, 5, floats(1, 1, 3, 8, seed=3)))
    yield Case(module, "mlx::rope", (floats(1, 2, 5, 8), 8, 3))
    yield Case(module, "mlx::rope", (floats(1, 2, 5, 8), 6, 0, True, 10000.0, 0.5))
    yield Case(module, "mlx::rope", (floats(1, 2, 5, 8), 8, 3, False, 10000.0, 1.0, 1 + whole(5, 4).astype(np.float32)))
    yield Case(module, "mlx::gather_mm", (floats(5, 1, 6), floats(3, 6, 4, seed=1), whole(3, 5)))
    experts = whole(4, 5, 2)
    yield Case(module, "mlx::moe_gather_inputs", (floats(5, 6), experts, 2, 3))
    yield Case(module, "mlx::moe_gather_inputs", (floats(5, 6), experts, 2, 9))
    turned = np.random.default_rng(0).permutation(10).astype(np.int32)
    yield Case(module, "mlx::moe_scatter_outputs", (floats(10, 1, 6), np.array(1, np.int32), turned, 2))
    module = "executorch.backends.mlx.custom_kernel_ops.gated_delta_rule"
    delta = (floats(2, 5, 2, 6), floats(2, 5, 2, 6, seed=1, scale=0.3), floats(2, 5, 4, 3, seed=2))
    delta += (
        np.exp(-np.abs(floats(2, 5, 4, seed=3))),
        np.abs(floats(2, 5, 4, seed=4, scale=0.3)),
        floats(2, 4, 3, 6, seed=5),
    )
    yield Case(module, "mlx::gated_delta_rule", delta, mutates=(5,))
    module = "executorch.backends.apple.metal.ops.gated_delta_rule"
    yield Case(module, "metal::gated_delta_rule", delta, mutates=(5,))
    module = "executorch.examples.models.llama.source_transformation.sdpa"
    yield Case(
        module,
        "coreml::sdpa",
        (floats(1, 2, 5, 8), floats(1, 2, 5, 8, seed=1), floats(1, 2, 5, 8, seed=2), floats(1, 1, 5, 5, seed=3)),
    )
    module = "executorch.extension.llm.custom_ops.preprocess_custom_ops"
    yield Case(module, "preprocess::tile_crop", (floats(3, 8, 8), 4))
    module = "executorch.backends.qualcomm.builders.custom_ops"
    yield Case(module, "qnn_custom::hadamard_transform", (floats(3, 8), 0.7))


def _channels_last() -> Iterator[Case]:
    module, x = "executorch.backends.transforms.channels_last_ops", floats(2, 7, 8, 4)
    kernel = floats(6, 2, 3, 3, seed=1)
    yield Case(
        module, "channels_last::convolution", (x, kernel, floats(6, seed=2), [2, 1], [1, 1], [1, 1], False, [0, 0], 2)
    )
    yield Case(
        module,
        "channels_last::convolution",
        (x, floats(4, 3, 3, 3, seed=1), None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    )
    yield Case(module, "channels_last::avg_pool2d", (x, [3, 3], [2, 2], [1, 1], True, False))
    yield Case(module, "channels_last::avg_pool2d", (x, [2, 2]))
    yield Case(module, "channels_last::adaptive_avg_pool2d", (x, [3, 5]))
    yield Case(module, "channels_last::upsample_bilinear2d", (x, [9, 13], False, None))
    yield Case(module, "channels_last::upsample_bilinear2d", (x, None, True, [2.0, 1.5]))
    yield Case(module, "channels_last::upsample_nearest2d", (x, None, [2.0, 1.5]))
    yield Case(module, "channels_last::max_pool2d_with_indices", (x, [3, 3], [2, 2], [1, 1]))
    yield Case(module, "channels_last::max_pool2d", (x, [2, 3]))
    yield Case(module, "channels_last::grid_sampler_2d", (x, floats(2, 5, 6, 2, scale=0.7), 0, 0, False))
    yield Case(module, "channels_last::permute_copy", (x, [0, 3, 1, 2]))


def _vulkan() -> Iterator[Case]:
    module, image = "executorch.backends.vulkan.custom_ops_lib", floats(1, 4, 6, 7)
    kernel = floats(6, 4, 3, 3, seed=1)
    yield Case(
        module,
        "et_vk::conv_with_clamp",
        (image, kernel, floats(6, seed=2), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, 0.0, 6.0),
    )
    yield Case(module, "et_vk::grid_priors", (image, 8, 0.5))
    cos, sin = angles(5, 4)
    yield Case(module, "et_vk::apply_rotary_emb", (floats(1, 5, 3, 8), floats(1, 5, 2, 8, seed=1), cos, sin))
    yield Case(module, "et_vk::apply_rotary_emb_interleaved", (floats(2, 5, 8), np.stack([cos, sin], -1)))
    yield Case(
        module,
        "et_vk::sdpa",
        (floats(1, 2, 5, 8), floats(1, 2, 6, 8, seed=1), floats(1, 2, 6, 8, seed=2), floats(5, 6, seed=3), 0.4),
    )
    yield Case(module, "et_vk::rms_norm", (floats(3, 5, 8), floats(8, seed=1), 1e-6))
    labels = np.where(np.arange(6) % 3 == 1, -100, whole(9, 6))
    yield Case(module, "et_vk::fused_ce", (floats(6, 9), labels, 4.0), grads=(0,))
    moments = (floats(5), floats(5, seed=1), np.abs(floats(5, seed=2)), floats(5, seed=3))
    yield Case(module, "et_vk::adamw_step", (*moments, 0.1, 0.9, 0.99, 1e-8, 0.01, 0.1, 0.01), mutates=(0, 1, 2))
    yield Case(module, "et_vk::linear_dW", (floats(2, 3, 5), floats(2, 3, 4, seed=1)))


def _cadence() -> Iterator[Case]:
    module = "executorch.backends.cadence.aot.ops_registrations executorch.backends.cadence.aot.ref_implementations"
    cos, sin = angles(9, 4)
    yield Case(module, "cadence::rope", (floats(1, 5, 3, 8), sin, cos, whole(9, 5)))
    yield Case(module, "cadence::rope_rotate_stacked_halves", (floats(1, 5, 3, 8), sin[:5], cos[:5], None))
    turned = floats(6, 4, 3, 3, seed=1)
    yield Case(
        module,
        "cadence::transposed_convolution",
        (floats(2, 4, 5, 6), turned, floats(6), [2, 2], [1, 1], [1, 1], [1, 1], 1),
    )
    yield Case(module, "cadence::where_Scalar", (floats(3, 4) > 0, 1.5, -2.0))
    yield Case(module, "cadence::sdpa_bitwise_mask_gen", (floats(3, 16) > 0, 0.0))


def _litert() -> Iterator[Case]:
    module = "litert_torch.generative.custom_ops.bmm_4d"
    yield Case(module, "litert_torch::bmm_4d", (floats(2, 3, 4, 5), floats(2, 1, 6, 5, seed=1)))
    module = "litert_torch.generative.custom_ops.dynamic_update_slice"
    starts = [np.array(n, np.int32) for n in (0, 2, 0)]
    yield Case(module, "litert_torch::dynamic_update_slice", (floats(2, 6, 3), floats(2, 3, 3, seed=1), starts))
    module = "litert_torch.generative.layers.moe"
    weights = (floats(5, 4, 1, 6, seed=2), floats(5, 4, 1, 6, seed=3), floats(6, 4, 1, 5, seed=4), floats(4, seed=5))
    chosen = (np.abs(floats(1, 3, 2, seed=1)), whole(4, 1, 3, 2))
    yield Case(module, "litert_torch::moe_fp32", (floats(1, 3, 6), *chosen, *weights, 4, 2, 6, 5))
    module = "litert_torch.generative.export_hf.model_ext.qwen3_5.gated_delta_rule"
    yield Case(module, "litert_torch::gdn_tril_inv", (np.tril(floats(2, 3, 5, 5, scale=0.5), -1),))
    delta = (floats(2, 2, 5, 6), floats(2, 2, 5, 6, seed=1, scale=0.3), floats(2, 4, 5, 3, seed=2))
    delta += (np.abs(floats(2, 4, 5, seed=3, scale=0.3)), -np.abs(floats(2, 4, 5, seed=4)), floats(2, 4, 6, 3, seed=5))
    yield Case(module, "litert_torch::gated_delta_update", delta)
    module, x = "litert_torch.backend.experimental.torch_tfl._ops", floats(3, 4, 5)
    yield Case(module, "tfl::reshape", (x, [6, -1]))
    yield Case(module, "tfl::batch_matmul", (x, floats(3, 6, 5, seed=1), False, True))
    yield Case(module, "tfl::topk_v2", (x, 3))
    yield Case(module, "tfl::strided_slice", (x, [0, 1, 4], [3, 4, 5], [2, 1, 1]))
    yield Case(module, "tfl::gather", (x, np.array([2, 0, 2]), 1))
    yield Case(module, "tfl::split_v", (x, [1, 3], 1))
    yield Case(module, "tfl::softmax", (x,))


def _mlcg() -> Iterator[Case]:
    module, atoms = "mlcg.nn.kernels.models.prior", floats(9, 3)
    kinds, graph = whole(3, 9), np.array([0, 0, 0, 1, 1, 1])
    bonds = np.stack([np.arange(6), np.arange(6) + 1])
    angles_, torsions = np.concatenate([bonds, bonds[1:] + 1]), np.stack([np.arange(6) + i for i in range(4)])
    k2, x2 = np.abs(floats(3, 3, seed=1)), np.abs(floats(3, 3, seed=2))
    yield Case(
        f"{module}.harmonic_bonds",
        "mlcg_kernels::flash_harmonic_bonds",
        (atoms, kinds, bonds, graph, k2, x2, 2),
        grads=(0,),
    )
    k3, x3 = np.abs(floats(3, 3, 3, seed=1)), np.abs(floats(3, 3, 3, seed=2))
    yield Case(
        f"{module}.harmonic_angles",
        "mlcg_kernels::flash_harmonic_angles",
        (atoms, kinds, angles_, graph, k3, x3, 2),
        grads=(0,),
    )
    yield Case(
        f"{module}.repulsion", "mlcg_kernels::flash_repulsion", (atoms, kinds, bonds, graph, x2, 2, 1e-12), grads=(0,)
    )
    k4 = (floats(2, 3, 3, 3, 3, seed=1), floats(2, 3, 3, 3, 3, seed=2), floats(3, 3, 3, 3, seed=3))
    yield Case(
        f"{module}.dihedral", "mlcg_kernels::flash_dihedral", (atoms, kinds, torsions, graph, *k4, 2, 2), grads=(0,)
    )
    source, target = np.array([0, 1, 2, 3, 4, 0, 2]), np.array([0, 0, 1, 2, 2, 4, 4])
    rows = [np.concatenate([[0], np.cumsum(np.bincount(i, minlength=5))]) for i in (target, source)]
    order = np.argsort(source, kind="stable")
    given = (
        floats(5, 6),
        floats(7, 6, seed=1),
        floats(7, seed=2),
        source,
        target,
        rows[0],
        np.arange(7),
        5,
        rows[1],
        order,
    )
    yield Case("mlcg.nn.kernels.models.schnet.cfconv", "mlcg_kernels::fused_cfconv", given, grads=(0, 1, 2))
    name = "mlcg_kernels::fused_distance_gaussian_rbf_cosinecutoff"
    given = (
        floats(5, 3),
        source[1:],
        target[1:],
        np.linspace(0, 3, 6, dtype=np.float32),
        np.array([-1.5], np.float32),
        3.0,
    )
    yield Case("mlcg.nn.kernels.radial_basis.gaussian", name, given, grads=(0, 3, 4))
    given = (floats(5, 6), floats(6, 4, seed=1), floats(4, seed=2))
    yield Case("mlcg.nn.kernels.models.linear.tanh_linear", "mlcg_kernels::fused_tanh_linear", given, grads=(0, 1, 2))


def main() -> int:
    """Port, run, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--op", dest="names", action="append")
    parser.add_argument("--ports", type=Path, help="where ports lie that were made before, with their report")
    options = parser.parse_args()
    wanted = [c for c in cases() if not options.names or c.name in options.names]
    with tempfile.TemporaryDirectory() as place:
        picked = Path(place, "picked")
        packages = {c.module.partition(".")[0] for c in wanted}
        _pick(options.folder, picked, packages)
        ports = options.ports or Path(place, "ports")
        left = _port(picked, ports)
        jobs, answers = Path(place, "jobs.pickle"), Path(place, "answers.pickle")
        jobs.write_bytes(pickle.dumps(wanted))
        command = [sys.executable, __file__, "--witness", str(picked), str(jobs), str(answers)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
        theirs = pickle.loads(answers.read_bytes())
        sys.path.insert(0, str(ports))
        verdicts: dict[str, list[str]] = {}
        for case, his in zip(wanted, theirs, strict=True):
            found = _judged(case, his, left)
            verdicts.setdefault(case.name, []).append(found)
            print(f"{case.name}: {found}", flush=True)
    right = [n for n, found in verdicts.items() if all(f.startswith("equal") for f in found)]
    wrong = [n for n, found in verdicts.items() if any(f.startswith("WRONG") for f in found)]
    print(f"{len(right)} of {len(verdicts)} operators are equal; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _pick(folder: Path, picked: Path, packages: set[str]) -> None:
    """Copy the files of the packages; PyTorch's come from where it is installed."""
    installed = next(Path(p) for p in sys.path if Path(p, "torch/__init__.py").exists())
    for name in (n for files in FILES.values() for n in files):
        if name.partition("/")[0] in packages:
            target = picked / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(((installed if name.startswith("torch/") else folder) / name).read_bytes())
    for place in [p for p in picked.rglob("*") if p.is_dir()]:
        Path(place, "__init__.py").touch()  # packages, without what theirs import


def _port(picked: Path, ports: Path) -> dict[str, str]:
    """Port each package as a folder; for each operator the first thing that was left for the hand."""
    left: dict[str, str] = {}
    for package in sorted(p for p in picked.iterdir() if p.is_dir()):
        report = ports / f"{package.name}.json"
        if not report.exists():
            start = time.perf_counter()
            (ports / package.name).mkdir(parents=True, exist_ok=True)
            command = [
                sys.executable,
                "-m",
                "fnjax",
                "port",
                str(package),
                "-o",
                str(ports / package.name),
                "--report",
                str(report),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            Path(ports, f"{package.name}.log").write_text(done.stderr)
            print(f"{package.name} ported in {time.perf_counter() - start:.0f} s")
        for found in _reported(json.loads(report.read_text()) if report.exists() else None):
            errors = [f for f in found["findings"] if f["severity"] == "error"]
            if errors:
                left[found["name"]] = f"{errors[0]['line']} {errors[0]['message']}".replace(str(picked), "")
                left[found["name"]] += f", and {len(errors) - 1} more" if errors[1:] else ""
    for folder in (p for p in ports.rglob("*") if p.is_dir()):
        Path(folder, "__init__.py").touch()
    return left


def _reported(report: Any) -> list[Any]:
    """Return the classes and operators in a report, of all files."""
    if isinstance(report, dict) and "classes" in report:
        return list(report["classes"])
    parts = report.values() if isinstance(report, dict) else report if isinstance(report, list) else ()
    return [c for part in parts for c in _reported(part)]


def _judged(case: Case, his: Any, left: dict[str, str]) -> str:
    """Return the outcome of one case."""
    name = case.name.partition(".")[0]
    reason = left.get(case.name) or left.get(name)
    if reason:
        return f"left for the hand: {reason}"
    if isinstance(his, str):
        return f"not run by PyTorch: {his}"
    worst = 0.0
    for mode in ("eager", "jitted"):
        try:
            mine = _in_jax(case, his, mode == "jitted")
        except Exception as error:  # noqa: BLE001 - of any class
            return f"fails {mode}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if len(mine) != len(his["arrays"]):
            return f"WRONG {mode}: {len(mine)} arrays for {len(his['arrays'])}"
        for i, (a, b) in enumerate(zip(mine, his["arrays"], strict=True)):
            if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
                return f"WRONG {mode}: array {i} is {a.dtype}{a.shape} for {b.dtype}{b.shape}"
            off = 0.0 if i in case.ignore else _off(a.astype(np.float64), b.astype(np.float64))
            if off > LIMIT:
                return f"WRONG {mode}: array {i} off by {off:.1e}"
            worst = max(worst, off)
    return f"equal {worst:.1e}{', with gradients' if case.grads else ''}"


def _off(mine: np.ndarray, his: np.ndarray) -> float:
    if not mine.size:
        return 0.0
    found = float(np.abs(mine - his).max() / max(np.abs(his).max(), 1e-30))
    return float("inf") if np.isnan(found) else found


def _in_jax(case: Case, his: Any, jitted: bool) -> list[np.ndarray]:
    """Results, new values of what is mutated, and gradients, of the port."""
    import jax
    import jax.numpy as jnp

    import fnjax

    for module in case.module.split():
        importlib.import_module(module)
    namespace, _, name = case.name.partition("::")
    op = getattr(getattr(fnjax.ops, namespace), name.partition(".")[0])
    static = [_dtype(a) for a in case.args]
    given = {i: jax.tree.map(jnp.asarray, a) for i, a in enumerate(case.args) if _arrays(a)}

    def run(arrays: dict[int, Any], cotangents: list[Any]) -> list[Any]:
        def at(*chosen: Any) -> tuple[list[Any], list[Any]]:
            called = [arrays.get(i, s) for i, s in enumerate(static)]
            for i, a in zip(case.grads, chosen, strict=True):
                called[i] = a
            outs = [jnp.asarray(o) for o in jax.tree.leaves(op(*called, **case.kwargs))]
            return [o for o in outs if jnp.issubdtype(o.dtype, jnp.inexact)], outs

        if not case.grads:
            return at()[1]
        _, back, outs = jax.vjp(at, *(arrays[i] for i in case.grads), has_aux=True)
        return [*outs, *jax.tree.leaves(back([jnp.asarray(c) for c in cotangents]))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = (jax.jit(run) if jitted else run)(given, his["cotangents"])
    return [np.asarray(a) for a in made]


def _arrays(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value))


def _dtype(value: Any) -> Any:
    return np.dtype(value.removeprefix("torch.")) if isinstance(value, str) and value.startswith("torch.") else value


class _StandIn(type):
    """A stand-in for a name of a missing module: a class to derive from, a decorator, a value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, last of all, what files import: modules of their packages, and other packages that are not there."""

    def __init__(self, picked: Path) -> None:
        trees = [ast.parse(f.read_text()) for f in picked.rglob("*.py")]
        imports = [n for t in trees for n in ast.walk(t) if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = [n.module or "" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports]
        tops = {n.partition(".")[0] for n in names} | {p.name for p in picked.iterdir()}
        self.names = tops - {"torch", ""} | {"expecttest"}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = _StandIn("StandIn", (), {}).__getattr__  # type: ignore[method-assign] # as its own function


def witness(picked: str, jobs: str, answers: str) -> None:
    """Run the cases in PyTorch, where the files lie next to stand-ins."""
    import torch

    sys.path.append(picked)  # behind the installed PyTorch
    sys.meta_path.append(_StandIns(Path(picked)))
    found = []
    for case in pickle.loads(Path(jobs).read_bytes()):
        try:
            for module in case.module.split():
                importlib.import_module(module)
            found.append(_in_torch(torch, case))
        except Exception as error:  # noqa: BLE001 - of any class
            found.append(f"{type(error).__name__}: {str(error)[:300]}")
    Path(answers).write_bytes(pickle.dumps(found))


def _in_torch(torch: Any, case: Case) -> dict[str, Any]:
    namespace, _, name = case.name.partition("::")
    op = getattr(getattr(torch.ops, namespace), name.partition(".")[0])
    op = getattr(op, name.partition(".")[2] or "default")

    def tensor(value: Any, differentiated: bool = False) -> Any:
        if isinstance(value, list):
            return [tensor(v, differentiated) for v in value]
        if isinstance(value, str) and value.startswith("torch."):
            return getattr(torch, value.removeprefix("torch."))
        made = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        return made.requires_grad_() if differentiated else made

    args = [tensor(a, i in case.grads) for i, a in enumerate(case.args)]
    outs = [torch.as_tensor(o) for o in _flat(op(*args, **case.kwargs))]
    outs += [args[i] for i in case.mutates]
    arrays, cotangents = [o.detach().numpy().copy() for o in outs], []
    if case.grads:
        rng = np.random.default_rng(0)
        cotangents = [rng.normal(size=a.shape).astype(a.dtype) for a in arrays if a.dtype.kind == "f"]
        pairs = [
            (o, torch.from_numpy(c))
            for o, c in zip([o for o in outs if o.is_floating_point()], cotangents, strict=True)
        ]
        pairs = [p for p in pairs if p[0].requires_grad]
        chosen = _flat([args[i] for i in case.grads])
        grads = torch.autograd.grad([p[0] for p in pairs], chosen, [p[1] for p in pairs], allow_unused=True)
        arrays += [
            np.zeros(c.shape, np.float32) if g is None else g.numpy() for c, g in zip(chosen, grads, strict=True)
        ]
    return {"arrays": arrays, "cotangents": cotangents}


def _flat(value: Any) -> list[Any]:
    return (
        [f for v in value for f in _flat(v)] if isinstance(value, (list, tuple)) else [] if value is None else [value]
    )


if __name__ == "__main__":
    if sys.argv[1] == "--witness":
        witness(*sys.argv[2:])
    else:
        sys.exit(main())
