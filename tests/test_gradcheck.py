"""gradcheck and gradgradcheck behave as PyTorch's (rows N and O of the table), and reject wrong derivatives."""

import functools
import importlib.util
import inspect
import re
import sys
import types
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnjax
from fnjax._check import fast as _fast
from fnjax._check import jacobian as _jacobian
from fnjax._check import problem as _problem
from fnjax._check.gradcheck import gradcheck
from fnjax._check.gradgradcheck import gradgradcheck
from fnjax._check.opcheck import opcheck
from fnjax._check.report import GradcheckError
from fnjax.errors import ArgumentError
from tests.conformance.support import MulExp, SExp
from tests.zoo import CASES, Case

pytestmark = pytest.mark.slow

X = np.array([0.5, 1.5])


def function(forward, backward, **members):
    """A Function out of two functions."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    body |= {k: staticmethod(v) if callable(v) else v for k, v in members.items()}
    return types.new_class("Fn", (fnjax.Function,), exec_body=lambda namespace: namespace.update(body))


def doubling(backward, **members):
    """A Function whose forward is 2 x."""
    return function(lambda ctx, x: x * 2, backward, **members).apply


def scaled(by):
    """2 x with the derivative `by`."""
    return doubling(lambda ctx, g: g * by)


def failure(check, *args, **kwargs):
    """The text of the GradcheckError."""
    with pytest.raises(GradcheckError) as caught:
        check(*args, **kwargs)
    return str(caught.value)


class BothModes(SExp):
    """exp(x) with a jvp too."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def jvp(ctx, t):
        (y,) = ctx.saved_tensors
        return t * y


def good(x):
    return MulExp.apply(x, 2.0)


# --------------------------------------------------------------------------- rows N


@pytest.mark.parametrize("inputs", [(X,), X, [X]], ids=["tuple", "array", "list"])
def test_n01_accepts(inputs):
    """A right gradient gives True, however the inputs are packed."""
    assert gradcheck(good, inputs) is True


def test_n02_wrong_gradient():
    """The error shows both Jacobians, the worst entry with its tolerance, and names input and output."""
    text = failure(gradcheck, scaled(3.0), X)
    assert text.startswith(
        "Jacobian mismatch for output 0 with respect to input 0,\n"
        "numerical:[[2. 0.]\n [0. 2.]]\nanalytical:[[3. 0.]\n [0. 3.]]\n"
    )
    assert "derivative of output 0 at (0,) with respect to input 0 ('x') at (0,)" in text or "at (1,)" in text
    assert "numerical 2, analytical 3" in text
    assert "differ by 1, the tolerance is 0.00201" in text
    assert "2 of 4 entries" in text
    assert "all entries are 1.5 times what is due" in text
    assert "see: fnjax explain gradcheck" in text


def test_error_is_of_both_families():
    """GradcheckError is a RuntimeError, as in PyTorch, and an error of fnjax with its public name."""
    assert issubclass(GradcheckError, RuntimeError)
    assert issubclass(GradcheckError, fnjax.errors.FnjaxError)
    assert GradcheckError.__module__ == "fnjax"


def test_n03_raise_exception():
    """raise_exception=False turns GradcheckError into False, and nothing else."""
    assert gradcheck(scaled(3.0), X, raise_exception=False) is False
    with pytest.raises(ValueError, match="expects at least one input tensor to require gradient"):
        gradcheck(lambda i: i, np.arange(3), raise_exception=False)
    with pytest.raises(ZeroDivisionError):
        gradcheck(doubling(lambda ctx, g: 1 / 0), X, raise_exception=False)


def test_n04_nothing_to_differentiate():
    """Integers alone, or argnums that name them, are a ValueError."""
    with pytest.raises(ValueError, match="gradcheck expects at least one input tensor to require gradient"):
        gradcheck(lambda i, k: i * k, (np.arange(3), 2))
    with pytest.raises(ValueError, match="names input 1, which holds no array of floating point"):
        gradcheck(lambda x, i: x[i], (X, np.arange(2)), argnums=1)
    with pytest.raises(ValueError, match="names input 3, but the number of inputs is 1"):
        gradcheck(good, X, argnums=3)
    for wrong in ("x", 1.0, None):
        with pytest.raises(ArgumentError, match="argnums must be an integer or a sequence of integers"):
            gradcheck(good, X, argnums=[wrong])
    assert gradcheck(lambda x, i: x[i], (X, np.arange(2)), argnums=range(1))
    with pytest.raises(ValueError, match=r"fix: pass NumPy arrays of float64: np.asarray\(3.0\) for a number"):
        gradcheck(good, 3.0)


def test_n05_single_precision():
    """float32 gets PyTorch's warning, with what to do instead."""
    with (
        pytest.warns(UserWarning, match=r"Input #0 requires gradient and is not a double precision.*NumPy arrays"),
        pytest.raises(GradcheckError),
    ):
        gradcheck(good, X.astype(np.float32))


@pytest.mark.parametrize(
    "numbers",
    [
        {"eps": 0.0},
        {"eps": np.nan},
        {"eps": "small"},
        {"atol": -1.0},
        {"rtol": np.nan},
        {"nondet_tol": -1.0},
        {"seed": -1},
        {"seed": "a"},
    ],
    ids=str,
)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck, opcheck])
def test_numbers_that_mean_nothing(check, numbers):
    """A step, a tolerance or a seed that cannot be one is named, where each comparison, or none, would fail."""
    (name,) = numbers
    if name in inspect.signature(check).parameters:
        with pytest.raises(ValueError, match=f"^{name} must be "):
            check(good, X, **numbers)


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient:UserWarning")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32])
def test_narrow_dtypes(dtype):
    """Narrow numbers are checked with a step and tolerances to match; without, the message says what they need."""
    x = jnp.asarray(X, dtype)
    for fast_mode in (False, True):
        wide = {"eps": 0.25, "atol": 0.1, "rtol": 0.1, "fast_mode": fast_mode}
        assert gradcheck(scaled(2.0), x, **wide)
        assert "1.5 times what is due" in failure(gradcheck, scaled(3.0), x, **wide)
    name = jnp.dtype(dtype).name
    for f in (jnp.sin, scaled(3.0)):
        assert f"input 0 ('x') is of {name}, of which a step of 1e-06 leaves too few" in failure(gradcheck, f, x)


def test_n07_n08_undefined_grads():
    """A backward that does not take None, or takes it for something else, is found: for outputs that nobody uses."""

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def sloppy(ctx, g, h):
        return g * 2 + h * 3

    def wrong(ctx, g, h):
        return (7.0 if g is None else g * 2) + (7.0 if h is None else h * 3)

    def right(ctx, g, h):
        return (0.0 if g is None else g * 2) + (0.0 if h is None else h * 3)

    with pytest.raises(TypeError, match="NoneType") as caught:
        gradcheck(function(forward, sloppy).apply, X)
    assert "called backward for a loss that does not use output 0" in caught.value.__notes__[-1]
    assert "Expected all input grads to be undefined or zero" in failure(gradcheck, function(forward, wrong).apply, X)
    assert gradcheck(function(forward, wrong).apply, X, check_undefined_grad=False)
    assert gradcheck(function(forward, right).apply, X)


