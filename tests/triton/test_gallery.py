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


@pytest.mark.sampled(3)
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


def small_case(name):
    """The Function, and arguments for `apply` of which finite differences have few to take."""
    cls, arrays, more, n = CASES[name]
    small = [a[:, :9] if a.ndim == 3 else a for a in arrays]
    return getattr(load(name), cls), (*small, *more), n


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_derivative_of_forward(name, monkeypatch):
    """The backward kernels beside JAX's derivative of the forward kernels; one wrong entry is found."""
    function, args, _ = small_case(name)
    check = lambda: fnjax.opcheck(function.apply, args, test_utils="test_against_forward", raise_exception=False)
    assert not check().failures
    right = function.backward

    def slightly_wrong(ctx, *grads):
        first, *others = right(ctx, *grads)
        return first.at[(0,) * first.ndim].add(0.05), *others

    monkeypatch.setattr(function, "backward", staticmethod(slightly_wrong))
    assert "1 of " in str(check()["test_against_forward"])


@pytest.mark.slow
def test_opcheck_of_a_triton_function(monkeypatch):
    """Every test of opcheck, without a GPU: of a Function whose kernels compute in the dtype that they are given."""
    module = load("wrong_backward")
    args = np.random.default_rng(0).normal(size=(3, 20)), np.random.default_rng(1).normal(size=20)
    failed = fnjax.opcheck(module.Scale.apply, args, test_utils="test_gradcheck", raise_exception=False).failures
    assert "input 1 ('w')" in str(failed["test_gradcheck"])
    monkeypatch.setattr(module, "sum_kernel", Everywhere(module.sum_kernel))
    results = fnjax.opcheck(module.Scale.apply, args, raise_exception=False)
    assert not results.failures
    assert not fnjax.opcheck(module.Scale.apply, args, test_utils="test_against_forward").failures


class Everywhere:
    """A kernel that is launched for all blocks, whatever grid is asked for."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.kernel[(grid[0] + 1,)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input #:UserWarning")  # kernels compute with 32 bits
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name, monkeypatch):
    """The backward kernels are the derivatives of the forward kernels; gradients that are 5 % too large are not."""
    function, args, n = small_case(name)

    def check():
        call = lambda *xs: function.apply(*xs, *args[n:])
        how = {"eps": 1e-2, "atol": 2e-3, "rtol": 1e-2, "raise_exception": False}
        return fnjax.gradcheck(call, args[:n], **how)

    assert check()
    right = function.backward
    grow = lambda ctx, *grads: jax.tree.map(lambda g: 1.05 * g, right(ctx, *grads))
    monkeypatch.setattr(function, "backward", staticmethod(grow))
    assert not check()
