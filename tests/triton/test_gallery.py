"""The Functions of the gallery of kernels beside jax.numpy: values, gradients, and fnjax.gradcheck."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

FOLDER = Path(__file__).parents[2] / "examples" / "triton"


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


Q, K, V = (numbers(2, 50, 16, seed=seed) for seed in range(3))
TARGET = jnp.array([1, 2, -100, 4, 29, 0])
CASES = {  # class, arrays, what else apply gets, which arrays have gradients
    "rms_norm": ("RMSNorm", (numbers(10, 24), numbers(24)), (), 2),
    "swiglu": ("SwiGLU", (numbers(5, 20), numbers(5, 20, seed=1)), (), 2),
    "cross_entropy": ("CrossEntropy", (numbers(6, 30), TARGET), (), 1),
    "flash_attention": ("FlashAttention", (Q, K, V), (True,), 3),
    "flash_attention of all keys": ("FlashAttention", (Q, K, V), (False,), 3),
}


def load(name):
    path = FOLDER / f"{name.split()[0]}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    """Output and gradients are those of jax.numpy, under jit, with a cotangent that differs everywhere."""
    cls, arrays, more, n = CASES[name]
    module = load(name)
    cotangent = numbers(*jax.eval_shape(module.plain, *arrays).shape, seed=5)

    def found(f):
        return jax.jit(lambda *xs: (f(*xs, *more), jax.vjp(lambda *a: f(*a, *xs[n:], *more), *xs[:n])[1](cotangent)))

    got, wanted = (found(f)(*arrays) for f in (getattr(module, cls).apply, module.plain))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(jnp.abs(b).max())), got, wanted
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input #:UserWarning")  # kernels compute with 32 bits
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name, monkeypatch):
    """The backward kernels are the derivatives of the forward kernels; gradients that are 5 % too large are not."""
    cls, arrays, more, n = CASES[name]
    function = getattr(load(name), cls)
    small = [a[:, :9] if a.ndim == 3 else a for a in arrays]

    def check():
        call = lambda *xs: function.apply(*xs, *small[n:], *more)
        how = {"eps": 1e-2, "atol": 2e-3, "rtol": 1e-2, "raise_exception": False}
        return fnjax.gradcheck(call, tuple(small[:n]), **how)

    assert check()
    right = function.backward
    grow = lambda ctx, *grads: jax.tree.map(lambda g: 1.05 * g, right(ctx, *grads))
    monkeypatch.setattr(function, "backward", staticmethod(grow))
    assert not check()
