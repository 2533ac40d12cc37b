"""torch.autocast: the dtypes in which PyTorch 2.13 computes, for CPUs and for CUDA, and Functions in such blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

F = torch.nn.functional
X, W, B = (jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32) for i, s in enumerate([(3, 4), (4, 4), 4]))
with torch.seed(0):
    GRU = torch.nn.GRUCell(4, 2)
LABELS = torch.tensor([0, 1, 2])
# By device the dtype of a float32 tensor's result, and that of a bfloat16 tensor's; None is NotSupported.
OPERATIONS = {
    "matmul": (lambda x: x @ x.t(), "bfloat16 bfloat16", "bfloat16 bfloat16"),
    "linear": (lambda x: F.linear(x, torch.ones(2, 4), torch.ones(2)), "bfloat16 bfloat16", "bfloat16 bfloat16"),
    "conv1d": (lambda x: F.conv1d(x[None], torch.ones(2, 3, 1)), "bfloat16 bfloat16", "bfloat16 bfloat16"),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), "bfloat16 bfloat16", "bfloat16 bfloat16"),
    "attention": (lambda x: F.scaled_dot_product_attention(*[x[None]] * 3), "bfloat16 bfloat16", "bfloat16 bfloat16"),
    "mv": (lambda x: torch.mv(x, x[0]), "float32 bfloat16", "bfloat16 bfloat16"),
    "dot": (lambda x: torch.inner(x[0], x[0]), "float32 bfloat16", "float32 bfloat16"),
    "exp": (lambda x: x.exp(), "float32 bfloat16", "float32 float32"),
    "pow": (lambda x: 2**x, "float32 bfloat16", "float32 float32"),
    "reciprocal": (lambda x: 1 / x, "float32 bfloat16", "float32 float32"),
    "division": (lambda x: x / 2, "float32 bfloat16", "float32 bfloat16"),
    "softmax": (lambda x: F.softmax(x, -1), "float32 bfloat16", "float32 float32"),
    "sum": (lambda x: x.sum(), "float32 bfloat16", "float32 float32"),
    "sum of a dtype": (lambda x: x.sum(dtype=torch.float16), "float16 float16", "float16 float16"),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), "float32 bfloat16", "float32 float32"),
    "prod": (lambda x: x.prod(), "float32 float32", "float32 float32"),
    "cross_entropy": (lambda x: F.cross_entropy(x, LABELS), "float32 float32", "float32 float32"),
    "mse_loss": (lambda x: torch.nn.MSELoss()(x, x), "float32 float32", "float32 float32"),
    "relu": (torch.relu, "float32 bfloat16", "float32 bfloat16"),
    "mean": (lambda x: x.mean(), "float32 bfloat16", "float32 bfloat16"),
    "addcmul": (lambda x: torch.addcmul(x, x, x), "float32 bfloat16", "float32 bfloat16"),
    "in place": (lambda x: x.clone().exp_(), "float32 bfloat16", "float32 bfloat16"),
    "float64": (lambda x: x.double().exp() if x.dtype is torch.float32 else x, "float64 bfloat16", "float64 bfloat16"),
    "gru_cell": (GRU, None, "bfloat16 bfloat16"),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dtypes(name, device):
    """Operations of PyTorch's lists are cast, all others compute in what they get."""
    f, *expected = OPERATIONS[name]
    expected = expected[device == "cuda"]
    found = []

    def run(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            found.extend(f(x.to(own)).dtype.name for own in (torch.float32, torch.bfloat16))

    if expected is None:
        with pytest.raises(torch.NotSupported, match="enabled=False"):
            jax.eval_shape(torch.jax_view(run), X)
    else:
        jax.eval_shape(torch.jax_view(run), X)
        assert " ".join(found) == expected


def test_blocks():
    """The innermost block decides; a decorator, the dtypes and the questions are PyTorch's."""
    x = torch.torch_view(X)
    assert (torch.get_autocast_dtype("cuda"), torch.get_autocast_dtype("cpu")) == (torch.float16, torch.bfloat16)
    with torch.cuda.amp.autocast(), torch.autocast("cuda", enabled=False):
        assert (x @ x.t()).dtype is torch.float32
    with torch.autocast("cpu"), torch.amp.autocast("cuda", torch.float16):
        assert (x @ x.t()).dtype is torch.float16
        assert torch.is_autocast_enabled("cpu") is torch.is_autocast_enabled() is True
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
    decorated = torch.autocast("cuda", dtype=torch.bfloat16)(lambda x: x @ x.t())
    assert decorated(x).dtype is torch.bfloat16
    with torch.autocast("cuda", dtype=torch.float32):  # switched off, as in PyTorch
        assert (x.half() * 1).exp().dtype is torch.float16
    with pytest.raises(torch.NotSupported, match="xla"):
        torch.autocast("xla")
    matmul = jax.jit(torch.jax_view(lambda x, w: x @ w))
    with torch.autocast("cuda"):
        assert matmul(X, W).dtype == jnp.float16
    assert matmul(X, W).dtype == jnp.float32


class Cast(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert not torch.is_autocast_enabled()
        return 2 * g * x


class Product(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def test_functions():
    """custom_fwd casts within a block only; backward runs in the block of forward, whenever JAX runs either of them."""
    assert Cast.apply(torch.torch_view(X)).dtype is torch.float32

    def f(x, w):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            square, product = Cast.apply(x), Product.apply(x, w)
            assert square.dtype is torch.float16
            assert product.dtype is torch.bfloat16
        return square.float().sum() + product.float().sum()

    leaves = [torch.tensor(np.asarray(v), requires_grad=True) for v in (X, W)]
    with torch.autocast("cpu"):  # what is computed again for gradients is computed in its own block
        recorded = torch.autograd.grad(f(*leaves), leaves)
    half, ones = X.astype(jnp.float16).astype(jnp.float32), jnp.ones((3, 4))
    narrow = [v.astype(jnp.bfloat16).astype(jnp.float32) for v in (X, W)]
    expected = 2 * half + (ones @ narrow[1].T), narrow[0].T @ ones
    g = torch.jax_view(f)
    for found in (jax.grad(g, (0, 1))(X, W), jax.jit(jax.grad(jax.jit(g), (0, 1)))(X, W), recorded):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-2, atol=2e-2)
