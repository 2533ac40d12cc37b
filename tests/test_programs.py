"""Functions work in export, donation, asynchronous dispatch and callbacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.zoo import SavedInput

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("name", ["forward", "gradient"])
def test_export_round_trips(name):
    """An exported forward or gradient gives the same numbers after serialize, deserialize and call."""
    pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")
    f = {"forward": SavedInput.apply, "gradient": jax.grad(lambda x: SavedInput.apply(x).sum())}[name]
    x = jnp.linspace(0.3, 1.2, 4)
    again = jax.export.deserialize(jax.export.export(jax.jit(f))(x).serialize())
    np.testing.assert_allclose(again.call(x), f(x), rtol=1e-12)


def test_an_exported_function_can_be_differentiated():
    """Exported with vjp_order=1, the gradient that comes back is that of backward."""
    pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")
    x = jnp.linspace(0.3, 1.2, 4)
    data = jax.export.export(jax.jit(SavedInput.apply))(x).serialize(vjp_order=1)
    again = jax.export.deserialize(data).call
    np.testing.assert_allclose(jax.grad(lambda x: again(x).sum())(x), jnp.cos(x) * x + jnp.sin(x), rtol=1e-12)


def test_donated_buffers_are_gone_and_the_numbers_are_right():
    """A donated argument is deleted as for a plain function, and using it afterwards raises the same error."""
    for f in (SavedInput.apply, lambda x: jnp.sin(x) * x):
        step = jax.jit(lambda x, f=f: x - 0.1 * jax.grad(lambda x: f(x).sum())(x), donate_argnums=0)
        x = jnp.linspace(0.3, 1.2, 4)
        want = np.asarray(x - 0.1 * (jnp.cos(x) * x + jnp.sin(x)))
        np.testing.assert_allclose(step(x), want, rtol=1e-12)
        assert x.is_deleted()
        with pytest.raises((RuntimeError, ValueError), match="deleted"):  # the type is that of JAX's dispatch
            f(x)


def test_a_pullback_needs_its_residuals():
    """A pullback whose saved array was deleted raises, as that of a plain function does."""
    for f in (SavedInput.apply, lambda x: jnp.sin(x) * x):
        x = jnp.linspace(0.3, 1.2, 4)
        _, pullback = jax.vjp(jax.jit(f), x)
        for leaf in jax.tree.leaves(pullback):
            if isinstance(leaf, jax.Array):
                leaf.delete()
        with pytest.raises(RuntimeError, match="deleted"):
            pullback(jnp.ones(4))


SEEN = []


class OnHost(fnjax.Function):
    """sin by NumPy in forward, cos by NumPy in backward, and a log of both."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        jax.experimental.io_callback(lambda x: SEEN.append("forward"), None, x)
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        jax.experimental.io_callback(lambda x: SEEN.append("backward"), None, x)
        cos = jax.pure_callback(np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")
        return grad_output * cos


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_callbacks_in_forward_and_backward(wrap):
    """pure_callback and io_callback run in both methods, each io_callback once."""
    x = jnp.linspace(0.3, 1.2, 4)
    SEEN.clear()
    np.testing.assert_allclose(wrap(jax.grad(lambda x: OnHost.apply(x).sum()))(x), np.cos(x), rtol=1e-12)
    jax.effects_barrier()
    assert sorted(SEEN) == ["backward", "forward"]


@jax.jit
def slowly(x, m):
    """x, after large matrix products: what is cheap JAX runs at once on a CPU."""
    for _ in range(8):
        m = jnp.sin(m @ m)
    return x + 0 * m[0, 0]


CALLS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jitted grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_do_not_wait_for_their_arguments(call):
    """A call returns while its argument is still being computed (asynchronous dispatch), jitted or not."""
    f, x = CALLS[call](SavedInput.apply), jnp.linspace(0.3, 1.2, 4)
    want = f(x)  # compiled
    for size in (700, 1400):  # the larger one for a machine that is busy elsewhere
        argument = slowly(x, jnp.ones((size, size)))
        result = f(argument)
        if not (waited := argument.is_ready()):
            break
    assert not waited
    np.testing.assert_allclose(result, want, rtol=1e-12)
