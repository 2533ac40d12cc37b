"""The methods run as often as the rules of a custom_vjp would."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import fnjax

CALLS = 4
runs = Counter()  # of a method: how often it ran
scale = 1.0  # a global that backward reads


class Counted(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        runs["forward"] += 1
        ctx.save_for_backward(x)
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        runs["backward"] += 1
        (x,) = ctx.saved_tensors
        return grad_output * jnp.cos(x) * scale


@jax.custom_vjp
def by_hand(x):
    runs["forward"] += 1
    return jnp.sin(x)


def _forward(x):
    runs["forward"] += 1
    return jnp.sin(x), x


def _backward(x, g):
    runs["backward"] += 1
    return (g * jnp.cos(x) * scale,)


by_hand.defvjp(_forward, _backward)


@pytest.fixture(autouse=True)
def fresh():
    """JAX's caches are cleared between tests."""
    global scale
    scale = 1.0
    jax.clear_caches()
    runs.clear()


def chain(f):
    def loss(x):
        for _ in range(CALLS):
            x = f(x)
        return x.sum()

    return loss


def scanned(f):
    return lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, None, length=CALLS)[0].sum()


WAYS = {
    "bare": chain,
    "jit": lambda f: chain(jax.jit(f)),
    "inline": lambda f: chain(jax.jit(f, inline=True)),
    "scan": scanned,
    "remat": lambda f: chain(jax.checkpoint(f)),
    "remat of a chain": lambda f: jax.checkpoint(chain(f)),
}


def count(way, f, transform=jax.grad):
    """Runs of forward and backward while `transform` of a program that calls f is traced."""
    jax.clear_caches()
    runs.clear()
    jax.jit(transform(WAYS[way](f))).trace(jnp.ones(3))
    return dict(runs)


@pytest.mark.sampled(5)
@pytest.mark.skipif(
    jax.config.values.get("jax_custom_vjp3", False),
    reason="JAX's coming custom_vjp remembers traces of the primal between calls by itself; fnjax remembers none",
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_runs_are_those_of_custom_vjp(way, transform):
    """A traced program runs the methods as often as custom_vjp under the same jit, scan or remat; never more."""
    ours, theirs = count(way, Counted.apply, transform), count(way, by_hand, transform)
    assert ours == theirs


def test_a_chain_runs_each_call():
    """Without a jit every call runs its methods; with one, JAX runs them once for all."""
    assert count("bare", Counted.apply) == {"forward": CALLS, "backward": CALLS}
    assert count("jit", Counted.apply)["backward"] == 1


@pytest.mark.parametrize("f", [Counted.apply, by_hand], ids=["fnjax", "custom_vjp"])
def test_a_pullback_called_three_times(f):
    """Each call of one pullback runs backward, which sees the globals as they are by then."""

    @jax.jit
    def thrice(x):
        global scale
        _, pullback = jax.vjp(f, x)
        results = []
        for value in (2.0, 10.0, 14.0):
            scale = value
            results.append(pullback(jnp.ones(()))[0])
        return results

    assert [float(g) for g in thrice(0.0)] == [2.0, 10.0, 14.0]
    assert runs["backward"] == 3


class Settings:
    """List places that a method may read and that cannot be listed in advance."""

    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("way", ["attribute", "class attribute", "closure", "partial", "dict", "another Function"])
def test_nothing_is_stale(way):
    """Globals are read at each call of forward, also within one program: fnjax caches nothing."""
    settings, listed, table = Settings(2.0), [2.0], {"value": 2.0}

    class Other(fnjax.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * Other.factor

    class Reads(fnjax.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x, f=None):
            ctx.factor = {
                "attribute": lambda: settings.value,
                "class attribute": lambda: Reads.factor,
                "closure": lambda: listed[0],
                "partial": f,
                "dict": lambda: table["value"],
                "another Function": lambda: float(Other.apply(1.0)),
            }[way]()
            return x * ctx.factor

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.factor, None

    def change(value):
        settings.value = listed[0] = table["value"] = Reads.factor = Other.factor = value

    read = functools.partial(lambda s: s.value, settings)

    @jax.jit
    def program(x):
        found = []
        for value in (2.0, 3.0, 5.0):
            change(value)
            found.append(jax.grad(Reads.apply)(x, read))
        return found

    assert [float(g) for g in program(1.0)] == [2.0, 3.0, 5.0]
