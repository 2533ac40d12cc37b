"""Section I: complex numbers, dtypes, and the decorators of torch.amp.

PyTorch's gradient of a complex array is the conjugate of JAX's; `backward` computes PyTorch's (decision 7).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import MulExp, answering, check, gradients, gradients_eagerly, recorded, refuses

pytestmark = pytest.mark.usefixtures("x64")


def saving(forward, backward, *, output=False):
    """A Function of z that saves z (or its output); `backward(saved, g)`."""

    def fwd(ctx, z):
        out = forward(z)
        ctx.save_for_backward(out if output else z)
        return out

    return answering(lambda ctx, g: backward(ctx.saved_tensors[0], g), fwd)


def test_I01_holomorphic():
    """Decision 7: PyTorch's backward is typed as it is, and jax.grad gives the conjugate, as of the builtin."""
    z = jnp.array([1 + 2j])
    square = saving(lambda z: z * z, lambda z, g: g * (2 * z).conj())
    (custom,) = gradients(lambda z: square.apply(z).real, z)
    (builtin,) = gradients(lambda z: (z * z).real, z)
    assert custom == builtin
    check("I01", custom=custom.conj(), builtin=builtin.conj())


def test_I02_forgotten_conjugate():
    """A backward that forgets the conjugate is as wrong as in PyTorch: nothing is guessed."""
    assert "Jacobian mismatch" in recorded("I02", "msg")
    square = saving(lambda z: z * z, lambda z, g: g * (2 * z))
    assert gradients(lambda z: square.apply(z).real, jnp.array([1 + 2j])) == (2 - 4j,)  # the builtin has 2 + 4j


def test_I03_complex_to_real():
    """A real function of a complex array has PyTorch's gradient, conjugated."""
    abs2 = saving(lambda z: (z * z.conj()).real, lambda z, g: 2 * g * z)
    check("I03", g=gradients(abs2.apply, jnp.array([1 + 2j]))[0].conj())


def rotation(backward):
    """Exp(i t), saving the output."""
    return saving(lambda t: jnp.exp(1j * t), backward, output=True)


def test_I04_real_to_complex():
    """A complex gradient for a real input is an error, also where the output is complex."""
    rot = rotation(lambda o, g: g * (1j * o).conj())
    with refuses(recorded("I04"), "(input_is_complex == grad_is_complex)", "Fn"):
        gradients(lambda t: (rot.apply(t) * (2 - 1j)).real, jnp.array([0.3]))


def test_I05_wider_output():
    """From float32 to float64 backward gets float64, and its result becomes float32."""
    seen = {}
    fn = answering(lambda ctx, g: seen.update(g=str(g.dtype)) or g * 2, lambda ctx, x: x.astype(jnp.float64) * 2)
    x = jnp.array([1.0], jnp.float32)
    check("I05", gx=gradients(fn.apply, x)[0], y=str(fn.apply(x).dtype), **seen)


