"""Forwards that backward computes again: what is differentiated, and derivatives at ties, bounds and zeros."""

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
{steps}
        gx, = torch.autograd.grad(y, x, g)
        return gx
"""
STEPS = ["x = x.detach().requires_grad_(True)", "y = {y}"]


def source(y, steps=STEPS):
    return SOURCE.format(y=y, steps="\n".join(f"            {s.format(y=y)}" for s in steps))


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


def gradients(tmp_path, text):
    """PyTorch's gradient and the port's, and the port's findings."""
    import torch

    ported = port_source(text)
    assert [c.status for c in ported.classes] == ["ported"], ported.findings
    t = torch.tensor(GRID, requires_grad=True)
    y = module(tmp_path, "original_r", text).R.apply(t)
    g = np.random.default_rng(0).normal(size=y.shape).astype(np.float32)
    y.backward(torch.tensor(g))
    apply = module(tmp_path, "ported_r", ported.code).R.apply
    pull = jax.jit(lambda x, g: jax.vjp(apply, x)[1](g)[0])  # one program to compile
    return t.grad.numpy(), np.asarray(pull(GRID, g))


@pytest.mark.parity
@pytest.mark.parametrize("y", EXACT)
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # in beta
def test_derivatives_at_ties_bounds_and_zeros(y, tmp_path):
    """A recomputed forward has PyTorch's gradient at ties, bounds and zeros too, and no note says otherwise."""
    pytest.importorskip("torch")
    want, got = gradients(tmp_path, source(y))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert not port_source(source(y)).findings


@pytest.mark.parity
@pytest.mark.parametrize(
    "y",
    [
        "torch.topk(x, 2, 1)[0]",
        "x.quantile(0.5)",
    ],
)
def test_departures_are_noted(y, tmp_path):
    """A gradient that stays JAX's has a note, and some input shows that it differs from PyTorch's."""
    pytest.importorskip("torch")
    want, got = gradients(tmp_path, source(y))
    assert not np.allclose(got, want, equal_nan=True)
    assert [(f.code, f.severity) for f in port_source(source(y)).findings] == [("derivative", "note")]


def test_only_what_is_differentiated():
    """A forward that nobody differentiates keeps JAX's functions, and needs no note."""
    text = source("x.clamp(0, 1) + x.median() + F.leaky_relu(x)", [*STEPS[:1], "y = x.exp()"])
    ported = port_source(text)
    assert "jnp.clip(x, 0, 1) + _median(x) + jax.nn.leaky_relu(x)" in ported.code
    assert not ported.findings


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


@pytest.mark.parity
@pytest.mark.parametrize("f", POLES)
def test_no_pole_outside_a_mask(f, tmp_path):
    """A function with a pole has no say in the gradient of the entries that a mask leaves out."""
    pytest.importorskip("torch")
    steps = [STEPS[0], f"m = {POLES[f]}", "y = torch.zeros_like(x)", f"y[m] = {f}"]
    want, got = gradients(tmp_path, source("x ** 2", steps))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert np.isfinite(want).all()


@pytest.mark.parity
def test_no_pole_in_second_derivatives(tmp_path):
    """Nor has it in those of a backward, nor where a helper of backward writes; what no one differentiates stays."""
    pytest.importorskip("torch")
    from fnjax.port.compare import compare

    text = """
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
        k[x > 1] = 1 / x[x > 1]
        return g * k * tail(x)
"""
    ported = port_source(text).code
    assert "y = jnp.where(x > 1, jnp.log(x), y)" in ported
    original, jax_one = module(tmp_path, "original_r", text), module(tmp_path, "ported_r", ported)
    result = compare(original.R.apply, jax_one.R.apply, [GRID])
    assert any(e.what.startswith("second") for e in result.entries)
    assert all(e.equal for e in result.entries)


PARTED = {
    "a constant inside": ["x = x.detach().requires_grad_()", "y = x * (x.detach() + 1)"],
    "a constant of its own": ["x = x.detach().requires_grad_()", "k = x.detach() + 1", "y = x ** 2 * k"],
    "a constant before": ["k = x * 2", "x = x.detach().requires_grad_()", "y = x ** 2 + k"],
    "marked afterwards": ["x = x.detach()", "x.requires_grad_()", "y = x ** 2"],
    "marked by assignment": ["x = x.detach()", "x.requires_grad = True", "y = x ** 2"],
}