def test_undefined_grads_raise_runtime_error():
    """A RuntimeError for an unused output has PyTorch's words."""

    def backward(ctx, g, h):
        if g is None:
            raise RuntimeError("g is due")
        return g * 2 + (0 if h is None else h * 3)

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    text = failure(gradcheck, function(forward, backward).apply, X)
    assert text.startswith("Expected backward function to handle undefined output grads.")
    assert "output 0 is not used" in text


def test_n09_not_multiplied():
    """A backward that forgets grad_output is found even where its Jacobian is right."""
    f = doubling(lambda ctx, g: jnp.full((1,), 2.0))
    assert failure(gradcheck, f, np.array([0.5])).startswith("backward not multiplied by grad_output")
    assert "Jacobian mismatch" in failure(gradcheck, doubling(lambda ctx, g: jnp.full((2,), 2.0)), X)


def test_masked_allows_tiny_gradients():
    """masked=True compares zero gradients with a tolerance, as in PyTorch."""
    f = doubling(lambda ctx, g: g * 2 + 1e-12)
    assert failure(gradcheck, f, X).startswith("backward not multiplied by grad_output")
    assert gradcheck(f, X, masked=True)


def test_n10_reentrancy():
    """Two runs of backward that differ are found, within nondet_tol accepted."""
    runs = [0]

    def backward(ctx, g):
        runs[0] += 1
        return g * (2 + 1e-7 * runs[0])

    text = failure(gradcheck, doubling(backward), X)
    assert text.startswith("Backward is not reentrant, i.e., running backward with same input and grad_output multiple")
    assert "The tolerance for nondeterminism was 0.0." in text
    runs[0] = 0
    assert gradcheck(doubling(backward), X, nondet_tol=1e-5)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_n11_grad_dtypes(fast_mode):
    """check_grad_dtypes sees what was computed in fewer digits, before the cast hides it (PyTorch cannot)."""
    f = doubling(lambda ctx, g: (g * 2).astype(jnp.float32))
    assert gradcheck(f, X)
    text = failure(gradcheck, f, X, check_grad_dtypes=True, fast_mode=fast_mode)
    assert text.startswith("Gradient has dtype mismatch")
    assert "float64" in text
    assert "float32" in text
    assert gradcheck(good, X, check_grad_dtypes=True)
    mixed = lambda x: (x.astype(jnp.float32) * 2).astype(jnp.float64)  # the function itself computes so
    assert gradcheck(mixed, X, check_grad_dtypes=True, eps=1e-2)


def test_n12_wrong_shape():
    """A gradient of another shape is refused by fnjax before gradcheck sees it."""
    with pytest.raises(RuntimeError, match=r"returned an invalid gradient at index 0 - got \[5\]"):
        gradcheck(doubling(lambda ctx, g: jnp.ones(5)), X)


def test_n13_batched_grad():
    """check_batched_grad finds a backward that cannot be batched."""
    assert gradcheck(good, X, check_batched_grad=True)
    f = doubling(lambda ctx, g: jnp.asarray(np.asarray(g) * 2))
    assert gradcheck(f, X)
    text = failure(gradcheck, f, X, check_batched_grad=True)
    assert text.startswith("While computing batched gradients, got: ")
    assert "gradcheck or gradgradcheck failed while testing batched gradient computation" in text


def test_n14_flags():
    """Flags that exclude each other are AssertionErrors."""
    with pytest.raises(AssertionError, match="check_batched_grad=True requires check_backward_ad to be True"):
        gradcheck(good, X, check_batched_grad=True, check_backward_ad=False, check_forward_ad=True)
    with pytest.raises(AssertionError, match="check_batched_forward_grad=True requires check_forward_ad to be True"):
        gradcheck(good, X, check_batched_forward_grad=True)
    with pytest.raises(AssertionError, match="at least one of check_forward_ad or check_backward_ad to be True"):
        gradcheck(good, X, check_backward_ad=False)


def test_n15_n16_n17_forward_mode():
    """Forward mode is checked on its own and in batches; without a jvp it is the transpose of backward."""
    for f in (good, BothModes.apply, jnp.tanh):
        assert gradcheck(f, X, check_forward_ad=True, check_batched_forward_grad=True)
        assert gradcheck(f, X, check_forward_ad=True, fast_mode=True)

    class NoBackward(BothModes):
        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("never")

    assert gradcheck(NoBackward.apply, X, check_forward_ad=True, check_backward_ad=False)


def disagreeing(by):
    """The exponential with a jvp that is `by` times too large, and a right backward."""

    class Fn(BothModes):
        @staticmethod
        def jvp(ctx, t):
            (y,) = ctx.saved_tensors
            return t * y * by

    return Fn.apply


@pytest.mark.parametrize("fast_mode", [False, True])
def test_n15_wrong_jvp(fast_mode):
    """A jvp that disagrees with the function is found, while backward is right."""
    f = disagreeing(1.01)
    assert gradcheck(f, X, fast_mode=fast_mode)
    text = failure(gradcheck, f, X, check_forward_ad=True, fast_mode=fast_mode)
    assert text.startswith("Jacobian computed with forward mode mismatch for output 0 with respect to input 0,")


def test_n18_fast_mode():
    """Fast mode says which seed failed, and shows the entry by the slow mode.

    PyTorch's "Fast gradcheck failed but element-wise differences are small" does not occur: slow mode decides.
    """
    assert gradcheck(good, X, fast_mode=True)
    text = failure(gradcheck, scaled(3.0), X, fast_mode=True, seed=5)
    assert text.startswith("Jacobian mismatch for output 0 with respect to input 0,\nnumerical:[[2. 0.]")
    assert "computed in slow mode" in text
    assert "seed 5" in text
    assert "seed=5" in text


def test_n19_no_differentiable_output():
    """A function none of whose outputs can have a gradient must be constant."""
    assert gradcheck(lambda x: jnp.ones(2, jnp.int64) + 0 * jnp.argsort(x), X)
    stopped = lambda x: jax.lax.stop_gradient(x) * 2
    for fast_mode in (False, True):
        text = failure(gradcheck, stopped, X, fast_mode=fast_mode)
        assert text.startswith("Numerical gradient for function expected to be zero")
    assert "Jacobian mismatch" in failure(gradcheck, doubling(lambda ctx, g: g * 0), X)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_stopped_output_beside_another(fast_mode):
    """An output without gradient is not looked at next to one that has one, as in PyTorch."""
    assert gradcheck(lambda x: (x**2, jax.lax.stop_gradient(x)), X, fast_mode=fast_mode)