def test_I06_mixed_dtypes():
    """Each gradient returns in the dtype of its input."""

    class Mul(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * b, g * a

    x, y = jnp.array([1.5], jnp.float32), jnp.array([2.5])
    gx, gy = gradients(Mul.apply, x, y)
    check("I06", o=Mul.apply(x, y), gx=gx, gy=gy)


def test_I07_dtype_of_the_incoming_gradient():
    """The incoming gradient has the dtype of the output, whatever the loss is computed in."""
    seen = {}
    fn = answering(lambda ctx, g: seen.update(g=str(g.dtype)) or g * 2)
    x = jnp.array([1.0, 2.0], jnp.float16)
    check("I07", gx=gradients(lambda x: fn.apply(x).astype(jnp.float64), x)[0], **seen)


def test_I08_bfloat16():
    """A Function works in bfloat16, to the rounding of one operation."""
    check("I08", gx=gradients(lambda x: MulExp.apply(x, 1.5), jnp.array([1.0, 2.0], jnp.bfloat16))[0])


def matmul(seen, **options):
    """Matrix product with the decorators of torch.amp, reporting the dtypes that its methods see."""

    class MM(fnjax.Function):
        @staticmethod
        @fnjax.custom_fwd(device_type="cpu", **options)
        def forward(ctx, a, b):
            seen.append([str(a.dtype), str(b.dtype)])
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @fnjax.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            seen.append(["bwd", str(g.dtype)])
            a, b = ctx.saved_tensors
            return g @ b.T, a.T @ g

    return MM


def test_I10_decorators_without_cast_inputs():
    """Without autocast in JAX, custom_fwd without `cast_inputs` and custom_bwd change nothing."""
    assert recorded("I10", "mm") == "bfloat16"
    seen = []
    a = jnp.ones((2, 2), jnp.float32)
    ga, _ = gradients_eagerly(matmul(seen).apply, a, a)
    assert seen == [["float32", "float32"], ["bwd", "float32"]]
    assert str(ga.dtype) == recorded("I10", "ga")


def test_I11_cast_inputs():
    """`cast_inputs` casts always, as PyTorch does in an autocast region; gradients have the arguments' dtype."""
    seen = []
    a = jnp.ones((2, 2), jnp.bfloat16)
    ga, _ = gradients_eagerly(matmul(seen, cast_inputs=jnp.float32).apply, a, a)
    want = recorded("I11", "seen")
    assert [*seen[0], False] == want[0]
    assert [*seen[1], False] == want[1]
    assert str(ga.dtype) == recorded("I11", "ga")
    gradients(matmul(seen, cast_inputs=jnp.float32).apply, a, a)


@pytest.mark.parametrize("decorator", [fnjax.custom_fwd, fnjax.custom_bwd])
def test_I12_device_type(decorator):
    """A device_type that is no string is a ValueError; unlike in PyTorch it may be left out, as it changes nothing."""
    error = recorded("I12", "int")
    assert error["exc"] == "ValueError"
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`, got: `<class 'int'>`") as caught:
        decorator(lambda ctx: 0, device_type=3)
    assert str(caught.value) == error["msg"]
    function = lambda ctx: 0
    assert decorator(function) is decorator()(function) is function


def test_I13_custom_bwd_alone():
    """A custom_bwd without custom_fwd changes nothing, and works, where PyTorch has an AttributeError."""
    assert recorded("I13", "exc") == "AttributeError"
    fn = answering(fnjax.custom_bwd(lambda ctx, g: g * 3, device_type="cpu"))
    assert gradients(fn.apply, jnp.array([1.0])) == (3.0,)


def test_P04_real_to_complex_with_real():
    """A backward that takes the real part is right at two orders."""
    rot = rotation(lambda o, g: (g * (1j * o).conj()).real)
    f = lambda f: lambda t: (f(t) * (2 - 1j)).real ** 3
    t = jnp.array([0.3])
    check("P04", g=gradients(lambda t: (rot.apply(t) * (2 - 1j)).real, t)[0])
    custom, builtin = f(rot.apply), f(lambda t: jnp.exp(1j * t))
    np.testing.assert_allclose(gradients(custom, t), gradients(builtin, t))
    second = lambda f: jax.jit(jax.jacrev(jax.grad(lambda t: f(t).sum())))(t)
    np.testing.assert_allclose(second(custom), second(builtin))


def test_P05_complex_cotangent():
    """PyTorch's incoming gradient v is JAX's cotangent conj(v), and its gradients are the conjugates of JAX's."""

    class Mul(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * b.conj(), g * a.conj()

    v = jnp.array([1 - 1j])
    _, pullback = jax.vjp(Mul.apply, jnp.array([1 + 2j]), jnp.array([3 - 1j]))
    ga, gb = pullback(v.conj())
    check("P05", ga=ga.conj(), gb=gb.conj())
