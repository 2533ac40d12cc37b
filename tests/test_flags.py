"""Functions are right with JAX's coming implementations of custom_vjp and jax.checkpoint, which flags turn on."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import fnjax
from tests.zoo import FalseRule, NumPyExp, SavedInput, SavedIntermediate, SavedOutput

pytestmark = pytest.mark.usefixtures("x64")

FLAGS = {"custom_vjp3": ("jax_custom_vjp3",)}
if jax.__version_info__ >= (0, 12):  # remat3 of JAX 0.10 has no rule for vmap of a name, and ignores every policy
    FLAGS |= {"remat3": ("jax_remat3",), "both": ("jax_custom_vjp3", "jax_remat3")}


@contextlib.contextmanager
def flags_on(names):
    before = {name: getattr(jax.config, name) for name in names}
    for name in names:
        jax.config.update(name, True)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.fixture(params=FLAGS.values(), ids=FLAGS)
def flags(request):
    with flags_on(request.param):
        yield request.param


@jax.custom_vjp
def tripled(x):
    """The sine, with three times its derivative."""
    return jnp.sin(x)


tripled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3 * g * jnp.cos(x),))


class RulesInside(fnjax.Function):
    """sin(x)³, by a custom_vjp, a checkpoint and a name; backward differentiates the custom_vjp: its factor is 3."""

    @staticmethod
    def forward(ctx, x):
        y = checkpoint_name(tripled(x), "y")
        ctx.save_for_backward(x, y)
        return jax.checkpoint(jnp.square)(y) * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y**2 * jax.grad(lambda x: tripled(x).sum())(x)


NAMED = [SavedInput, SavedOutput, SavedIntermediate, NumPyExp, FalseRule]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("Fn", NAMED, ids=lambda Fn: Fn.__name__)
def test_what_a_policy_keeps_changes_no_derivative(flags, Fn):
    """With residuals kept by name, values and first and second derivatives are those without jax.checkpoint."""
    policy = jax.checkpoint_policies.save_only_these_names(Fn.__name__)
    x = jnp.linspace(0.3, 0.9, 3)
    loss = lambda f: lambda x: jnp.sum(jnp.sin(f(jax.vmap(f)(x))))
    for second in (lambda f: jax.grad(lambda x: jnp.cos(jax.grad(f)(x)).sum()), jax.hessian):
        both = lambda f, second=second: jax.jit(lambda x: (jax.value_and_grad(f)(x), second(f)(x)))
        got = both(loss(jax.checkpoint(Fn.apply, policy=policy)))(x)
        want = both(loss(Fn.apply))(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, want)


def test_residuals_are_kept_by_name(flags):
    """A policy keeps what a class saves, as many arrays as without flags, once for each call."""
    x = jnp.linspace(0.3, 0.9, 50)
    f = lambda x: SavedIntermediate.apply(SavedIntermediate.apply(SavedIntermediate.apply(x)))

    def count(policy):
        _, pullback = jax.vjp(jax.checkpoint(f, policy=policy), x)
        return sum(getattr(leaf, "shape", ()) == x.shape for leaf in jax.tree.leaves(pullback))

    policies = jax.checkpoint_policies
    assert count(policies.save_only_these_names("SavedIntermediate")) == count(policies.nothing_saveable) + 3 - 1
    assert count(policies.save_only_these_names("another")) == count(policies.nothing_saveable)


def each_way(x):
    """The gradient of the sum of RulesInside, by every transform, in one program."""
    f = RulesInside.apply
    total = lambda g: jax.grad(lambda x: g(x).sum())(x)
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return {
        "value": 3 * f(x) * jnp.cos(x) / jnp.sin(x),
        "grad": total(f),
        "jit": total(jax.jit(f)),
        "vmap": total(jax.vmap(f)),
        "scan": total(lambda x: jax.lax.scan(lambda _, x: (None, f(x)), None, x)[1]),
        "while": jax.lax.fori_loop(0, 1, lambda _, x: total(f), x),
        "cond": total(lambda x: jax.lax.cond(x[0] > 0, f, jnp.zeros_like, x)),
        "remat": total(jax.checkpoint(f)),
        "shard_map": total(jax.shard_map(f, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))),
    }


def test_jaxs_own_rules_inside_forward(flags):
    """A custom_vjp, a checkpoint and a name inside forward do under every transform what they do without flags."""
    x = np.linspace(0.5, 1.5, 4)
    for how, got in jax.jit(each_way)(x).items():
        np.testing.assert_allclose(got, 3 * np.sin(x) ** 2 * np.cos(x), rtol=1e-12, err_msg=how)
