"""None of the traps that were measured before fnjax was written occurs."""

import gc
import math
import subprocess
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import once_in_fori_loop, once_in_scan
from tests.zoo import FalseRule, Linear, SavedOutput

pytestmark = pytest.mark.usefixtures("x64")


class OnlyWhatIsNeeded(fnjax.Function):
    """x * y; saves what the needed gradients need, and nothing else."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(*(value for value, needed in zip((y, x), ctx.needs_input_grad, strict=True) if needed))
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        saved = list(ctx.saved_tensors)
        return tuple(grad_output * saved.pop(0) if needed else None for needed in ctx.needs_input_grad)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "remat"])
def test_interleaved_pullbacks(wrap):
    """A pullback keeps its own residuals when the same staged call is differentiated in other arguments."""
    f, two, three = wrap(OnlyWhatIsNeeded.apply), jnp.float64(2.0), jnp.float64(3.0)
    _, u = jax.vjp(lambda x: f(x, three), two)
    _, v = jax.vjp(lambda y: f(two, y), three)
    _, w = jax.vjp(f, two, three)
    _, u_again = jax.vjp(lambda x: f(x, three), two)
    assert [u(1.0), v(1.0), w(1.0), u_again(1.0), u(1.0)] == [(3.0,), (2.0,), (3.0, 2.0), (3.0,), (3.0,)]


class SavedMask(fnjax.Function):
    """Squares of rows that are positive throughout; saves the mask, and backward asks it by jnp.all."""

    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(x, mask)
        return jnp.where(jnp.all(mask, axis=1, keepdims=True), x**2, 0)

    @staticmethod
    def backward(ctx, grad_output):
        x, mask = ctx.saved_tensors
        return grad_output * 2 * x * jnp.all(mask, axis=1, keepdims=True)


def test_a_saved_mask_has_no_tangent():
    """Under jit a mask among the residuals stays without a tangent, for which jnp.all has no rule in JAX 0.10."""
    x = jnp.array([[1.0, 2.0], [-1.0, 3.0]])
    second = jax.jit(jax.grad(lambda x: jax.grad(lambda y: SavedMask.apply(y).sum())(x).sum()))(x)
    np.testing.assert_array_equal(second, [[2.0, 2.0], [0.0, 0.0]])


def test_interleaved_pullbacks_under_vmap():
    """The same where one argument is batched and the other is shared: no batched residual is taken for a shared one."""
    f = jax.jit(jax.vmap(OnlyWhatIsNeeded.apply, (0, None)))
    x, y, ct = jnp.arange(3.0), jnp.array([10.0, 20.0, 30.0]), jnp.ones((3, 3))
    _, u = jax.vjp(lambda x: f(x, y), x)
    _, v = jax.vjp(lambda y: f(x, y), y)
    np.testing.assert_array_equal(u(ct)[0], [60.0, 60.0, 60.0])
    np.testing.assert_array_equal(v(ct)[0], [3.0, 3.0, 3.0])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        jax.jit,
        once_in_scan,
        once_in_fori_loop,
        jax.checkpoint,
        lambda f: lambda x: jax.vmap(f)(x[None])[0],
    ],
    ids=["eager", "jit", "scan", "fori_loop", "remat", "vmap"],
)
def test_saved_output_goes_through_the_rule_again(wrap):
    """Each derivative of a saved output multiplies by the rule's 100, to third order, also inside loops."""
    f = wrap(FalseRule.apply)
    x = jnp.float64(0.5)
    for factor in (1e2, 1e4, 1e6):
        f = jax.grad(f)
        np.testing.assert_allclose(f(x), factor * np.exp(0.5), rtol=1e-12)


