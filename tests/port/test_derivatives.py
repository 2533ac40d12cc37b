"""Derivatives of PyTorch blocks at ties, bounds and zeros, and of ports where a mask leaves entries out."""

import jax
import numpy as np
import pytest

from fnjax.port import port_source
from tests.port.test_classes import module

GRID = np.array(
    [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [2, 2, 2, 2], [-1, 2, 6, -3], [3, -0.5, 0.5, -2]], np.float32
)
SOURCE = """\
import torch
import torch.nn.functional as F


def helper(x):
    return x.clamp(-1, 1) + x.abs()


class R(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {y}

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = {y}
        gx, = torch.autograd.grad(y, x, g)
        return gx
"""
EXACT = """
torch.clamp(x, 0, 1)
F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3, 0, 1]))
x.clamp(min=0)
x.clamp(max=1)
x.clip(-1, 1)
x.clamp(torch.zeros(4), torch.tensor([1.0, 1, 0, -1]))
torch.clamp_min(x, 0)
torch.clamp_max(x, 1)
(x * 1).clamp_(0, 1)
torch.maximum(x, torch.zeros_like(x))
torch.fmax(x, x * 0)
torch.fmin(x, x * 0)
x.abs()
abs(x)
torch.abs(x) * x.sign()
x.median() * x.nanmedian()
torch.hypot(x, x * 0)
torch.xlogy(x, x)
torch.sqrt(x.abs())
torch.copysign(x, x * 0 + 1)
F.relu(x)
F.relu6(x)
F.leaky_relu(x, 0.1)
F.leaky_relu(x * 1, 0.1, inplace=True)
F.rrelu(x)
F.hardtanh(x)
F.hardtanh(x, 0, 1)
F.hardswish(x)
F.hardsigmoid(x)
F.elu(x)
F.prelu(x, torch.tensor([0.2]))
F.softshrink(x, 0.5)
F.hardshrink(x, 0.5)
F.threshold(x, 0.0, 0.0)
x.norm()
(x * 0).norm()
x.norm(dim=1)
x.norm(dim=1, keepdim=True)
x.norm(p=1, dim=1)
x.norm(p=3, dim=1)
torch.linalg.norm(x)
torch.linalg.norm(x, dim=1)
torch.linalg.norm(x, 1, 0)
torch.linalg.matrix_norm(x * 0)
torch.linalg.vector_norm(x, float("inf"), dim=1)
torch.linalg.vector_norm(x, dim=(0, 1))
torch.dist(x, x * 0)
F.pairwise_distance(x, x * 0)
torch.cdist(x, x)
torch.renorm(x, 2, 0, 1.0)
F.normalize(x, dim=1)
F.cosine_similarity(x, x * 0 + 1)
F.cosine_similarity(x, x.flip(0))
x.std(1)
x.std(1, unbiased=False)
torch.std_mean(x, 1)[0]
x.max(1)[0]
x.max()
x.amax(1)
x.sort(1)[0]
x.cummax(1)[0]
F.max_pool2d(x[None, None], 2)
F.adaptive_max_pool1d(x, 2)
F.adaptive_max_pool2d(x[None], (2, 3))
F.l1_loss(x, x.detach() * 0)
F.smooth_l1_loss(x, x * 0)
F.smooth_l1_loss(x, x * 0, beta=0.0)
F.huber_loss(x, x.detach() * 0 + 1)
F.cross_entropy(x, torch.full((6,), -100))
F.cross_entropy(x, torch.tensor([0, 1, -100, 2, 3, -100]), label_smoothing=0.1)
F.hinge_embedding_loss(x, torch.ones(4))
F.margin_ranking_loss(x, x * 0, torch.ones(6, 4))
helper(x)
F.grid_sample(x[None, None], torch.linspace(-1.3, 1.3, 24).reshape(1, 3, 4, 2), "bicubic", "reflection", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "zeros", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "zeros", True)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "border", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "border", True)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "reflection", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bicubic", "reflection", True)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "zeros", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "zeros", True)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "border", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "border", True)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "reflection", False)
F.grid_sample(torch.arange(20).sin().reshape(1, 1, 4, 5), (x / 2).reshape(1, 3, 4, 2), "bilinear", "reflection", True)
torch.view_as_real(torch.stft(x.flatten(), 8, 4, window=torch.hann_window(8), return_complex=True))
x.scatter_reduce(0, torch.tensor([[0, 0, 1, 1], [0, 2, 1, 5], [0, 0, 1, 3]]), x[1:4], "prod")
x.scatter_reduce(1, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), x[1:3], "prod", include_self=False)
torch.index_reduce(x, 0, torch.tensor([0, 0, 3, 0]), x[:4].flip(0), "prod")
x.index_reduce(1, torch.tensor([0, 0, 3]), x[:, :3], "prod", include_self=False)
x.scatter_reduce(0, torch.tensor([[0, 0, 1, 1], [0, 2, 1, 5], [0, 0, 1, 3]]), x[1:4], "amax")
x.scatter_reduce(1, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), x[1:3], "amax", include_self=False)
torch.index_reduce(x, 0, torch.tensor([0, 0, 3, 0]), x[:4].flip(0), "amax")
x.index_reduce(1, torch.tensor([0, 0, 3]), x[:, :3], "amax", include_self=False)
x.scatter_reduce(0, torch.tensor([[0, 0, 1, 1], [0, 2, 1, 5], [0, 0, 1, 3]]), x[1:4], "amin")
x.scatter_reduce(1, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), x[1:3], "amin", include_self=False)
torch.index_reduce(x, 0, torch.tensor([0, 0, 3, 0]), x[:4].flip(0), "amin")
x.index_reduce(1, torch.tensor([0, 0, 3]), x[:, :3], "amin", include_self=False)
x.scatter_reduce(1, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), x[1:3], "mean", include_self=False)
""".strip().splitlines()


