"""Parity with PyTorch, first part: elementwise Functions by what they save."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.parity import Pair, check_pairs, compare, real

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("x64")]


class TorchXSin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.cos() * x + x.sin())


class XSin(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x) * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (jnp.cos(x) * x + jnp.sin(x))


class TorchSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        y = torch.sigmoid(slope * x)
        ctx.save_for_backward(y)
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * ctx.slope * y * (1 - y), None


class Sigmoid(fnjax.Function):
    @staticmethod
    def forward(ctx, x, slope):
        y = jax.nn.sigmoid(slope * x)
        ctx.save_for_backward(y)
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * ctx.slope * y * (1 - y), None


class TorchHundredfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return 100 * g * ctx.y


class Hundredfold(fnjax.Function):
    """A rule that is not a derivative, through an output kept as an attribute."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = jnp.exp(x)
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return 100 * g * ctx.y


class TorchAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.power = x, {"n": 3}
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.power["n"] * ctx.x**2


class Attribute(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.power = x, {"n": 3}
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.power["n"] * ctx.x**2


class TorchIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = 1 / (1 + x**2)
        ctx.save_for_backward(slope)
        return torch.atan(x)

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Intermediate(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        slope = 1 / (1 + x**2)
        ctx.save_for_backward(slope)
        return jnp.arctan(x)

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class TorchRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Round(fnjax.Function):
    """The straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return jnp.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class TorchClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low=-0.5, high=0.5):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high) * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inside = (x >= ctx.low) & (x <= ctx.high)
        return torch.where(inside, 2 * x * g, x.clamp(ctx.low, ctx.high) * g), None, None


class Clamp(fnjax.Function):
    @staticmethod
    def forward(ctx, x, low=-0.5, high=0.5):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return jnp.clip(x, low, high) * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inside = (x >= ctx.low) & (x <= ctx.high)
        return jnp.where(inside, 2 * x * g, jnp.clip(x, ctx.low, ctx.high) * g), None, None


class TorchReverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x

    @staticmethod
    def backward(ctx, g):
        return -ctx.weight * g, None


class Reverse(fnjax.Function):
    """Gradient reversal: the input returned as it is."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x

    @staticmethod
    def backward(ctx, g):
        return -ctx.weight * g, None


PAIRS = (
    Pair("XSin", TorchXSin.apply, XSin.apply, (real(3, 4),)),
    Pair("Sigmoid", lambda x: TorchSigmoid.apply(x, 1.5), lambda x: Sigmoid.apply(x, 1.5), (real(5),)),
    Pair(
        "Sigmoid-by-name",
        lambda x: TorchSigmoid.apply(slope=2, x=x),
        lambda x: Sigmoid.apply(slope=2, x=x),
        (real(5),),
    ),
    Pair("Hundredfold", TorchHundredfold.apply, Hundredfold.apply, (real(3),)),
    Pair("Attribute", TorchAttribute.apply, Attribute.apply, (real(3),)),
    Pair("Intermediate", TorchIntermediate.apply, Intermediate.apply, (real(4),), order=1),
    Pair("Round", lambda x: TorchRound.apply(x) ** 2, lambda x: Round.apply(x) ** 2, (real(6),)),
    Pair("Clamp", TorchClamp.apply, Clamp.apply, (real(8),)),
    Pair("Clamp-one-default", lambda x: TorchClamp.apply(x, 0.1), lambda x: Clamp.apply(x, 0.1), (real(8),)),
    Pair("Reverse", lambda x: TorchReverse.apply(x, 0.3) ** 2, lambda x: Reverse.apply(x, 0.3) ** 2, (real(4),)),
)


@check_pairs(*PAIRS)
def test_parity(pair, mode):
    """Values and derivatives are PyTorch's."""
    compare(pair, mode)