def test_n20_names_the_output():
    """The error names the output by its index, or by its path."""
    two = function(lambda ctx, x: (x * 2, x * 3), lambda ctx, a, b: 2 * a + 4 * b).apply
    assert failure(gradcheck, two, X).startswith("Jacobian mismatch for output 1 with respect to input 0,")
    text = failure(gradcheck, lambda x: {"y": two(x)[0], "z": two(x)[1]}, X)
    assert "output 1 (['z'])" in text


def test_n21_outputs_that_depend_on_values():
    """Shapes that change are PyTorch's AssertionError; no array at all is an error that says so."""
    calls = [0]

    def growing(x):
        calls[0] += 1
        return jnp.concatenate([x] * calls[0])

    with pytest.raises(
        AssertionError,
        match=r"Expected `func` to return outputs with the same shape when inputs are perturbed on index \(0,\) by "
        r"1e-06, but got: shapes \(\d+,\) and \(\d+,\)\.",
    ):
        gradcheck(growing, X)
    for kind in (AttributeError, TypeError):
        with pytest.raises(kind, match="'float' object has no attribute 'requires_grad'"):
            gradcheck(lambda x: 3.0, X)


def test_n23_tolerances():
    """|analytical - numerical| <= atol + rtol |numerical|."""
    f = scaled(2.0 + 1e-4)
    assert gradcheck(f, X)
    assert gradcheck(f, X, atol=1e-2, rtol=0.0)
    failure(gradcheck, f, X, atol=1e-7, rtol=1e-7)
    assert gradcheck(f, X, fast_mode=True)  # what the slow mode accepts, fast mode does


class ComplexSquare(fnjax.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * (2 * z).conj()


Z = np.array([0.3 + 1j, 2 - 1j])


@pytest.mark.parametrize("fast_mode", [False, True])
def test_n24_complex(fast_mode):
    """Complex numbers are checked in PyTorch's convention; a forgotten conj is found, and named."""
    assert gradcheck(ComplexSquare.apply, Z, fast_mode=fast_mode)
    assert gradgradcheck(ComplexSquare.apply, Z, fast_mode=fast_mode)
    for f in (lambda z: z.real**2, jnp.abs, lambda z: z * z.conj(), jnp.exp):
        assert gradcheck(f, Z, fast_mode=fast_mode, check_forward_ad=True)
    assert gradcheck(lambda x: jnp.exp(1j * x), X, fast_mode=fast_mode, check_forward_ad=True)

    class NoConj(ComplexSquare):
        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return g * 2 * z

    text = failure(gradcheck, NoConj.apply, Z, fast_mode=fast_mode)
    assert text.startswith(
        "While considering the imaginary part of complex outputs only, Jacobian mismatch for output 0 with respect to "
        "input 0,\nnumerical:[["
    )


def test_complex_forward_mode_names_the_part():
    """In forward mode complex inputs are taken apart."""
    f = jax.custom_jvp(lambda z: z * z)
    f.defjvp(lambda p, t: (p[0] ** 2, 2 * p[0].conj() * t[0]))
    text = failure(gradcheck, f, Z, check_forward_ad=True, check_backward_ad=False)
    assert text.startswith(
        "While considering the imaginary part of complex inputs only, Jacobian computed with forward"
    )


def test_n25_signatures():
    """PyTorch's parameters with PyTorch's defaults; argnums, seed and check_linear_grad come after."""

    def defaults(f):
        return {k: None if p.default is p.empty else p.default for k, p in inspect.signature(f).parameters.items()}

    common = {"eps": 1e-06, "atol": 1e-05, "rtol": 0.001, "raise_exception": True, "nondet_tol": 0.0}
    common |= {"check_undefined_grad": True, "check_grad_dtypes": False, "check_batched_grad": False}
    ours = {"argnums": None, "seed": 0, "check_linear_grad": True}
    assert defaults(gradcheck) == ours | common | {
        "func": None,
        "inputs": None,
        "check_batched_forward_grad": False,
        "check_forward_ad": False,
        "check_backward_ad": True,
        "fast_mode": False,
        "masked": None,
    }
    assert defaults(gradgradcheck) == ours | common | {
        "func": None,
        "inputs": None,
        "grad_outputs": None,
        "gen_non_contig_grad_outputs": False,
        "check_fwd_over_rev": False,
        "check_rev_over_rev": True,
        "fast_mode": False,
        "masked": False,
    }


def test_n26_integers_and_statics():
    """Integer arrays and Python values are passed on and not perturbed."""

    def forward(ctx, x, i, k):
        ctx.save_for_backward(i)
        ctx.k, ctx.n = k, x.shape[0]
        return x[i] * k

    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        return jnp.zeros(ctx.n).at[i].add(g * ctx.k), None, None

    assert gradcheck(function(forward, backward).apply, (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]), 3.0))


def test_n27_straight_through():
    """A straight-through estimator is not a derivative."""
    f = function(lambda ctx, x: jnp.round(x), lambda ctx, g: g).apply
    assert "numerical:[[0.]]\nanalytical:[[1.]]" in failure(gradcheck, f, np.array([0.3]))


# --------------------------------------------------------------------------- rows O


class Intermediate(fnjax.Function):
    """x³ which saves what forward computed on its way; right in fnjax."""

    @staticmethod
    def forward(ctx, x):
        slope = 3 * x**2
        ctx.save_for_backward(slope)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return slope * g


