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


@pytest.mark.sampled(7)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_loaded_function_is_its_twin(scaled, transform, derivative):
    """Values and derivatives of a loaded Function with writes in place are those of plain JAX under each transform."""
    x, w = jnp.array([1.0, -0.5, 2.0]), jnp.float32(1.5)
    found, expected = (jax.jit(DERIVATIVES[derivative](TRANSFORMS[transform](f)))(x, w) for f in (scaled, twin))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_torch_func_is_jax():
    """torch.func's transformations of functions of tensors are JAX's, nested, with closures, and differentiated."""
    func = torch.func
    x, w = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 3.0, -2.0])

    def ours(x, w):
        def scalar(x):
            return (x.sin() * w * w).sum()

        def vector(x):
            return torch.stack([x.sum() ** 2, (x**3).sum()])

        with torch.no_grad():  # which does not reach into torch.func
            first = func.grad(scalar)(x)
        second = func.vmap(func.grad(lambda p, a: (p["w"] * a).tanh()), in_dims=({"w": 0}, 0))({"w": w}, x)["w"]
        out, pull = func.vjp(vector, x)
        return [
            first,
            second,
            *func.grad_and_value(scalar)(x),
            *func.grad(lambda x, w: ((x * w).sum(), x * 2), argnums=(0, 1), has_aux=True)(x, w)[0],
            out,
            pull(w[:2]),
            *func.jvp(vector, (x,), (w,)),
            func.jacrev(vector)(x),
            func.jacfwd(vector)(x),
            func.hessian(scalar)(x),
            torch.vmap(lambda a, b: a * b.sum(), in_dims=(0, None))(x, w),
        ]

    def twin(x, w):
        def scalar(x):
            return (jnp.sin(x) * w * w).sum()

        def vector(x):
            return jnp.stack([x.sum() ** 2, (x**3).sum()])

        out, pull = jax.vjp(vector, x)
        return [
            jax.lax.stop_gradient(jax.grad(scalar)(x)),
            jax.vmap(jax.grad(lambda p, a: jnp.tanh(p * a)))(w, x),
            jax.grad(scalar)(x),
            scalar(x),
            w,
            x,
            out,
            *pull(w[:2]),
            *jax.jvp(vector, (x,), (w,)),
            *[jax.jacrev(vector)(x)] * 2,
            jax.hessian(scalar)(x),
            x * w.sum(),
        ]

    def total(f):
        return lambda *args: sum((y * (i + 1)).sum() for i, y in enumerate(jax.tree.leaves(f(*args))))

    @jax.jit
    def run(x, w):
        wrapped = torch.jax_view(ours)
        return (wrapped(x, w), jax.grad(total(wrapped), (0, 1))(x, w)), (
            twin(x, w),
            jax.grad(total(twin), (0, 1))(x, w),
        )

    found, wanted = run(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, wanted)


def test_torch_func_says_what_it_cannot_do():
    """torch.autograd does not go through a closure in silence, and vmap draws nothing."""
    w = torch.ones(2).requires_grad_()
    y = torch.func.grad(lambda x: (x * w).sum())(torch.ones(2).requires_grad_())
    with pytest.raises(torch.NotSupported, match="closes over a tensor which requires grad"):
        y.sum().backward()
    with torch.seed(0), pytest.raises(torch.NotSupported, match=r"drawn within torch\.vmap"):
        torch.vmap(lambda x: x + torch.rand(1))(torch.ones(2))
