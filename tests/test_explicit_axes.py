"""Meshes with Explicit axes, where shardings are part of types: gradients, and collectives, are those of plain JAX."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnjax

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)"),
]


class Product(fnjax.Function):
    """x @ w, as PyTorch's pages write it: the gradient of w contracts over the batch."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output @ w.T, x.T @ grad_output


class WithSetup(fnjax.Function):
    @staticmethod
    def forward(x, w):
        return x @ w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    backward = Product.backward


class WithVmap(WithSetup):
    @staticmethod
    def vmap(info, in_dims, x, w):
        return jax.vmap(jnp.matmul, in_dims)(x, w), 0


class ForwardMode(fnjax.Function):
    """Its gradient is the transpose of jvp."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_forward(x, w)
        return x @ w

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        return x_t @ w + x @ w_t


class Named(Product):
    """Names the sharding of what it contracts, as one writes a custom_vjp."""

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return jnp.dot(grad_output, w.T, out_sharding=P("d")), jnp.dot(x.T, grad_output, out_sharding=P())


class InShardMap(Product):
    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        of_w = jax.shard_map(lambda x, g: jax.lax.psum(x.T @ g, "d"), in_specs=(P("d"), P("d")), out_specs=P())
        return grad_output @ w.T, of_w(x, grad_output)


class Inner(Product):
    """Functions inside backward."""

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return Product.apply(grad_output, w.T), Product.apply(x.T, grad_output)


class Unsharded(Product):
    """Its gradient for x does not say that it is sharded."""

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return jax.reshard(grad_output @ w.T, P()), jnp.dot(x.T, grad_output, out_sharding=P("d"))


def mesh(*types):
    names, sizes = ("d", "m")[: len(types)], ((4,), (2, 2))[len(types) - 1]
    return jax.make_mesh(sizes, names, axis_types=types, devices=jax.devices()[:4])


EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(8, 4)), RNG.normal(size=(4, 4))
BATCH = P("d"), P()


def loss(f):
    return lambda *args: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*args)))


def gradients(f):
    return jax.grad(loss(f), (0, 1))


def second_order(f):
    return jax.grad(loss(gradients(f)), (0, 1))


def jvp_of_gradient(f):
    return lambda x, w: jax.jvp(gradients(f), (x, w), (jnp.cos(x), jnp.sin(w)))[1]


def hessian(f):
    return jax.hessian(loss(f), (0, 1))


def jvp(f):
    return lambda x, w: jax.jvp(f, (x, w), (jnp.cos(x), jnp.sin(w)))[1]


def put(args, specs):
    """The arguments on the mesh of the context."""
    return [jax.device_put(x, spec) for x, spec in zip(args, specs, strict=True)]


def collectives(lowered):
    text = lowered.compile().as_text()
    kinds = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
    return {kind: len(re.findall(rf"{kind}(?:-start)?\(", text)) for kind in kinds}


def check(f, twin, specs, on=None, args=(X, W), alone=None, counted=True):
    """`f` gives on a mesh what its twin does on one device, of the twin's types, with no collective more than it has.

    `alone` is the twin for one device, where the other speaks of the mesh; `counted` says that collectives count.
    """
    want = jax.jit(alone or twin)(*args)
    with jax.set_mesh(mesh(EXPLICIT) if on is None else on):
        args = put(args, specs)
        ours, theirs = jax.jit(f).lower(*args), jax.jit(twin).lower(*args)
        got = ours.compile()(*args)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-11), got, want)
    assert jax.tree.map(lambda x: x.sharding, ours.out_info) == jax.tree.map(lambda x: x.sharding, theirs.out_info)
    ours, theirs = collectives(ours), collectives(theirs)
    assert not counted or all(ours[kind] <= theirs[kind] for kind in ours), (ours, theirs)


CLASSES = [Product, WithSetup, ForwardMode, Named, InShardMap, Inner]


@pytest.mark.parametrize("Fn", CLASSES, ids=lambda c: c.__name__)
def test_gradients(Fn):
    """Backward contracts over the sharded batch, names shardings itself, or calls shard_map or Functions."""
    check(gradients(Fn.apply), gradients(jnp.matmul), BATCH)


@pytest.mark.parametrize("Fn", [Product, ForwardMode, Named, Unsharded], ids=lambda c: c.__name__)
def test_gradients_outside_jit(Fn):
    """The same outside jit, where backward gets concrete arrays."""
    want = jax.jit(gradients(jnp.matmul))(X, W)
    with jax.set_mesh(mesh(EXPLICIT)):
        got = gradients(Fn.apply)(*put((X, W), BATCH))
    for g, w, spec in zip(got, want, (P("d", None), P(None, None)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10)
        assert jax.typeof(g).sharding.spec == spec


QUANTITIES = [second_order, jvp_of_gradient, hessian]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda q: q.__name__)
@pytest.mark.parametrize("Fn", [Product, ForwardMode, Inner], ids=lambda c: c.__name__)
def test_second_derivatives(Fn, quantity):
    """Reverse over reverse and forward over reverse, where backward ran with Auto axes."""
    check(quantity(Fn.apply), quantity(jnp.matmul), BATCH)


def test_forward_mode():
    """A jvp of the user's is given sharded tangents, and gives such."""
    check(jvp(ForwardMode.apply), jvp(jnp.matmul), BATCH)


