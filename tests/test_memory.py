"""Only saved arrays are kept between forward and backward, with hooks, offloading and checkpoint policies."""

import contextlib
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import fnjax
from benchmarks.models import Swish
from tests.zoo import Pullback, SavedInput, SavedIntermediate, SavedOutput

pytestmark = pytest.mark.usefixtures("x64")


def narrow(x):
    return x.astype(jnp.float32)


def widen(x):
    return x.astype(jnp.float64)


def residuals(f, *args):
    """The arrays that a pullback keeps, leaving out scalars."""
    return [leaf for leaf in jax.tree.leaves(jax.vjp(f, *args)[1]) if getattr(leaf, "ndim", 0)]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_hooks_see_what_is_saved(wrap):
    """Pack and unpack are given each saved array, in force while tracing; unpack also after the block."""
    x, seen = jnp.linspace(0.5, 1.5, 4), []
    want = jax.grad(lambda x: SavedInput.apply(x).sum())(x)

    def pack(x):
        seen.append("pack")
        return {"narrow": narrow(x)}

    def unpack(kept):
        seen.append("unpack")
        return widen(kept["narrow"])

    with fnjax.saved_tensors_hooks(pack, unpack):
        _, pullback = jax.vjp(wrap(SavedInput.apply), x)
        assert "pack" in seen
    np.testing.assert_allclose(pullback(jnp.ones(4))[0], want, rtol=1e-6)
    assert "unpack" in seen
    assert jnp.abs(pullback(jnp.ones(4))[0] - want).max() > 0  # it did go through float32


def test_hooks_change_what_is_kept():
    """The pullback keeps what pack returned, and not the array itself."""
    x = jnp.ones(100)
    with fnjax.saved_tensors_hooks(narrow, widen):
        kept = residuals(SavedOutput.apply, x)
    assert [leaf.dtype for leaf in kept] == [jnp.float32]
    assert [leaf.dtype for leaf in residuals(SavedOutput.apply, x)] == [jnp.float64]


COMPILED = {
    "outside": lambda f: jax.jit(jax.grad(f)),
    "inside": lambda f: jax.grad(jax.jit(f)),
    "vmap": lambda f: jax.jit(lambda x: jax.vmap(jax.grad(f))(x[None])[0]),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(jax.jit(f))),
    "scan": lambda f: jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=1)[0])),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_functions_ask_for_the_hooks(kind):
    """A compiled program has the hooks of each call, in every order; equal hooks do not recompile it."""
    traced, news = [], []

    def square(x):
        traced.append(x)
        return SavedInput.apply(x)

    def times(k):
        return fnjax.saved_tensors_hooks(lambda x: k * x, lambda kept: kept)

    gradient = COMPILED[kind](square)
    expected = {k: jax.grad(SavedInput.apply)(0.5 * (k or 1.0)) for k in (None, 2.0, 3.0)}
    for k in (None, 2.0, None, 3.0, 2.0):
        before = len(traced)
        with contextlib.nullcontext() if k is None else times(k):
            np.testing.assert_allclose(gradient(jnp.float64(0.5)), expected[k], rtol=1e-12)
        news.append(len(traced) > before)
    assert news == [True, True, False, True, False]


def test_hooks_with_other_captures_are_others():
    """Hooks differ by the values they close over: numbers by value, lists by identity, functions likewise."""
    seen = [[], []]
    gradient = jax.jit(jax.grad(SavedInput.apply))

    def noting(record):
        note = lambda: record.append("packed")
        return fnjax.saved_tensors_hooks(lambda x: note() or x, lambda kept: kept)

    for record in (seen[0], seen[1], seen[1]):
        with noting(record):
            gradient(jnp.float64(0.5))
    assert list(map(len, seen)) == [1, 1]


