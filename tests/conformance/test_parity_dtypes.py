"""Parity with PyTorch, fourth part: complex numbers and mixed dtypes."""

import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.parity import Pair, check_pairs, compare, cplx, real

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("x64")]


class TorchSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * (2 * z).conj()


class Square(fnjax.Function):
    """Holomorphic, with its input saved."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * (2 * z).conj()


class TorchExp(torch.autograd.Function):
    @staticmethod
    def forward(z):
        return z.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.conj()


class Exp(fnjax.Function):
    """Holomorphic, with its output saved."""

    @staticmethod
    def forward(z):
        return jnp.exp(z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.conj()


class TorchConj(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.conj().resolve_conj() * z**2

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g.conj() * z**2 + g * (2 * z * z.conj()).conj()


class Conj(fnjax.Function):
    """Not holomorphic."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.conj() * z**2

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g.conj() * z**2 + g * (2 * z * z.conj()).conj()


class TorchAbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        r = z.abs()
        ctx.save_for_backward(z, r)
        return r

    @staticmethod
    def backward(ctx, g):
        z, r = ctx.saved_tensors
        return g * z / r


class Abs(fnjax.Function):
    """Complex to real."""

    @staticmethod
    def forward(ctx, z):
        r = jnp.abs(z)
        ctx.save_for_backward(z, r)
        return r

    @staticmethod
    def backward(ctx, g):
        z, r = ctx.saved_tensors
        return g * z / r


class TorchRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        y = torch.exp(1j * t)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g * (1j * y).conj()).real


class Rotate(fnjax.Function):
    """Real to complex."""

    @staticmethod
    def forward(ctx, t):
        y = jnp.exp(1j * t)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g * (1j * y).conj()).real


class TorchScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, z):
        ctx.save_for_backward(t, z)
        return t * z, z.real * t

    @staticmethod
    def backward(ctx, g, h):
        t, z = ctx.saved_tensors
        return (g * z.conj()).real + h * z.real, g * t + h * t


class Scale(fnjax.Function):
    """Real and complex inputs and outputs; the gradient of z is partly real."""

    @staticmethod
    def forward(ctx, t, z):
        ctx.save_for_backward(t, z)
        return t * z, z.real * t

    @staticmethod
    def backward(ctx, g, h):
        t, z = ctx.saved_tensors
        return (g * z.conj()).real + h * z.real, g * t + h * t


class TorchMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.conj(), g * a.conj()


class Mul(fnjax.Function):
    """For all dtypes: what comes back is cast to the dtype of its input."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.conj(), g * a.conj()


class TorchWiden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.double() ** 2, x.float()

    @staticmethod
    def backward(ctx, g, h):
        assert (g.dtype, h.dtype) == (torch.float64, torch.float32)
        (x,) = ctx.saved_tensors
        return 2 * g * x + h


class Widen(fnjax.Function):
    """Outputs wider than the input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.astype(jnp.float64) ** 2, x.astype(jnp.float32)

    @staticmethod
    def backward(ctx, g, h):
        assert (g.dtype, h.dtype) == (jnp.float64, jnp.float32)
        (x,) = ctx.saved_tensors
        return 2 * g * x + h


class TorchInteger(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.arange(3)


class Integer(fnjax.Function):
    """An integer gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return jnp.arange(3)


f32 = lambda *shape: real(*shape, dtype="float32")
PAIRS = (
    Pair("Square", TorchSquare.apply, Square.apply, (cplx(3),)),
    Pair("Exp", TorchExp.apply, Exp.apply, (cplx(3),)),
    Pair("Conj", TorchConj.apply, Conj.apply, (cplx(3),)),
    Pair("Abs", TorchAbs.apply, Abs.apply, (cplx(3),)),
    Pair("Rotate", TorchRotate.apply, Rotate.apply, (real(3),)),
    Pair("Scale", TorchScale.apply, Scale.apply, (real(3), cplx(3))),
    Pair("Mul", TorchMul.apply, Mul.apply, (cplx(2, 3), cplx(3))),
    Pair(
        "chain",
        lambda t: TorchAbs.apply(TorchMul.apply(TorchRotate.apply(t), TorchExp.apply(t * (1 + 2j))) + 1),
        lambda t: Abs.apply(Mul.apply(Rotate.apply(t), Exp.apply(t * (1 + 2j))) + 1),
        (real(3),),
    ),
    Pair("Mul-float32", TorchMul.apply, Mul.apply, (f32(3), f32(2, 3))),
    Pair("Mul-float32-float64", TorchMul.apply, Mul.apply, (f32(3), real(3))),
    Pair("Mul-float16", TorchMul.apply, Mul.apply, (real(3, dtype="float16"), real(3, dtype="float16"))),
    Pair("Widen", TorchWiden.apply, Widen.apply, (f32(4),)),
    Pair("Widen-float16", TorchWiden.apply, Widen.apply, (real(4, dtype="float16"),), order=1),
    Pair("Integer", TorchInteger.apply, Integer.apply, (real(3),)),
)


@check_pairs(*PAIRS)
def test_parity(pair, mode):
    """Values and derivatives are PyTorch's."""
    compare(pair, mode)