WRAPPERS = {
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda x, _: (f(x, w), None), x, None, length=2)[0],
    "remat": jax.checkpoint,
    "jit": jax.jit,
    "one argument": lambda f: lambda x, w: f(x, jax.lax.stop_gradient(w)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_transforms(wrapper):
    """A Function in a scan, in jax.checkpoint and under jit, and with one argument differentiated."""
    wrap = WRAPPERS[wrapper]
    check(gradients(wrap(Product.apply)), gradients(wrap(jnp.matmul)), BATCH)


@pytest.mark.parametrize("Fn", [Product, ForwardMode], ids=lambda c: c.__name__)
def test_vmap_of_jvp(Fn):
    """Tangents of a batch are sharded as the batch is."""
    quantity = lambda f: jax.vmap(jvp(f), (0, None))
    check(quantity(Fn.apply), quantity(jnp.matmul), BATCH, args=(RNG.normal(size=(4, 8, 4)), W))


@pytest.mark.parametrize("Fn", [Product, WithVmap, ForwardMode], ids=lambda c: c.__name__)
@pytest.mark.parametrize("spec", [P("d"), P(None, "d")], ids=["the examples", "inside each"])
def test_vmap(Fn, spec):
    """A batch whose axis is sharded, and one whose examples are; gradients of all and of each."""

    def both(f):
        all_of = gradients(jax.vmap(f, (0, None)))
        each = jax.vmap(gradients(f), (0, None), spmd_axis_name="d" if spec == P("d") else None)
        return lambda x, w: (all_of(x, w), each(x, w))

    check(both(Fn.apply), both(jnp.matmul), (spec, P()), args=(RNG.normal(size=(4, 8, 4)), W))


class Scaled(fnjax.Function):
    """The second output does not depend on the example."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.sum(), w * 2

    @staticmethod
    def backward(ctx, scaled, doubled):
        x, w = ctx.saved_tensors
        return scaled * w.sum(), (scaled * x).sum() + doubled * 2


@pytest.mark.parametrize("spmd", [None, "d"])
def test_unbatched_outputs(spmd):
    """The cotangent of an output that does not depend on the examples is sharded as the batch is."""

    def quantity(f):
        batched = jax.vmap(f, (0, None), (0, None), spmd_axis_name=spmd)
        return gradients(lambda x, w: sum(jnp.sum(jnp.sin(y)) for y in batched(x, w)))

    plain = lambda x, w: (x * w.sum(), w * 2)
    check(quantity(Scaled.apply), quantity(plain), (P("d"), P()), args=(RNG.normal(size=(4, 4)), W))


SPECS = [
    (P("d"), P(None, "m")),
    (P("d", "m"), P()),
    (P("d"), P("m")),
    (P(("d", "m")), P()),
    (P("d"), P("d", "m")),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_two_axes(specs):
    """Data and model parallel at once: the weight is sharded by its columns, its rows, or both.

    The twin keeps its arguments, as the Function does: what forward gathers is gathered again.
    """
    check(gradients(Product.apply), gradients(jax.checkpoint(jnp.matmul)), specs, mesh(EXPLICIT, EXPLICIT))


@pytest.mark.parametrize("types", [(EXPLICIT, AUTO), (AUTO, EXPLICIT)], ids=str)
def test_mixed_axes(types):
    """Meshes of which one axis is Auto."""
    check(gradients(Product.apply), gradients(jnp.matmul), (P("d"), P(None, "m")), mesh(*types))


@pytest.mark.parametrize("manual", [{"d"}, {"m"}, {"d", "m"}], ids=lambda axes: "+".join(sorted(axes)))
def test_inside_shard_map(manual):
    """Inside shard_map over some axes of the mesh the others stay Explicit; the gradient is summed over the manual."""
    only = lambda *names: P(*(name if name in manual else None for name in names))
    specs = {"in_specs": (only("d", None), only(None, "m")), "out_specs": only("d", "m"), "axis_names": manual}
    inside = lambda f: jax.shard_map(f, **specs)
    args = P("d"), P(None, "m")
    ours, theirs = gradients(inside(Product.apply)), gradients(inside(jax.checkpoint(jnp.matmul)))
    check(ours, theirs, args, mesh(EXPLICIT, EXPLICIT), alone=gradients(jnp.matmul))


class NoneForWeight(Product):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output @ ctx.saved_tensors[1].T, None


class Unreduced(Product):
    """Leaves the sum over the devices to the caller."""

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output @ w.T, jnp.dot(x.T, grad_output, out_sharding=P(unreduced={"d"}))


def stopped(x, w):
    return x @ jax.lax.stop_gradient(w)


@pytest.mark.parametrize(
    ("Fn", "twin"), [(Product, jnp.matmul), (Unreduced, jnp.matmul), (NoneForWeight, stopped)], ids=lambda c: c.__name__
)
def test_reduced_weights(Fn, twin):
    """The cotangent of a weight that is reduced over the devices is unreduced, a zero among them."""

    def quantity(f):
        reduced = lambda w: jax.reshard(w, P(None, None, reduced={"d"}))
        return gradients(lambda x, w: f(x, reduced(w)))

    check(quantity(Fn.apply), quantity(twin), BATCH, alone=gradients(twin))


class TwoOutputs(fnjax.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w, jnp.sin(x)

    @staticmethod
    def backward(ctx, grad_product, grad_sine):
        x, w = ctx.saved_tensors
        return grad_product @ w.T + grad_sine * jnp.cos(x), x.T @ grad_product


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 2), slice(0, 2)], ids=["first", "second", "both"])
def test_zeros_that_are_filled_in(which):
    """The gradient of an output that nobody uses is zeros, which backward contracts, and sums, like any other."""
    quantity = lambda f: gradients(lambda x, w: f(x, w)[which])
    check(quantity(TwoOutputs.apply), quantity(lambda x, w: (x @ w, jnp.sin(x))), BATCH, counted=False)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_split_vjp(wrap):
    """Both halves of a backward pass have the sharded gradients of the whole."""
    layer = lambda w, x: jnp.tanh(Product.apply(x, w))
    want = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), (0, 1)))(X, W)
    with jax.set_mesh(mesh(EXPLICIT)):
        x, w = put((X, W), BATCH)
        y, of_inputs, of_weights = wrap(functools.partial(fnjax.split_vjp, layer))(w, x)
        grad_x, pending = of_inputs(jnp.ones_like(y))
        grad_w = of_weights(pending)
    for got, expected, spec in ((grad_x, want[0], P("d", None)), (grad_w, want[1], P(None, None))):
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        assert jax.typeof(got).sharding.spec == spec


def test_without_a_context():
    """Shardings that come with the arguments alone, without jax.set_mesh."""
    want = jax.jit(gradients(jnp.matmul))(X, W)
    x, w = (jax.device_put(a, NamedSharding(mesh(EXPLICIT), spec)) for a, spec in zip((X, W), BATCH, strict=True))
    for weight in (w, W):
        got = jax.jit(gradients(Product.apply))(x, weight)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-10), got, want)
    with jax.set_mesh(mesh(EXPLICIT)):
        y, pullback = jax.vjp(Product.apply, x, w)
    np.testing.assert_allclose(pullback(y)[1], X.T @ X @ W, rtol=1e-10)


def test_what_backward_does_happens_once():
    """Backward is tried before it runs with Auto axes; a debug callback occurs once in the compiled program."""
    seen = []

    class Told(Product):
        @staticmethod
        def backward(ctx, grad_output):
            jax.debug.callback(seen.append, 1)
            return Product.backward(ctx, grad_output)

    with jax.set_mesh(mesh(EXPLICIT)):
        jax.block_until_ready(jax.jit(gradients(Told.apply))(*put((X, W), BATCH)))
    jax.effects_barrier()
    assert seen == [1]


def test_concrete_values_outside_jit():
    """Outside jit a backward may ask for numbers, and contract as well."""

    class Clipped(Product):
        @staticmethod
        def backward(ctx, grad_output):
            assert float(jnp.abs(grad_output).max()) <= 1
            return Product.backward(ctx, grad_output)

    with jax.set_mesh(mesh(EXPLICIT)):
        got = gradients(Clipped.apply)(*put((X, W), BATCH))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-10), got, jax.jit(gradients(jnp.matmul))(X, W))


def test_arrays_from_outside():
    """A traced array from outside: right without a contraction; with one an error that says what to do."""

    def scaled(use):
        def f(x, w):
            scale = jnp.exp(w[0])

            class Scaled(fnjax.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x * scale

                @staticmethod
                def backward(ctx, grad_output):
                    (x,) = ctx.saved_tensors
                    return use(grad_output * scale, x)

            return jax.grad(lambda x: jnp.sum(Scaled.apply(x)))(x)

        return f

    check(scaled(lambda g, x: g), lambda x, w: jnp.exp(w[0]) * jnp.ones_like(x), BATCH)
    contracts = scaled(lambda g, x: x @ (x.T @ g))
    with (
        jax.set_mesh(mesh(EXPLICIT)),
        pytest.raises(fnjax.errors.ClosureError, match=r"Scaled\.backward .* an array \(or a mesh\) from outside") as e,
    ):
        jax.jit(contracts)(*put((X, W), BATCH))
    assert "pass the array to Scaled.apply" in str(e.value)


def test_errors_are_those_of_jax():
    """A forward that contracts over a sharded axis is refused as plain JAX refuses it."""
    message = "ambiguous how the output should be sharded"
    with jax.set_mesh(mesh(EXPLICIT)):
        args = put((X, W), (P(None, "d"), P("d")))
        for f in (jnp.matmul, Product.apply):
            for quantity in (lambda f: f, gradients):
                with pytest.raises(Exception, match=message):
                    jax.jit(quantity(f))(*args)


class Accumulated(fnjax.Function):
    """Adds the gradient of w to a Ref, in place."""

    @staticmethod
    def forward(ctx, x, w, total):
        ctx.save_for_backward(x, w)
        ctx.total = total
        return x @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        ctx.total[...] += x.T @ grad_output
        return grad_output @ w.T, None, None


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_refs(wrap):
    """A Ref that backward writes to while it contracts is written to once, and keeps its sharding."""
    want = jax.jit(gradients(jnp.matmul))(X, W)
    with jax.set_mesh(mesh(EXPLICIT)):
        x, w, start = put((X, W, W), (*BATCH, P("d")))
        total = jax.new_ref(start)
        of_x = wrap(jax.grad(loss(Accumulated.apply)))(x, w, total)
        np.testing.assert_allclose(of_x, want[0], rtol=1e-10)
        np.testing.assert_allclose(total[...], W + want[1], rtol=1e-10)
        assert jax.typeof(total[...]).sharding.spec == P("d", None)
