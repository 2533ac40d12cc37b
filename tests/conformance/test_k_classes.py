"""Section K of the conformance table: forms of a class."""

import threading

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.support import MulExp, answering, check, gradients, gradients_eagerly, recorded, refuses, same

pytestmark = pytest.mark.usefixtures("x64")


def test_K01_instances():
    """Making an instance warns in PyTorch's words."""
    with pytest.warns(
        DeprecationWarning, match="should not be instantiated. Methods on autograd functions are"
    ) as caught:
        same(type(MulExp()).__name__, recorded("K01", "ok"))
    (warning,) = recorded("K01", "warnings")
    got, want = str(caught[0].message), warning.removeprefix("DeprecationWarning: ")
    assert got.partition(" should ")[2] == want.partition(" should ")[2]
    assert "MulExp" in got


def test_K02_calling_an_instance():
    """Calling an instance is the error for legacy Functions."""

    class Fn(fnjax.Function):
        def forward(self, x):
            return x

    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = Fn()
    phrase = "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd"
    with refuses(recorded("K02"), phrase, "Fn"):
        instance(jnp.array([1.0]))


def test_K03_methods_that_are_not_static():
    """Plain methods work: they are called through the class, so that ctx is their `self`."""

    class Fn(fnjax.Function):
        def forward(self, x):
            return x * 2

        def backward(self, g):
            return g * 2

    check("K03", gx=gradients(Fn.apply, jnp.array([1.0]))[0])


class Scaled(fnjax.Function):
    scale = 3.0
    names = []  # noqa: RUF012 - reporting from backward is what the class is for

    @classmethod
    def forward(cls, ctx, x):
        return x * cls.scale

    @classmethod
    def backward(cls, ctx, g):
        cls.names.append(ctx.name())
        return g * cls.scale


def test_K07_subclass():
    """A subclass inherits both methods; its ctx has its own name."""

    class A(fnjax.Function):
        scale = 3.0

        @staticmethod
        def forward(ctx, x):
            return x * A.scale

        @staticmethod
        def backward(ctx, g):
            seen["name"] = ctx.name()
            return g * A.scale

    class B(A):
        scale = 5.0

    seen = {}
    check("K07", gx=gradients(B.apply, jnp.array([1.0]))[0], **seen)
    assert B.apply is B.apply
    assert B.apply is not A.apply


def test_K08_class_methods():
    """Class methods get the class to which apply belongs."""
    check("K08", gx=gradients(Scaled.apply, jnp.array([1.0]))[0])
    assert gradients(type("Other", (Scaled,), {"scale": 5.0}).apply, jnp.array([1.0])) == (5.0,)
    assert {"ScaledBackward", "OtherBackward"} <= set(Scaled.names)


def test_K09_apply_as_a_function():
    """`apply` may be kept; forward and backward run on the thread that differentiates."""
    ids = {}

    def fwd(ctx, x):
        ids["f"] = threading.get_ident()
        return x * 2

    def bwd(ctx, g):
        ids["b"] = threading.get_ident()
        return g * 2

    f = answering(bwd, fwd).apply
    (gx,) = gradients_eagerly(f, jnp.array([1.0]))
    check("K09", gx=gx, same_thread=ids["f"] == ids["b"] == threading.get_ident())
    assert jax.jit(f)(jnp.array([1.0])) == 2.0
