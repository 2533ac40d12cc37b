"""Functions on several devices: shard_map with and without replication checks, collectives, shardings under jit."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fnjax
from fnjax import collectives
from fnjax._primitives.sharding import is_in_backward
from tests.zoo import CASES, SavedInput, arrays

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)"),
]


def mesh():
    return jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def sharded(f, in_specs, out_specs, **options):
    return jax.shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, **options)


class Product(fnjax.Function):
    """x * w; gradients as on one device."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * w, grad_output * x


class OwnSum(Product):
    """The same, with a psum of its own for w."""

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * w, jax.lax.psum(jnp.sum(grad_output * x), "i")


class Unvarying(Product):
    """A gradient for x that does not vary over the devices."""

    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return jnp.ones(x.shape), grad_output * x


X, W = np.arange(8.0), np.float64(2.0)


@pytest.mark.parametrize("Fn", [Product, OwnSum, Unvarying], ids=lambda c: c.__name__)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_shared_argument(Fn, wrap):
    """The gradient of an argument that devices share is its sum over them, once: 28, not 112; a varying one stays."""
    f = wrap(sharded(Fn.apply, (P("i"), P()), P("i")))
    grad_x, grad_w = jax.grad(lambda x, w: f(x, w).sum(), (0, 1))(X, W)
    np.testing.assert_array_equal(grad_x, np.full(8, 1.0 if Fn is Unvarying else 2.0))
    assert grad_w == 28.0


@pytest.mark.parametrize("Fn", [Product, OwnSum], ids=lambda c: c.__name__)
def test_gradient_inside_shard_map(Fn):
    """The same where jax.grad stands inside shard_map, and at second order."""
    inside = sharded(lambda x, w: jax.grad(lambda w: jax.lax.psum(Fn.apply(x, w).sum(), "i"))(w), (P("i"), P()), P())
    assert jax.jit(inside)(X, W) == 28.0
    f = sharded(Fn.apply, (P("i"), P()), P("i"))
    square = lambda w: (f(X, w) ** 2).sum()
    assert jax.jit(jax.grad(jax.grad(square)))(W) == 280.0
    assert jax.jit(jax.hessian(square))(W) == 280.0


def test_without_replication_checks_nothing_is_added():
    """With check_vma=False JAX knows nothing of what varies: who shares an argument sums its gradient."""
    f = lambda Fn: sharded(
        lambda x, w: jax.grad(lambda w: Fn.apply(x, w).sum())(w)[None], (P("i"), P()), P("i"), check_vma=False
    )
    assert f(Product)(X, W).tolist() == [1.0, 5.0, 9.0, 13.0]
    assert f(OwnSum)(X, W).tolist() == [28.0] * 4


class CopyToRegion(fnjax.Function):
    """Megatron's f: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.pcast(x, "i", to="varying")

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.psum(grad_output, "i")


class ReduceFromRegion(fnjax.Function):
    """Megatron's g: all-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.psum(x, "i")

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class GatherSequence(fnjax.Function):
    """All-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.all_gather(x, "i", tiled=True)

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.psum_scatter(grad_output, "i", tiled=True)


class ScatterSequence(fnjax.Function):
    """Reduce-scatter forward, all-gather backward."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.psum_scatter(x, "i", tiled=True)

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.all_gather(grad_output, "i", tiled=True)


