"""The user's batching rule is used in every order of vmap and grad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

pytestmark = pytest.mark.usefixtures("x64")
CALLS = []


def host(f, shape_like, *args):
    """Run `f` on the host; JAX cannot batch it: only a rule of the class can."""
    return jax.pure_callback(f, jax.ShapeDtypeStruct(shape_like.shape, shape_like.dtype), *args)


class Cube(fnjax.Function):
    """x³ by NumPy, whose batch needs a rule; the slope is an extra output."""

    @staticmethod
    def forward(x):
        return host(lambda x: x**3, x, x), host(lambda x: 3 * x**2, x, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, grad_cube, grad_slope):
        x, slope = ctx.saved_tensors
        return grad_cube * slope + grad_slope * 6 * x

    @staticmethod
    def vmap(info, in_dims, x):
        CALLS.append((info.batch_size, in_dims, x.shape))
        return Cube.apply(x), (in_dims[0], in_dims[0])


class Exp(fnjax.Function):
    """The ctx style: what it saves is an output."""

    @staticmethod
    def forward(ctx, x):
        y = host(np.exp, x, x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y

    @staticmethod
    def vmap(info, in_dims, x):
        return Exp.apply(jnp.moveaxis(x, in_dims[0], 0)), 0


class Scale(fnjax.Function):
    """A static argument, an argument that may be shared, and an intermediate saved in setup_context."""

    @staticmethod
    def forward(x, k, y):
        return host(lambda x, y: x * k * y, x, x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k, y = inputs
        ctx.slope_x, ctx.slope_y = k * y, k * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope_x, None, grad_output * ctx.slope_y

    @staticmethod
    def vmap(info, in_dims, x, k, y):
        assert in_dims[1] is None
        x, y = (
            jnp.broadcast_to(a, (info.batch_size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
            for a, d in ((x, in_dims[0]), (y, in_dims[2]))
        )
        return Scale.apply(x, k, y), 0


FUNCTIONS = {
    "cube": (lambda x: Cube.apply(x)[0], lambda x: x**3),
    "exp": (Exp.apply, jnp.exp),
    "scale": (lambda x: Scale.apply(x, 3.0, x + 1), lambda x: 3 * x * (x + 1)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_orders_of_vmap_and_grad(name, wrap):
    """Values, gradients and second derivatives through the rule, vmap inside or outside, once or nested."""
    f, twin = FUNCTIONS[name]
    x = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, (3, 4, 2)))
    total = lambda f: lambda x: jnp.sum(jnp.sin(f(x)))
    forms = {
        "vmap": lambda f: jax.vmap(wrap(f), 1, 1),
        "vmap of vmap": lambda f: jax.vmap(jax.vmap(wrap(f)), 1, 1),
        "vmap of grad": lambda f: jax.vmap(wrap(jax.grad(total(f))), 1, 1),
        "grad of vmap": lambda f: jax.grad(total(jax.vmap(wrap(f), 1))),
        "vmap of grad of vmap": lambda f: jax.vmap(jax.grad(total(jax.vmap(wrap(f))))),
        "vmap of grad of grad": lambda f: jax.vmap(jax.grad(total(jax.grad(total(wrap(f)))))),
        "grad of grad of vmap": lambda f: jax.grad(total(jax.grad(total(jax.vmap(wrap(f)))))),
        "scan of vmap": lambda f: lambda x: jax.lax.scan(lambda c, x: (c, jax.vmap(wrap(f))(x)), 0, x)[1],
        "vmap of grad of scan": lambda f: jax.vmap(
            jax.grad(lambda x: jnp.sum(jax.lax.scan(lambda c, x: (c, wrap(f)(x)), 0, x)[1]))
        ),
    }
    for form, make in forms.items():
        np.testing.assert_allclose(make(f)(x), jax.jit(make(twin))(x), rtol=1e-10, err_msg=form)


def test_the_rule_is_called():
    """The rule gets the size of the batch and the axes, once for each level of vmap."""
    CALLS.clear()
    jax.vmap(lambda x: Cube.apply(x)[0], 1, 1)(jnp.ones((3, 4)))
    assert CALLS == [(4, (1,), (3, 4))]
    CALLS.clear()
    jax.vmap(jax.vmap(lambda x: Cube.apply(x)[0]))(jnp.ones((3, 4)))
    assert [size for size, _, _ in CALLS] == [4, 3]


def test_shared_arguments():
    """An argument that the batch shares has in_dim None, and its gradient is summed over the batch."""
    x, y = jnp.arange(3.0), jnp.float64(5.0)
    f = lambda x, y: jax.vmap(lambda x, y: Scale.apply(x, 2.0, y), (0, None))(x, y).sum()
    assert f(x, y) == 30.0
    np.testing.assert_array_equal(jax.grad(f)(x, y), [10.0, 10.0, 10.0])
    assert jax.grad(f, 1)(x, y) == 6.0


def ruled(rule, **members):
    """x·2 in the style of setup_context with this rule."""
    members |= {
        "forward": staticmethod(lambda x: (x * 2, x * 3)),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
        "vmap": staticmethod(rule),
    }
    return type("Fn", (fnjax.Function,), members)


@pytest.mark.parametrize(
    ("Fn", "phrase"),
    [
        (ruled(lambda info, in_dims, x: x), "Expected the vmap staticmethod to have two returns"),
        (ruled(lambda info, in_dims, x: (x, 0, 0)), "Got 3 returns instead"),
        (
            ruled(lambda info, in_dims, x: ((x, x), (0, 0, 0))),
            "tuple. Expected out_dims=(0, 0, 0)",
        ),
        (ruled(lambda info, in_dims, x: ((x, x), (None, 0))), "incompatible (output, out_dims) tuple"),
        (
            ruled(lambda info, in_dims, x: ((x, x), 0), generate_vmap_rule=True),
            "both generate_vmap_rule=True and",
        ),
    ],
    ids=["one", "three", "lengths", "shapes", "both"],
)
def test_messages(Fn, phrase):
    """The results of a batching rule are checked, with PyTorch's messages."""
    with pytest.raises(fnjax.errors.BatchingError) as info:
        jax.vmap(Fn.apply)(jnp.ones((3, 2)))
    assert phrase in str(info.value)
    assert "Fn" in str(info.value)