class WrongSecond(fnjax.Function):
    """x³ whose backward hides from JAX that it depends on x: right once, wrong twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * jax.lax.stop_gradient(x) ** 2 * g


@pytest.mark.parametrize("fast_mode", [False, True])
def test_o01_o02_second_derivatives(fast_mode):
    """Saved inputs, outputs and (unlike in PyTorch) intermediates pass; a wrong second derivative is found."""
    assert gradgradcheck(good, (X,), fast_mode=fast_mode)
    assert gradgradcheck(Intermediate.apply, X, fast_mode=fast_mode)
    assert gradcheck(WrongSecond.apply, X, fast_mode=fast_mode)
    text = failure(gradgradcheck, WrongSecond.apply, X, fast_mode=fast_mode)
    assert text.startswith("Jacobian mismatch for output 0 with respect to input 0,")
    assert gradgradcheck(WrongSecond.apply, X, fast_mode=fast_mode, raise_exception=False) is False


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_stopped_gradient_beside_another(fast_mode):
    """A gradient without a derivative of its own is a wrong second derivative, also next to a right one."""

    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x**3 * y**2

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return jax.lax.stop_gradient(g * 3 * x**2 * y**2), g * 2 * x**3 * y

    f = function(forward, backward).apply
    assert gradcheck(f, (X, X), fast_mode=fast_mode)
    text = failure(gradgradcheck, f, (X, X), fast_mode=fast_mode)
    assert text.startswith("Jacobian mismatch for output 0 with respect to input 0,")
    assert "something on the way stops it (jax.lax.stop_gradient" in text


def test_o03_once_differentiable():
    """once_differentiable says so, instead of a mismatch with zero."""
    f = function(lambda ctx, x: x * 2, fnjax.once_differentiable(lambda ctx, g: g * 2)).apply
    with pytest.raises(fnjax.errors.OnceDifferentiableError, match="differentiate twice"):
        gradgradcheck(f, X)


def test_o04_flags():
    """Flags that exclude each other are AssertionErrors."""
    with pytest.raises(AssertionError, match="at least one of check_fwd_over_rev or check_rev_over_rev to be True"):
        gradgradcheck(good, X, check_rev_over_rev=False)
    with pytest.raises(AssertionError, match="check_undefined_grad=True requires check_rev_over_rev to be True"):
        gradgradcheck(good, X, check_rev_over_rev=False, check_fwd_over_rev=True)
    with pytest.raises(AssertionError, match="check_batched_grad=True requires check_rev_over_rev to be True"):
        gradgradcheck(
            good,
            X,
            check_rev_over_rev=False,
            check_fwd_over_rev=True,
            check_undefined_grad=False,
            check_batched_grad=True,
        )


def test_o05_grad_outputs():
    """Given gradients are taken; extra ones do not matter; another shape or too few are RuntimeErrors."""
    assert gradgradcheck(good, X, (np.array([1.0, 2.0]),))
    assert gradgradcheck(good, X, np.array([1.0, 2.0]))
    assert gradgradcheck(good, X, (np.array([1.0, 2.0]), np.array([1.0, 2.0])))
    with pytest.raises(
        RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of \(3,\) and output\[0\]"
    ):
        gradgradcheck(good, X, (np.array([1.0, 2.0, 3.0]),))
    assert gradgradcheck(good, X, np.array([1, 2]))  # cast, so that a derivative exists
    assert gradgradcheck(good, X, np.array([1.0, 2.0], np.float32))
    with pytest.raises(RuntimeError, match=r"For complex Tensors, both grad_output .* dtype: grad_output\[0\] has a"):
        gradgradcheck(good, X, np.array([1j, 2.0]))
    two = lambda x: (x**2, x**3)
    with pytest.raises(ValueError, match="grad_outputs are all None"):
        gradgradcheck(two, X, (None, None))
    assert gradgradcheck(two, X, (np.array([1.0, 2.0]), None))
    with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
        gradgradcheck(two, X, (np.array([1.0, 2.0]),))


def test_o06_forward_over_reverse():
    """Forward over reverse is checked; fnjax has it for classes without a jvp too."""
    for f in (BothModes.apply, good, jnp.tanh):
        assert gradgradcheck(f, X, check_fwd_over_rev=True)


def test_o07_o08_linear_and_options():
    """A linear function has the second derivative zero; the remaining options are accepted."""
    assert gradgradcheck(scaled(2.0), X)
    assert gradgradcheck(good, X, gen_non_contig_grad_outputs=True)
    assert gradgradcheck(good, X, check_batched_grad=True)


# --------------------------------------------------------------------------- beyond the table


@pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_zoo(case: Case, fast_mode):
    """Every Function of the zoo and its plain twin pass, at first and second order, without 64 bits switched on."""
    assert not jax.config.jax_enable_x64
    inputs = case.inputs(np.random.default_rng(0))
    for f in (case.apply, case.twin):
        assert gradcheck(f, inputs, fast_mode=fast_mode, check_batched_grad=True)
        assert gradgradcheck(f, inputs, fast_mode=fast_mode)
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


def faulty(fault, place, which=0):
    """f(a, b, c, d) = a b + sin(c) d, with a fault in one gradient."""

    @jax.custom_vjp
    def f(a, b, c, d):
        return a * b + jnp.sin(c) * d

    def backward(saved, g):
        a, b, c, d = saved
        grads = [g * b, g * a, g * d * jnp.cos(c), g * jnp.sin(c)]
        grads[which] = fault(grads[which], place)
        return tuple(grads)

    f.defvjp(lambda *args: (f(*args), args), backward)
    return f


FAULTS = {
    "1.01 times": lambda g, at: g.at[at].multiply(1.01),
    "1.5 times": lambda g, at: g.at[at].multiply(1.5),
    "sign": lambda g, at: g.at[at].multiply(-1),
    "zero": lambda g, at: g.at[at].set(0),
    "moved": lambda g, at: jnp.roll(g, 1),
    "all zero": lambda g, at: 0 * g,
}


# The smallest fault is looked for among more entries too.
REJECTED = [pytest.param(fault, (10, 20), id=f"{name}-10x20") for name, fault in FAULTS.items()]


@pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])
@pytest.mark.parametrize(("fault", "shape"), REJECTED)
def test_rejects_faults(fault, shape, fast_mode):
    """A gradient wrong in one entry, by one per cent even, is found, and the entry named."""
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1.5, shape) for _ in range(4)]
    text = failure(gradcheck, faulty(fault, (3, 7), which=2), inputs, fast_mode=fast_mode)
    assert text.startswith("Jacobian mismatch for output 0 with respect to input 2,")
    assert "input 2 ('c') at (" in text
    if fault in list(FAULTS.values())[:4]:
        assert "input 2 ('c') at (3, 7)" in text
        assert "1 of" in text


def test_fast_mode_doubts_one_entry_of_many():
    """An error of one per cent in one of 4096 entries is found with each seed, and a right gradient is accepted."""
    inputs = [np.random.default_rng(0).uniform(0.5, 1.5, (64, 64)) for _ in range(4)]
    with jax.enable_x64(True):
        for fault, doubted in ((FAULTS["1.01 times"], True), (lambda g, at: g, False)):
            problem = _problem.Problem(faulty(fault, (3, 7), which=2), inputs, range(4))
            for seed in range(5):
                assert (_fast.check_backward(problem, 1e-6, 1e-3, 1e-5, seed) is not None) == doubted


def test_fast_mode_accepts_right_gradients():
    """Right gradients pass for a hundred seeds."""
    rng = np.random.default_rng(0)
    for seed in range(100):
        inputs = [rng.normal(size=(8, 8)) for _ in range(4)]
        assert gradcheck(faulty(lambda g, at: g, None), inputs, fast_mode=True, seed=seed)


NONLINEAR = {
    "max(g, 0)": lambda g: jnp.maximum(g, 0),
    "sign(g)": jnp.sign,
    "clipped at 1": lambda g: jnp.clip(g, -1.0, 1.0),
    "clipped at 10": lambda g: jnp.clip(g, -10.0, 10.0),
    "norm at most 1": lambda g: g / jnp.maximum(1.0, jnp.linalg.norm(g)),
}


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("of", NONLINEAR.values(), ids=NONLINEAR)
def test_nonlinear_backward(of, fast_mode):
    """A backward that is right for unit vectors but not linear in grad_output is found, and accepted on request."""
    f = doubling(lambda ctx, g: 2 * of(g))
    text = failure(gradcheck, f, X, fast_mode=fast_mode)
    assert text.startswith("backward is not linear in grad_output")
    assert "pass check_linear_grad=False to gradcheck, or leave test_linearity out of opcheck" in text
    assert gradcheck(f, X, fast_mode=fast_mode, check_linear_grad=False)


def test_clipping_of_a_single_gradient():
    """A bound of 1000 is found with any seed, also where there is one number that random signs could cancel."""
    f = doubling(lambda ctx, g: 2 * jnp.clip(g, -1000.0, 1000.0))
    for seed in range(20):
        assert not gradcheck(f, X[:1], seed=seed, raise_exception=False)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient:UserWarning")
def test_rounding_is_linear(dtype):
    """Backward may round: cancellation, and numbers of 32 bits, are no lack of linearity."""
    m = np.random.default_rng(0).normal(size=(64, 64)).astype(dtype)
    m[:, 1:] = m[:, :1] + 1e-3 * m[:, 1:]
    assert gradcheck(lambda x: jnp.asarray(m) @ x, m[0], eps=1e-2, atol=1e-2)
    assert gradcheck(doubling(lambda ctx, g: 2 * g + 1e-12), X, masked=True)
    assert gradcheck(lambda x: jax.nn.softmax(x).sum(), m[0], eps=1e-2, atol=1e-2)  # zero but for rounding


def test_fast_mode_leaves_rough_functions_to_slow_mode():
    """If finite differences are inaccurate, slow mode decides."""
    kinked = lambda x: jnp.abs(x - 3e-6)  # between the step and twice the step
    assert gradcheck(kinked, np.array([0.0, 1.0, 2.0]), fast_mode=True)


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient:UserWarning")
def test_fast_mode_is_not_blind_where_rounding_is_large(forward):
    """If rounding could explain any difference, as with 32 bits and a small step, slow mode decides."""
    modes = {"check_forward_ad": forward, "check_backward_ad": not forward, "fast_mode": True}
    single = X.astype(np.float32)
    for by in (0.0, -2.0, 3.0):
        wrong = doubling(lambda ctx, g, by=by: g * by, jvp=lambda ctx, t, by=by: t * by)
        failure(gradcheck, wrong, single, **modes)
        failure(gradcheck, wrong, single, eps=1e-2, atol=1e-2, rtol=1e-2, **modes)
    assert gradcheck(
        doubling(lambda ctx, g: g * 2, jvp=lambda ctx, t: t * 2), single, eps=1e-2, atol=1e-2, rtol=1e-2, **modes
    )


@pytest.mark.parametrize("seed", range(3))
def test_fast_mode_sees_a_small_output_beside_a_large_one(seed):
    """The rounding of one output does not excuse another."""
    f = function(lambda ctx, x: (1e8 * x, x * 1), lambda ctx, g, h: 1e8 * g).apply
    assert "output 1" in failure(gradcheck, f, np.linspace(0.5, 1.5, 50), fast_mode=True, seed=seed)


@pytest.mark.parametrize(("wrong", "passes"), [(0.0, True), (2e-6, True), (1e-4, False)])
def test_two_ways_of_one_gradient_agree_to_rounding(wrong, passes):
    """A batch may add up in another order: that is no difference for narrow floats, and a ten-thousandth is one."""
    expected = np.array([3.0, 1e-7], np.float32)
    assert _problem.agree(expected + np.float32([0, wrong]), expected) is passes
    assert not _problem.agree(np.array([3.0, 1e-6]), np.array([3.0, 0.0]))  # of float64 nothing is lost there


def test_batched_rule_that_disagrees():
    """A rule for batches that differs from the loop is found; the Jacobians do not use it."""

    @jax.custom_batching.custom_vmap
    def times(x):
        return 2 * x

    @times.def_vmap
    def rule(axis_size, in_batched, x):
        return 2.02 * x, in_batched[0]

    f = jax.custom_vjp(lambda x: 2 * x)
    f.defvjp(lambda x: (2 * x, None), lambda _, g: (times(g),))
    x = np.linspace(0.1, 1.0, 200)
    assert gradcheck(f, x)
    assert gradcheck(lambda x: jnp.cumsum(f(x)), x)  # dense: many steps at once, and still without the rule
    text = failure(gradcheck, f, X, check_batched_grad=True)
    assert text.startswith("For output 0 and input 0:")
    assert "failed while testing batched gradient computation" in text
    assert "\nGot:\n" in text
    assert "\nExpected:\n" in text


def test_batched_forward_rule_that_disagrees():
    """The same for forward mode."""

    @jax.custom_batching.custom_vmap
    def times(x):
        return 2 * x

    @times.def_vmap
    def rule(axis_size, in_batched, x):
        return 2.02 * x, in_batched[0]

    f = jax.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda p, t: (2 * p[0], times(t[0])))
    flags = {"check_forward_ad": True, "check_backward_ad": False}
    assert gradcheck(f, X, **flags)
    text = failure(gradcheck, f, X, check_batched_forward_grad=True, **flags)
    assert text.startswith("For output 0 and input 0:")
    assert "with forward-mode AD" in text


def test_a_forward_that_changes_when_differentiated():
    """Other values under differentiation than without are found."""
    f = jax.custom_vjp(lambda x: 2 * x)
    f.defvjp(lambda x: (2.02 * x, None), lambda _, g: (2 * g,))
    assert "has other values while the function is being differentiated" in failure(gradcheck, f, X)


def test_undefined_tangents():
    """A jvp that treats the absence of a tangent otherwise than zeros is found."""
    f = jax.custom_jvp(lambda x, y: x * y)

    def jvp(primals, tangents):
        (x, y), (s, t) = primals, tangents
        absent = [isinstance(dot, jax.custom_derivatives.SymbolicZero) for dot in (s, t)]
        of_x = 0 * x if absent[0] else s * y * (2 if absent[1] else 1)
        return x * y, of_x + (0 if absent[1] else x * t)

    f.defjvp(jvp, symbolic_zeros=True)
    flags = {"check_forward_ad": True, "check_backward_ad": False}
    text = failure(gradcheck, f, (X, X + 1), **flags)
    assert text.startswith("Mismatch in tangent values for output with index: 0")
    assert gradcheck(f, (X, X + 1), check_undefined_grad=False, **flags)


def test_numpy_inside():
    """A function that needs concrete values is checked outside jit, one step after the other."""

    def forward(ctx, x):
        y = np.exp(np.asarray(x))
        ctx.save_for_backward(jnp.asarray(y))
        return jnp.asarray(y)

    f = function(forward, lambda ctx, g: jnp.asarray(np.asarray(g) * np.asarray(ctx.saved_tensors[0]))).apply
    assert gradcheck(f, np.linspace(0, 1, 40))
    assert gradcheck(f, np.linspace(0, 1, 40), fast_mode=True)
    wrong = function(forward, lambda ctx, g: 1.01 * g * ctx.saved_tensors[0]).apply
    assert "Jacobian mismatch" in failure(gradcheck, wrong, np.linspace(0, 1, 40))


def test_branches_on_values():
    """So is one with Python's if."""
    assert gradcheck(lambda x: x * 2 if x[0] > 0 else x * 3, X)


