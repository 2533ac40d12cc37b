"""torch.library in source that is loaded: operators on tensors and on arrays, derivatives, and what they mutate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax import torch

SOURCE = """
from __future__ import annotations

from typing import List, Optional, Tuple

import numpy
import torch
import triton
import triton.language as tl
from torch import Tensor


@torch.library.custom_op("loaded::scale", mutates_args=())
def scale(x: Tensor, factor: float = 2.0, bias: Optional[Tensor] = None) -> Tensor:
    y = x.clone().mul_(factor)
    return y if bias is None else y + bias


def setup(ctx, inputs, output):
    x, factor, bias = inputs
    ctx.factor, ctx.has_bias = factor, bias is not None


def backward(ctx, grad):
    return grad * ctx.factor, None, grad.sum(0) if ctx.has_bias else None


scale.register_autograd(backward, setup_context=setup)


@torch.library.custom_op("loaded::from_numpy", mutates_args=())
def from_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy.sin(x.numpy()))


@torch.library.register_fake("loaded::from_numpy")
def _(x):
    return torch.empty_like(x)


torch.library.register_autograd(
    "loaded::from_numpy",
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("loaded::add_twice", mutates_args=("total", "parts"))
def add_twice(x: torch.Tensor, total: torch.Tensor, parts: List[torch.Tensor]) -> Tuple[torch.Tensor, torch.Tensor]:
    total += 2 * x
    parts[1].fill_(x.sum().item()) if x.numel() == 1 else parts[1].copy_(x)
    return x.sum(), x.amax()


@torch.library.custom_op("loaded::reset", mutates_args={"x"})
def reset(x: Tensor, dtype: torch.dtype = torch.float32) -> None:
    x.zero_()


@torch.library.custom_op("loaded::count", mutates_args=())
def count(x: Tensor, index: Tensor, more: List[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    assert (x.dtype, index.dtype, more[1].dtype) == (torch.float32, torch.int32, torch.float64)
    return (x > 0).sum(0).int(), 2 * more[1], index.sum()


@count.register_fake
def _(x, index, more):
    assert (index.dtype, more[1].dtype) == (torch.int32, torch.float64)
    return index.new_empty(x.shape[1:]), torch.empty_like(more[1]), index.new_empty((), dtype=torch.int64)


def check_dtypes(ctx, inputs, output):
    assert [t.dtype for t in (inputs[1], inputs[2][1], *output)] == [
        torch.int32, torch.float64, torch.int32, torch.float64, torch.int64,
    ]


count.register_autograd(lambda ctx, *grads: (2 * grads[1].float(), None, [None, None]), setup_context=check_dtypes)


def counted(x):
    index = torch.arange(3, dtype=torch.int32)
    found = count(x, index, more=[x, x.double()])
    dtypes = [t.dtype for t in (*found, found[0] + index, found[1] * x)]
    assert dtypes == [torch.int32, torch.float64, torch.int64, torch.int32, torch.float64]
    return found[1].float()


@torch.library.custom_op("loaded::wrong_fake", mutates_args=())
def wrong_fake(x: Tensor) -> Tensor:
    return x.sum(0)


@wrong_fake.register_fake
def _(x):
    return x.new_empty(unknown_size, *x.shape)


@torch.library.custom_op("loaded::on_cuda", mutates_args=(), device_types=["cuda", "xpu"])
def on_cuda(x: Tensor) -> Tensor:
    return 3 * x


library = torch.library.Library("loaded", "FRAGMENT")
library.define("cube(Tensor x) -> Tensor")
library.impl("cube", lambda x: x**3, "CUDA")
library.impl("cube", lambda x: 0 * x, "MPS")
library.define("square(Tensor x) -> Tensor")
library.impl("square", lambda x: x * x, "CompositeImplicitAutograd")
torch.library.define("loaded::halve", "(Tensor x) -> Tensor")


@torch.library.impl("loaded::halve", ("cpu", "cuda"))
def halve(x):
    return x / 2


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


@torch.library.triton_op("loaded::launch", mutates_args={})
def launch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(double)[(1,)](x, out, x.numel(), BLOCK=8)
    return out


def update(x):
    total, parts = torch.zeros_like(x), [torch.zeros_like(x), torch.zeros_like(x)]
    total_sum, most = torch.ops.loaded.add_twice(x, total[:], parts)
    return total, *parts, total_sum, most
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "operators.py"
    path.write_text(SOURCE)
    return torch.load(path)


X = jnp.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_operators_are_on_tensors_and_on_arrays(loaded):
    """An operator of the file takes tensors as torch.ops has it, and arrays as fnjax.ops has it."""
    assert loaded.scale is torch.ops.loaded.scale.default
    np.testing.assert_array_equal(torch.ops.loaded.scale(torch.torch_view(X)).array, 2 * X)
    np.testing.assert_array_equal(fnjax.ops.loaded.scale(X, 3.0), 3 * X)
    np.testing.assert_array_equal(loaded.scale(X, bias=X[0]), 2 * X + X[0])
    assert fnjax.ops.loaded.scale.schema == "(Tensor x, float factor=2.0, Tensor? bias=None) -> Tensor"
    assert loaded.reset.on_arrays.schema == "(Tensor(a0!) x, ScalarType dtype=float32) -> ()"


@pytest.mark.parametrize("on", ["tensors", "arrays"])
def test_derivatives(loaded, on):
    """register_autograd gives the derivative, of any order, on tensors and on arrays, eager and under jit."""
    call = (
        torch.jax_view(lambda x, b: loaded.scale(x, 3.0, b))
        if on == "tensors"
        else lambda x, b: loaded.scale(x, 3.0, b)
    )
    grads = jax.jit(jax.grad(lambda x, b: (call(x, b) ** 2).sum(), (0, 1)))(X, X[0])
    expected = jax.grad(lambda x, b: ((3 * x + b) ** 2).sum(), (0, 1))(X, X[0])
    np.testing.assert_allclose(grads[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(grads[1], expected[1], rtol=1e-6)
    square = torch.jax_view(torch.ops.loaded.square) if on == "tensors" else fnjax.ops.loaded.square
    np.testing.assert_allclose(jax.grad(lambda x: square(x).sum())(X), 2 * X)


def test_the_tensors_graph_goes_through_operators(loaded):
    """torch.autograd differentiates an operator by what was registered."""
    x = torch.torch_view(X).detach().requires_grad_()
    torch.ops.loaded.from_numpy(x).sum().backward()
    np.testing.assert_allclose(x.grad.array, jnp.cos(X), rtol=1e-6)


def test_bodies_that_need_values(loaded):
    """A body of NumPy is a callback under jit, of the shapes that register_fake gives, and has its derivative."""
    f = torch.jax_view(torch.ops.loaded.from_numpy)
    np.testing.assert_allclose(jax.jit(f)(X), jnp.sin(X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(X), jnp.cos(X), rtol=1e-6)


def test_bodies_and_results_have_the_caller_s_dtypes(loaded):
    """Operators keep torch's dtypes, which without 64 bits the arrays do not show."""
    f, x = torch.jax_view(loaded.counted), X.astype("float32")
    np.testing.assert_array_equal(f(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: f(x).sum()))(x), jnp.full_like(x, 2))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_operators_mutate(loaded, wrap):
    """Mutations by an operator reach the tensors, through views and in lists; on arrays they are returned."""
    total, first, second, summed, most = wrap(torch.jax_view(loaded.update))(X)
    np.testing.assert_array_equal(total, 2 * X)
    np.testing.assert_array_equal(first, 0 * X)
    np.testing.assert_array_equal(second, X)
    np.testing.assert_allclose((summed, most), (X.sum(), X.max()), rtol=1e-6)
    np.testing.assert_array_equal(wrap(fnjax.ops.loaded.reset)(X), 0 * X)
    x = torch.torch_view(X)
    assert loaded.reset(x) is None
    np.testing.assert_array_equal(x.array, 0 * X)


def test_bodies_for_platforms_and_kernels(loaded):
    """torch.library.impl gives the body of a platform, triton_op one that launches kernels."""
    np.testing.assert_array_equal(jax.jit(torch.jax_view(torch.ops.loaded.halve))(X), X / 2)
    np.testing.assert_array_equal(jax.jit(torch.jax_view(loaded.launch))(X), 2 * X)


def test_bodies_for_cuda_run_where_there_is_no_other(loaded):
    """A body for CUDA runs on all platforms, since the device answers as a GPU, but for those with their own."""
    np.testing.assert_array_equal(jax.jit(torch.jax_view(loaded.on_cuda))(X), 3 * X)
    np.testing.assert_allclose(jax.jit(fnjax.ops.loaded.cube)(X), X**3, rtol=1e-6)
    loaded.on_cuda.register_kernel("cpu")(lambda x: 5 * x)
    np.testing.assert_array_equal(fnjax.ops.loaded.on_cuda(X), (5 if jax.default_backend() == "cpu" else 3) * X)


def test_fakes_are_not_called_where_the_body_can_be_traced(loaded):
    """A fake that raises, or is wrong, changes nothing, as in PyTorch outside of torch.compile."""
    np.testing.assert_allclose(jax.jit(fnjax.ops.loaded.wrong_fake)(X), X.sum(0), rtol=1e-6)


def test_operators_that_are_not_there(loaded):
    """An operator that nobody defined is refused by name, so that hasattr says no."""
    assert not hasattr(torch.ops.loaded, "nothing")
    with pytest.raises(torch.NotSupported, match="loaded::nothing is not defined"):
        torch.ops.loaded.nothing(X)
    np.testing.assert_array_equal(torch.ops.aten.add.Tensor(torch.torch_view(X), 1).array, X + 1)


def test_a_body_that_is_not_implemented_gives_way():
    """A platform's body that raises NotImplementedError gives way to that for CUDA; NotSupported does not."""

    @torch.library.custom_op("loaded::gives_way", mutates_args=(), device_types="cuda")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @square.register_kernel("cpu")
    def on_cpu(x):
        if x.ndim == 1:
            raise NotImplementedError("no kernel for CPUs")
        raise torch.NotSupported("matrices", "pass a vector")

    f = torch.jax_view(square)
    for g in (f, jax.jit(f)):
        np.testing.assert_array_equal(g(jnp.full(2, 3.0)), [9, 9])
        with pytest.raises(torch.NotSupported, match="pass a vector"):
            g(jnp.ones((2, 2)))
