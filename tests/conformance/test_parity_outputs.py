"""Parity with PyTorch, second part: several outputs, marks, integers, several inputs, broadcasting."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.parity import Pair, check_pairs, compare, ints, positive, real

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("x64")]


class TorchCube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx, gy, gslope):
        x, slope = ctx.saved_tensors
        return gy * slope + gslope * 6 * x


class Cube(fnjax.Function):
    """An intermediate as an extra output."""

    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx, gy, gslope):
        x, slope = ctx.saved_tensors
        return gy * slope + gslope * 6 * x


class TorchPolar(torch.autograd.Function):
    @staticmethod
    def forward(x, y, scale=2.0):
        return scale * torch.hypot(x, y), torch.atan2(y, x), "polar", None

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx, gr, ga, *others):
        assert others == (None, None)
        x, y = ctx.saved_tensors
        r = torch.sqrt(x**2 + y**2)
        return ctx.scale * gr * x / r - ga * y / r**2, ctx.scale * gr * y / r + ga * x / r**2, None


class Polar(fnjax.Function):
    """Two arrays, a default, and outputs that are not arrays."""

    @staticmethod
    def forward(x, y, scale=2.0):
        return scale * jnp.hypot(x, y), jnp.arctan2(y, x), "polar", None

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx, gr, ga, *others):
        assert others == (None, None)
        x, y = ctx.saved_tensors
        r = jnp.sqrt(x**2 + y**2)
        return ctx.scale * gr * x / r - ga * y / r**2, ctx.scale * gr * y / r + ga * x / r**2, None


class TorchLazy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x**2, y.sum()

    @staticmethod
    def backward(ctx, gp, gx, gs):
        x, y = ctx.saved_tensors
        grad_x, grad_y = 0 * x, None
        if gp is not None:
            grad_x, grad_y = grad_x + gp * y, gp * x
        if gx is not None:
            grad_x = grad_x + 2 * gx * x
        if gs is not None:
            grad_y = gs.expand_as(y) if grad_y is None else grad_y + gs
        return grad_x, grad_y


class Lazy(fnjax.Function):
    """Without materialised gradients."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x**2, y.sum()

    @staticmethod
    def backward(ctx, gp, gx, gs):
        x, y = ctx.saved_tensors
        grad_x, grad_y = 0 * x, None
        if gp is not None:
            grad_x, grad_y = grad_x + gp * y, gp * x
        if gx is not None:
            grad_x = grad_x + 2 * gx * x
        if gs is not None:
            grad_y = jnp.broadcast_to(gs, y.shape) if grad_y is None else grad_y + gs
        return grad_x, grad_y


class TorchSort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, order = x.sort(dim=-1)
        inside = (y.abs() < 1).to(x.dtype)
        ctx.mark_non_differentiable(order, inside)
        ctx.save_for_backward(order)
        return y, order, inside

    @staticmethod
    def backward(ctx, gy, gorder, ginside):
        assert not gorder.any()
        assert not ginside.any()
        (order,) = ctx.saved_tensors
        return torch.zeros_like(gy).scatter(-1, order, gy)


class Sort(fnjax.Function):
    """An integer output, and one that is marked."""

    @staticmethod
    def forward(ctx, x):
        order = jnp.argsort(x, -1)
        y = jnp.take_along_axis(x, order, -1)
        inside = (jnp.abs(y) < 1).astype(x.dtype)
        ctx.mark_non_differentiable(order, inside)
        ctx.save_for_backward(order)
        return y, order, inside

    @staticmethod
    def backward(ctx, gy, gorder, ginside):
        assert (gorder.dtype, ginside.dtype) == (jnp.int64, gy.dtype)
        (order,) = ctx.saved_tensors
        return jnp.put_along_axis(jnp.zeros_like(gy), order, gy, -1, inplace=False)


class TorchEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.rows, g.shape[-1])
        return grad.index_add(0, index, g), None


