"""Parity with PyTorch, third part: layers, and losses."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.parity import Pair, check_pairs, compare, ints, real

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("x64")]


class TorchLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        y = x.mm(weight.t())
        if bias is not None:
            y = y + bias.unsqueeze(0).expand_as(y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = g.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = g.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = g.sum(0)
        return grad_x, grad_weight, grad_bias


class Linear(fnjax.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        y = x @ weight.T
        if bias is not None:
            y = y + jnp.broadcast_to(bias[None], y.shape)
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = g @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = g.T @ x
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = g.sum(0)
        return grad_x, grad_weight, grad_bias


class TorchLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + eps) * weight + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        std = torch.sqrt(var + ctx.eps)
        normal = (x - mean) / std
        gn = g * weight
        grad_x = (gn - gn.mean(-1, keepdim=True) - normal * (gn * normal).mean(-1, keepdim=True)) / std
        return grad_x, g * normal, g, None


class LayerNorm(fnjax.Function):
    """The gradients of weight and bias are left to the engine to sum."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(var + eps) * weight + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        std = jnp.sqrt(var + ctx.eps)
        normal = (x - mean) / std
        gn = g * weight
        grad_x = (gn - gn.mean(-1, keepdims=True) - normal * (gn * normal).mean(-1, keepdims=True)) / std
        return grad_x, g * normal, g, None


class TorchSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        e = (x - x.amax(dim, keepdim=True)).exp()
        y = e / e.sum(dim, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(ctx.dim, keepdim=True)), None


class Softmax(fnjax.Function):
    """A saved output, an axis as a static argument."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        e = jnp.exp(x - x.max(dim, keepdims=True))
        y = e / e.sum(dim, keepdims=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(ctx.dim, keepdims=True)), None


class TorchCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        p = TorchSoftmax.apply(logits, -1)
        ctx.mark_non_differentiable(p)
        ctx.save_for_backward(logits, labels)
        return -p.gather(-1, labels[:, None]).log().mean(), p

    @staticmethod
    def backward(ctx, g, gp):
        logits, labels = ctx.saved_tensors
        hot = torch.nn.functional.one_hot(labels, logits.shape[-1])
        return g * (TorchSoftmax.apply(logits, -1) - hot) / len(labels), None


class CrossEntropy(fnjax.Function):
    """Integer labels, a marked output, another Function in both methods."""

    @staticmethod
    def forward(ctx, logits, labels):
        p = Softmax.apply(logits, -1)
        ctx.mark_non_differentiable(p)
        ctx.save_for_backward(logits, labels)
        return -jnp.log(jnp.take_along_axis(p, labels[:, None], -1)).mean(), p

    @staticmethod
    def backward(ctx, g, gp):
        logits, labels = ctx.saved_tensors
        hot = jax.nn.one_hot(labels, logits.shape[-1])
        return g * (Softmax.apply(logits, -1) - hot) / len(labels), None


class TorchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.square().sum().sqrt()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x / y


class Norm(fnjax.Function):
    """All of an array to one number."""

    @staticmethod
    def forward(ctx, x):
        y = jnp.sqrt(jnp.square(x).sum())
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x / y


class TorchBMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.transpose(-1, -2), a.transpose(-1, -2) @ g


class BMM(fnjax.Function):
    """A batched product; the gradient of a shared factor is summed."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g


class TorchCumsum(torch.autograd.Function):
    @staticmethod
    def forward(x, dim):
        return x.cumsum(dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class Cumsum(fnjax.Function):
    """Linear: nothing is saved."""

    @staticmethod
    def forward(x, dim):
        return jnp.cumsum(x, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return jnp.flip(jnp.cumsum(jnp.flip(g, ctx.dim), ctx.dim), ctx.dim), None


PAIRS = (
    Pair("Linear", TorchLinear.apply, Linear.apply, (real(4, 3), real(2, 3), real(2))),
    Pair("Linear-no-bias", TorchLinear.apply, Linear.apply, (real(4, 3), real(2, 3))),
    Pair(
        "Linear-None",
        lambda x, w: TorchLinear.apply(x, w, None),
        lambda x, w: Linear.apply(x, w, None),
        (real(4, 3), real(2, 3)),
    ),
    Pair(
        "LayerNorm",
        lambda *xs: TorchLayerNorm.apply(*xs, 1e-5),
        lambda *xs: LayerNorm.apply(*xs, 1e-5),
        (real(3, 5), real(5), real(5)),
    ),
    Pair("Softmax", lambda x: TorchSoftmax.apply(x, 0), lambda x: Softmax.apply(x, 0), (real(3, 4),)),
    Pair("CrossEntropy", TorchCrossEntropy.apply, CrossEntropy.apply, (real(5, 3), ints(5, below=3))),
    Pair("Norm", TorchNorm.apply, Norm.apply, (real(2, 3),)),
    Pair("BMM", TorchBMM.apply, BMM.apply, (real(2, 3, 4), real(2, 4, 2))),
    Pair("BMM-shared", TorchBMM.apply, BMM.apply, (real(2, 3, 4), real(4, 2))),
    Pair("Cumsum", lambda x: TorchCumsum.apply(x, 1) ** 2, lambda x: Cumsum.apply(x, 1) ** 2, (real(2, 4),)),
    Pair(
        "network",
        lambda x, v, w: TorchNorm.apply(TorchSoftmax.apply(TorchLinear.apply(TorchLinear.apply(x, v).tanh(), w), -1)),
        lambda x, v, w: Norm.apply(Softmax.apply(Linear.apply(jnp.tanh(Linear.apply(x, v)), w), -1)),
        (real(4, 3), real(5, 3), real(2, 5)),
    ),
)


@check_pairs(*PAIRS)
def test_parity(pair, mode):
    """Values and derivatives are PyTorch's."""
    compare(pair, mode)
