"""tl.max and tl.min beside NumPy's: NaN loses wherever it stands, and ties share a derivative as in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.triton._reduce import _extreme_float as extreme


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_nan_loses_at_every_place(size, largest):
    """A row for each place of one NaN, one without, one of nothing else; along both axes, in fused programs too."""
    data = np.random.default_rng(size).normal(size=size).astype(np.float32)
    rows = np.tile(data, (size + 2, 1))
    rows[np.arange(size), np.arange(size)] = np.nan
    rows[-1] = np.nan
    wanted = (np.fmax if largest else np.fmin).reduce(rows, axis=1)
    for axis, given in ((1, rows), (0, rows.T)):
        np.testing.assert_array_equal(jax.jit(extreme, static_argnums=(1, 2))(given, axis, largest), wanted)
        doubled = jax.jit(lambda x, axis=axis: extreme(x * 2, axis, largest) / 2)(given)
        np.testing.assert_array_equal(doubled, wanted)


def test_ties_share_the_derivative():
    """As of jnp.max; a row of NaN has none."""
    x = jnp.array([[1.0, 3.0, 3.0, jnp.nan], [2.0, 2.0, 2.0, 2.0], [jnp.nan] * 4])
    slope = jax.jit(jax.grad(lambda x: jnp.nansum(extreme(x, 1, True))))(x)
    np.testing.assert_array_equal(slope, [[0, 0.5, 0.5, 0], [0.25] * 4, [0] * 4])
    _, moved = jax.jvp(lambda x: extreme(x, 1, True), (x,), (jnp.arange(12.0).reshape(3, 4),))
    np.testing.assert_array_equal(moved[:2], [1.5, 5.5])
