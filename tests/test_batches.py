"""Functions under vmap whose outputs, or residuals, do not depend on the batch; closed-over arrays; collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fnjax

N = 3
X, C = jnp.arange(1.0, N + 1), jnp.float32(0.7)
TABLE = jnp.asarray([2.0, -1.0, 0.5])


def split_output(x, c):
    doubled = c * 2
    return x * jnp.sin(c), doubled, x * 0 + doubled


class SplitOutput(fnjax.Function):
    """The second output and a residual depend on `c` only; the residual of a saved output, too."""

    @staticmethod
    def forward(ctx, x, c):
        sine = jnp.sin(c)
        first, doubled, third = x * sine, c * 2, x * 0 + c * 2
        ctx.save_for_backward(x, doubled, sine)
        return first, doubled, third

    @staticmethod
    def backward(ctx, first, second, third):
        x, doubled, sine = ctx.saved_tensors
        return first * sine, first * x * jnp.cos(doubled / 2) + 2 * (second + third)


def batch_norm(x, c):
    mean = lax.pmean(x * c, "batch")
    return x * c - mean, mean, lax.psum(c * 1.0, "batch")


class BatchNorm(fnjax.Function):
    """Its mean is the same for all examples, and so is a sum of something unbatched."""

    @staticmethod
    def forward(ctx, x, c):
        mean = lax.pmean(x * c, "batch")
        ctx.save_for_backward(x, c)
        return x * c - mean, mean, lax.psum(c * 1.0, "batch")

    @staticmethod
    def backward(ctx, centred, mean, total):
        x, c = ctx.saved_tensors
        grad = centred - lax.pmean(centred, "batch") + lax.pmean(mean, "batch")
        return grad * c, grad * x + lax.psum(total, "batch")


CYCLE = [(i, (i + 1) % N) for i in range(N)]


def shift(x, c):
    weight = lax.axis_index("batch") + 1.0
    return lax.ppermute(x * c, "batch", CYCLE) * weight, lax.ppermute(c, "batch", CYCLE), weight


class Shift(fnjax.Function):
    """Every output depends on the example: what it receives, and its index."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(x, c)
        weight = lax.axis_index("batch") + 1.0
        return lax.ppermute(x * c, "batch", CYCLE) * weight, lax.ppermute(c, "batch", CYCLE), weight

    @staticmethod
    def backward(ctx, shifted, other, weight):
        x, c = ctx.saved_tensors
        back = [(j, i) for i, j in CYCLE]
        grad = lax.ppermute(shifted * (lax.axis_index("batch") + 1.0), "batch", back)
        return grad * c, grad * x + lax.ppermute(other, "batch", back)


def gather(x, c):
    return (
        lax.all_gather(x * c, "batch"),
        lax.psum_scatter(x * c * TABLE, "batch"),
        lax.all_to_all(TABLE * x, "batch", 0, 0),
    )


class Gather(fnjax.Function):
    """The gathered array is the same for all examples; each gets its own part of the other two."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(x, c)
        return gather(x, c)

    @staticmethod
    def backward(ctx, *grads):
        x, c = ctx.saved_tensors
        product, exchanged = lax.psum_scatter(grads[0], "batch"), lax.all_to_all(grads[2], "batch", 0, 0)
        product += (lax.all_gather(grads[1], "batch") * TABLE).sum()
        return product * c + (exchanged * TABLE).sum(), product * x


@jax.custom_batching.custom_vmap
def ruled(x):
    return x * TABLE.sum()


@ruled.def_vmap
def _rule(size, in_batched, x):
    return x * TABLE.sum(), in_batched[0]


class Ruled(fnjax.Function):
    """Forward calls a function whose batching rule reads an array."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(x, c)
        return ruled(x) * c, c + 1.0, ruled(c)

    @staticmethod
    def backward(ctx, first, second, third):
        x, c = ctx.saved_tensors
        return first * TABLE.sum() * c, first * TABLE.sum() * x + second + third * TABLE.sum()


def ruled_twin(x, c):
    return x * TABLE.sum() * c, c + 1.0, c * TABLE.sum()


CASES = {
    "split_output": (SplitOutput, split_output, (0, None, 0)),
    "batch_norm": (BatchNorm, batch_norm, (0, None, None)),
    "shift": (Shift, shift, 0),
    "gather": (Gather, gather, (None, 0, 0)),
    "ruled": (Ruled, ruled_twin, (0, None, None)),
}
WRAPS = {
    "eager": (lambda f: f, lambda f: f),
    "jit": (jax.jit, lambda f: f),
    "of_jit": (lambda f: f, jax.jit),
}


