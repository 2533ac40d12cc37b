"""Launches of Triton kernels in loaded files: grid functions, heuristics, hooks and descriptors get tensors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SEEN = []


def clear(args):
    SEEN.append(("hook", args["out"].shape, args["n"]))
    args["out"].fill_(100.0)


def prune(configs, args, **named):
    SEEN.append(("prune", args["x"].numel(), named["total"].element_size()))
    return [c for c in configs if c.kwargs["BLOCK"] >= args["x"].numel()]


@triton.autotune(
    [triton.Config({"BLOCK": 4}, pre_hook=clear), triton.Config({"BLOCK": 32}, pre_hook=clear)],
    key=["n"],
    prune_configs_by={"early_config_prune": prune},
)
@triton.heuristics({"EVEN": lambda args: args["x"].numel() % args["BLOCK"] == 0 and args["x"].is_contiguous()})
@triton.jit
def add(x, out, total, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.arange(0, BLOCK) + tl.program_id(0) * BLOCK
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + at, value + tl.load(out + at, mask=at < n), mask=at < n)
    tl.store(total + tl.program_id(0), EVEN + 0.0)


def run(x):
    out, total = torch.empty(2, *x.shape), torch.zeros(1)
    SEEN.clear()
    grid = lambda meta: (triton.cdiv(meta["x"].numel(), meta["BLOCK"]) * meta["total"].size(0),)
    add[grid](x, out[1], total=total, n=x.numel())
    return out[1], total


@triton.jit
def double(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * ROWS
    target.store([at, 0], source.load([at, 0]) * 2)


def described(x):
    wide = torch.zeros(x.shape[0], 8)
    source = TensorDescriptor.from_tensor(x, [2, 4])
    target = TensorDescriptor.from_tensor(wide[:, :4], [2, 4])
    double[(x.shape[0] // 2,)](source, target, 2, 4)
    return wide


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return described(x)

    @staticmethod
    def backward(ctx, g):
        return described(g[:, :4])[:, :4]
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("launches") / "kernels.py"
    path.write_text(SOURCE)
    return torch.load(path)


@pytest.mark.parametrize("jit", [False, True])
def test_grids_heuristics_and_hooks_get_tensors(loaded, jit):
    """They ask for numel, size and contiguity; what a hook writes into its tensor, the kernel reads."""
    run = torch.jax_view(loaded.run)
    x = jnp.arange(12.0).reshape(3, 4)
    out, total = (jax.jit(run) if jit else run)(x)
    np.testing.assert_array_equal(out, x + 100)
    np.testing.assert_array_equal(total, [0.0])
    assert ("prune", 12, 4) in loaded.SEEN
    assert ("hook", (3, 4), 12) in loaded.SEEN


def test_descriptors_of_tensors(loaded):
    """A kernel loads and stores through descriptors of tensors, of views as well."""
    x = jnp.arange(16.0).reshape(4, 4)
    out, pullback = jax.vjp(jax.jit(loaded.Twice.apply), x)
    np.testing.assert_array_equal(out, np.pad(2 * x, ((0, 0), (0, 4))))
    np.testing.assert_array_equal(pullback(out)[0], 4 * x)