@pytest.mark.parity
@pytest.mark.parametrize("y", EXACT)
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # in beta
def test_derivatives_at_ties_bounds_and_zeros(y, tmp_path):
    """A forward that backward computes again is a PyTorch block, with PyTorch's gradient at ties, bounds and zeros."""
    torch = pytest.importorskip("torch")
    text = SOURCE.format(y=y)
    ported = port_source(text)
    assert [c.status for c in ported.classes] == ["as_is"]
    t = torch.tensor(GRID, requires_grad=True)
    out = module(tmp_path, "original_r", text).R.apply(t)
    g = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    out.backward(torch.tensor(g))
    apply = module(tmp_path, "ported_r", ported.code).R.apply
    pull = jax.jit(lambda x, g: jax.vjp(apply, x)[1](g)[0])  # one program to compile
    np.testing.assert_allclose(pull(GRID, g), t.grad, rtol=1e-5, atol=1e-5)


# Each with the entries at which it is finite.
POLES = {
    "x[m].log()": "x > 0",
    "torch.sqrt(x[m]) * 2": "x > 0",
    "1 / x[m]": "x != 0",
    "2 * x[m].rsqrt()": "x > 0",
    "x[m] ** -1.5": "x > 0",
    "x[m].pow(3) / (x[m] - 1)": "x > 1",
    "torch.acos(x[m])": "x.abs() < 1",
    "torch.acosh(x[m])": "x > 1",
    "(x[m] * 100).exp()": "x <= 0",
    "torch.atan2(x[m] - 1, x[m])": "x < 1",
    "torch.logit(x[m] / 2)": "(x > 0) & (x < 2)",
}
MASKED = """
import torch


def tail(x):
    k = x.clone()
    k[x > 1] /= x[x > 1]
    return k


class R(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x * 0
        y[x > 1] = x[x > 1].log()
        return y

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        k = tail(x)
        {lines}
        return g * k
"""


@pytest.mark.parity
def test_poles_that_a_mask_leaves_out(tmp_path):
    """Of a function with poles outputs and gradients are PyTorch's; second derivatives are NaN at what is left out."""
    pytest.importorskip("torch")
    from fnjax.port.compare import compare

    lines = [f"m = {where}; y = torch.zeros_like(x); y[m] = {f}; k = k + y" for f, where in POLES.items()]
    text = MASKED.format(lines="\n        ".join(lines))
    ported = port_source(text)
    assert [c.status for c in ported.classes] == ["ported"]
    assert "y = jnp.where(x > 1, jnp.log(x), y)" in ported.code  # what no one differentiates stays
    original, jax_one = module(tmp_path, "original_r", text), module(tmp_path, "ported_r", ported.code)
    result = compare(original.R.apply, jax_one.R.apply, [GRID])
    second = [e for e in result.entries if e.what.startswith("second")]
    assert all(e.equal for e in result.entries if e not in second)
    assert second
    assert not all(e.equal for e in second)  # as of a jnp.where by hand