@pytest.mark.parametrize("size", [3, 40])
def test_dense_functions(size):
    """Functions that mix their inputs: steps one by one, and many at once."""
    rng = np.random.default_rng(0)
    layer = lambda x, w, b: jnp.tanh(x @ w.T + b)
    inputs = rng.normal(size=(size, 3)), rng.normal(size=(2, 3)), rng.normal(size=2)
    assert gradcheck(layer, inputs, check_forward_ad=True)
    wrong = jax.custom_vjp(layer)

    def backward(saved, g):
        grads = list(jax.vjp(layer, *saved)[1](g))
        return grads[0].at[1, 2].multiply(1.01), *grads[1:]

    wrong.defvjp(lambda *args: (layer(*args), args), backward)
    text = failure(gradcheck, wrong, inputs)
    assert "with respect to input 0 ('x') at (1, 2)" in text


def test_a_backward_that_prints(capfd):
    """`jax.debug.print` in backward, and in forward, changes no verdict, and prints."""

    class Talking(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            jax.debug.print("forward")
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            jax.debug.print("g = {}", g)
            return 2 * x * g

    for check in (gradcheck, gradgradcheck):
        for x in (X, np.linspace(0.1, 1, 30)):  # step by step, and compiled
            assert check(Talking.apply, x)
    jax.effects_barrier()
    assert "g = [" in capfd.readouterr().out


def test_large_jacobians_are_cut():
    """The message shows the block of a large Jacobian around the worst entry."""
    text = failure(gradcheck, scaled(3.0), np.linspace(0, 1, 100))
    assert re.search(r"\(rows \d+ to \d+ of 100, columns \d+ to \d+ of 100\)", text)
    assert len(text) < 3000
    for n in (8, 9, 12):
        m = np.sin(np.arange(n * n)).reshape(n, n)
        turned = function(lambda ctx, x, m=m: m @ x, lambda ctx, g, m=m: -m.T @ g).apply
        text = failure(gradcheck, turned, m[0])
        assert max(len(line) for line in text.splitlines() if line.lstrip().startswith("[")) <= 80


def test_names_all_blocks():
    """Further blocks that miss are named."""
    f = function(lambda ctx, x, y: (x * 2, y * 2), lambda ctx, g, h: (3 * g, 3 * h)).apply
    assert "\nOthers that miss it: output 1 with respect to input 1 ('y').\n" in failure(gradcheck, f, (X, X))


@pytest.mark.parametrize("by", [0.0, -2.0, np.nan])
def test_diagnosis(by):
    """The message says what the entries tell."""
    words = {0.0: "no derivative of output 0 by input 0 ('x') comes out", -2.0: "-1 times what is due (a sign?)"}
    text = failure(gradcheck, scaled(by), X)
    assert words.get(by, "backward gives numbers that are not finite") in text


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize(
    ("f", "x"), [(jnp.sin, np.nan), (jnp.sin, np.inf), (jnp.log, 0.0), (jnp.sqrt, 0.0), (jnp.exp, 800.0)]
)
def test_diagnosis_where_the_function_is_not_finite(f, x, fast_mode):
    """If the function is not finite, the message does not blame backward."""
    text = failure(gradcheck, f, np.array([1.0, x]), fast_mode=fast_mode)
    assert "the function is not finite there, or a step away in input 0" in text
    assert "backward" not in text


def test_zeros_are_shown_without_a_sign():
    """A zero that came of a negative factor is shown as any zero."""
    wrong = function(lambda ctx, x: x @ np.eye(2), lambda ctx, g: -3 * g @ np.eye(2)).apply
    assert "analytical:[[-3.  0.]\n [ 0. -3.]]" in failure(gradcheck, wrong, X)


def test_linearity_beside_nan():
    """A NaN in one element does not affect the linearity check of another."""
    x = np.array([0.5, np.nan])
    assert opcheck(lambda x: x * x, x, test_utils="test_linearity")["test_linearity"] == "SUCCESS"


def test_diagnosis_of_what_is_missing():
    """A forgotten grad_output, or output, is named; what stops a gradient is not called a fault of backward alone."""
    forgotten = doubling(lambda ctx, g: jnp.full((2,), 2.0))
    assert "fix: backward not multiplied by grad_output" in failure(gradcheck, forgotten, X)
    two = function(lambda ctx, x: (2 * x, 3 * x), lambda ctx, g, h: 2 * g).apply
    text = failure(gradcheck, two, X)
    assert "no derivative of output 1 by input 0 ('x') comes out: backward leaves it out, or something" in text
    assert "jax.lax.stop_gradient" in failure(gradcheck, lambda x: jax.lax.stop_gradient(x) + 0 * x, X)


@pytest.mark.parametrize(
    ("factor", "z", "hint"),
    [
        (lambda z: 2 * z, Z, "a conjugate is missing, or one too many"),
        (lambda z: -2 * z.conj(), Z, "-1 times what is due (a sign?)"),
        (lambda z: -2 * z, Z, None),
        (lambda z: 2 * z, 1j * X, "-1 times what is due (a sign, or a conjugate?)"),
    ],
    ids=["no conj", "sign", "both", "imaginary"],
)
def test_diagnosis_of_complex(factor, z, hint):
    """A hint on complex numbers is the one explanation, both, or absent."""

    class Fn(ComplexSquare):
        @staticmethod
        def backward(ctx, g):
            return g * factor(ctx.saved_tensors[0])

    text = failure(gradcheck, Fn.apply, z)
    assert hint in text if hint else "fix:" not in text


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck, fnjax.opcheck])
def test_class_instead_of_apply(check):
    """The class, or what cannot be called, is a TypeError with the remedy."""
    with pytest.raises(TypeError, match="takes a function of arrays") as caught:
        check(MulExp, (X, 2.0))
    assert "got: the class MulExp\n  fix: pass MulExp.apply\n" in str(caught.value)
    with pytest.raises(TypeError, match="got: int 3"):
        check(3, X)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck, fnjax.opcheck])
