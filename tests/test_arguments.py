"""Arguments bind as in PyTorch, with its needs_input_grad and gradients, for signatures drawn by Hypothesis."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnjax

settings.register_profile("fnjax", deadline=None, max_examples=60)
settings.load_profile("fnjax")


@st.composite
def signatures(draw):
    """Source of a parameter list, and arguments that may or may not fit it."""
    n = draw(st.integers(0, 4))
    n_defaults = draw(st.integers(0, n))
    names = [f"p{i}" for i in range(n)]
    parameters = [name if i < n - n_defaults else f"{name}={i}" for i, name in enumerate(names)]
    if draw(st.booleans()):
        parameters.append("*rest")
    elif draw(st.booleans()):
        parameters.append("*")
    if parameters and parameters[-1].startswith("*"):
        parameters += draw(st.sampled_from([[], ["q"], ["q=9"]])) or (["q=8"] if parameters[-1] == "*" else [])
    args = tuple(range(100, 100 + draw(st.integers(0, 5))))
    kwargs = {k: 200 + i for i, k in enumerate(draw(st.lists(st.sampled_from([*names, "q", "zz"]), unique=True)))}
    return ", ".join(parameters), args, kwargs


@given(signatures(), st.booleans())
def test_binding_is_pythons(case, ctx_style):
    """Apply binds as Python would bind the call of forward: the same values, or a TypeError where Python has one."""
    parameters, args, kwargs = case
    namespace = {}
    exec(f"def plain({parameters}): return dict(locals())", namespace)
    plain = namespace["plain"]
    seen = []
    names = list(inspect.signature(plain).parameters)
    call = ", ".join(f"{k}={k}" for k in names)
    exec(
        f"def forward({'ctx, ' if ctx_style else ''}{parameters}): seen.append(dict({call}))", {"seen": seen}, namespace
    )
    members = {"forward": staticmethod(namespace["forward"])}
    if not ctx_style:
        members["setup_context"] = staticmethod(lambda ctx, inputs, output: None)
    Fn = type("Fn", (fnjax.Function,), members)
    try:
        want = plain(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match="Fn"):
            Fn.apply(*args, **kwargs)
    else:
        Fn.apply(*args, **kwargs)
        assert seen == [want]


KINDS = {
    "differentiated": True,
    "constant": False,
    "integers": False,
    "number": False,
    "nothing": False,
    "text": False,
    "list": False,
}


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6), st.sampled_from(["eager", "jit", "vmap"]))
def test_needs_input_grad_is_truthful(kinds, mode):
    """In forward and in backward, needs_input_grad says what is being differentiated, whatever the arguments."""
    seen = []

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, *args):
            seen.append(tuple(ctx.needs_input_grad))
            ctx.n = len(args)
            return sum((a for a in args if isinstance(a, jax.Array)), jnp.zeros(3))

        @staticmethod
        def backward(ctx, grad_output):
            seen.append(tuple(ctx.needs_input_grad))
            return tuple(grad_output if needed else None for needed in ctx.needs_input_grad)

    static = {"number": 2.5, "nothing": None, "text": "abc", "list": [1, 2]}
    arrays = {"differentiated": jnp.ones(3), "constant": jnp.ones(3), "integers": jnp.arange(3)}

    def call(differentiated):
        rest = iter(differentiated)
        args = [next(rest) if k == "differentiated" else arrays.get(k, static.get(k)) for k in kinds]
        return Fn.apply(*args).sum()

    batched = lambda f: lambda x: jax.vmap(f, axis_size=1)([a[None] for a in x]).sum()
    wrap = {"eager": lambda f: f, "jit": jax.jit, "vmap": batched}
    grads = jax.grad(wrap[mode](call))([arrays["differentiated"] for k in kinds if k == "differentiated"])
    want = tuple(KINDS[k] for k in kinds)
    if any(want):
        assert seen[-1] == want
        assert want in seen[:-1]
    assert all(needs in (want, (False,) * len(want)) for needs in seen)
    for grad in grads:
        np.testing.assert_array_equal(grad, jnp.ones(3))


@settings(max_examples=25)
@given(st.lists(st.sampled_from([0, 1, 3]), max_size=3), st.integers(0, 3), st.lists(st.booleans(), min_size=3))
def test_gradients_are_summed_to_size(full, keep, ones):
    """A gradient of the broadcast shape is summed to the argument's, as the transpose of broadcasting does."""
    keep = min(keep, len(full))
    shape = tuple(1 if one else n for one, n in zip(ones, full[len(full) - keep :], strict=False))

    class Spread(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return jnp.broadcast_to(x, full)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    weight = np.random.default_rng(0).normal(size=full).astype(np.float32)
    _, pullback = jax.vjp(Spread.apply, np.ones(shape, np.float32))
    (got,) = pullback(weight)
    added = len(full) - keep
    spread = tuple(i for i in range(len(full)) if i < added or shape[i - added] == 1)
    assert got.shape == shape
    np.testing.assert_allclose(got, weight.sum(spread).reshape(shape), rtol=1e-5, atol=1e-6)


def test_apply_is_one_object():
    """Each class has one apply, so that jit and scan find what they traced; subclasses and super() have their own."""

    class Base(fnjax.Function):
        k = 2.0

        @classmethod
        def forward(cls, ctx, x):
            return x * cls.k

        @classmethod
        def backward(cls, ctx, grad_output):
            return grad_output * cls.k

    class Derived(Base):
        k = 5.0

    assert Base.apply is Base.apply
    assert Base.apply is not Derived.apply
    assert (Base.apply.__name__, Base.apply.__qualname__.split(".")[-2:]) == ("Base", ["Base", "apply"])
    assert [jax.grad(F.apply)(1.0) for F in (Base, Derived)] == [2.0, 5.0]
    count = 0

    class Counted(Base):
        @classmethod
        def forward(cls, ctx, x):
            nonlocal count
            count += 1
            return x

    for _ in range(3):
        jax.jit(Counted.apply)(1.0)
    assert count == 1


def test_methods_of_a_mixin():
    """Methods are looked up as Python does: a mixin's are those of the class where it is named before Function."""

    class Mixin:
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 7

    class MixinFirst(Mixin, fnjax.Function):
        pass

    class MixinLast(fnjax.Function, Mixin):
        pass

    assert jax.grad(MixinFirst.apply)(1.0) == 7.0
    # As in PyTorch, where Function's own forward comes first and says so.
    with pytest.raises(NotImplementedError, match="You must implement the forward function"):
        MixinLast.apply(1.0)
    Mixin.backward = staticmethod(lambda ctx, grad_output: grad_output * 9)  # a change of the mixin counts
    assert jax.grad(MixinFirst.apply)(1.0) == 9.0


def test_static_values_arrive_as_they_are():
    """Static arguments reach forward as the very objects, hashable or not, also under jit and grad."""
    values = [3, True, "a", {"k": [1]}, [1, 2], slice(1), jnp.float32, len, None]
    seen = []

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, *rest):
            seen.append(rest)
            return x[0 : rest[0]]

        @staticmethod
        def backward(ctx, grad_output):
            return (jnp.pad(grad_output, (0, 1)), *[None] * len(values))

    jax.jit(jax.grad(lambda x: Fn.apply(x, *values).sum()))(jnp.ones(4))
    assert seen
    assert all(a is b for rest in seen for a, b in zip(rest, values, strict=True))