def test_hooks_leave_attributes_alone():
    """Attributes of ctx are not saved tensors; the innermost of nested hooks counts; None keeps its place."""

    class Mixed(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            ctx.save_for_backward(None, x)
            return x**2

        @staticmethod
        def backward(ctx, grad_output):
            nothing, x = ctx.saved_tensors
            assert nothing is None
            return grad_output * (x + ctx.x)

    outer, inner = [], []
    with fnjax.saved_tensors_hooks(lambda x: outer.append(x) or x, lambda x: x):
        with fnjax.saved_tensors_hooks(lambda x: inner.append(x) or 2 * x, lambda x: x):
            assert jax.grad(Mixed.apply)(3.0) == 9.0
        assert len(inner) == 1
        assert outer == []
        assert jax.grad(Mixed.apply)(3.0) == 6.0
    assert len(outer) == 1
    assert jax.grad(Mixed.apply)(3.0) == 6.0


def test_second_order_through_hooks():
    """A hook that loses nothing leaves second derivatives as they are."""
    hooks = fnjax.saved_tensors_hooks(lambda x: (x / 2, x / 2), lambda halves: halves[0] + halves[1])
    for Fn in (SavedInput, SavedOutput, SavedIntermediate):
        second = lambda Fn=Fn: jax.grad(jax.grad(lambda x: jnp.sin(Fn.apply(x))))(0.7)
        want = second()
        with hooks:
            np.testing.assert_allclose(second(), want, rtol=1e-12)


def test_hooks_belong_to_their_thread():
    """Hooks of one thread are not in force in another."""
    seen = []
    with fnjax.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        thread = threading.Thread(target=lambda: jax.grad(SavedInput.apply)(1.0))
        thread.start()
        thread.join()
    assert seen == []


def test_hooks_must_be_callable():
    """The message names the hook."""
    with pytest.raises(TypeError, match="saved_tensors_hooks: unpack_hook is not callable"):
        fnjax.saved_tensors_hooks(narrow, None)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_unpack_hook_returns_an_array(wrap):
    """A forgotten return in unpack_hook has PyTorch's phrase."""
    with (
        fnjax.saved_tensors_hooks(lambda x: x, lambda kept: None),
        pytest.raises(TypeError, match="unpack_hook expected to be a Tensor but got result of type NoneType"),
    ):
        jax.grad(wrap(SavedInput.apply))(1.0)


class Slope(fnjax.Function):
    """Saves a costly intermediate, under a name of its own."""

    checkpoint_name = "slope"

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(jnp.cos(x))
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]


def kept_by_policy(policy, Fn):
    """Return the number of arrays that the pullback of three calls under jax.checkpoint keeps."""
    f = jax.checkpoint(lambda x: Fn.apply(Fn.apply(Fn.apply(x))), policy=policy)
    x = jnp.linspace(0.1, 1, 50)
    np.testing.assert_allclose(
        jax.grad(lambda x: f(x).sum())(x),
        jax.grad(lambda x: Fn.apply(Fn.apply(Fn.apply(x))).sum())(x),
        rtol=1e-12,
    )
    return sum(leaf.shape == x.shape for leaf in residuals(f, x))


@pytest.mark.parametrize(("Fn", "name"), [(Slope, "slope"), (SavedIntermediate, "SavedIntermediate")])
def test_policies_know_what_is_saved_by_name(Fn, name):
    """save_only_these_names keeps what the class saves, under its checkpoint_name or the name of the class."""
    policies = jax.checkpoint_policies
    nothing = kept_by_policy(policies.nothing_saveable, Fn)
    assert kept_by_policy(policies.save_only_these_names(name), Fn) == nothing + 3 - 1  # the input is not needed then
    assert kept_by_policy(policies.save_only_these_names("another"), Fn) == nothing


def test_policies_know_named_outputs():
    """A name that the caller gives to an output counts, whatever implements jax.checkpoint."""
    named = lambda x: checkpoint_name(SavedIntermediate.apply(x), "y")
    f = lambda policy: jax.checkpoint(lambda x: named(named(named(x))), policy=policy)
    kept = lambda policy: sum(leaf.ndim for leaf in residuals(f(policy), jnp.linspace(0.1, 1, 50)))
    policies = jax.checkpoint_policies
    assert kept(policies.nothing_saveable) == kept(policies.save_only_these_names("another")) == 1
    assert kept(policies.save_only_these_names("y")) == 3


