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


@triton.jit
def double_rows(x, out, totals, previous, n, stride, BLOCK: tl.constexpr):
    i, c = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + i * stride + c, mask=c < n, other=0.0)
    tl.store(out + i * stride + c, 2 * value, mask=c < n)
    tl.store(totals + i, tl.sum(value))
    tl.store(previous + c, tl.load(x - 1 + c, mask=c > 0, other=7.0), mask=c < n)


@triton.jit
def count_rows(out, m, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    for i in range(m):
        tl.store(out + i * n + c, i + tl.zeros((BLOCK,), tl.float32), mask=c < n)


def from_rows_on(x):
    out, totals, previous, counts = torch.zeros_like(x), torch.zeros(len(x)), torch.zeros(3), torch.zeros(len(x) + 1, 3)
    for start in range(0, len(x), 2):
        k = min(2, len(x) - start)
        double_rows[(k,)](x[start], out[start], totals[start], previous, 3, x.stride(0), BLOCK=32)
    count_rows[(1,)](counts[1], len(x), 3, BLOCK=4)
    return out, totals, previous, counts


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return described(x)

    @staticmethod
    def backward(ctx, g):
        return described(g[:, :4])[:, :4]


@triton.jit
def next_rows(x, out, stride, C: tl.constexpr):
    i, c = tl.program_id(0), tl.arange(0, C)
    tl.store(out + i * C + c, tl.load(x + (i + 1) * stride + c))


class Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x[1:])
        next_rows[(len(out),)](x, out, x.stride(0), 4)
        states = torch.cat((x[:1], out))
        ctx.save_for_backward(states[:-1], states[:, :2])
        return out

    @staticmethod
    def backward(ctx, g):
        before, half = ctx.saved_tensors
        later = torch.empty_like(g)
        next_rows[(len(g),)](before, later, before.stride(0), 4)
        return torch.cat((torch.zeros(1, 4), g * later + half[1:].sum()))
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


@pytest.mark.filterwarnings("ignore:kernel double_rows:RuntimeWarning")  # it stores nothing of that
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_pointers_to_a_row_lead_to_later_rows(loaded, wrap):
    """A kernel reads and stores after the entries of a view, and finds `other` where its mask is false."""
    x = jnp.arange(1.0, 16.0).reshape(5, 3)
    out, totals, previous, counts = wrap(torch.jax_view(loaded.from_rows_on))(x)
    np.testing.assert_array_equal(out, 2 * x)
    np.testing.assert_array_equal(totals, x.sum(1))
    np.testing.assert_array_equal(previous, [7, *x[4, :2]])
    np.testing.assert_array_equal(counts[:, 0], [0, 0, 1, 2, 3, 4])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_kernels_in_backward_read_next_to_saved_views(loaded, wrap):
    """The row after the last one of a saved view is in its memory, as in PyTorch (fla's recurrent RWKV4 reads it)."""
    x = jnp.arange(20.0).reshape(5, 4)
    grad = wrap(jax.grad(lambda x: (3 * loaded.Later.apply(x)).sum()))(x)
    np.testing.assert_array_equal(grad, jnp.pad(3 * x[1:] + x[1:, :2].sum(), ((1, 0), (0, 0))))