class Embedding(fnjax.Function):
    """An integer input."""

    @staticmethod
    def forward(ctx, table, index):
        assert tuple(ctx.needs_input_grad) in {(True, False), (False, False)}
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return jnp.zeros((ctx.rows, g.shape[-1]), g.dtype).at[index].add(g), None


class TorchMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Mul(fnjax.Function):
    """Broadcasting; each gradient is summed to its input's shape."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class TorchPow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        y = a**b
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, b, y = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (g * b * a ** (b - 1)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = (g * y * a.log()).sum_to_size(b.shape)
        return grad_a, grad_b


def sum_to_size(x, shape):
    """Tensor.sum_to_size, typed for JAX."""
    return jax.linear_transpose(lambda y: jnp.broadcast_to(y, x.shape), jax.ShapeDtypeStruct(shape, x.dtype))(x)[0]


class Pow(fnjax.Function):
    """Input and output saved, only the gradients that are needed, summed by hand."""

    @staticmethod
    def forward(ctx, a, b):
        y = a**b
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, b, y = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = sum_to_size(g * b * a ** (b - 1), a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = sum_to_size(g * y * jnp.log(a), b.shape)
        return grad_a, grad_b


two_matrices = (real(2, 3), real(2, 3))
PAIRS = (
    Pair("Cube", TorchCube.apply, Cube.apply, (real(3),), order=3),
    Pair("Cube-first", TorchCube.apply, Cube.apply, (real(3),), order=3, use=(0,)),
    Pair("Cube-second", TorchCube.apply, Cube.apply, (real(3),), use=(1,)),
    Pair("Polar", TorchPolar.apply, Polar.apply, (positive(4), positive(4))),
    Pair(
        "Polar-by-name",
        lambda x, y: TorchPolar.apply(scale=0.5, y=y, x=x),
        lambda x, y: Polar.apply(scale=0.5, y=y, x=x),
        (positive(4), positive(4)),
    ),
    Pair("Lazy", TorchLazy.apply, Lazy.apply, two_matrices),
    Pair("Lazy-first", TorchLazy.apply, Lazy.apply, two_matrices, use=(0,)),
    Pair("Lazy-second", TorchLazy.apply, Lazy.apply, two_matrices, use=(1,)),
    Pair("Lazy-third", TorchLazy.apply, Lazy.apply, two_matrices, use=(2,)),
    Pair("Sort", TorchSort.apply, Sort.apply, (real(2, 5),)),
    Pair("Embedding", TorchEmbedding.apply, Embedding.apply, (real(4, 3), ints(6, below=4))),
    Pair("Mul", TorchMul.apply, Mul.apply, (real(2, 3), real(2, 3))),
    Pair("Mul-broadcast", TorchMul.apply, Mul.apply, (real(4, 1, 3), real(2, 1))),
    Pair("Mul-scalar", TorchMul.apply, Mul.apply, (real(), real(2, 3))),
    Pair("Mul-of-itself", lambda x: TorchMul.apply(x, x), lambda x: Mul.apply(x, x), (real(3),)),
    Pair("Mul-empty", TorchMul.apply, Mul.apply, (real(0, 3), real(3))),
    Pair(
        "Mul-of-Mul",
        lambda a, b: TorchMul.apply(TorchMul.apply(a, b), a),
        lambda a, b: Mul.apply(Mul.apply(a, b), a),
        (real(3), real(2, 3)),
    ),
    Pair("Pow", TorchPow.apply, Pow.apply, (positive(2, 3), positive(3))),
    Pair(
        "Pow-constant",
        lambda a: TorchPow.apply(a, torch.tensor([2.0, 3.0], dtype=torch.float64)),
        lambda a: Pow.apply(a, jnp.array([2.0, 3.0])),
        (positive(4, 1),),
    ),
)


@check_pairs(*PAIRS)
def test_parity(pair, mode):
    """Values and derivatives are PyTorch's."""
    compare(pair, mode)
