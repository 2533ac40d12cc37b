"""Parity with PyTorch: Functions in Functions, derivatives inside backward, NumPy inside forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.parity import Pair, check_pairs, compare, positive, real

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("x64")]


class TorchSin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * TorchCos.apply(*ctx.saved_tensors)


class TorchCos(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, g):
        return -g * TorchSin.apply(*ctx.saved_tensors)


class Sin(fnjax.Function):
    """A Function in the backward of a Function, to any order."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g * Cos.apply(*ctx.saved_tensors)


class Cos(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.cos(x)

    @staticmethod
    def backward(ctx, g):
        return -g * Sin.apply(*ctx.saved_tensors)


class TorchOuter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = TorchSin.apply(x) * TorchCos.apply(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return 3 * g * x * y


class Outer(fnjax.Function):
    """Functions in forward, whose own rules play no part."""

    @staticmethod
    def forward(ctx, x):
        y = Sin.apply(x) * Cos.apply(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return 3 * g * x * y


class TorchOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Once(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class TorchRecompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.view_as(x) if torch.is_grad_enabled() and x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(x.sin() * x, x, g, create_graph=True)


class Recompute(fnjax.Function):
    """The gradient of forward, recomputed in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x) * x

    @staticmethod
    def backward(ctx, g):
        return jax.vjp(lambda x: jnp.sin(x) * x, *ctx.saved_tensors)[1](g)


class TorchNumPyLog(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.log(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


class NumPyLog(fnjax.Function):
    """NumPy in forward, which neither side can differentiate."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jax.pure_callback(np.log, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


PAIRS = (
    Pair("Sin", TorchSin.apply, Sin.apply, (real(4),), order=4),
    Pair("Outer", TorchOuter.apply, Outer.apply, (real(4),)),
    Pair("Once", TorchOnce.apply, Once.apply, (real(4),), order=1),
    Pair("Recompute", TorchRecompute.apply, Recompute.apply, (real(4),)),
    Pair("NumPyLog", TorchNumPyLog.apply, NumPyLog.apply, (positive(4),)),
)


@check_pairs(*PAIRS)
def test_parity(pair, mode):
    """Values and derivatives are PyTorch's."""
    compare(pair, mode)


class SlightlyWrong(Sin):
    @staticmethod
    def backward(ctx, g):
        return Sin.backward(ctx, g) * (1 + 1e-8)


class WrongSecond(Sin):
    """The right slope, but cut from its input: wrong at second order only."""

    @staticmethod
    def backward(ctx, g):
        return g * jax.lax.stop_gradient(jnp.cos(*ctx.saved_tensors))


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (Pair("value", lambda x: x + 1e-8, lambda x: x, (real(3),)), "output 0"),
        (Pair("dtype", lambda x: x.float(), lambda x: x, (real(3),)), "output 0"),
        (Pair("slope", TorchSin.apply, SlightlyWrong.apply, (real(3),)), "derivative of order 1, number 0"),
        (Pair("second", TorchSin.apply, WrongSecond.apply, (real(3),)), "derivative of order 2, number 0"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_comparison_rejects(wrong, where):
    """The comparison finds slightly wrong values, dtypes, first and second derivatives, and says which."""
    with pytest.raises(AssertionError, match=where):
        compare(wrong, "eager")
