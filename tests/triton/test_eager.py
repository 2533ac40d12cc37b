"""Launches outside of jax.jit: one program each, never stale."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton import _eager as eager

SHIFT = tl.constexpr(3)
SETTINGS = types.SimpleNamespace(factor=2)
TRACES = []


def count():
    """A function of plain Python, called while tracing."""
    TRACES.append(0)
    return len(TRACES)


@triton.jit
def inner(x):
    return x * SETTINGS.factor + SHIFT


@triton.jit
def outer_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, inner(tl.load(x_ptr + at)))


@triton.jit
def counting_kernel(out_ptr):
    tl.store(out_ptr, count())


def launch():
    return np.asarray(outer_kernel[(1,)](jnp.arange(4), jnp.zeros(4, jnp.int32), N=4))


def test_what_a_kernel_reads_outside_may_change(monkeypatch):
    """A constexpr of the file and an attribute, read by a helper, count as they are at each launch."""
    np.testing.assert_array_equal(launch(), np.arange(4) * 2 + 3)
    monkeypatch.setattr(SETTINGS, "factor", 5)
    np.testing.assert_array_equal(launch(), np.arange(4) * 5 + 3)
    monkeypatch.setitem(globals(), "SHIFT", tl.constexpr(7))
    np.testing.assert_array_equal(launch(), np.arange(4) * 5 + 7)


def test_a_launch_is_compiled_once(monkeypatch):
    """The second launch of the same kinds of arguments makes no new program."""
    launch()
    made = []
    new = eager._new
    monkeypatch.setattr(eager, "_new", lambda found: made.append(found) or new(found))
    launch()
    assert not made
    outer_kernel[(1,)](jnp.arange(8), jnp.zeros(8, jnp.int32), N=8)
    assert len(made) == 1


def test_functions_of_plain_python_are_called_at_each_launch():
    """What they read nobody knows, so nothing is kept."""
    first, second = (int(counting_kernel[(1,)](jnp.zeros(1, jnp.int32))[0]) for _ in range(2))
    assert second > first


@triton.jit
def powers_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.math.exp2(tl.load(x_ptr + at)))


def powers(x):
    return powers_kernel[(1,)](x, jnp.zeros(4), N=4)


@pytest.mark.parametrize(
    ("transformed", "shape"),
    [
        (powers, (4,)),
        (jax.grad(lambda x: powers(x).sum()), (4,)),
        (lambda x: jax.jvp(powers, (x,), (x,)), (4,)),
        (jax.vmap(powers), (3, 4)),
        (jax.vmap(jax.grad(lambda x: powers(x).sum())), (3, 4)),
    ],
    ids=["value", "grad", "jvp", "vmap", "vmap of grad"],
)
def test_what_is_not_compiled_by_the_user_runs_as_one_program(transformed, shape, monkeypatch):
    """Derivatives and batches outside of jit as well: a second call traces nothing."""
    x = jnp.ones(shape)
    first = transformed(x)
    monkeypatch.setattr(powers_kernel.source, "node", None)  # no trace gets far without it
    again = transformed(x)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    with pytest.raises(AttributeError):
        jax.jit(transformed)(x)
