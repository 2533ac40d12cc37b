"""Section B of the conformance table: outputs of forward."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from tests.conformance.support import check, gradients, gradients_eagerly, is_zero, recorded, returning, same

pytestmark = pytest.mark.usefixtures("x64")


def test_B01_one_array():
    """One array comes back as an array, not as a tuple."""
    assert recorded("B01", "type") == "Tensor"
    assert isinstance(returning(lambda x: x * 2).apply(jnp.array([1.0, 2.0])), jax.Array)


def test_B02_tuple_of_one():
    """A tuple of one stays a tuple of one, traced or not."""
    one = returning(lambda x: (x * 2,))
    for f in one.apply, jax.jit(one.apply):
        y = f(jnp.array([1.0]))
        check("B02", type=type(y).__name__, len=len(y))
    (y,), pullback = jax.vjp(one.apply, jnp.array([1.0]))
    assert (y, pullback((jnp.array([1.0]),))) == (2.0, (1.0,))


def test_B03_tuple_of_two():
    """Backward gets a gradient for each of two outputs."""
    two = returning(lambda x: (x * 2, x * 3), lambda ctx, ga, gb: 2 * ga + 3 * gb)

    def f(x):
        a, b = two.apply(x)
        return a + 10 * b

    check("B03", gx=gradients(f, jnp.array([1.0, 2.0]))[0])


@pytest.mark.parametrize(
    ("ret", "where"),
    [
        pytest.param(lambda x: [x * 2, x * 3], "output 0 of R.forward is a list", id="B04"),
        pytest.param(lambda x: {"a": x * 2}, "output 0 of R.forward is a dict", id="B08"),
        pytest.param(lambda x: (x * 2, (x * 3,)), "output 1 of R.forward is a tuple", id="B10"),
    ],
)
@pytest.mark.parametrize("run", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_containers_are_refused(ret, where, run):
    """Decision 2: PyTorch cuts the gradient of a list, a dict or a nested tuple silently; here it is an error."""
    with pytest.raises(TypeError, match=f"{where} .*return a tuple"):
        run(returning(ret).apply)(jnp.array([1.0]))


@pytest.mark.parametrize("value", [pytest.param(None, id="B05"), pytest.param(3, id="B07")])
def test_static_output(request, value):
    """None or a number comes back as it is, also under jit."""
    static = returning(lambda x: value)
    same(static.apply(jnp.array([1.0])), recorded(request.node.callspec.id, "ok"))
    seen = []
    jax.jit(lambda x: seen.append(static.apply(x)))(jnp.array([1.0]))
    same(seen[0], value)


def test_B06_static_members_of_a_tuple():
    """None, a number and a string in a tuple pass through; backward sees None in their places."""
    seen = {}

    def bwd(ctx, *gs):
        seen["gs"] = gs
        return gs[0]

    mixed = returning(lambda x: (x * 2, None, 7, "s"), bwd)
    gradients_eagerly(lambda x: mixed.apply(x)[0], jnp.array([1.0]))
    check("B06", out=mixed.apply(jnp.array([1.0])), gs=seen["gs"])
    gradients(lambda x: mixed.apply(x)[0], jnp.array([1.0]))


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


def test_B09_namedtuple():
    """A namedtuple keeps its type (PyTorch makes it a plain tuple); both members are differentiable."""
    pair = returning(lambda x: Pair(x * 2, x * 3), lambda ctx, ga, gb: 2 * ga + 3 * gb)
    assert recorded("B09", "rg") == [True, True]
    assert isinstance(pair.apply(jnp.array([1.0])), Pair)
    assert gradients(lambda x: pair.apply(x).a + pair.apply(x).b, jnp.array([1.0])) == (5.0,)


def test_B11_input_returned():
    """An input that is returned as it is has the gradient of backward, not that of the identity."""
    same_again = returning(lambda x: x, lambda ctx, g: g * 5)
    x = jnp.array([1.0, 2.0])
    check("B11", gx=gradients(same_again.apply, x)[0])
    check("B11", gx=gradients(jax.jit(same_again.apply), x)[0])


def test_B12_input_returned_and_nothing_differentiated():
    """An input that is returned as it is comes back unchanged where nobody differentiates."""
    assert recorded("B12", "rg") is False
    x = jnp.array([1.0, 2.0])
    assert jnp.array_equal(returning(lambda x: x).apply(x), x)


def test_B13_part_of_the_input():
    """A slice of the input is an output like any other."""
    part = returning(lambda x: x[:2], lambda ctx, g: jnp.concatenate([g * 5, jnp.zeros(1)]))
    check("B13", gx=gradients(part.apply, jnp.array([1.0, 2.0, 3.0]))[0])


def test_B14_one_array_returned_twice():
    """Decision 2: each place has its own gradient, where PyTorch sends all of it to the last."""
    assert [recorded("B14", k).item() for k in ("ga", "gb", "gx")] == [0, 8, 160]
    seen = {}

    def fwd(x):
        y = x * 2
        return y, y

    def bwd(ctx, a, b):
        seen.update(ga=a, gb=b)
        return a * 2 + b * 20

    twice = returning(fwd, bwd)
    x = jnp.array([1.0])
    (gx,) = gradients_eagerly(lambda x: 3 * twice.apply(x)[0] + 5 * twice.apply(x)[1], x)

    def f(x):
        p, q = twice.apply(x)
        return 3 * p + 5 * q

    assert gx == gradients(f, x)[0] == 2 * 3 + 20 * 5
    gradients_eagerly(f, x)
    assert (seen["ga"], seen["gb"]) == (3, 5)


def test_B15_integer_output():
    """An integer output has no gradient; backward gets integer zeros for it."""
    seen = {}

    def bwd(ctx, g, gi):
        seen["gi"] = gi
        return g * 2

    fn = returning(lambda x: (x * 2, jnp.argsort(x)), bwd)
    (gx,) = gradients_eagerly(lambda x: fn.apply(x)[0] + fn.apply(x)[1], jnp.array([3.0, 1.0]))
    check("B15", gi=seen["gi"], gx=gx)
    check("B15", gx=gradients(lambda x: fn.apply(x)[0], jnp.array([3.0, 1.0]))[0])


def test_B16_bool_output():
    """A bool output has no gradient, and gives none."""
    positive = returning(lambda x: x > 0)
    x = jnp.array([3.0, -1.0])
    assert str(positive.apply(x).dtype) == recorded("B16", "dtype")
    assert is_zero(gradients(lambda x: jnp.where(positive.apply(x), x, 0) - x * positive.apply(x), x))


def test_B17_constant_output():
    """A constant that is returned counts as an output of the rule: gradients flow to the input."""
    assert recorded("B17", "rg") is True
    constant = returning(lambda x: jnp.ones(1))
    assert gradients(lambda x: constant.apply(x) * 4, jnp.array([3.0])) == (4.0,)


def test_B18_captured_array_returned():
    """A captured array that is returned is an output too; differentiating it is an error (decision 1)."""
    assert recorded("B18", "ok", "fn") == "RBackward"
    x, w = jnp.array([3.0]), jnp.array([1.0])
    assert gradients(returning(lambda x: w).apply, x) == (1.0,)
    with pytest.raises(RuntimeError, match=r"\bR\b uses an array from outside"):
        jax.grad(lambda w: returning(lambda x: w).apply(x).sum())(w)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_B19_captured_array_is_a_constant(run):
    """Decision 1: a captured array is a constant; PyTorch drops its gradient silently, here that is an error."""
    x, w = jnp.array([3.0]), jnp.array([4.0])

    def f(x, w):
        return run(returning(lambda x: x * w, lambda ctx, g: g * w).apply)(x).sum()

    check("B19", gx=jax.grad(f)(x, w))
    assert recorded("B19", "gw") is None
    with pytest.raises(RuntimeError, match=r"\bR\b uses an array from outside"):
        jax.grad(f, 1)(x, w)


def test_B20_unused_output():
    """The gradient of an output that the loss does not use is zeros."""
    seen = {}

    def bwd(ctx, a, b):
        seen.update(a=a, b=b)
        return a * 2 + b * 3

    two = returning(lambda x: (x * 2, x * 3), bwd)
    (gx,) = gradients_eagerly(lambda x: two.apply(x)[1], jnp.array([1.0, 2.0]))
    check("B20", gx=gx, **seen)
    gradients(lambda x: two.apply(x)[1], jnp.array([1.0, 2.0]))


def test_B21_input_that_is_not_reached():
    """A gradient that PyTorch cannot find, or gives as None, is zeros in JAX."""
    fn = returning(lambda x: x * 2)

    def f(x):
        fn.apply(x)
        return jnp.array([1.0])

    check("B21", materialize=gradients(f, jnp.array([1.0]))[0])