def test_arrays_in_containers(check):
    """Arrays in containers that are not checked are warned of by name; with pytree = True they are checked."""
    words = r"input 1 \('ws'\) is a list that holds arrays.*argnums=\(0, 1\)"
    with pytest.warns(UserWarning, match=words) as caught:
        check(lambda x, ws: x * ws[0], (X, [X]))
    assert [w.filename for w in caught] == [__file__]

    class Tree(fnjax.Function):
        pytree = True

        @staticmethod
        def forward(ctx, x, p):
            ctx.save_for_backward(x, p["w"])
            return x * p["w"]

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, {"w": g * x}

    assert check(Tree.apply, (X, {"w": X + 1}))

    plain = function(lambda ctx, x, ws: x * ws[0], lambda ctx, g: (g * (X + 1), None)).apply
    with pytest.warns(UserWarning, match="set `pytree = True` on Fn"):
        check(plain, (X, [X + 1]))


def test_wrong_gradient_in_a_container():
    """With pytree = True a wrong gradient in a container is found, and its path named."""

    class Wrong(fnjax.Function):
        pytree = True

        @staticmethod
        def forward(ctx, p):
            return 2 * p["w"]

        @staticmethod
        def backward(ctx, g):
            return {"w": 2.2 * g}

    with pytest.raises(GradcheckError, match=r"input 0 \('p'\)\['w'\]"):
        gradcheck(Wrong.apply, ({"w": X},))


