"""The zoo of Functions in what tests/test_matrix.py leaves out: deeper nestings, one argument alone, third order."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager, rematerialised, scanned, vmapped, vmapped_shared
from tests.zoo import CASES, arrays

pytestmark = pytest.mark.usefixtures("x64")


WRAPPERS = {
    "vmap_shared": vmapped_shared,
    "jit_vmap_vmap": lambda f: jax.jit(vmapped(vmapped(f))),
    "vmap_scan": lambda f: vmapped(scanned(f)),
    "scan_vmap": lambda f: scanned(vmapped(f)),
    "remat_everything": rematerialised(jax.checkpoint_policies.everything_saveable),
    "remat_dots": rematerialised(jax.checkpoint_policies.dots_saveable),
    "jit_remat_scan": lambda f: jax.jit(jax.checkpoint(scanned(f))),
    "remat_vmap": lambda f: jax.checkpoint(vmapped(f)),
}

OUTSIDE = {"jit": jax.jit, "vmap_shared": vmapped_shared, "scan": scanned, "remat": jax.checkpoint}


def derivative(f, order: int):
    """The `order`-th derivative of a real loss along the direction of ones, as a function of the same arguments."""
    for _ in range(order):
        f = along_ones(f)
    return f


def along_ones(f):
    def wrapped(*args):
        grads = jax.grad(f, argnums=tuple(range(len(args))))(*args)
        return sum(jnp.sum(jnp.real(g) + jnp.imag(g)) for g in grads)

    return wrapped


@functools.cache
def gradients(name):
    """Value and gradients of a case's twin, which no wrapper changes, from one program."""
    (case,) = (case for case in CASES if case.name == name)
    args = arrays(case)
    return jax.jit(jax.value_and_grad(case.loss(case.twin), tuple(range(len(args)))))(*args)


def cased(wrappers):
    return [
        pytest.param(c, w, id=f"{c.name}-{n}")
        for c in CASES
        for n, w in wrappers.items()
        # JAX itself refuses: the policy puts reduce_precision, which knows no complex numbers, on what is saved.
        if (c.name, n) != ("complex", "remat_everything")
        # With one argument there is nothing to share: this is the matrix's vmap.
        and not (n == "vmap_shared" and len(arrays(c)) == 1)
    ]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("case", "wrap"), cased(WRAPPERS))
def test_gradient_of_wrapped(case, wrap):
    """The gradients of the wrapped Function are those of the plain formula, in every argument."""
    args = arrays(case)
    got = jax.value_and_grad(case.loss(wrap(case.apply)), tuple(range(len(args))))(*args)
    want = gradients(case.name)
    chex.assert_trees_all_equal_shapes_and_dtypes(got, want)
    chex.assert_trees_all_close(got, want, rtol=1e-10)


SEVERAL = [case for case in CASES if len(arrays(case)) > 1]


@pytest.mark.parametrize("wrap", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("case", SEVERAL, ids=lambda c: c.name)
def test_gradient_in_one_argument(case, wrap):
    """Each argument can be differentiated by itself."""
    args = arrays(case)
    for i, want in enumerate(gradients(case.name)[1]):
        np.testing.assert_allclose(jax.grad(case.loss(wrap(case.apply)), i)(*args), want, rtol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", SEVERAL, ids=lambda c: c.name)
def test_batch_that_shares_arguments(case):
    """With any subset of unbatched arguments, each example has its own values and gradients."""
    args = arrays(case)
    slopes = lambda f: jax.grad(case.loss(f), tuple(range(len(args))))
    for axes in itertools.product((0, None), repeat=len(args)):
        if 0 not in axes:
            continue
        batch = [x if axis is None else jnp.stack([x, 2 * x, -x]) for x, axis in zip(args, axes, strict=True)]
        for of in (eager, slopes):
            got, want = (jax.jit(jax.vmap(of(f), axes))(*batch) for f in (case.apply, case.twin))
            chex.assert_trees_all_close(got, want, rtol=1e-10)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "wrap"), cased(OUTSIDE))
