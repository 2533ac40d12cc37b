"""x³ computed by NumPy, in forward and in backward, and differentiated three times all the same.

JAX cannot look into NumPy, so backward is a Function of its own. Unlike in PyTorch, NumPy is called through
`jax.pure_callback`: so it also runs inside jit, vmap and scan, where there are not numbers yet to convert.
"""

import jax
import numpy as np

import fnjax


def numpy_call(f, *arrays):
    """f(*arrays) by NumPy; f works elementwise on arrays of one shape."""
    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return jax.pure_callback(lambda *xs: f(*map(np.asarray, xs)), like, *arrays, vmap_method="broadcast_all")


class Cube(fnjax.Function):
    """x³."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return numpy_call(lambda x: x**3, x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return CubeBackward.apply(grad_output, x)


class CubeBackward(fnjax.Function):
    """3 g x², linear in g; its own backward is made of operations that JAX knows."""

    @staticmethod
    def forward(ctx, grad, x):
        ctx.save_for_backward(grad, x)
        return numpy_call(lambda grad, x: 3 * grad * x**2, grad, x)

    @staticmethod
    def backward(ctx, grad_output):
        grad, x = ctx.saved_tensors
        return 3 * x**2 * grad_output, 6 * grad * x * grad_output


X = np.array([1.0, -2.0, 0.5], np.float32)


def check(wrap=lambda f: f):
    """Return value and derivatives next to the closed forms; `wrap` may be jax.jit."""
    first = jax.grad(lambda x: Cube.apply(x).sum())
    second = jax.grad(lambda x: first(x).sum())
    third = jax.grad(lambda x: second(x).sum())
    return {
        "value": (wrap(Cube.apply)(X), X**3),
        "first derivative": (wrap(first)(X), 3 * X**2),
        "second derivative": (wrap(second)(X), 6 * X),
        "third derivative": (wrap(third)(X), np.full(3, 6)),
        "second derivative by vmap": (wrap(jax.vmap(jax.grad(jax.grad(Cube.apply))))(X), 6 * X),
    }


def main():
    for title, wrap in (("eager", lambda f: f), ("under jit", jax.jit)):
        for name, (got, expected) in check(wrap).items():
            print(f"{title}, {name}: {np.asarray(got).tolist()}, expected {np.asarray(expected).tolist()}")


if __name__ == "__main__":
    main()
