"""Blocks of PyTorch source in modules of JAX source."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch

MODULE = """\
import fnjax
import fnjax.torch as torch
import jax.numpy as jnp

SCALE = 3.0


class Cube(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * SCALE * x**2


if torch.execute_block(globals()):
    import missing_package
    import torch
    from missing_package import missing

    SCALE = 2.0
    TABLE = missing_package.table()

    class Clamped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.sum() > 0:
                return x * SCALE
            return x * 0

        @staticmethod
        def backward(ctx, g):
            return g * SCALE

    def both(x):
        y = Cube.apply(x)
        y.add_(Clamped.apply(x))
        return y

    def slope(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(Cube.apply(x).sum(), x)[0]

    def broken(x):
        return missing(x)
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "with_block.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("with_block", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert "missing_package" not in sys.modules
    return made


def test_both_halves(module):
    """A block has names of its own, conversion of control flow, and the module's Function on tensors."""
    x = jnp.array([1.0, -2.0, 3.0], jnp.float32)
    assert module.SCALE == 3.0
    for compiled in (lambda f: f, jax.jit):
        np.testing.assert_allclose(compiled(module.Clamped.apply)(x), 2 * x)
        np.testing.assert_allclose(compiled(fnjax.torch.jax_view(module.both))(x), x**3 + 2 * x)
        gradient = jax.grad(lambda x: fnjax.torch.jax_view(module.both)(x).sum())
        np.testing.assert_allclose(compiled(gradient)(x), 3 * x**2 + 2, rtol=1e-6)


def test_autograd_records_a_function_of_the_module(module):
    """torch.autograd.grad in the block differentiates the class that is JAX source, by its backward."""
    x = jnp.array([1.0, -2.0], jnp.float32)
    np.testing.assert_allclose(fnjax.torch.jax_view(module.slope)(x), 3 * x**2, rtol=1e-6)


def test_what_is_missing_raises_when_it_is_used(module):
    """A statement that fails does not keep the module from being imported."""
    with pytest.raises(fnjax.torch.NotSupported, match="missing_package"):
        module.broken(fnjax.torch.ones(2))
    with pytest.raises(fnjax.torch.NotSupported, match="missing_package"):
        module.TABLE + 1


def test_source_is_needed():
    """A module that was executed from a text has no block to read."""
    with pytest.raises(RuntimeError, match="needs the source of made"):
        exec("import fnjax.torch as torch\nif torch.execute_block(globals()):\n    pass\n", {"__name__": "made"})
