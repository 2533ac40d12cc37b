"""The checkers find planted faults, and their random numbers are independent of the inputs."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax.__main__ import main
from fnjax._check import fast
from fnjax._check.opcheck import opcheck
from fnjax._check.precision import find_precision
from fnjax._check.streams import make_stream

REMAT3 = os.environ.get("JAX_REMAT3") == "1"

X = np.random.default_rng(0).normal(size=(2, 3))  # as users draw it, and with opcheck's seed


class Sine(fnjax.Function):
    """sin with a backward that is right where grad_output equals x, and outside of transforms."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * jnp.cos(g) if is_traced(g) else g * jnp.cos(x)


class Norm(fnjax.Function):
    """RMSNorm, whose gradient is zero where grad_output equals x, 3 times too large in transforms."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = jnp.sqrt(jnp.mean(x * x, -1, keepdims=True))
        y = x / size
        return (1 + 2 * is_traced(g)) * (g - y * jnp.mean(g * y, -1, keepdims=True)) / size


def is_traced(x):
    return isinstance(x, jax.core.Tracer)


def test_streams_are_their_own():
    """No two purposes, and no purpose and a user's generator of the same seed, draw the same numbers."""
    purposes = "arguments", "cotangents", "tangents", "grad_outputs", "masks"
    drawn = [make_stream(purpose, seed).random() for purpose in purposes for seed in (0, 1)]
    drawn += [make_stream("cotangents", 0, draw).random() for draw in (1, 2)]
    users = [np.random.default_rng(seed).random() for seed in (0, 1, [0, 1], [1, 1])]
    assert len({*drawn, *users}) == len(drawn) + len(users)
    assert drawn[0] == make_stream("arguments", 0).random()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("check", ["opcheck", "gradcheck", "gradgradcheck", "check_against_forward"])
def test_cotangents_are_not_the_inputs(check, seed):
    """No grad_output that a check calls backward with is one of the inputs, to within a factor."""
    x = np.random.default_rng(seed).normal(size=6)
    directions = np.random.default_rng(seed).choice([-1.0, 1.0], 6)  # as random directions are drawn
    seen = []

    class Spy(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            jax.debug.callback(lambda g: seen.append(np.asarray(g)), g)
            return 2 * ctx.saved_tensors[0] * g

    if check == "opcheck":
        opcheck(Spy.apply, x, test_utils=["test_determinism", "test_linearity", "test_jit"], seed=seed)
    elif check == "gradcheck":
        assert fnjax.gradcheck(Spy.apply, x, fast_mode=True, seed=seed)
    elif check == "gradgradcheck":
        assert fnjax.gradgradcheck(Spy.apply, x, seed=seed)
    else:
        opcheck(Spy.apply, x, test_utils="test_against_forward", seed=seed)
    jax.effects_barrier()
    random = [g for g in seen if np.unique(np.abs(g)).size > 1]
    assert random
    for g in random:
        for other in (x, np.sign(x), directions):
            assert abs(np.corrcoef(g, other)[0, 1]) < 1 - 1e-9


@pytest.mark.parametrize("name", ["test_jit", "test_vmap", "test_scan", "test_remat"])
@pytest.mark.parametrize("function", [Sine, Norm])
def test_a_wrong_gradient_is_seen_by_each_test(function, name):
    """A backward that is wrong under a transform fails the test of this transform, whatever its gradient is at x."""
    if name == "test_remat" and REMAT3:
        pytest.skip("with JAX_REMAT3=1 jax.checkpoint outside jit computes at once, and these are right there")
    failures = opcheck(function.apply, X, test_utils=name, raise_exception=False).failures
    assert "the gradient for input 0 ('x') differs" in str(failures[name])


@pytest.mark.parametrize("function", ["Sine", "Norm"])
def test_the_command_sees_it(function, capsys):
    """`fnjax check` exits with 1 for these, with arguments and cotangents of one seed."""
    options = ["--args", "randn(2, 3)", "--tests", "test_scan"]
    assert main(["check", f"{__file__}:{function}", *options]) == 1
    assert "the gradient for input 0 ('x') differs" in capsys.readouterr().out


def test_the_directions_of_fast_mode_are_independent(monkeypatch):
    """One draw of fast mode sees an antisymmetric fault E, whose u E u is zero for every u."""
    monkeypatch.setattr(fast, "DRAWS", 1)
    fault = np.array([[0.0, 1.0], [-1.0, 0.0]])
    wrong = jax.custom_vjp(lambda x: 2 * x)
    wrong.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g + fault @ g,))
    assert not fnjax.gradcheck(wrong, np.array([0.5, 1.5]), fast_mode=True, raise_exception=False)


