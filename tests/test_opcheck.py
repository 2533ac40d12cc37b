"""opcheck finds each planted fault, and accepts right functions."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax._check.opcheck import TESTS, opcheck
from fnjax._check.results import OpcheckError, OpcheckResults
from tests.zoo import CASES, Case, SavedInput, Scale

pytestmark = pytest.mark.slow

X = np.array([0.5, 1.5, 0.8])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_zoo(case: Case):
    """Every Function of the zoo passes every test."""
    assert opcheck(case.apply, case.inputs(np.random.default_rng(0))) == dict.fromkeys(TESTS, "SUCCESS")
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
    assert isinstance(caught.value, fnjax.errors.FnjaxError)
    assert list(caught.value.results.failures) == ["test_gradcheck"]  # the second derivative of what is wrong is right
    results = opcheck(wrong, X, raise_exception=False)
    assert "Jacobian mismatch for output 0 with respect to input 0" in str(results["test_gradcheck"])
    assert "test_gradcheck      FAILED   GradcheckError: Jacobian mismatch" in str(results)
    assert results["test_vmap"] == "SUCCESS"


def test_few_programs(caplog):
    """The batches of each input are one program, as are the tangents of each, not one for each operation."""
    inputs = [np.random.default_rng(i).normal(size=(i + 1, 3)) for i in range(6)]

    def total(*xs):
        return sum(jnp.tanh(x * x + 1).sum(0) for x in xs)

    with jax.log_compiles(), caplog.at_level("WARNING"):
        results = opcheck(total, inputs, test_utils=["test_forward_ad", "test_vmap"])
    assert results == dict.fromkeys(results, "SUCCESS")
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling ")]
    assert 0 < len(compiled) < 160, "\n".join(compiled)


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


class Sine(fnjax.Function):
    """sin(x), and its cosine, in both modes, with a rule for batches."""

    @staticmethod
    def forward(x, i):
        return jnp.sin(x)[i]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, i = ctx.saved_tensors
        return jnp.zeros_like(x).at[i].add(g) * jnp.cos(x), None

    @staticmethod
    def jvp(ctx, t, _):
        x, i = ctx.saved_tensors
        return (t * jnp.cos(x))[i]

    @staticmethod
    def vmap(info, in_dims, x, i):
        x, i = (
            jnp.moveaxis(a, d, 0) if d is not None else jnp.broadcast_to(a, (info.batch_size, *a.shape))
            for a, d in zip((x, i), in_dims, strict=True)
        )
        return Sine.apply(x.ravel(), i + x.shape[1] * jnp.arange(len(x))[:, None]), 0


def variant(name, rule):
    """Sine with another static method."""
    return type("Variant", (Sine,), {name: staticmethod(rule)}).apply


ORDER = np.array([0, 2, 2])


def test_both_modes_and_a_rule():
    """A Function with everything passes everything, forward mode among it."""
    assert opcheck(Sine.apply, (X, ORDER)) == dict.fromkeys(TESTS, "SUCCESS")


def test_jvp_that_disagrees():
    """A jvp that is at odds with the function is found, though backward is right."""
    f = variant("jvp", lambda ctx, t, _: 1.01 * Sine.jvp(ctx, t, _))
    failures = failing(f, X, ORDER)
    assert list(failures) == ["test_forward_ad"]
    assert str(failures["test_forward_ad"]).startswith("Jacobian computed with forward mode mismatch")


def test_jvp_that_raises():
    """An error of a jvp's own is a failure; a function that has none, or a custom_vjp, is skipped."""
    failures = failing(variant("jvp", lambda ctx, t, _: t + None), X, ORDER, test_utils="test_forward_ad")
    assert isinstance(failures["test_forward_ad"], TypeError)
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    assert opcheck(f, X, test_utils="test_forward_ad")["test_forward_ad"].startswith("SKIPPED: ")


def first_axis(info, in_dims, x, i):
    """A rule that takes the batch for the first axis."""
    return Sine.vmap(info, [d and 0 for d in in_dims], x, i)


def same_order(info, in_dims, x, i):
    """A rule that takes an integer array for the same in the whole batch."""
    return Sine.vmap(info, (in_dims[0], None), x, i if in_dims[1] is None else i.take(0, in_dims[1]))


def no_derivative(info, in_dims, x, i):
    """A rule whose result has no derivative."""
    return jax.lax.stop_gradient(Sine.vmap(info, in_dims, x, i)[0]), 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (first_axis, "jax.vmap over the last axis of all inputs: output 0 differs"),
        (same_order, "jax.vmap over all inputs: output 0 differs"),
        (no_derivative, "the gradient of jax.vmap over all inputs: the gradient for input 0 ('x') differs"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_rules_that_forget_something(rule, message):
    """A batching rule that overlooks the axis, an integer array or derivatives is found."""
    failures = failing(variant("vmap", rule), X, ORDER, test_utils="test_vmap")
    assert message in str(failures["test_vmap"])


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
    for size in (1.0, 1e-12):
        noisy = lambda x, size=size: x * (1 + size * rng.normal())
        assert "test_determinism" in failing(noisy, X, test_utils="test_determinism")
    assert not failing(noisy, X, test_utils="test_determinism", rtol=1e-9)


def test_the_same_failure_is_told_once():
    """Tests that fail alike share one text."""
    with pytest.raises(OpcheckError, match=r"\n\ntest_gradcheck, test_jit: ZeroDivisionError: division by zero$"):
        opcheck(lambda x: x * (1 / 0), X, test_utils=["test_gradcheck", "test_jit"])


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


class Narrow(fnjax.Function):
    """x cubed, counted with 32 bits inside as Triton kernels do; the gradient a fiftieth too large if it is told to."""

    factor = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.astype(jnp.float32) ** 3).astype(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * Narrow.factor * (x.astype(jnp.float32) ** 2).astype(x.dtype)


def test_a_larger_step_for_what_computes_with_32_bits(monkeypatch):
    """`eps` is larger by itself, with a warning, or as it is given; a gradient that is wrong by a fiftieth is found."""
    tests = ["test_gradcheck", "test_gradgradcheck"]
    how = {"eps": 1e-2, "atol": 2e-3, "rtol": 1e-2, "test_utils": tests}
    with pytest.warns(UserWarning, match="computes in float32"):
        assert not failing(Narrow.apply, X, test_utils=tests)
    assert not failing(Narrow.apply, X, **how)
    monkeypatch.setattr(Narrow, "factor", 3.06)
    assert "test_gradcheck" in failing(Narrow.apply, X, **how)
    with pytest.warns(UserWarning, match="computes in float32"):
        assert "test_gradcheck" in failing(Narrow.apply, X, test_utils=tests)
    with pytest.raises(ValueError, match="eps must be a positive number"):
        opcheck(Narrow.apply, X, eps=0.0)


def test_signature():
    """PyTorch's parameters come first and in its order."""
    names = list(inspect.signature(opcheck).parameters)
    assert names[2:7] == ["kwargs", "test_utils", "raise_exception", "atol", "rtol"]
    assert inspect.signature(opcheck).parameters["raise_exception"].default is True