def test_unbatched_output():
    """out_dim None means that the output is the same for all examples."""
    Fn = ruled(lambda info, in_dims, x: ((x * 2, jnp.full(2, 9.0)), (0, None)))
    batched, shared = jax.vmap(Fn.apply)(jnp.ones((3, 2)))
    assert batched.shape == shared.shape == (3, 2)
    assert (shared == 9).all()


def test_intermediate_in_the_ctx_style():
    """In the ctx style a saved intermediate has no batch; the error says to use setup_context."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(3 * x**2)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.saved_tensors[0]

        @staticmethod
        def vmap(info, in_dims, x):
            return Fn.apply(x), in_dims[0]

    np.testing.assert_array_equal(jax.vmap(Fn.apply)(jnp.arange(3.0)), [0, 1, 8])
    np.testing.assert_array_equal(jax.grad(lambda x: jax.vmap(Fn.apply)(x).sum())(jnp.arange(3.0)), [0, 3, 12])
    with pytest.raises(fnjax.errors.BatchingError, match="saves an intermediate value") as info:
        jax.vmap(jax.grad(Fn.apply))(jnp.arange(3.0))
    assert "setup_context" in str(info.value)


@pytest.mark.parametrize("differentiated", [True, False])
def test_containers_in_in_dims(differentiated):
    """in_dims has the structure of a container argument, whether or not its arrays are differentiated."""
    seen = []

    class Fn(fnjax.Function):
        pytree = differentiated

        @staticmethod
        def forward(ctx, xs, k):
            return xs["a"] * xs["b"]

        @staticmethod
        def vmap(info, in_dims, xs, k):
            seen.append(in_dims)
            return xs["a"] * xs["b"], 0

    jax.vmap(lambda a, b: Fn.apply({"a": a, "b": b}, 3), (0, None))(jnp.ones((4, 2)), jnp.ones(2))
    assert seen == [({"a": 0, "b": None}, None)]


def test_a_batch_of_another_size():
    """A rule that gives fewer examples than it was given is an error; PyTorch takes it silently."""

    class Half(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vmap(info, in_dims, x):
            return x[: info.batch_size - 1] * 2, 0

    with pytest.raises(fnjax.errors.BatchingError, match="the batch has 3 example"):
        jax.vmap(Half.apply)(jnp.ones((3, 4)))
