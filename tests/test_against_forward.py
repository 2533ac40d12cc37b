"""backward next to JAX's own derivative of forward: what agrees, what is found, where, and what the command prints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax.__main__ import main
from tests.zoo import CASES, NumPyExp

X = np.random.default_rng(0).uniform(0.3, 1.2, (6, 5))
W = np.random.default_rng(1).uniform(0.3, 1.2, 5)


def against_forward(func, *args, **named):
    return fnjax.opcheck(func, args, test_utils="test_against_forward", **named)


class Scaled(fnjax.Function):
    """x · w, whose derivatives the tests replace."""

    factor = staticmethod(lambda grad: grad)
    bias = False

    @staticmethod
    def forward(ctx, x, w, power=1, name="plain"):
        ctx.save_for_backward(x, w)
        ctx.power = power
        return x * w**power

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dw = grad * x * ctx.power * w ** (ctx.power - 1)
        return Scaled.factor(grad * w**ctx.power), dw, None, None


def wrong(factor):
    """The Function with another gradient for x."""

    class Wrong(Scaled):
        @staticmethod
        def backward(ctx, grad):
            dx, *rest = Scaled.backward(ctx, grad)
            return factor(dx), *rest

    return Wrong.apply


OF_CLASSES = [case for case in CASES if hasattr(case.apply, "__self__") and case.name != "numpy_forward"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", OF_CLASSES, ids=lambda case: case.name)
def test_the_zoo_agrees(case):
    """Backward of each Function is the derivative of its forward, with 64 bits and with 32."""
    args = case.inputs(np.random.default_rng(0))
    assert against_forward(case.apply, *args) == {"test_against_forward": "SUCCESS"}
    narrow = [a.astype({"f": np.float32, "c": np.complex64}.get(a.dtype.kind, a.dtype)) for a in args]
    assert against_forward(case.apply, *narrow) == {"test_against_forward": "SUCCESS"}


def test_it_is_asked_for():
    """test_against_forward is not among the tests that opcheck runs by default."""
    assert "test_against_forward" not in fnjax.opcheck(Scaled.apply, (X, W), raise_exception=False)


def test_static_and_keyword_arguments():
    """Numbers and text stay what they are, keywords too."""
    assert not against_forward(Scaled.apply, X, W, 3, "plain").failures
    results = fnjax.opcheck(Scaled.apply, (X, W), {"power": 2}, test_utils="test_against_forward")
    assert not results.failures


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (lambda g: 1.01 * g, ["all 30 elements differ", "there backward gives 1.01 times what is due"]),
        (
            lambda g: g.at[2:4, 1].set(0),
            ["2 of 30 elements differ, all within [2:4, 1:2]", "gives zeros there"],
        ),
        (lambda g: g.at[5, 4].add(1e-3), ["1 of 30 elements differ, all within [5:6, 4:5]", "[5, 4]"]),
        (lambda g: g.at[0, 0].set(jnp.nan), ["1 of 30 elements differ", "nan"]),
        (lambda g: -g, ["there backward gives -1 times what is due"]),
        (lambda g: None, ["all 30 elements differ", "backward gives zeros there"]),
    ],
    ids=["larger", "rows", "one", "nan", "sign", "none"],
)
def test_what_is_wrong_is_found_with_its_place(factor, says):
    """The gradient that differs, how many entries, and where; the other gradient is not blamed."""
    with pytest.raises(
        fnjax.GradcheckError, match=r"Wrong\.backward is not the derivative of Wrong\.forward"
    ) as caught:
        raise fnjax.opcheck(wrong(factor), (X, W), test_utils="test_against_forward", raise_exception=False)[
            "test_against_forward"
        ]
    for text in says:
        assert text in str(caught.value)
    assert "input 1 ('w'):" not in str(caught.value)


def test_a_wrong_gradient_of_large_arrays_is_found():
    """Inputs may be as large as a kernel's, for which finite differences would take hours."""
    x, w = np.ones((512, 256), np.float32), np.ones(256, np.float32)
    results = against_forward(wrong(lambda g: g.at[:, 255].set(0)), x, w, raise_exception=False)
    assert "512 of 131072 elements differ, all within [0:512, 255:256]" in str(results["test_against_forward"])