def test_prng_keys_are_tensors_without_gradient():
    """A typed key is an argument like any other, without gradient; it can be saved."""

    class Noise(fnjax.Function):
        @staticmethod
        def forward(ctx, x, key):
            ctx.save_for_backward(key)
            assert not ctx.needs_input_grad[1]
            return x + jax.random.normal(key, x.shape)

        @staticmethod
        def backward(ctx, grad_output):
            (key,) = ctx.saved_tensors
            return grad_output * jax.random.normal(key, grad_output.shape), None

    key = jax.random.key(0)
    want = jax.random.normal(key, (3,))
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        got = jax.grad(lambda x, k: wrap(Noise.apply)(x, k).sum())(jnp.ones(3), key)  # noqa: B023 - called in the turn
        np.testing.assert_allclose(got, want, rtol=1e-6)
    batched = jax.vmap(jax.grad(lambda x, k: Noise.apply(x, k).sum()))(jnp.ones((2, 3)), jax.random.split(key))
    assert batched.shape == (2, 3)


@jax.tree_util.register_pytree_node_class
class Vector:
    """A pytree whose constructor takes arrays only."""

    def __init__(self, w):
        assert isinstance(w, jax.Array)
        self.w = w

    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_pytree_whose_class_checks_its_leaves():
    """Such a class needs no other leaves than arrays: its needs_input_grad is one bool, pictures number its arrays."""
    seen = []

    class Product(fnjax.Function):
        pytree = True

        @staticmethod
        def forward(ctx, p, x):
            seen.append(tuple(ctx.needs_input_grad))
            ctx.p, ctx.x = p, x
            return p.w * x

        @staticmethod
        def backward(ctx, g):
            return Vector(g * ctx.x), g * ctx.p.w

    x, w = jnp.arange(3.0), jnp.arange(3.0) + 2
    np.testing.assert_array_equal(Product.apply(Vector(w), x), w * x)
    f = lambda p: Product.apply(p, x).sum()
    np.testing.assert_array_equal(jax.grad(f)(Vector(w)).w, x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(f)))(Vector(w[None])).w, x[None])
    assert seen[:2] == [(False, False), (True, False)]
    assert [r.name for r in fnjax.saved_report(Product.apply, Vector(w), x).rows] == ["input p[0]", "input x"]