def test_argnums_and_containers():
    """`argnums` selects inputs, also containers, whose arrays are then named by their paths."""
    f = lambda p, x: p["w"] * x
    inputs = ({"w": X, "n": 3}, X + 1)
    assert gradcheck(f, inputs, argnums=(0, 1))
    assert gradgradcheck(f, inputs, argnums=(0, -1))
    wrong = jax.custom_vjp(lambda w, x: w * x)
    wrong.defvjp(lambda w, x: (w * x, (w, x)), lambda s, g: (1.1 * g * s[1], g * s[0]))
    text = failure(gradcheck, lambda p, x: wrong(p["w"], x), inputs, argnums=[0, 1])
    assert "input 0 ('p')['w']" in text
    assert gradcheck(lambda p, x: wrong(p["w"], x), inputs, argnums=1)
    assert gradcheck(wrong, (X, X), argnums=(1,))


def test_random_keys_and_random_state():
    """PRNG keys pass through, and the user's random state stays as it is."""
    np.random.seed(0)  # noqa: NPY002 - the state that must not change
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - as above
    assert gradcheck(lambda x, k: x * jax.random.normal(k, x.shape), (X, jax.random.key(0)))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002 - as above


def test_empty_and_scalar_arrays():
    """Arrays without elements, and numbers, have Jacobians too."""
    assert gradcheck(lambda x, y: x * y.sum(), (np.zeros((0, 3)), X))
    assert gradcheck(jnp.sin, np.float64(0.3))
    assert gradcheck(jnp.sum, np.zeros(0))


def test_progress(monkeypatch, capsys):
    """On a terminal a long loop has a line, which it clears; a short one and another stream have none."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(_jacobian.show_progress(["one", "two"], "steps")) == ["one", "two"]
    assert not capsys.readouterr().err
    monkeypatch.setattr(_jacobian, "DELAY", -1.0)
    assert list(_jacobian.show_progress(["one", "two"], "steps")) == ["one", "two"]
    assert capsys.readouterr().err.split("\r\x1b[K") == ["", "steps: one, 1 of 2", "steps: two, 2 of 2", ""]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert list(_jacobian.show_progress(range(3), "steps")) == [0, 1, 2]
    assert not capsys.readouterr().err


def test_chunks_are_bounded(monkeypatch):
    """With little memory the steps are taken in more chunks, with the same result."""
    calls = []
    progress = _jacobian.show_progress
    monkeypatch.setattr(
        _jacobian, "show_progress", lambda steps, name: calls.append(len(steps)) or progress(steps, name)
    )
    monkeypatch.setattr(_jacobian, "COMPILE_SECONDS", 0.0)
    f, x = jnp.cumsum, np.linspace(0, 1, 50)
    assert gradcheck(f, x)
    assert calls == [1, 1]
    monkeypatch.setattr(_jacobian, "CHUNK_BYTES", 10_000)
    calls.clear()
    assert gradcheck(f, x)
    assert all(n > 4 for n in calls)


# --------------------------------------------------------------------------- the gallery


def example(name):
    """The module of an example."""
    path = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gradcheck_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tutorial():
    """PyTorch's tutorial on extending autograd checks its LinearFunction in these very words."""
    linear = example("linear").LinearFunction.apply
    randn = np.random.default_rng(0).normal
    input = (randn(size=(20, 20)), randn(size=(30, 20)))  # noqa: A001 - the tutorial's word
    test = gradcheck(linear, input, eps=1e-6, atol=1e-4)
    assert test is True
    assert gradgradcheck(linear, input, eps=1e-6, atol=1e-4, fast_mode=True)


GALLERY = {
    "linear LinearFunction": lambda n: (n(5, 3), n(2, 3), n(2)),
    "linear MyReLU": lambda n: (n(4, 3),),
    "square_exp Square": lambda n: (n(3),),
    "square_exp Exp": lambda n: (n(3),),
    "sinh SinhIntermediates": lambda n: (n(3),),
    "sinh SinhOutputs": lambda n: (n(3),),
    "numpy_cube Cube": lambda n: (n(3),),
    "numpy_cube CubeBackward": lambda n: (n(3), n(3)),
    "my_function MyFunction": lambda n: (n(3), 4, n(3)),
    "two_outputs Render": lambda n: (n(3), 1 + n(3) ** 2),
    "weighted_loss LogCosh": lambda n: (n(2, 3), n(2, 3), n(2, 3)),
    "digits Swish": lambda n: (n(3),),
    "digits LayerNorm": lambda n: (n(2, 5), n(5), n(5)),
}


@pytest.mark.parametrize("name", GALLERY)
def test_gallery(name):
    """The gallery's Functions pass, at first and second order."""
    module, function = name.split()
    inputs = GALLERY[name](lambda *shape: np.random.default_rng(0).normal(size=shape))
    f = getattr(example(module), function).apply
    # LogCosh has no gradient for its target and weights: it says None, which means zero.
    argnums = 0 if function == "LogCosh" else None
    assert gradcheck(f, inputs, argnums=argnums)
    assert gradgradcheck(f, inputs, argnums=argnums)


def test_gallery_straight_through():
    """FakeQuantize is a straight-through estimator on purpose: gradcheck says that it is not a derivative."""
    f = example("digits").FakeQuantize.apply
    assert "Jacobian mismatch" in failure(gradcheck, f, (np.array([0.3, 0.72]), 4, 1.0))


# --------------------------------------------------------------------------- Jacobians of random compositions


