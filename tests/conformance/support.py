"""PyTorch's recorded results, and the comparison of a twin with them.

`data/pytorch-2.13.json` holds, for each case, what PyTorch 2.13 gave for a class that the test of the same id types
again with `fnjax.Function`: arrays with their dtype, and for errors their type and message.
"""

import builtins
import contextlib
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

_RECORDED = json.loads((Path(__file__).parent / "data" / "pytorch-2.13.json").read_text())


def _decode(value):
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "__complex__" in value:
        return complex(*value["__complex__"])
    if "__array__" in value:
        return np.array(_decode(value["__array__"]), jnp.dtype(value["dtype"])).reshape(value["shape"])
    return {k: _decode(v) for k, v in value.items()}


def recorded(case, *path):
    """Return PyTorch's recorded result of a case, or the entry at `path`."""
    value = _decode(_RECORDED[case]["outcome"])
    for key in path:
        value = value[key]
    return value


def same(got, want):
    """Assert that two results agree: arrays in dtype, shape and value, the rest as it is."""
    if isinstance(want, np.ndarray):
        assert isinstance(got, jax.Array | np.ndarray)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        rtol = 1e-12 if want.dtype.itemsize >= 8 else float(2 * jnp.finfo(want.dtype).eps)
        np.testing.assert_allclose(np.asarray(got, np.complex128), np.asarray(want, np.complex128), rtol, 1e-15)
    elif isinstance(want, list):
        assert isinstance(got, list | tuple)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    else:
        assert type(got) is type(want)
        assert got == want


def check(case, **got):
    """Assert that each result equals PyTorch's recorded one of the same name."""
    for name, value in got.items():
        same(value, recorded(case, name))


def gradients_eagerly(f, *args):
    """The gradients of the sum of `f` in all its arguments, outside jit."""
    return jax.grad(lambda *args: f(*args).sum(), tuple(range(len(args))))(*args)


def gradients(f, *args):
    """As `gradients_eagerly`, checked to be the same under jit."""
    eager = gradients_eagerly(f, *args)
    jitted = jax.jit(lambda *args: gradients_eagerly(f, *args))(*args)
    for a, b in zip(eager, jitted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, 1e-12)
    return eager


def slope(f):
    """The derivative of a function of one array, each time of its sum, as PyTorch's cases take it."""
    return lambda x: gradients_eagerly(f, x)[0]


def derivatives(f, x, order=2):
    """The derivatives of `f` up to an order, checked to be the same under jit."""
    values = []
    for _ in range(order):
        f = slope(f)
        values.append(f(x))
        np.testing.assert_allclose(values[-1], jax.jit(f)(x), 1e-12)
    return values


@contextlib.contextmanager
def refuses(error, phrase, name):
    """Expect the error that PyTorch raised: its type, its searchable phrase, and the name of the class.

    Args:
        error: the recorded {"exc", "msg"}.
        phrase: the part of PyTorch's message that one searches for.
        name: the class (as itself or as the node, `FnBackward`).
    """
    assert phrase in error["msg"], "not PyTorch's words"
    with pytest.raises(getattr(builtins, error["exc"])) as caught:
        yield
    text = str(caught.value)
    assert phrase in text
    assert re.search(rf"\b{name}(Backward)?\b", text), f"{name} is not named in: {text}"


def is_zero(array):
    """Return whether an array is all zeros."""
    return not np.any(np.asarray(array))


class MulExp(fnjax.Function):
    """k exp(x); saves the output."""

    @staticmethod
    def forward(ctx, x, k):
        y = k * jnp.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y, None


class SExp(fnjax.Function):
    """Exp(x) in the style with setup_context; saves the output."""

    @staticmethod
    def forward(x):
        return jnp.exp(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


def returning(ret, bwd=None):
    """A Function of x that returns `ret(x)`; without a `bwd` it sums what comes in."""

    class R(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return ret(x)

        @staticmethod
        def backward(ctx, *gs):
            if bwd is not None:
                return bwd(ctx, *gs)
            (x,) = ctx.saved_tensors
            return jnp.broadcast_to(sum(g.sum() for g in gs if g is not None), x.shape)

    return R


def answering(bwd, fwd=lambda ctx, *xs: xs[0] * 2):
    """A Function whose gradients are `bwd(ctx, *grad_outputs)`."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, *xs):
            return fwd(ctx, *xs)

        @staticmethod
        def backward(ctx, *gs):
            return bwd(ctx, *gs)

    return Fn
