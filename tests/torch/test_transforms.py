"""A loaded Function under JAX's transforms: the rows of docs/support.md."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import torch

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = x.clone()
        y[1:].mul_(w)
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        grad = grad_output.clone()
        grad[1:] *= w
        return grad, (grad_output * x)[1:].sum()
"""


def twin(x, w):
    return jnp.concatenate([x[:1], x[1:] * w])


def scan(f):
    return lambda x, w: jax.lax.scan(lambda c, _: (f(c, w), None), x, length=2)[0]


TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, -x]), w),
    "scan": scan,
    "cond": lambda f: lambda x, w: jax.lax.cond(x.sum() > 0, f, lambda x, w: x, x, w),
    "remat": jax.checkpoint,
}
DERIVATIVES = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(lambda x, w: (f(x, w) ** 3).sum(), (0, 1)),
    "grad of grad": lambda f: jax.grad(lambda x, w: (jax.grad(lambda v: (f(v, w) ** 3).sum())(x) ** 2).sum(), (0, 1)),
    "jvp of grad": lambda f: lambda x, w: jax.jvp(jax.grad(lambda v: (f(v, w) ** 3).sum()), (x,), (x,)),
}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "scaled.py"
    path.write_text(SOURCE)
    return torch.load(path).Scaled.apply


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_loaded_function_is_its_twin(scaled, transform, derivative):
    """Values and derivatives of a loaded Function with writes in place are those of plain JAX under each transform."""
    x, w = jnp.array([1.0, -0.5, 2.0]), jnp.float32(1.5)
    found, expected = (jax.jit(DERIVATIVES[derivative](TRANSFORMS[transform](f)))(x, w) for f in (scaled, twin))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