def test_tolerances_are_those_of_the_narrowest_numbers():
    """A forward that computes with 32 bits of 64-bit inputs is compared to 32 bits; other tolerances can be given."""

    class Narrow(Scaled):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return (x.astype(jnp.float32) * w.astype(jnp.float32)).astype(x.dtype)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return (grad * w).astype(x.dtype), grad * x

    def found(func, **named):
        return bool(against_forward(func, X, W, raise_exception=False, **named).failures)

    slightly = lambda g: g * (1 + 1e-6)
    assert not found(Narrow.apply)
    assert found(wrong(slightly))
    assert not found(wrong(slightly), rtol=1e-5)
    assert found(Narrow.apply, rtol=1e-12, atol=0.0)


def test_needs_input_grad_is_that_of_a_derivative():
    """Forward sees which inputs are differentiated, and does what it does in training."""
    seen = []

    class Seen(fnjax.Function):
        @staticmethod
        def forward(ctx, x, w):
            seen.append(ctx.needs_input_grad)
            ctx.save_for_backward(w)
            return x * w

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0], None

    fnjax.opcheck(Seen.apply, (X, W), test_utils="test_against_forward", argnums=0)
    assert (True, False) in seen
    assert fnjax.opcheck(Seen.apply, (X, W), test_utils="test_against_forward", raise_exception=False).failures


def test_what_cannot_be_compared_is_an_error():
    """A forward that JAX cannot differentiate, one that is random, and a function that is no Function."""
    results = against_forward(NumPyExp.apply, X, raise_exception=False)
    assert "JAX cannot differentiate NumPyExp.forward" in str(results["test_against_forward"])
    rng = np.random.default_rng(0)

    class Noisy(Scaled):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            ctx.power = 1
            return x * w * rng.uniform(1, 2)

    results = against_forward(Noisy.apply, X, W, raise_exception=False)
    assert "Noisy.forward gives other values for output 0" in str(results["test_against_forward"])
    for func in (jnp.sin, functools.partial(NumPyExp.apply)):
        results = against_forward(func, X, raise_exception=False)
        assert "pass F.apply of the class itself" in str(results["test_against_forward"])


class Right(Scaled):
    pass


class Wrong(Scaled):
    @staticmethod
    def backward(ctx, grad):
        dx, dw, *_ = Scaled.backward(ctx, grad)
        return dx, dw.at[:, 2].multiply(2), None, None


def command(name, *more):
    return main(["check", f"{__file__}:{name}", "--args", "ones(6, 5), ones(5)", "--against-forward", *more])


def test_the_command_prints_each_gradient(capsys):
    """A row for each gradient, with the largest difference and its place; the status says whether all agree."""
    assert command("Right") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["gradient for", "input 0 ('x')", "input 1 ('w')"]
    assert all(line.endswith("ok") for line in lines[1:])
    assert command("Wrong") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("ok")
    assert lines[2].endswith("DIFFERS")
    assert lines[3] == ("input 1 ('w'): 1 of 5 elements differ, all within [2:3]" + lines[3].partition("[2:3]")[2])
    assert command("Wrong", "--rtol", "10") == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["Right", "--tests", "test_jit"], "leave --tests, --skip and --json out"),
        (["against_forward"], "cannot be called with"),
        (["Right", "--argnums", "7"], "argnums"),
    ],
    ids=["tests", "no function of arrays", "argnums"],
)
def test_the_command_says_what_it_cannot_use(capsys, more, says):
    """Exit status 2, and a line that says why."""
    assert command(*more) == 2
    assert says in capsys.readouterr().err


def test_it_is_no_derivative_of_what_was_marked():
    """An output that is marked as not differentiable counts in neither derivative."""

    class Marked(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y, other = x**2, x**3
            ctx.mark_non_differentiable(other)
            return y, other

        @staticmethod
        def backward(ctx, grad, _):
            return 2 * grad * ctx.saved_tensors[0]

    assert not against_forward(Marked.apply, X).failures


def test_jit_is_the_same():
    """Under an outer jax.jit of the Function's own parts nothing changes: forward may call jitted functions."""

    class Jitted(Scaled):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            ctx.power = 1
            return jax.jit(jnp.multiply)(x, w)

        @staticmethod
        def backward(ctx, grad):
            return Scaled.backward(ctx, grad)[:2]

    assert not against_forward(Jitted.apply, X, W).failures