@pytest.mark.parametrize(
    ("Fn", "count"), [(SavedInput, 1), (SavedOutput, 1), (SavedIntermediate, 1), (Pullback, 3)], ids=str
)
def test_nothing_else_is_kept(Fn, count):
    """The residuals of a vjp are what forward saved and nothing more, jitted or not."""
    x = jnp.linspace(0.1, 1, 64)
    for f in (Fn.apply, jax.jit(Fn.apply)):
        assert sum(leaf.shape == x.shape for leaf in residuals(f, x)) <= count


def test_everything_and_nothing_saveable():
    """nothing_saveable keeps the argument alone, and everything_saveable at least what forward saved."""
    assert kept_by_policy(jax.checkpoint_policies.nothing_saveable, SavedIntermediate) == 1
    assert kept_by_policy(jax.checkpoint_policies.everything_saveable, SavedIntermediate) >= 3


def to_int8(x):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
    return jnp.round(x / scale).astype(jnp.int8), scale


PACKINGS = {
    "bfloat16": (lambda x: x.astype(jnp.bfloat16), lambda kept: kept.astype(jnp.float32), 0.66),
    "int8": (to_int8, lambda kept: kept[0].astype(jnp.float32) * kept[1], 0.40),
}


def swish_of_packed(pack, unpack):
    """The same by hand: the gradient at the numbers that were packed."""

    @jax.custom_jvp
    def swish(x):
        return x * jax.nn.sigmoid(x)

    @swish.defjvp
    def _(primals, tangents):
        x = unpack(pack(primals[0]))
        s = jax.nn.sigmoid(x)
        return swish(*primals), tangents[0] * (s * (1 + x * (1 - s)))

    return swish


def hooked(pack, unpack):
    def swish(x):
        with fnjax.saved_tensors_hooks(pack, unpack):
            return Swish.apply(x)

    return swish


@pytest.mark.sampled(3)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "chain"])
@pytest.mark.parametrize("form", ["unrolled", "scan"])
def test_the_program_keeps_what_is_packed(packing, dense, form):
    """16 layers keep a share of their inputs, which XLA would fuse the packing away for, and have its gradients."""
    pack, unpack, share = PACKINGS[packing]
    layers, n = 16, 256

    def loss(swish):
        layer = lambda x, w: swish(x @ w if dense else x)
        if form == "scan":
            return lambda x, w: jax.lax.scan(lambda x, _: (layer(x, w), None), x, length=layers)[0].sum()
        return lambda x, w: functools.reduce(lambda x, _: layer(x, w), range(layers), x).sum()

    x = jax.random.normal(jax.random.key(0), (n, n), jnp.float32)
    w = jnp.eye(n, dtype=jnp.float32)
    compiled = jax.jit(jax.grad(loss(hooked(pack, unpack)))).lower(x, w).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= share * layers * x.nbytes
    want = jax.jit(jax.grad(loss(swish_of_packed(pack, unpack))))(x, w)
    np.testing.assert_allclose(compiled(x, w), want, rtol=2e-2, atol=1e-3)  # 0.46 after 16 layers


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.checkpoint], ids=["jit", "vmap", "remat"])
def test_second_derivatives_through_half_floats(wrap):
    """The encoding of a packed bfloat16 is differentiable: the second derivative is that of the call outside jit."""
    pack, unpack, _ = PACKINGS["bfloat16"]
    swish, x = hooked(pack, unpack), jnp.array([0.5, 1.25, -2.0], jnp.float32)
    second = lambda f: jax.grad(lambda x: jnp.sin(jax.grad(lambda x: f(x).sum())(x)).sum())
    want = second(swish)(x)
    assert jnp.abs(want).min() > 1e-3
    np.testing.assert_allclose(jax.jit(second(wrap(swish)))(x), want, rtol=1e-5)


def test_hooks_that_move_arrays_work_under_jit():
    """PyTorch's save_on_cpu: what is moved to the host's memory stays there under jit too."""
    to_host = lambda x: jax.device_put(x, jax.memory.Space.Host)
    to_device = lambda x: jax.device_put(x, jax.memory.Space.Device)
    f = hooked(to_host, to_device)
    x = jnp.linspace(-1.0, 1.0, 4, dtype=jnp.float32)
    want = jax.grad(lambda x: Swish.apply(x).sum())(x)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(x), want, rtol=1e-6)
