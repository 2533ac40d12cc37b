"""opcheck: what it finds."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax._check.opcheck import TESTS, OpcheckError, OpcheckResults, opcheck
from tests.zoo import CASES, Case, SavedInput, Scale

pytestmark = pytest.mark.slow

X = np.array([0.5, 1.5, 0.8])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_zoo(case: Case):
    """Every Function of the zoo passes every test."""
    results = opcheck(case.apply, case.inputs(np.random.default_rng(0)))
    assert results == dict.fromkeys(TESTS, "SUCCESS")
    assert not jax.config.jax_enable_x64


def failing(func, *inputs, **kwargs):
    """The names of the tests that fail, and their exceptions."""
    return opcheck(func, inputs, raise_exception=False, **kwargs).failures


def test_result_is_a_readable_dict():
    """The result is a dict, and a table as a string."""
    results = opcheck(SavedInput.apply, X, test_utils=["test_gradcheck", "test_jit"])
    assert isinstance(results, OpcheckResults)
    assert isinstance(results, dict)
    assert str(results) == "test_gradcheck  SUCCESS\ntest_jit        SUCCESS"
    assert list(opcheck(SavedInput.apply, X, test_utils="test_scan")) == ["test_scan"]


def test_raises_as_pytorch():
    """A failure is raised, with the table, unless raise_exception is False."""
    wrong = jax.custom_vjp(jnp.sin)
    wrong.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (1.01 * g * jnp.cos(x),))
    with pytest.raises(OpcheckError, match="test_gradcheck") as caught:
        opcheck(wrong, X)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, fnjax.FnjaxError)
    assert list(caught.value.results.failures) == ["test_gradcheck"]  # the second derivative of what is wrong is right
    results = opcheck(wrong, X, raise_exception=False)
    assert "Jacobian mismatch for output 0 with respect to input 0" in str(results["test_gradcheck"])
    assert "test_gradcheck      FAILED   GradcheckError: Jacobian mismatch" in str(results)
    assert results["test_vmap"] == "SUCCESS"


def test_unknown_test():
    """A test that does not exist is a ValueError that lists those that do."""
    with pytest.raises(ValueError, match="opcheck has no test test_shard: it has test_gradcheck, "):
        opcheck(SavedInput.apply, X, test_utils=["test_shard"])


def test_nonlinear_backward():
    """A backward that clips fails test_linearity alone."""

    class Clipped(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return jnp.clip(2 * g, -5.0, 5.0)

    failures = failing(Clipped.apply, X)
    assert list(failures) == ["test_linearity"]
    assert "not linear in grad_output" in str(failures["test_linearity"])


def test_once_differentiable_is_skipped():
    """Second derivatives are not asked of who rules them out."""

    class Once(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @fnjax.once_differentiable
        def backward(ctx, g):
            return g * 2

    results = opcheck(Once.apply, X)
    assert results["test_gradgradcheck"].startswith("SKIPPED: trying to differentiate twice")
    assert not results.failures


def test_concrete_values():
    """A function that cannot be traced fails where it would be."""

    class Concrete(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return jnp.asarray(np.asarray(x) * 2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    assert {"test_jit", "test_vmap", "test_scan"} <= set(failing(Concrete.apply, X))
    assert "test_gradcheck" not in failing(Concrete.apply, X, test_utils=["test_gradcheck"])


def test_batched_rule_that_disagrees():
    """A rule for batches that differs from the loop is found by test_vmap and says of which input."""

    @jax.custom_batching.custom_vmap
    def product(x, y):
        return x * y

    @product.def_vmap
    def rule(axis_size, in_batched, x, y):
        return x * y * (1.0 if all(in_batched) else 1.01), True

    f = jax.custom_vjp(product)
    f.defvjp(lambda x, y: (x * y, (x, y)), lambda s, g: (g * s[1], g * s[0]))
    failures = failing(f, X, X + 1)
    assert list(failures) == ["test_vmap"]
    assert "jax.vmap over input 0 ('x'): output 0 differs" in str(failures["test_vmap"])


def test_eager_that_differs_from_jit():
    """Another result under jit is found."""
    failures = failing(lambda x: x * (2.0 if isinstance(x, jax.core.Tracer) else 2.1), X, test_utils="test_jit")
    assert "jax.jit: output 0 differs" in str(failures["test_jit"])


def test_another_dtype_under_jit():
    """So is another dtype."""
    narrow = lambda x: x.astype(jnp.float32) if isinstance(x, jax.core.Tracer) else x * 1
    failures = failing(narrow, X, test_utils="test_jit")
    assert "has shape (3,) and dtype float32, expected (3,) and float64" in str(failures["test_jit"])


def test_randomness_from_outside():
    """Two runs that differ are found."""
    rng = np.random.default_rng(0)
    assert "test_determinism" in failing(lambda x: x * rng.normal(), X)


def test_leaks():
    """A tracer that is kept is found."""
    kept = []

    def leaky(x):
        kept.append(x)
        return x * 2

    assert "test_leaks" in failing(leaky, X, test_utils=["test_leaks"])


def test_remat_that_differs():
    """Another gradient when recomputed is found."""
    runs = [0.0]

    def unstable(x):
        runs[0] += 1
        return x**2 * runs[0]

    assert "test_remat" in failing(unstable, X, test_utils=["test_remat"])


def test_arguments():
    """Static and keyword arguments, integers, containers and argnums."""
    assert not opcheck(Scale.apply, (X, 3)).failures
    assert not opcheck(lambda x, *, k: x**k, X, {"k": 3}).failures
    assert not opcheck(lambda x, i: x[i] ** 2, (X, np.array([0, 2]))).failures
    assert not opcheck(lambda p, x: {"y": p["w"] * x}, ({"w": X}, X), argnums=[0, 1]).failures
    assert not opcheck(lambda x, key: x * jax.random.normal(key, x.shape), (X, jax.random.key(0))).failures


def test_outputs_without_gradient():
    """Outputs of integers and keys are compared as they are."""
    f = lambda x: (x**2, jnp.argsort(x), jax.random.key(0))
    assert not opcheck(f, X, test_utils=["test_jit", "test_scan", "test_remat", "test_determinism"]).failures


def test_tolerances():
    """Both tolerances reach every comparison."""
    close = lambda x: x * (2.0 if isinstance(x, jax.core.Tracer) else 2.001)
    assert failing(close, X, test_utils="test_jit")
    assert not failing(close, X, test_utils="test_jit", rtol=1e-2)


def test_signature():
    """PyTorch's parameters come first and in its order."""
    names = list(inspect.signature(opcheck).parameters)
    assert names[2:7] == ["kwargs", "test_utils", "raise_exception", "atol", "rtol"]
    assert inspect.signature(opcheck).parameters["raise_exception"].default is True