OPERATIONS = {
    "sin": jnp.sin,
    "square": lambda x: x * x,
    "transpose": lambda x: x.T,
    "flip": lambda x: x[::-1],
    "slice": lambda x: x[:, ::2],
    "pad": lambda x: jnp.pad(x, ((1, 0), (0, 2))),
    "concatenate": lambda x: jnp.concatenate([x, 2 * x]),
    "reshape": lambda x: x.reshape(-1, 1),
    "broadcast": lambda x: jnp.broadcast_to(x[:1], (3, x.shape[1])),
    "shifted product": lambda x: x * jnp.roll(x, 1, 0),
    "where": lambda x: jnp.where(x > 0.5, x, 2 * x),
    "clip": lambda x: jnp.clip(x, 0.1, 0.9),
    "softmax": jax.nn.softmax,
    "sum": lambda x: x.sum(0, keepdims=True),
    "relu": jax.nn.relu,
    "column by row": lambda x: x[:, :1] * x[:1, :],
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) + x, x),
    "where it is": lambda x: jnp.where(jnp.arange(x.shape[1]) > 0, x, 0.0),
}


@pytest.mark.parametrize("names", [list(OPERATIONS)[i : i + 3] for i in range(0, len(OPERATIONS), 3)], ids=", ".join)
def test_compiled_steps_give_what_single_steps_give(names):
    """The Jacobian of many steps at once is that of one step after the other, of the function and of backward."""
    f = functools.reduce(lambda f, name: lambda x: OPERATIONS[name](f(x)), names, lambda x: x)
    x = np.random.default_rng(0).uniform(0.2, 0.8, (2, 3))
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        problem = _problem.Problem(f, (x,), [0])
        for program, by_rows in ((problem.numerical(1e-6), False), (problem.backward(), True)):
            patch.setattr(_jacobian, "COMPILE_SECONDS", 0.0)
            ((compiled,),) = _jacobian.compute_jacobian(program, by_rows=by_rows)
            patch.setattr(_jacobian, "COMPILE_SECONDS", np.inf)
            ((single,),) = _jacobian.compute_jacobian(program, by_rows=by_rows)
            np.testing.assert_allclose(compiled, single, 1e-6, 1e-8)


def test_compiled_steps_are_confirmed(monkeypatch):
    """A function that gives something else when it is traced gets the Jacobian that it has outside jit."""
    monkeypatch.setattr(_jacobian, "COMPILE_SECONDS", 0.0)
    liar = lambda x: jnp.sin(x) if isinstance(x, jax.core.Tracer) else jnp.cumsum(jnp.sin(x))[::-1]
    with jax.enable_x64(True):
        problem = _problem.Problem(liar, (X,), [0])
        ((matrix,),) = _jacobian.compute_jacobian(problem.numerical(1e-6), by_rows=False)
    np.testing.assert_allclose(matrix, np.cos(X)[:, None] * [[1, 1], [1, 0]], 1e-6)


@pytest.mark.parametrize(("check", "most"), [(gradcheck, 3), (gradgradcheck, 15)])
def test_runs_share_one_compiled_program(check, most, caplog):
    """Outside jit only the function itself is run, a program for each operation: its derivatives are one program."""

    class Layer(fnjax.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return jnp.tanh(x @ w)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            g = g * (1 - jnp.tanh(x @ w) ** 2)
            return g @ w.T, x.T @ g

    rng = np.random.default_rng(0)
    with jax.log_compiles():
        assert check(Layer.apply, (rng.normal(size=(3, 5)), rng.normal(size=(5, 4))))
    assert sum("Finished XLA compilation" in record.message for record in caplog.records) <= most


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(["float64", "complex128", "int64", "bool"]), min_size=3, max_size=3),
    data=st.data(),
)
def test_shapes_dtypes_argnums(shapes, kinds, data):
    """Any mixture of shapes and dtypes, and any choice among the inexact inputs; a wrong gradient for one is found."""
    rng = np.random.default_rng(0)
    inputs = [np.asarray(rng.uniform(0.5, 1.5, s) + 1j * rng.uniform(size=s)) for s in shapes]
    inputs = [(x if k == "complex128" else x.real).astype(k) for x, k in zip(inputs, kinds, strict=False)]
    inexact = [i for i, x in enumerate(inputs) if x.dtype.kind in "fc"]

    def f(*xs, wrong=None):
        total = sum(jnp.sum(x * x) for i, x in enumerate(xs) if i != wrong)
        return total if wrong is None else total + jnp.sum(jax.lax.stop_gradient(xs[wrong]) ** 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not inexact:
            with pytest.raises(ValueError, match="at least one input"):
                gradcheck(f, inputs)
            return
        chosen = data.draw(st.none() | st.lists(st.sampled_from(inexact), min_size=1, unique=True))
        fast_mode = data.draw(st.booleans())
        assert gradcheck(f, inputs, argnums=chosen, fast_mode=fast_mode)
        wrong = data.draw(st.sampled_from(inexact))
        seen = (chosen is None or wrong in chosen) and inputs[wrong].size > 0
        result = gradcheck(
            functools.partial(f, wrong=wrong), inputs, argnums=chosen, fast_mode=fast_mode, raise_exception=False
        )
        assert result is not seen


# --------------------------------------------------------------------------- next to PyTorch


@pytest.mark.parity
@pytest.mark.parametrize("by", [2.0, 2.0 + 1e-4, 2.02, -2.0, 0.0])
@pytest.mark.parametrize("fast_mode", [False, True])
def test_parity(by, fast_mode):
    """The verdict on a gradient, and the first line of the message, are PyTorch's."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * by

    def verdict(check, f, x, kind):
        try:
            return check(f, (x,), fast_mode=fast_mode)
        except kind as e:
            return str(e).splitlines()[0]

    theirs = verdict(
        torch.autograd.gradcheck,
        Fn.apply,
        torch.tensor(X, requires_grad=True),
        importlib.import_module("torch.autograd.gradcheck").GradcheckError,
    )
    assert verdict(gradcheck, scaled(by), X, GradcheckError) == theirs


@pytest.mark.parity
@pytest.mark.parametrize("order", [1, 2])
def test_parity_of_plain_functions(order):
    """Both libraries accept their own derivatives, complex ones among them."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pairs = [
        (torch.tanh, jnp.tanh, X),
        (torch.exp, jnp.exp, Z),
        (torch.abs, jnp.abs, Z),
        (lambda z: z * z.conj(), lambda z: z * z.conj(), Z),
        (torch.linalg.inv, jnp.linalg.inv, np.array([[2.0, 1.0], [0.5, 3.0]])),
    ]
    theirs = torch.autograd.gradcheck if order == 1 else torch.autograd.gradgradcheck
    ours = gradcheck if order == 1 else gradgradcheck
    for f, g, x in pairs:
        assert theirs(f, (torch.tensor(x, requires_grad=True),))
        assert ours(g, (x,))
