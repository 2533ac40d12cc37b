"""Wrappers around a function under test: each returns a function with the same values."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def eager(f):
    return f


def vmapped(f):
    """`f` on one example, through a batch of two."""
    return lambda *args: jax.tree.map(lambda y: y[0], jax.vmap(f)(*(jnp.stack([x, 2 * x]) for x in args)))


def vmapped_shared(f):
    """`f` with its last argument shared by the batch."""

    def wrapped(*args):
        axes = (0,) * max(1, len(args) - 1) + (None,) * (len(args) > 1)
        stacked = [x if axis is None else jnp.stack([x, 2 * x]) for x, axis in zip(args, axes, strict=True)]
        return jax.tree.map(lambda y: y[0], jax.vmap(f, axes)(*stacked))

    return wrapped


def scanned(f):
    """`f` as the body of a scan of one step, its arguments in the carry."""

    def wrapped(*args):
        _, y = jax.lax.scan(lambda carry, _: (carry, f(*carry)), args, None, length=1)
        return jax.tree.map(lambda y: y[0], y)

    return wrapped


def once_in_scan(f):
    """`f` from carry to carry."""
    return lambda x: jax.lax.scan(lambda carry, _: (f(carry), None), x, None, length=1)[0]


def once_in_fori_loop(f):
    return lambda x: jax.lax.fori_loop(0, 1, lambda _, carry: f(carry), x)


def rematerialised(policy):
    return lambda f: jax.checkpoint(f, policy=policy)


def on_two_devices(f):
    """`f` on one example, through shard_map with another example on a second device; jitted, which is much faster."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    one = lambda *args: jax.tree.map(lambda y: y[None], f(*(x[0] for x in args)))
    both = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    return lambda *args: jax.tree.map(lambda y: y[0], both(*(jnp.stack([x, 2 * x]) for x in args)))


def four_devices(kind):
    """A mesh of four devices, whose axis is Auto or Explicit."""
    return jax.make_mesh((4,), ("i",), axis_types=(kind,), devices=jax.devices()[:4])


def sharded(shard):
    """`f` with the first axis of its first argument, and of those of its shape, over the mesh in force."""
    return lambda f: lambda *args: f(*(shard(x, P("i")) if x.shape == args[0].shape else x for x in args))
