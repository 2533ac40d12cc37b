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


@pytest.fixture(params=CASES)
def case(request):
    Fn, twin, out_axes = CASES[request.param]
    return Fn.apply, twin, out_axes


def close(got, expected, label=""):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5, err_msg=label), got, expected)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, expected), label


def batched(f, out_axes, inner=lambda f: f):
    return jax.vmap(inner(f), (0, None), out_axes, axis_name="batch", axis_size=N)


def pullback(f):
    """Return the gradient of a scalar to which every output contributes."""
    return jax.grad(lambda x, c: sum(jnp.sum(jnp.sin(y)) for y in f(x, c)), (0, 1))


def tangents(f):
    return lambda x, c: jax.jvp(f, (x, c), (x - 1.7, c + 1))[1]


def outputs(f, out_axes, inner=lambda f: f):
    """An output that does not depend on the batch has no batch axis, as in JAX's own vmap."""
    return batched(f, out_axes, inner)


def gradients(f, out_axes, inner=lambda f: f):
    """The cotangent of an unbatched output counts once, not once for each example."""
    return pullback(batched(f, out_axes, inner))


def tangents_outside(f, out_axes, inner=lambda f: f):
    """Tangents of unbatched outputs are those of JAX's own operations."""
    return tangents(batched(f, out_axes, inner))


def forward_over_reverse(f, out_axes, inner=lambda f: f):
    """Second derivatives of unbatched outputs are those of JAX's own operations."""
    return tangents(pullback(batched(f, out_axes, inner)))


def gradients_inside(f, out_axes, inner=lambda f: f):
    """A gradient for one example is batched as the gradient of JAX's own operations."""
    return batched(pullback(f), 0, inner)


def tangents_inside(f, out_axes, inner=lambda f: f):
    """The tangent of an output that does not depend on the batch has no batch axis."""
    return batched(tangents(f), out_axes, inner)


def batch_of_batches(f, out_axes, inner=lambda f: f):
    """Under a second vmap an output has the axes of the batches on which it depends."""
    return lambda x, c: jax.vmap(batched(f, out_axes, inner), (0, None))(jnp.stack([x, x + 2]), c)


def nothing_is_batched(f, out_axes, inner=lambda f: f):
    """Return a call under vmap in which nothing is batched and only the axis has a name."""
    return lambda x, c: jax.vmap(inner(lambda _: f(c + 0.8, c)), axis_name="batch")(x)


TRANSFORMS = (
    outputs,
    gradients,
    tangents_outside,
    forward_over_reverse,
    gradients_inside,
    tangents_inside,
    batch_of_batches,
    nothing_is_batched,
)


def hessian(f, out_axes, inner=lambda f: f):
    """All second derivatives at once are those of JAX's own operations."""
    return jax.jacfwd(pullback(batched(f, out_axes, inner)), (0, 1))


def transforms_of(f):
    """Return the transformations that JAX has for a case: 0.10 to 0.12 cannot transpose psum_scatter inside vmap."""
    return [t for t in TRANSFORMS if (f, t) != (Gather.apply, tangents_inside)]


def test_jit(case):
    """The results of every transformation are those of JAX's own operations; the gradient also of an inner jit."""
    f, twin, out_axes = case

    @jax.jit
    def run(x, c):
        each = {t.__name__: [t(g, out_axes)(x, c) for g in (f, twin)] for t in transforms_of(f)}
        return each | {"inner jit": [gradients(g, out_axes, jax.jit)(x, c) for g in (f, twin)]}

    for name, (result, expected) in run(X, C).items():
        close(result, expected, name)


def test_gradients_outside_jit():
    """Outside jit, too, the cotangent of an unbatched output counts once."""
    x, sine, cosine = np.asarray(X), np.sin(C), np.cos(C)
    weights = np.cos(x * sine)  # of the first output; the second counts once, the third for each example
    expected = weights * sine, (weights * x).sum() * cosine + (1 + N) * 2 * np.cos(2 * C)
    close(gradients(SplitOutput.apply, (0, None, 0))(X, C), expected)


@pytest.mark.slow  # outside jit every operation is a program; the two tests above are the short form
@pytest.mark.parametrize(
    ("outer", "inner"),
    [(lambda f: f, lambda f: f), (lambda f: f, jax.jit), (jax.jit, jax.jit)],
    ids=["eager", "of_jit", "jit_of_jit"],
)
def test_eager_and_nested_jit(case, outer, inner):
    """Outside jit, and with an inner jit, the results of every transformation are those of JAX's own operations."""
    f, twin, out_axes = case
    transforms = [*transforms_of(f), hessian]
    expected = jax.jit(lambda x, c: [t(twin, out_axes)(x, c) for t in transforms])(X, C)
    for transform, result in zip(transforms, expected, strict=True):
        close(outer(transform(f, out_axes, inner))(X, C), result, transform.__name__)


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