@pytest.mark.parity
@pytest.mark.parametrize("case", PARTED)
def test_what_is_differentiated(case, tmp_path):
    """A statement that detaches is a constant only where it makes a variable of those that gradients are taken for."""
    pytest.importorskip("torch")
    want, got = gradients(tmp_path, source("x ** 2", PARTED[case]))
    np.testing.assert_allclose(got, want, rtol=1e-5)


TWO = """
import torch


class R(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        w = x
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            h = x ** 2
            w = {w}.detach().requires_grad_()
            y = h * w
        gx, gw = torch.autograd.grad(y, (x, w), g)
        return gx + gw
"""


@pytest.mark.parity
def test_variables_made_one_after_the_other(tmp_path):
    """Each variable that gradients are taken for has its gradient, wherever in the block it is made."""
    pytest.importorskip("torch")
    want, got = gradients(tmp_path, TWO.format(w="w"))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert want.any()


def test_a_variable_made_of_what_is_differentiated():
    """A variable that is cut off from what another gives is a finding, no zero gradient."""
    (cls,) = port_source(TWO.format(w="h")).classes
    assert [f.code for f in cls.findings] == ["autograd"]


STAGES = """
import torch


class R(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, flag: bool):
        ctx.save_for_backward(x)
        ctx.flag = flag
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            h = x.tanh()
            y = h.sin()
        {first}
        with torch.enable_grad():
            z = {second}
        {then}
        return {result}, None
"""
SHARED = {
    "gradients": (
        "a, = torch.autograd.grad(y, x, g, retain_graph=True)",
        "h * x",
        "b, = torch.autograd.grad(z, x, g)",
        "a + b",
    ),
    "calls of backward": ("y.backward(g, retain_graph=True)", "h * x", "z.backward(g)", "x.grad"),
    "a call that may be": ("y.backward(g)", "x.cos()", "if ctx.flag:\n            z.backward(g)", "x.grad"),
}


@pytest.mark.parametrize("case", SHARED)
def test_stages_that_share_a_computation(case):
    """Tensors that an earlier stage has differentiated are a finding in a later one; so is a call in an `if`."""
    parts = dict(zip(("first", "second", "then", "result"), SHARED[case], strict=True))
    (cls,) = port_source(STAGES.format(**parts)).classes
    assert {f.code for f in cls.findings} <= {"autograd", "absent"}
    assert cls.status == "as_is"


UNSEEN = {
    "an earlier block": "h = x ** 2\n        with torch.enable_grad():\n            y = h * x",
    "a variable that is made of another": "v = x * 2\n            y = v * x; z = torch.autograd.grad(y, v, g)",
    "a write to a variable around": "y = x * 3\n            w.add_(y.detach())",
    "what is kept on ctx": "y = x * 3\n            ctx.y = y",
    "a list around": "y = x * 3\n            outs.append(y)",
    "one of two branches": (
        "y = x * 3\n        if w.shape[0] > 1:\n            with torch.enable_grad():\n                y = x.exp()\n"
        "        else:\n            with torch.enable_grad():\n                y = x.sin()"
    ),
    "a later value": "y = x * 3\n        y = y * 2",
}


@pytest.mark.parametrize("case", UNSEEN)
def test_paths_that_one_function_does_not_have(case):
    """A gradient that goes by what the function leaves out, or changes, is a finding."""
    text = source("x ** 2", ["x = x.detach().requires_grad_()", UNSEEN[case]])
    text = text.replace("x, = ctx.saved_tensors", "x, = ctx.saved_tensors\n        w, outs = x.clone(), []")
    (cls,) = port_source(text.replace("return gx", "return gx + w * len(outs)")).classes
    assert (cls.status, {f.code for f in cls.findings}) == ("as_is", {"autograd"})


@pytest.mark.parity
def test_stages_add_up(tmp_path):
    """Two calls of backward give one tensor the sum of its gradients."""
    pytest.importorskip("torch")
    text = STAGES.format(first="y.backward(g)", second="x ** 2 * 3", then="z.backward(g)", result="x.grad")
    text = text.replace(", flag: bool", "").replace("        ctx.flag = flag\n", "").replace("x.grad, None", "x.grad")
    want, got = gradients(tmp_path, text)
    np.testing.assert_allclose(got, want, rtol=1e-5)