def make_scale(k):
    class Scale(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * k

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * k

    return Scale.apply


def make_backward_scale(k):
    class BackwardScale(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * k

    return BackwardScale.apply


@pytest.mark.parametrize("make", [make_scale, make_backward_scale], ids=["forward", "backward"])
def test_captured_arrays_are_constants(make):
    """Arrays of an enclosing jit, vmap, scan or remat may be used in forward and backward, inside grad or outside."""
    three = jnp.float64(3.0)
    assert jax.grad(make(three))(2.0) == 3.0
    assert jax.jit(lambda k, x: jax.grad(make(k))(x))(3.0, 2.0) == 3.0
    assert jax.grad(jax.jit(lambda k, x: make(k)(x)), 1)(3.0, 2.0) == 3.0
    assert jax.grad(jax.grad(jax.jit(lambda k, x: make(k)(x) ** 2), 1), 1)(3.0, 2.0) == (
        2 * 9.0 if make is make_scale else 2 * 3.0 * 3.0
    )
    k, x = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_array_equal(jax.vmap(lambda k, x: jax.grad(make(k))(x))(k, x), k)
    np.testing.assert_array_equal(jax.grad(lambda x: jax.vmap(lambda k, x: make(k)(x))(k, x).sum())(x), k)
    loop = lambda k: lambda x: jax.lax.scan(lambda c, _: (make(k)(c), None), x, None, length=2)[0]
    assert jax.jit(lambda k, x: jax.grad(loop(k))(x))(3.0, 2.0) == 9.0
    assert jax.jit(lambda k, x: jax.grad(jax.checkpoint(make(k)))(x))(3.0, 2.0) == 3.0


@pytest.mark.parametrize("make", [make_scale, make_backward_scale], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, once_in_scan, jax.checkpoint], ids=["eager", "jit", "scan", "remat"]
)
def test_differentiated_capture_is_an_error(make, wrap):
    """An array from outside that is being differentiated is an error that names the Function and the array."""
    with pytest.raises(
        fnjax.errors.ClosureError,
        match=r"(?s)Scale uses an array from outside that is being differentiated.* got: k, an array of shape \(\) and",
    ):
        jax.grad(wrap(lambda k: make(k)(k)))(jnp.float64(3.0))


def test_differentiated_capture_without_traced_argument():
    """The same in a call whose arguments are all concrete: JAX never differentiates the body unseen."""
    with pytest.raises(fnjax.errors.ClosureError, match="Scale"):
        jax.grad(lambda k: make_scale(k)(jnp.float64(2.0)))(jnp.float64(3.0))


def test_captured_constant_after_stop_gradient():
    """The remedy that the error names works."""
    f = lambda k: make_scale(jax.lax.stop_gradient(k))(k)
    assert jax.grad(f)(3.0) == 3.0
    assert jax.grad(jax.jit(f))(3.0) == 3.0


def test_only_what_backward_reaches_is_kept():
    """Saving only the output keeps no input: the residuals of a vjp are the output alone."""
    x = jnp.ones(1000)
    y, pullback = jax.vjp(SavedOutput.apply, x)
    residuals = [leaf for leaf in jax.tree.leaves(pullback) if getattr(leaf, "size", 0) == x.size]
    assert len(residuals) == 1
    np.testing.assert_array_equal(residuals[0], y)
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None


def test_saved_weight_stays_unbatched_under_vmap():
    """A shared weight that is saved is kept once, not once per example."""
    w, x = jnp.ones((7, 7)), jnp.ones((50, 7))
    _, pullback = jax.vjp(jax.vmap(lambda x: Linear.apply(x[None], w)), x)
    assert sum(leaf.size for leaf in jax.tree.leaves(pullback)) <= 2 * w.size


def test_gradient_dtype_is_cast():
    """A float64 gradient for a float32 input, which JAX accepts silently, comes out as float32."""

    class Wide(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.astype(jnp.float64)

    assert jax.grad(Wide.apply)(jnp.float32(1)).dtype == jnp.float32


def test_eager_calls_see_concrete_arrays():
    """Outside jit, forward and backward can print, branch and call NumPy, also under first-order grad."""
    seen = []

    class Branchy(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(np.asarray(x).item())
            return jnp.asarray(np.abs(np.asarray(x)))

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            seen.append(np.asarray(grad_output).item())
            return grad_output if x > 0 else -grad_output

    assert Branchy.apply(jnp.float64(-2.0)) == 2.0
    assert jax.grad(Branchy.apply)(jnp.float64(-2.0)) == -1.0
    assert jax.value_and_grad(lambda x: 5 * Branchy.apply(x))(-3.0) == (15.0, -5.0)
    assert seen == [-2.0, -2.0, 1.0, -3.0, 5.0]


def test_changes_are_never_served_stale():
    """A changed class attribute, a mutated list, and 1, 1.0 and True are told apart."""

    class Scaled(fnjax.Function):
        factor = 2.0

        @classmethod
        def forward(cls, ctx, x, numbers):
            return x * cls.factor * sum(numbers)

        @classmethod
        def backward(cls, ctx, grad_output):
            return grad_output * cls.factor, None

    numbers = [1.0]
    f = lambda x: jax.jit(lambda x: Scaled.apply(x, numbers))(x)  # noqa: PLW0108 - a new function for jit each time
    assert (f(1.0), jax.grad(f)(1.0)) == (2.0, 2.0)
    Scaled.factor = 5.0
    numbers.append(2.0)
    assert (f(1.0), jax.grad(f)(1.0)) == (15.0, 5.0)

    class TypeOf(fnjax.Function):
        @staticmethod
        def forward(ctx, x, value):
            return x * 1, type(value).__name__, math.copysign(1.0, value)

        @staticmethod
        def backward(ctx, grad_output, *_):
            return grad_output, None

    values = (1, True, 1.0, 0.0, -0.0)
    kinds = []
    for value in values:
        jax.jit(lambda x, value=value: kinds.append(TypeOf.apply(x, value)[1:]))(1.0)
    assert kinds == [("int", 1.0), ("bool", 1.0), ("float", 1.0), ("float", 1.0), ("float", -1.0)]


def test_threads_trace_at_once():
    """Eight threads that trace, compile and differentiate different Functions at once do not disturb each other."""
    wrong = []

    def work(k):
        try:
            for n in range(1, 6):
                scale = make_scale(jnp.float64(k))
                value, grad = jax.jit(jax.value_and_grad(lambda x, s=scale: s(x) ** 2))(jnp.float64(n))
                if (value, grad) != ((k * n) ** 2, 2 * k * k * n):
                    wrong.append((k, n, value, grad))
                if jax.grad(jax.grad(FalseRule.apply))(jnp.float64(0.0)) != 1e4:
                    wrong.append((k, "second order"))
        except Exception as e:  # noqa: BLE001 - a thread's exception is a result here
            wrong.append((k, repr(e)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Payload:
    """A static argument whose death can be watched."""


@pytest.mark.usefixtures("young_heap")
def test_static_arguments_and_classes_die():
    """A hundred calls with distinct static values leave none of them behind, and a class dies with its last use."""
    alive = weakref.WeakSet()

    class Holder(fnjax.Function):
        @staticmethod
        def forward(ctx, x, payload):
            ctx.payload = payload
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return 2 * grad_output, None

    def call(Holder, n):
        payload = Payload()
        alive.add(payload)
        f = lambda x: Holder.apply(x, payload)
        if n % 25 == 0:
            jax.jit(jax.grad(f))(1.0)
            jax.vmap(jax.grad(f))(jnp.ones(2))
            jax.grad(jax.grad(f))(1.0)
        jax.grad(f)(1.0)
        jax.make_jaxpr(jax.grad(f))(1.0)

    for n in range(100):
        call(Holder, n)
    gc.collect()
    assert len(alive) <= 10  # JAX's own caches of compiled functions may hold the last ones
    jax.clear_caches()
    gc.collect()
    assert len(alive) == 0
    reference = weakref.ref(Holder)
    del Holder
    gc.collect()
    assert reference() is None


def test_the_first_call_of_a_process_may_be_traced():
    """Facts that fnjax determines once do not depend on the context of the first call: here inside scan."""
    code = """
import jax, jax.numpy as jnp, fnjax

class Tenfold(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        return 10 * grad_output

f = lambda x: jax.lax.scan(lambda c, _: (Tenfold.apply(c), None), x, None, length=3)[0]
print(jax.grad(f)(1.0), Tenfold.apply(0.0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1000.0 0.0\n"


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_saved_integers_of_a_callback_differentiate_twice(wrap):
    """Integers that a callback made have no derivative, so saving them does not stop double backward."""

    class SortedSquare(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            order = jax.pure_callback(
                lambda x: np.argsort(x).astype(np.int32),
                jax.ShapeDtypeStruct(x.shape, jnp.int32),
                x,
                vmap_method="sequential",
            )
            double = 2 * x
            ctx.save_for_backward(order, double)
            return (x**2)[order]

        @staticmethod
        def backward(ctx, grad_output):
            order, double = ctx.saved_tensors
            return jnp.zeros_like(grad_output).at[order].set(grad_output) * double

    x, weights = jnp.array([3.0, 1.0, 2.0]), jnp.array([1.0, 2.0, 3.0])

    def loss(square):
        return lambda x: jnp.sum(square(x) * weights)

    got = wrap(jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss(SortedSquare.apply))(x)))))(x)
    want = jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss(lambda x: (x**2)[jnp.argsort(x)]))(x))))(x)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_attributes_of_ctx_have_any_name():
    """A name that fnjax itself might use for its ctx is free for attributes, under once_differentiable too."""

    class Named(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.arrays, ctx.map_arrays, ctx.content = [2 * x], "map", None
            return x**2

        @staticmethod
        @fnjax.once_differentiable
        def backward(ctx, grad_output):
            return grad_output * ctx.arrays[0]

    assert jax.grad(Named.apply)(3.0) == 6.0


class Ordered(fnjax.Function):
    """x * 2 * x; dictionaries on ctx, whose keys JAX would sort, and could not where they are of several types."""

    @staticmethod
    def forward(ctx, x):
        ctx.given = {"weight": x * 2, "bias": [x, {2: x, "a": x + 1}]}
        return x * 3

    @staticmethod
    def backward(ctx, grad_output):
        first, (second, inner) = ctx.given.values()
        assert list(inner) == [2, "a"]
        assert type(ctx.given) is dict
        return grad_output * first * second


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.vmap, jax.checkpoint], ids=["eager", "jit", "vmap", "remat"]
)
def test_dictionaries_on_ctx_keep_their_order(wrap):
    """Context managers are entered in backward in the order of forward."""
    x = jnp.arange(1.0, 4.0)
    gradient = jax.grad(lambda x: wrap(Ordered.apply)(x).sum())(x)
    np.testing.assert_array_equal(gradient, 2 * x * x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "transform", ["jax.grad(f)", "jax.jit(jax.grad(f))", "jax.grad(jax.jit(f))", "jax.grad(jax.checkpoint(f))"]
)
def test_first_touched_inside_a_transformation(transform):
    """A first use of fnjax.Function inside a trace, which loads the core there, has the custom backward too."""
    code = f"""
import jax, jax.numpy as jnp, fnjax

def f(x):
    class F(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return jnp.sin(x)
        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 100
    return F.apply(x)

print({transform}(3.0), {transform}(3.0), type(f(3.0)).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "100.0 100.0 ArrayImpl\n"


@pytest.mark.parametrize("argnums", [1, (0, 1)])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_differentiated_captures_are_told_of_under_jit(wrap, argnums):
    """A class made around an array that is being differentiated is refused by name, outside jit and jitted."""

    def scaled(x, w):
        class Scaled(fnjax.Function):
            @staticmethod
            def forward(ctx, x):
                return x * w

            @staticmethod
            def backward(ctx, grad_output):
                return grad_output * w

        return Scaled.apply(x)

    with pytest.raises(fnjax.errors.ClosureError, match="Scaled uses an array from outside"):
        wrap(jax.grad(scaled, argnums))(3.0, 2.0)


def test_hessian_with_a_typed_key():
    """A typed key on ctx is not a number that could be zero: forward over reverse works outside jit as jitted."""

    class Noisy(fnjax.Function):
        @staticmethod
        def forward(ctx, x, key):
            ctx.key = key
            return x * jax.random.uniform(key)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * jax.random.uniform(ctx.key), None

    key = jax.random.key(1)
    hessian = jax.hessian(lambda x: Noisy.apply(x, key) ** 2)
    want = 2 * jax.random.uniform(key) ** 2
    np.testing.assert_allclose(hessian(3.0), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(hessian)(3.0), want, rtol=1e-6)
