"""Refs (jax.new_ref) in forward and backward: as jax.custom_vjp has them, in every transform, and errors where not."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import stop_gradient

import fnjax

REMAT3 = os.environ.get("JAX_REMAT3") == "1"

X = jnp.float32(3)
XS = jnp.arange(3.0)


class Recorded(fnjax.Function):
    """The square; what it saw, the gradients that came and the last one that went are written to three Refs."""

    @staticmethod
    def forward(ctx, x, seen, came, went):
        ctx.save_for_backward(x, came)
        ctx.went = went
        seen[...] += x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        x, came = ctx.saved_tensors
        came[...] += grad_output
        ctx.went[...] = stop_gradient(2 * x * grad_output)
        return 2 * x * grad_output, None, None, None


def square(x, seen, came, went):
    seen[...] += stop_gradient(x)  # a Function's forward, unlike this, is not differentiated
    return x * x


def recorded_bwd(residuals, ct):
    x, came, went = residuals
    came[...] += ct
    went[...] = stop_gradient(2 * x * ct)
    return 2 * x * ct, None, None, None


recorded = jax.custom_vjp(square)
recorded.defvjp(lambda x, seen, came, went: (square(x, seen, came, went), (x, came, went)), recorded_bwd)


class Local(fnjax.Function):
    """Twice x, added up in a Ref that forward makes for itself, as backward does."""

    @staticmethod
    def forward(ctx, x):
        total = jax.new_ref(jnp.zeros_like(x))
        total[...] += x
        total[...] += x
        return total[...]

    backward = forward


def times(f, refs, n=3):
    """A scan in which f is called n times."""
    return lambda x: jax.lax.scan(lambda c, _: (f(c, *refs), None), x, None, length=n)[0]


def unused(f, x, *refs):
    """The results are dropped, what is written is not."""
    jax.grad(f)(x, *refs)
    return x


def pulled_twice(f, x, *refs):
    _, pull = jax.vjp(lambda x: f(x, *refs), x)
    return pull(x), pull(10 * x)


def branched(f, x, *refs):
    return jax.lax.cond(x > 0, lambda x: f(x, *refs), lambda x: x, x)


# Each takes the function, x and the Refs; under vmap each Ref has an entry for each example.
TRANSFORMS = {
    "value": lambda f, x, *refs: f(x, *refs),
    "jit": lambda f, x, *refs: jax.jit(f)(x, *refs),
    "grad": lambda f, x, *refs: jax.grad(f)(x, *refs),
    "jit grad": lambda f, x, *refs: jax.jit(jax.grad(f))(x, *refs),
    "grad jit": lambda f, x, *refs: jax.grad(jax.jit(f))(x, *refs),
    "jit vjp twice": lambda f, x, *refs: jax.jit(functools.partial(pulled_twice, f))(x, *refs),
    "grad grad": lambda f, x, *refs: jax.jit(jax.grad(lambda x: jax.grad(f)(x, *refs)))(x),
    "jvp grad": lambda f, x, *refs: jax.jvp(lambda x: jax.grad(f)(x, *refs), (x,), (x,)),
    "jit jvp grad": lambda f, x, *refs: jax.jit(lambda x, *refs: jax.jvp(lambda x: jax.grad(f)(x, *refs), (x,), (x,)))(
        x, *refs
    ),
    "scan": lambda f, x, *refs: times(f, refs)(x),
    "grad scan": lambda f, x, *refs: jax.grad(times(f, refs))(x),
    "jit grad scan": lambda f, x, *refs: jax.jit(jax.grad(lambda x, *refs: times(f, refs)(x)))(x, *refs),
    "jit scan grad": lambda f, x, *refs: jax.jit(lambda x, *refs: times(jax.grad(f), refs)(x))(x, *refs),
    "jit while": lambda f, x, *refs: jax.jit(
        lambda x, *refs: jax.lax.while_loop(lambda x: x < 100, lambda x: f(x, *refs), x)
    )(x, *refs),
    "jit cond": lambda f, x, *refs: jax.jit(functools.partial(branched, f))(x, *refs),
    "jit grad cond": lambda f, x, *refs: jax.jit(jax.grad(functools.partial(branched, f)))(x, *refs),
    "jit unused": lambda f, x, *refs: jax.jit(functools.partial(unused, f))(x, *refs),
}
BATCHED = {
    "vmap": lambda f, x, *refs: jax.vmap(f)(x, *refs),
    "vmap grad": lambda f, x, *refs: jax.vmap(jax.grad(f))(x, *refs),
    "grad vmap": lambda f, x, *refs: jax.grad(lambda x: jax.vmap(f)(x, *refs).sum())(x),
    "jit grad vmap": lambda f, x, *refs: jax.jit(jax.grad(lambda x, *refs: jax.vmap(f)(x, *refs).sum()))(x, *refs),
    "jit vmap grad jit": lambda f, x, *refs: jax.jit(jax.vmap(jax.grad(jax.jit(f))))(x, *refs),
}
# JAX 0.10 has no zero for a Ref that only one branch saves, with jax.custom_vjp neither.
SINCE_0_12 = {"jit grad cond"}


def outcome(run, f, x):
    """Return the result of a call and the values of the Refs after it."""
    refs = [jax.new_ref(jnp.zeros_like(x)) for _ in range(3)]
    return jax.tree.map(np.asarray, (run(f, x, *refs), [ref[...] for ref in refs]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [*TRANSFORMS, *BATCHED])
def test_a_ref_is_read_and_written_as_in_custom_vjp(name):
    """Values, gradients and the content of the Refs are those of the same rules as a jax.custom_vjp."""
    if name in SINCE_0_12 and jax.__version_info__ < (0, 12):
        pytest.skip("JAX 0.10 cannot, with jax.custom_vjp neither")
    run, x = (TRANSFORMS[name], X) if name in TRANSFORMS else (BATCHED[name], XS)
    got, want = outcome(run, Recorded.apply, x), outcome(run, recorded, x)
    assert any(ref.any() for ref in want[1])
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_forward_mode_does_not_write_what_backward_writes(wrap):
    """The tangent is that of the transpose of backward without its writes; where it depends on them it is refused."""
    f = wrap(lambda x, *refs: jax.jvp(lambda x: Recorded.apply(x, *refs), (x,), (x,)))
    value, refs = outcome(lambda _, *args: f(*args), None, X)
    assert value == (9, 18)
    assert refs == [3, 0, 0]

    def backward(ctx, grad_output):
        ctx.ref[...] += grad_output
        return ctx.ref[...], None

    with pytest.raises(NotImplementedError, match="not linear"):
        wrap(lambda x, ref: jax.jvp(lambda x: function(keep, backward).apply(x, ref), (x,), (x,)))(X, jax.new_ref(X))


def test_remat_writes_once():
    """jax.checkpoint runs a forward that writes once and keeps what it gives, where custom_vjp's writes twice.

    With JAX_REMAT3=1 it runs it twice, as it does with custom_vjp.
    """
    run = lambda f, x, *refs: jax.jit(jax.grad(lambda x, *refs: jnp.sin(jax.checkpoint(f)(x, *refs))))(x, *refs)
    grad, refs = outcome(run, Recorded.apply, X)
    want = 6 * np.cos(9, dtype=np.float32)
    np.testing.assert_allclose(grad, want, rtol=1e-6)
    np.testing.assert_allclose(refs, [3 * (1 + REMAT3), np.cos(9), want], rtol=1e-6)


@pytest.mark.parametrize("wrap", [jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))])
def test_a_ref_that_forward_makes(wrap):
    """A local Ref works in jit, scan, cond, while, remat and vmap, differentiated or not: all is 2 to the n."""
    f = Local.apply
    loop = lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    branch = lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)
    results = [wrap(g)(jnp.float32(1)) for g in (f, loop, branch, jax.checkpoint(f))]
    assert results == [2, 4, 2, 2]
    assert jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 100, f, x))(jnp.float32(1)) == 128
    assert jax.vmap(wrap(f))(jnp.ones(2)).tolist() == [2, 2]


def function(forward, backward=lambda ctx, g: (g, None), **members):
    return type(
        "Fn", (fnjax.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)} | members
    )


def keep(ctx, x, ref):
    ctx.ref = ref
    return x * 2


def keep_own(ctx, x, ref):
    ctx.ref = jax.new_ref(x)
    return x * 2


MADE_INSIDE = lambda F: lambda x, ref: F(x, jax.new_ref(x))

# What is done wrong: the class, what is called, the type of the error, and its anchor.
WRONG = {
    "output": (function(lambda ctx, x, ref: ref), lambda F: F, TypeError, "ref-output"),
    "one of the outputs": (function(lambda ctx, x, ref: (x, ref)), jax.jit, TypeError, "ref-output"),
    "gradient": (function(keep, lambda ctx, g: (g, g)), jax.grad, RuntimeError, "ref-gradient"),
    "gradient, jit": (
        function(keep, lambda ctx, g: (g, g)),
        lambda F: jax.jit(jax.grad(F)),
        RuntimeError,
        "ref-gradient",
    ),
    "as gradient": (function(keep, lambda ctx, g: (ctx.ref, None)), jax.grad, RuntimeError, "gradient-type"),
    "own Ref kept": (function(keep_own), lambda F: jax.jit(jax.grad(F)), RuntimeError, "ref-saved"),
    "differentiated": (function(keep), lambda F: jax.grad(MADE_INSIDE(F)), TypeError, "ref-perturbed"),
    "differentiated, jit": (function(keep), lambda F: jax.grad(jax.jit(MADE_INSIDE(F))), TypeError, "ref-perturbed"),
    "differentiated, jvp": (
        function(keep, jvp=staticmethod(lambda ctx, t, _: 2 * t)),
        lambda F: lambda x, ref: jax.jvp(lambda x: MADE_INSIDE(F)(x, ref), (x,), (x,)),
        TypeError,
        "ref-perturbed",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses(name):
    """An unsupported use of a Ref is an error with the Function, the remedy and the heading of the errors page."""
    Fn, wrap, kind, anchor = WRONG[name]
    with pytest.raises(kind) as info:
        wrap(Fn.apply)(X, jax.new_ref(X))
    assert isinstance(info.value, fnjax.errors.FnjaxError)
    assert "Fn" in str(info.value)
    assert "\n  fix: " in str(info.value)
    assert str(info.value).endswith(f"see: fnjax explain {anchor}")


@pytest.mark.parametrize("wrap", [jax.grad, lambda f: jax.jit(jax.grad(f)), jax.jit])
def test_a_ref_of_the_kind_without_gradient(wrap):
    """Made inside of what is differentiated, such a Ref is written as one from outside, in loops too."""

    def f(x):
        refs = [jax.new_ref(jnp.zeros_like(x), kind="no_grad_no_remat") for _ in range(3)]
        y = times(Recorded.apply, refs, n=2)(x)
        return y + stop_gradient(refs[0][...])

    want = 3.0**4 + 3 + 9 if wrap is jax.jit else 4 * 3.0**3
    assert wrap(f)(X) == want


def write_and_save(ctx, x, ref):
    ref[...] += x
    ctx.slope = jnp.cos(x)
    ctx.sign = (x > 0).astype(jnp.int32)
    return jnp.sin(x)


def save_what_is_read(ctx, x, ref):
    ref[...] += 1
    ctx.slope = x * ref[...]
    return jnp.sin(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_second_derivative_beside_a_ref_that_forward_writes(wrap):
    """The derivative of a saved intermediate is taken without writing again; what was read from a Ref has none."""
    f = function(write_and_save, lambda ctx, g: (g * ctx.slope * ctx.sign, None)).apply
    for second in (lambda f: jax.grad(jax.grad(f)), jax.hessian):
        ref = jax.new_ref(jnp.zeros_like(X))
        np.testing.assert_allclose(wrap(lambda x, ref, D=second: D(lambda x: f(x, ref))(x))(X, ref), -np.sin(3), 1e-6)
        assert ref[...] == 3
    g = function(save_what_is_read, lambda ctx, g: (g * ctx.slope, None)).apply
    with pytest.raises(fnjax.errors.IntermediateError):
        wrap(jax.grad(jax.grad(g)))(X, jax.new_ref(jnp.zeros_like(X)))


OUTSIDE = jax.new_ref(np.zeros((), np.float32))


class Outside(fnjax.Function):
    """The double, which writes to a Ref that it finds outside: 1 in forward, 10 in backward."""

    @staticmethod
    def forward(ctx, x):
        OUTSIDE[...] += 1
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        OUTSIDE[...] += 10
        return 2 * grad_output


@pytest.mark.parametrize(
    ("wrap", "written"),
    [
        (lambda f: f, 1),
        (jax.jit, 1),
        (jax.grad, 11),
        (lambda f: jax.jit(jax.grad(f)), 11),
        (lambda f: jax.grad(jax.jit(f)), 11),
        (lambda f: jax.jit(jax.vmap(f, axis_size=2, in_axes=None)), 1),
        (lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]), 3),
        (lambda f: jax.jit(jax.grad(jax.checkpoint(f))), 11 + REMAT3),  # which runs forward twice
    ],
    ids=["eager", "jit", "grad", "jit grad", "grad jit", "jit vmap", "jit scan", "jit grad remat"],
)
def test_a_ref_from_outside(wrap, written):
    """A Ref that forward and backward find in globals is written as often as they run."""
    OUTSIDE[...] = jnp.zeros_like(X)
    wrap(Outside.apply)(X)
    assert OUTSIDE[...] == written


def closed_over(x, ref):
    """Call a Function that finds the Ref of an enclosing jit in its closure: the square; 1 and 10 are added to it."""

    def forward(ctx, x):
        ref[...] += 1
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, grad_output):
        ref[...] += 10
        return 2 * ctx.saved_tensors[0] * grad_output

    return function(forward, backward).apply(x)


@pytest.mark.parametrize(
    ("wrap", "result", "written"),
    [
        (jax.jit, 9, 1),
        (lambda f: jax.jit(jax.grad(f)), 6, 11),
        (lambda f: jax.grad(jax.jit(f)), 6, 11),
        (lambda f: jax.jit(jax.grad(lambda x, ref: times(f, [ref], n=2)(x))), 108, 22),
        (lambda f: jax.jit(jax.grad(jax.checkpoint(f))), 6, 11 + REMAT3),
    ],
    ids=["jit", "jit grad", "grad jit", "jit grad scan", "jit grad remat"],
)
def test_a_ref_from_an_enclosing_jit(wrap, result, written):
    """A traced Ref in the closure of forward and backward is one Ref in both, and written as often as they run."""
    ref = jax.new_ref(jnp.zeros_like(X))
    assert wrap(closed_over)(X, ref) == result
    assert ref[...] == written


class Norm(fnjax.Function):
    """A class with all methods: a pytree with Refs in it, a jvp, a vmap, and a once_differentiable backward."""

    pytree = True

    @staticmethod
    def forward(x, state):
        state["count"][...] += 1
        return x * state["scale"]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, state = inputs
        assert not any(jax.tree.leaves(ctx.needs_input_grad[1]["count"]))
        ctx.mark_dirty(state["count"])
        ctx.save_for_backward(x, state["scale"], state["count"])

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, grad_output):
        x, scale, count = ctx.saved_tensors
        count[...] += 10
        return grad_output * scale, {"count": None, "scale": (grad_output * x).sum()}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_ref_in_a_pytree(wrap):
    """A Ref in a traversed container has None for its gradient, next to arrays that have one."""
    count = jax.new_ref(jnp.zeros_like(X))
    f = lambda x, scale, count: Norm.apply(x, {"count": count, "scale": scale}).sum()
    grads = wrap(jax.grad(f, (0, 1)))(XS, X, count)
    assert [g.tolist() for g in grads] == [[3, 3, 3], 3]
    assert count[...] == 11
    with pytest.raises(fnjax.errors.OnceDifferentiableError):
        jax.grad(lambda x: jax.grad(f)(x, x.sum(), count).sum())(XS)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_ref_in_a_list(wrap):
    """In a container that is not traversed a Ref reaches forward as it is and is saved like an argument."""

    def forward(ctx, x, refs):
        refs[0][...] += 1
        ctx.refs = refs
        return x * 2

    def backward(ctx, grad_output):
        ctx.refs[1][...] = grad_output
        return grad_output * 2, None

    refs = [jax.new_ref(jnp.zeros_like(X)) for _ in range(2)]
    assert wrap(jax.grad(function(forward, backward).apply))(X, refs) == 2
    assert [ref[...] for ref in refs] == [1, 1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_jvp_and_vmap_methods_write_to_refs(wrap):
    """Writes of jvp and vmap methods persist, also in a compiled program."""

    def jvp(ctx, tangent, _):
        ctx.ref[...] += 10
        return 2 * tangent

    def batch(info, in_dims, x, ref):
        ref[...] += 100
        return x * 2, 0

    F = function(keep, jvp=staticmethod(jvp), vmap=staticmethod(batch)).apply
    ref = jax.new_ref(jnp.zeros_like(X))
    assert wrap(lambda x, ref: jax.jvp(lambda x: F(x, ref), (x,), (x,)))(X, ref) == (6, 6)
    assert ref[...] == 10
    assert wrap(jax.vmap(F, (0, None)))(XS, ref).tolist() == [0, 2, 4]
    assert ref[...] == 110


def test_reports_and_pictures_look_through_refs():
    """A function with Ref arguments has its report and its picture, which do not guess at double backward."""
    refs = [jax.new_ref(jnp.zeros(3)) for _ in range(3)]
    report = str(fnjax.saved_report(Recorded.apply, XS, *refs))
    assert "a Ref has no derivative" in report
    assert "Double backward at Recorded: not known: backward uses a Ref." in report
    assert "Recorded" in str(fnjax.make_dot(lambda x, *refs: Recorded.apply(x, *refs).sum(), XS, *refs))


def test_split_vjp_refuses_refs():
    """A Ref in the backward pass belongs to neither half."""
    refs = [jax.new_ref(jnp.zeros(3)) for _ in range(3)]
    with pytest.raises(fnjax.errors.ArgumentError, match="reads or writes a Ref"):
        fnjax.split_vjp(lambda w, x: Recorded.apply(w * x, *refs), XS, XS)


def test_hooks_leave_refs_alone():
    """saved_tensors_hooks pack arrays; a Ref that is saved stays the Ref."""
    refs = [jax.new_ref(jnp.zeros_like(X)) for _ in range(3)]
    packed = []
    with fnjax.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        assert jax.jit(jax.grad(Recorded.apply))(X, *refs) == 6
    assert len(packed) == 1
    assert [ref[...] for ref in refs] == [3, 1, 6]