def random(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_tensor_parallel_mlp(checked):
    """A column- and row-parallel MLP with the f and g operators has the gradients of the whole one."""
    x, a, b = random(4, 6), random(6, 8), random(8, 6)
    whole = lambda x, a, b: jnp.tanh(x @ a) @ b
    parallel = lambda x, a, b: ReduceFromRegion.apply(jnp.tanh(CopyToRegion.apply(x) @ a) @ b)
    f = sharded(parallel, (P(), P(None, "i"), P("i", None)), P(), check_vma=checked)
    loss = lambda f: lambda *args: jnp.sum(jnp.sin(f(*args)))
    np.testing.assert_allclose(f(x, a, b), whole(x, a, b), rtol=1e-12)
    grads = jax.grad(loss(parallel), (0, 1, 2))
    inside = sharded(grads, (P(), P(None, "i"), P("i", None)), (P(), P(None, "i"), P("i", None)), check_vma=checked)
    for got, want in zip(jax.jit(inside)(x, a, b), jax.grad(loss(whole), (0, 1, 2))(x, a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


def test_sequence_parallel_mlp():
    """The all-gather/reduce-scatter pair of sequence parallelism has the gradients of the whole MLP."""
    x, a, b = random(8, 6), random(6, 8), random(8, 6)
    whole = lambda x, a, b: jnp.tanh(x @ a) @ b
    parallel = lambda x, a, b: ScatterSequence.apply(jnp.tanh(GatherSequence.apply(x) @ a) @ b)
    specs = (P("i"), P(None, "i"), P("i", None))
    for f in (sharded(parallel, specs, P("i")), jax.jit(sharded(parallel, specs, P("i")))):
        np.testing.assert_allclose(f(x, a, b), whole(x, a, b), rtol=1e-12)
        loss = lambda f: lambda *args: jnp.sum(jnp.sin(f(*args)))
        for got, want in zip(
            jax.grad(loss(f), (0, 1, 2))(x, a, b), jax.grad(loss(whole), (0, 1, 2))(x, a, b), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-10)


# Left out: an output of "containers" does not vary, so that its gradient is refused: see the test of shares and totals.
SEVERAL = [case for case in CASES if len(arrays(case)) > 1 and case.name != "containers"]


@pytest.mark.parametrize("case", SEVERAL, ids=lambda c: c.name)
def test_shared_arguments_of_the_zoo(case):
    """Each Function of several arguments, of which devices share all but the first, agrees with plain JAX.

    tests/test_matrix.py has all of the zoo with nothing shared.
    """
    x, *shared = arrays(case)
    args = jnp.stack([x, 2 * x, -x, 3 * x]), *shared

    def gradients(f):
        one = lambda x, *shared: jax.tree.map(lambda y: y[None], f(x[0], *shared))
        loss = case.loss(sharded(one, (P("i"), *[P()] * len(shared)), P("i")))
        return jax.jit(jax.grad(loss, tuple(range(len(args)))))(*args)

    for got, want in zip(gradients(case.apply), gradients(case.twin), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


class TwoOutputs(fnjax.Function):
    """x w, which varies where x does, and w², which does not."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, w**2

    @staticmethod
    def backward(ctx, grad_product, grad_square):
        x, w = ctx.saved_tensors
        return grad_product * w, grad_product * x + grad_square * 2 * w


def test_partial_and_reduced_gradients_are_not_added():
    """A gradient made of shares and totals is refused: summed over devices it would be wrong. One of them is right."""
    f = sharded(TwoOutputs.apply, (P("i"), P()), (P("i"), P()))
    first = sharded(lambda x, w: TwoOutputs.apply(x, w)[0], (P("i"), P()), P("i"))
    assert jax.jit(jax.grad(lambda w: first(X, w).sum()))(W) == 28.0
    for loss in (lambda w: f(X, w)[1], lambda w: sum(map(jnp.sum, f(X, w)))):
        with pytest.raises(
            fnjax.errors.GradientError, match=r"TwoOutputs\.backward adds, in the gradient of a replicated argument"
        ):
            jax.grad(loss)(W)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: sum(map(jnp.sum, f(x, W)))))(X), np.full(8, 2.0))


def own_rows(x):
    return jax.lax.dynamic_slice_in_dim(x, 2 * jax.lax.axis_index("i"), 2)


# Sums over devices, which devices share, and their gradients as on one device.
SUMMED = {
    "psum of a product": (
        lambda x, w: jax.lax.psum(jnp.sin(x) * w, "i"),
        lambda x, w, g: (g * w * jnp.cos(x), g * jnp.sin(x)),
    ),
    "product of a psum": (lambda x, w: w * jax.lax.psum(x, "i"), lambda x, w, g: (g * w, g * jax.lax.psum(x, "i"))),
    "gather": (
        lambda x, w: jax.lax.all_gather(x * w, "i", tiled=True, to="invarying"),
        lambda x, w, g: (own_rows(g) * w, own_rows(g) * x),
    ),
}


def two_ways(forward, backward):
    """A Function with these formulas, and a jax.custom_vjp with its gradient for x said to vary."""

    class Summed(fnjax.Function):
        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad_output):
            return backward(*ctx.saved_tensors, grad_output)

    Summed.forward = staticmethod(forward)
    by_jax = jax.custom_vjp(forward)

    def rule(kept, g):
        x, w = backward(*kept, g)
        return x if jax.typeof(x).mat.varying else jax.lax.pcast(x, "i", to="varying"), w

    by_jax.defvjp(lambda x, w: (forward(x, w), (x, w)), rule)
    return Summed.apply, by_jax


@pytest.mark.parametrize("name", SUMMED)
def test_a_shared_output_counts_once(name):
    """For a replicated output the gradients are those of plain JAX, for device-varying and replicated arguments."""
    forward, backward = SUMMED[name]
    apply, _ = two_ways(forward, backward)
    x, w, specs = jnp.arange(1.0, 9.0), jnp.array([2.0, 3.0]), (P("i"), P())

    def numbers(f):
        loss = lambda x, w: jnp.sin(f(x, w)).sum()
        outside = lambda x, w: jnp.sin(sharded(f, specs, P())(x, w)).sum()
        return (
            sharded(jax.grad(loss, (0, 1)), specs, specs)(x, w),
            jax.grad(outside, (0, 1))(x, w),
            jax.hessian(outside)(x, w),
            jax.jvp(jax.grad(outside), (x, w), (x + 1, w - 1))[1],
        )

    got, expected = jax.jit(lambda: (numbers(apply), numbers(forward)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), got, expected)


def test_a_shared_output_that_backward_sums_again():
    """A backward that sums the gradient of such an output counts it axis-size times, as in jax.custom_vjp."""
    again = lambda x, w, g: (jax.lax.psum(g, "i") * w, jax.lax.psum(g * x, "i"))
    apply, by_jax = two_ways(lambda x, w: jax.lax.psum(x * w, "i"), again)
    run = lambda f: jax.jit(jax.grad(lambda x: sharded(f, (P("i"), P()), P())(x, jnp.full(2, 2.0)).sum()))(X)
    np.testing.assert_array_equal(run(by_jax), np.full(8, 4 * 2.0))
    np.testing.assert_array_equal(run(apply), run(by_jax))


def test_shardings_stay_under_jit():
    """Jit with NamedSharding keeps the batch sharded through a Function and its gradient: nothing is gathered."""
    sharding = NamedSharding(mesh(), P("i"))
    x = jax.device_put(jnp.ones((8, 16)), sharding)
    for f in (SavedInput.apply, jax.grad(lambda x: SavedInput.apply(x).sum())):
        compiled = jax.jit(f).lower(x).compile()
        assert not re.search(r"all-gather|all-to-all|collective-permute", compiled.as_text())
        y = jax.jit(f)(x)
        assert y.sharding.is_equivalent_to(sharding, y.ndim)


class Callback(fnjax.Function):
    """x² on the host, told to vary or not."""

    @staticmethod
    def forward(ctx, x, told):
        ctx.save_for_backward(x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        y = jax.pure_callback(lambda x: np.asarray(x) ** 2, shape, x, vmap_method="sequential")
        return jax.lax.pcast(y, "i", to="varying") if told else y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x, None


@pytest.mark.parametrize("batch", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
def test_callbacks_say_that_they_vary(batch):
    """The error's own advice works, under vmap too, which puts a sequential callback into a loop."""
    x = np.arange(8.0).reshape(4, 2)
    gradient = lambda told: jax.grad(
        lambda x: sharded(batch(lambda x: Callback.apply(x, told)), (P("i"),), P("i"))(x).sum()
    )
    np.testing.assert_array_equal(gradient(True)(x), 2 * x)
    with pytest.raises(fnjax.errors.GradientError, match="Callback calls back to Python inside shard_map"):
        gradient(False)(x)


HELPERS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: jax.lax.map(f, x[None])[0],
}


def gathering(wrap):
    """One helper that gathers, and a Function that calls it in forward and in backward."""
    gather = wrap(lambda x: collectives.all_gather_into(x, "i"))

    class OwnPart(fnjax.Function):
        @staticmethod
        def forward(ctx, w, x):
            ctx.save_for_backward(x)
            return collectives.varying.part(w, jax.lax.axis_index("i"), 4) * x * (jnp.max(gather(x)) * 0 + 1)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return gather(grad_output * x), None

    return gather, OwnPart


@pytest.mark.sampled(5)
@pytest.mark.parametrize("before", ["nothing", "the helper", "forward", "the gradient"])
@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_of_forward_and_backward(name, before):
    """JAX keeps the traces of a helper for forward and for backward apart, whichever ran first."""
    gather, OwnPart = gathering(HELPERS[name])
    f = sharded(OwnPart.apply, (P(), P("i")), P("i"))
    x, w = np.arange(10.0, 14.0), np.arange(1.0, 5.0)
    gradient = jax.jit(jax.grad(lambda w: f(w, x).sum()))
    first = {"the helper": lambda: sharded(gather, P("i"), P("i"))(x), "forward": lambda: f(w, x)}
    first.get(before, lambda: before == "nothing" or gradient(w))()
    np.testing.assert_array_equal(gradient(w), x)  # of part(w) * x, whose parts together are w
    np.testing.assert_array_equal(f(w, x), w * x)
    np.testing.assert_array_equal(jax.jit(jax.hessian(lambda w: (f(w, x) ** 2).sum()))(w), np.diag(2 * x**2))


def test_what_counts_as_backward():
    """A Function that backward applies is part of it, but for one that backward differentiates."""
    seen = []

    class Double(fnjax.Function):
        @staticmethod
        def forward(ctx, x, where):
            jax.jit(lambda x: (seen.append((where, is_in_backward())), x)[1])(x)
            return 2 * x

        @staticmethod
        def backward(ctx, grad_output):
            return 2 * grad_output, None

    class Outer(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return Double.apply(x, "in forward")

        @staticmethod
        def backward(ctx, grad_output):
            g = Double.apply(grad_output, "in backward")
            return jax.vjp(lambda x: Double.apply(x, "differentiated there"), g)[1](g)

    f = sharded(Outer.apply, P("i"), P("i"))
    assert jax.grad(lambda x: f(x).sum())(X).tolist() == [4.0] * 8
    assert set(seen) == {("in forward", False), ("in backward", True), ("differentiated there", False)}


def test_errors_of_collectives_name_the_method():
    """The innermost Function and its method are named, in a helper and outside of shard_map too."""

    class Inner(Product):
        @staticmethod
        def backward(ctx, grad_output):
            return jax.jit(lambda g: collectives.all_reduce(g, "absent"))(grad_output), None

    class Outer(Product):
        @staticmethod
        def forward(ctx, x, w):
            return jax.grad(lambda x: Inner.apply(x, w).sum())(x)

    class Halves(Product):
        @staticmethod
        def forward(ctx, x, w):
            return Outer.apply(collectives.reduce_scatter(x, "i"), w)

    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(
            fnjax.errors.AxisError, match=r"^Inner\.backward: a collective over the axis 'absent', which"
        ):
            wrap(Outer.apply)(X, W)
        with pytest.raises(
            fnjax.errors.AxisError, match=r"^Halves\.forward: a collective over 'i' that cuts dimension 0"
        ):
            wrap(sharded(Halves.apply, (P("i"), P()), P("i")))(X, W)
    with pytest.raises(fnjax.errors.AxisError, match=r"^a collective over the axis 'absent'"):
        collectives.all_reduce(X, "absent")


class BareCopy(fnjax.Function):
    """Megatron's f as PyTorch has it: each device's copy of x, with a gradient of its own."""

    device_copies = True

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.psum(grad_output, "i")


class CopyOfExp(BareCopy):
    """A copy of exp(x), whose backward sums."""

    @staticmethod
    def forward(ctx, x):
        y = jnp.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return jax.lax.psum(grad_output, "i") * y


class AppliesItself(CopyOfExp):
    """The same, by applying the class again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.exp(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return jax.lax.psum(grad_output, "i") * AppliesItself.apply(x)


COPIES = {"identity": (BareCopy, lambda x: x), "exp": (CopyOfExp, jnp.exp)}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("helper", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_device_copies(name, helper):
    """If backward sums over devices, outputs are device-varying; all derivatives are those of plain JAX."""
    Fn, twin = COPIES[name]
    specs = P(), P("i")
    x, a = jnp.array([0.5, 1.0]), jnp.arange(1.0, 9.0)

    def numbers(f):
        f = helper(f)
        loss = lambda x, a: jax.lax.psum(jnp.sin(f(x) * a).sum(), "i")
        total = sharded(loss, specs, P())
        gradient = sharded(jax.grad(loss, (0, 1)), specs, specs)
        return gradient(x, a), jax.jacrev(lambda x: gradient(x, a)[0])(x), jax.hessian(lambda x: total(x, a))(x)

    got, expected = jax.jit(lambda: (numbers(Fn.apply), numbers(twin)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, expected)
    types = []
    sharded(lambda x: types.append(jax.typeof(helper(Fn.apply)(x)).mat.varying), P(), None)(x)
    assert types == [{"i"}]


def test_device_copies_in_a_backward():
    """A class that backward applies gives first derivatives; of second order its sum of a total is refused."""
    x, a = jnp.array([0.5, 1.0]), jnp.arange(1.0, 9.0)
    loss = lambda x: sharded(lambda x, a: jax.lax.psum((AppliesItself.apply(x) * a).sum(), "i"), (P(), P("i")), P())(
        x, a
    )
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), jnp.exp(x) * a.reshape(4, 2).sum(0), rtol=1e-12)
    with pytest.raises(
        fnjax.errors.GradientError, match=r"AppliesItself\.backward sums a gradient over the devices, and what"
    ):
        jax.jit(jax.hessian(loss))(x)


def test_device_copies_are_made_where_backward_sums():
    """An output whose gradients backward does not sum stays as it is; so do all outputs outside of shard_map."""

    class Two(fnjax.Function):
        device_copies = True

        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w)
            return x * w, w + 0

        @staticmethod
        def backward(ctx, grad_product, grad_copy):
            (w,) = ctx.saved_tensors
            return grad_product * w, jax.lax.psum(grad_copy, "i")

    varying = lambda *xs: tuple(jax.typeof(y).mat.varying for y in Two.apply(*xs))
    seen = []
    sharded(lambda x, w: seen.append(varying(x, w)), (P(), P()), None)(X, X)
    sharded(lambda x, w: seen.append(varying(x, w)), (P(), P()), None, check_vma=False)(X, X)
    assert seen == [(set(), {"i"}), (set(), set())]
    with pytest.raises(NameError, match="unbound axis name"):
        jax.grad(lambda w: Two.apply(X, w)[1].sum())(X)
    np.testing.assert_array_equal(jax.jit(lambda x: Two.apply(x, x)[1])(X), X)
