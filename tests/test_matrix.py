"""The support matrix holds, and its page shows it; rules that are not derivatives are applied as written."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.matrix import AXES, CASES, PAGE, QUANTITIES, WRAPPERS, expected, outcomes, render, twins, under

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)"),
]

twins_once = functools.cache(twins)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cell(case, wrapper):
    """Every derivative of a Function in a transform is that of plain JAX, but where the page says it is refused."""
    assert outcomes(case, wrapper, twins_once(case)) == {q: expected(case, wrapper, q) for q in QUANTITIES}


def test_the_page_shows_the_matrix():
    """docs/support.md is what `python -m tests.matrix` writes of the outcomes that test_cell verifies."""
    if not PAGE.exists():
        pytest.skip("the documentation is not part of a source distribution")
    cells = {(c.name, w, q): expected(c, w, q) for c in CASES for w in WRAPPERS for q in QUANTITIES}
    page = PAGE.read_text()
    assert page == render(cells, re.search(r"Last written with (.*)\.$", page, re.MULTILINE)[1])


class Rounded(fnjax.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return jnp.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Scaled(fnjax.Function):
    """The identity, whose gradient is scaled; reversed where k is -1."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * 1

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.k * grad_output, None


# The loss is Σ F(x)³ with F(x) = (2, 1, 2, 1), so 18. Each way through the rule multiplies by its factor k: the
# gradient is k · 3 F² = k (12, 3, …), its derivative k² · 6 F = k² (12, 6, …).
RULES = {
    "straight_through": (Rounded.apply, [2.3, 0.8], [12, 3], [12, 6]),
    "reversed": (lambda x: Scaled.apply(x, -1), [2.0, 1.0], [-12, -3], [12, 6]),
    "scaled": (lambda x: Scaled.apply(x, 10), [2.0, 1.0], [120, 30], [1200, 600]),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("rule", RULES)
def test_rules_that_are_not_derivatives(rule, wrapper):
    """The rule counts in every transform and every mode, never the derivative of forward."""
    F, *numbers = RULES[rule]
    x, gradient, curvature = (np.tile(n, 2) for n in numbers)
    f = WRAPPERS[wrapper](F)
    run = jax.jit if wrapper in AXES else lambda f: f  # arrays of one device go over a mesh under jit only
    loss, x = lambda x: jnp.sum(f(x) ** 3), jnp.asarray(x)
    with under(wrapper):
        value, grad = run(jax.value_and_grad(loss))(x)
        assert run(loss)(x) == value == 18
        assert grad.tolist() == run(jax.grad(loss))(x).tolist() == gradient.tolist()
        assert run(jax.grad(lambda x: jnp.sum(jax.grad(loss)(x))))(x).tolist() == curvature.tolist()
        np.testing.assert_array_equal(run(jax.hessian(loss))(x), np.diag(curvature))
        assert run(lambda x: jax.jvp(jax.grad(loss), (x,), (jnp.ones(4),))[1])(x).tolist() == curvature.tolist()