@pytest.fixture(params=CASES)
def case(request):
    Fn, twin, out_axes = CASES[request.param]
    return Fn.apply, twin, out_axes


@pytest.fixture(params=WRAPS)
def wraps(request):
    return WRAPS[request.param]


def close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), got, expected)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, expected)


def batched(f, out_axes, inner=lambda f: f):
    return jax.vmap(inner(f), (0, None), out_axes, axis_name="batch", axis_size=N)


def test_outputs(case, wraps):
    """An output that does not depend on the batch has no batch axis, as in JAX's own vmap."""
    f, twin, out_axes = case
    outer, inner = wraps
    close(outer(batched(f, out_axes, inner))(X, C), batched(twin, out_axes)(X, C))


def pullback(f):
    """Return the gradient of a scalar to which every output contributes."""
    return jax.grad(lambda x, c: sum(jnp.sum(jnp.sin(y)) for y in f(x, c)), (0, 1))


def forward_over_reverse(f):
    return jax.jacfwd(pullback(f), (0, 1))


def tangents(f):
    return lambda x, c: jax.jvp(f, (x, c), (jnp.ones_like(x), jnp.ones_like(c)))[1]


def test_gradients(case, wraps):
    """The cotangent of an unbatched output counts once, not once for each example."""
    f, twin, out_axes = case
    outer, inner = wraps
    close(outer(pullback(batched(f, out_axes, inner)))(X, C), jax.jit(pullback(batched(twin, out_axes)))(X, C))


@pytest.mark.parametrize("derivative", [tangents, forward_over_reverse])
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["jit", "jit_of_jit"])
def test_other_derivatives(case, inner, derivative):
    """Tangents and second derivatives of unbatched outputs are those of JAX's own operations."""
    f, twin, out_axes = case
    close(jax.jit(derivative(batched(f, out_axes, inner)))(X, C), jax.jit(derivative(batched(twin, out_axes)))(X, C))


def test_gradients_inside(case, wraps):
    """A gradient for one example is batched as the gradient of JAX's own operations."""
    f, twin, _ = case
    outer, inner = wraps
    close(outer(batched(pullback(f), 0, inner))(X, C), jax.jit(batched(pullback(twin), 0))(X, C))


def test_tangents_inside(case, wraps):
    """The tangent of an output that does not depend on the batch has no batch axis."""
    f, twin, out_axes = case
    if f is Gather.apply:
        pytest.skip("JAX 0.10 to 0.12 cannot transpose psum_scatter inside vmap")
    outer, inner = wraps
    close(outer(batched(tangents(f), out_axes, inner))(X, C), jax.jit(batched(tangents(twin), out_axes))(X, C))


def test_batch_of_batches(case, wraps):
    """Under a second vmap an output has the axes of the batches on which it depends."""
    f, twin, out_axes = case
    outer, inner = wraps
    xs = jnp.arange(6.0).reshape(2, N)

    def twice(f, inner=lambda f: f):
        return jax.vmap(batched(f, out_axes, inner), (0, None))

    close(outer(twice(f, inner))(xs, C), jax.jit(twice(twin))(xs, C))


def test_nothing_is_batched(case, wraps):
    """Where only the axis has a name, the results are those of JAX's own vmap, too."""
    f, twin, _ = case
    outer, inner = wraps

    def run(f, inner=lambda f: f):
        return lambda x, c: jax.vmap(inner(lambda _: f(x, c)), axis_name="batch")(X)

    x, c = jnp.float32(1.5), C
    close(outer(run(f, inner))(x, c), jax.jit(run(twin))(x, c))


def test_residuals_are_not_batched():
    """A residual that does not depend on the batch is kept once."""

    class Scale(fnjax.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.w = jnp.exp(w)
            return x * ctx.w.sum()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.w.sum(), None

    _, pullback = jax.vjp(jax.vmap(Scale.apply, (0, None)), jnp.ones(7), jnp.ones(5))
    assert {x.shape for x in jax.tree.leaves(pullback)} == {(5,)}


def test_a_tangent_of_an_unbatched_output_is_unbatched():
    """A forward-mode rule for an unbatched output runs once, and its result has no batch axis."""

    class Shared(fnjax.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.save_for_forward(x)
            return x * c, c * 2

        @staticmethod
        def jvp(ctx, dx, dc):
            (x,) = ctx.saved_tensors
            return x * dc, dc * 2

    def tangents(x):
        return jax.jvp(lambda c: Shared.apply(x, c), (C,), (jnp.float32(1.0),))[1]

    for wrap in (lambda f: f, jax.jit):
        close(jax.vmap(wrap(tangents), out_axes=(0, None))(X), (X, jnp.float32(2.0)))
