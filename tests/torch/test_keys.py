"""Results of loaded code under JAX's caches and loops: what changes them is an argument, in JAX's key, or refused."""

import jax
import numpy as np
import pytest

from fnjax import torch

JIT = pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "outside jit"])


@JIT
def test_second_derivatives_of_writes_through_data_in_a_scan(jit):
    """A write that autograd does not see has the derivative of what it replaces, twice, in a scan as in calls."""

    def step(x):
        y = torch.sin(x) * x
        y.data.mul_(3)
        return y * y

    step = torch.jax_view(step)

    def in_scan(x):
        return jax.lax.scan(lambda c, _: (step(c), None), x, length=2)[0]

    second = [jit(jax.grad(jax.grad(f)))(0.7) for f in (in_scan, lambda x: step(step(x)))]
    np.testing.assert_allclose(second, -211.62, rtol=1e-4)
