"""A launch and a Function of launches for the support matrix: kernels that compute in the dtype that they are given."""

import jax.numpy as jnp
import numpy as np

import fnjax
import fnjax.triton.language as tl
from fnjax import triton
from tests.zoo import Case


@triton.jit
def rows_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Each number times the sum of squares of its row, which is gone through block by block."""
    row = tl.program_id(0)
    squares = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        squares += x * x
    total = tl.sum(squares)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + row * n + at, total * tl.load(x_ptr + row * n + at, mask=at < n), mask=at < n)


def rows(x):
    """A launch that JAX differentiates."""
    return rows_kernel[(x.shape[0],)](x, jnp.empty_like(x), x.shape[1], BLOCK=2)


@triton.jit
def cube_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * x * x, mask=at < n)


@triton.jit
def slope_kernel(x_ptr, grad_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, 3 * x * x * tl.load(grad_ptr + at, mask=at < n), mask=at < n)


class Cube(fnjax.Function):
    """Forward and backward kernel."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return cube_kernel[(triton.cdiv(x.size, 4),)](x, jnp.empty_like(x), x.size, BLOCK=4)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return slope_kernel[(triton.cdiv(x.size, 4),)](x, grad_output, jnp.empty_like(x), x.size, BLOCK=4)


def _matrix(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.uniform(0.3, 1.2, (4, 3)),)


TRITON = [
    Case("triton_launch", rows, lambda x: x * (x**2).sum(1, keepdims=True), _matrix),
    Case("triton_function", Cube.apply, lambda x: x**3, _matrix),
]