def test_wrapped_gradient(case, wrap):
    """The gradient taken first and wrapped afterwards is the same."""
    args = arrays(case)
    for i, want in enumerate(gradients(case.name)[1]):
        np.testing.assert_allclose(wrap(jax.grad(case.loss(case.apply), i))(*args), want, rtol=1e-10)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("case", "wrap"), cased({"bare": eager, "vmap_jit": lambda f: vmapped(jax.jit(f))}))
def test_third_order(case, wrap):
    """Third derivatives are right for each Function of the zoo, under one jit around everything."""
    args = arrays(case)
    got = jax.jit(derivative(case.loss(wrap(case.apply)), 3))(*args)
    np.testing.assert_allclose(got, third(case.name), rtol=1e-9)


@functools.cache
def third(name):
    (case,) = (case for case in CASES if case.name == name)
    return jax.jit(derivative(case.loss(case.twin), 3))(*arrays(case))


@pytest.mark.parametrize("name", ["saved_input", "saved_output", "saved_intermediate", "numpy_forward"])
def test_third_order_eager(name):
    """So they are without any jit, for saved inputs, outputs, intermediates, and a NumPy forward."""
    (case,) = (case for case in CASES if case.name == name)
    got = derivative(case.loss(case.apply), 3)(*arrays(case))
    np.testing.assert_allclose(got, third(name), rtol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_tracers_do_not_leak(case):
    """No tracer outlives its transformation."""
    args = arrays(case)
    both = [jnp.stack([x, x]) for x in args]
    with jax.checking_leaks():
        # JAX looks for leaks at the end of each trace: nothing need be compiled, and that would be done anew each time.
        jax.eval_shape(derivative(case.loss(case.apply), 2), *args)
        jax.eval_shape(jax.grad(case.loss(jax.jit(case.apply))), *args)
        jax.eval_shape(jax.grad(case.loss(vmapped(case.apply))), *args)
        jax.eval_shape(jax.vmap(jax.grad(case.loss(case.apply))), *both)
        jax.eval_shape(jax.grad(case.loss(scanned(case.apply))), *args)
        jax.grad(case.loss(case.apply))(*args)


def test_once_differentiable_does_not_leak():
    """The equation behind a once_differentiable backward holds no ctx: jit, vmap and scan leave no tracer."""

    class Once(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @fnjax.once_differentiable
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad_output

    loss = lambda f: lambda x: f(x).sum()
    with jax.checking_leaks():
        for wrap in (eager, jax.jit, vmapped, scanned, jax.checkpoint):
            jax.grad(loss(wrap(Once.apply)))(jnp.ones(3))
            jax.jit(jax.grad(loss(wrap(Once.apply))))(jnp.ones(3))
    with pytest.raises(fnjax.errors.OnceDifferentiableError, match=r"\(Once\.backward\)"):
        jax.jit(jax.grad(jax.grad(loss(Once.apply))))(1.0)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_while_loop(case):
    """A while loop runs a Function forward."""
    args = arrays(case)
    _, got = jax.lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, case.apply(*args)), (0, jax.tree.map(jnp.zeros_like, case.twin(*args)))
    )
    chex.assert_trees_all_close(got, case.twin(*args), rtol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("wrap", [eager, jax.jit, jax.checkpoint, scanned], ids=["eager", "jit", "remat", "scan"])
def test_cond(wrap):
    """A Function in the branches of cond."""
    for case in CASES:
        if case.name not in ("saved_output", "saved_intermediate", "containers"):
            continue
        args = arrays(case)
        branchy = lambda f: case.loss(  # noqa: B023 - called in the same turn
            wrap(lambda *a: jax.lax.cond(a[0].ravel()[0] < 100, f, lambda *b: jax.tree.map(jnp.cos, f(*b)), *a))
        )
        outside = eager if wrap is eager else jax.jit
        got = outside(derivative(branchy(case.apply), 2))(*args)
        np.testing.assert_allclose(got, jax.jit(derivative(branchy(case.twin), 2))(*args), rtol=1e-9)