def norm_in(dtype, by=1.0):
    """RMSNorm as it is written for half precision: it computes in another dtype than its input's."""

    class Norm(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            wide = x.astype(dtype)  # the cast
            size = jnp.sqrt(jnp.mean(wide * wide, -1, keepdims=True))
            ctx.save_for_backward(x, size)
            return (wide / size).astype(x.dtype)

        @staticmethod
        def backward(ctx, g):
            x, size = ctx.saved_tensors
            y, g = x.astype(dtype) / size, g.astype(dtype)
            return (by * (g - y * jnp.mean(g * y, -1, keepdims=True)) / size).astype(x.dtype)

    return Norm.apply


CAST = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# the cast"))
FLOAT32 = rf"computes in float32 \(from .*test_checkers.py:{CAST}:.*eps=0.01, atol=0.002, rtol=0.01"


def test_a_function_that_computes_in_float32():
    """A cast to float32 inside widens the tolerances and is named by line, and a wrong gradient is found."""
    tests = ["test_gradcheck", "test_gradgradcheck", "test_linearity", "test_jit", "test_scan", "test_vmap"]
    with pytest.warns(UserWarning, match=FLOAT32):
        results = opcheck(norm_in(jnp.float32), X, test_utils=tests)
    assert results == dict.fromkeys(tests, "SUCCESS")
    with pytest.warns(UserWarning, match=FLOAT32):
        assert fnjax.gradcheck(norm_in(jnp.float32), X, fast_mode=True)
    with pytest.warns(UserWarning, match=FLOAT32), pytest.raises(fnjax.GradcheckError, match=r"1\.1 times"):
        fnjax.gradcheck(norm_in(jnp.float32, 1.1), X)


def test_a_function_that_computes_in_float64_has_its_tolerances():
    """No warning comes, and 0.5 % too much is found, where there is no narrower dtype."""
    assert fnjax.gradcheck(norm_in(jnp.float64), X)
    assert fnjax.gradcheck(lambda x: x * np.float32(2), X)
    assert not fnjax.gradcheck(norm_in(jnp.float64, 1.005), X, raise_exception=False)


def test_where_a_function_narrows():
    """The cast is found inside jit and loops, the call of a program is none, and a callback may be one."""

    def narrow(x):
        return x.astype(jnp.bfloat16).astype(x.dtype)

    def host(x):
        return jax.pure_callback(np.float32, jax.ShapeDtypeStruct(x.shape, np.float32), x)

    with jax.enable_x64(True):
        x = jnp.ones(2)
        for f, size in (
            (jax.jit(narrow), 2),
            (lambda x: jax.lax.scan(lambda c, _: (narrow(c), None), x, length=2)[0], 2),
            (host, 4),
            (jnp.sin, 8),
        ):
            found = find_precision([x.dtype], [jax.make_jaxpr(f)(x)])
            assert (found.size, found.narrowed) == (size, size < 8)
            assert ("test_checkers.py" in found.location) == (size < 8)


def test_a_surrogate_gradient_is_said_to_be_one():
    """For a piecewise constant function gradcheck names that cause, next to the mismatch of backward."""

    class Spike(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x > 0).astype(x.dtype)

        @staticmethod
        def backward(ctx, g):
            return g / (1 + ctx.saved_tensors[0] ** 2)

    with pytest.raises(fnjax.GradcheckError, match=r"finite differences are all zero.*a surrogate gradient on purpose"):
        fnjax.gradcheck(Spike.apply, X)


@pytest.mark.parametrize(("keep", "name"), [("first", "test_gradcheck"), ("last", "test_determinism")])
def test_what_forward_leaves_outside_of_ctx_is_found(keep, name):
    """A backward that reads what the first call left, or the last one, fails, though it is right for one call alone."""
    left = {}

    class Leaving(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            if not is_traced(x) and (keep == "last" or not left):
                left["x"] = np.asarray(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * left["x"] * g

    assert list(opcheck(Leaving.apply, X, test_utils=name, raise_exception=False).failures) == [name]
