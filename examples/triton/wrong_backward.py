"""x · w by rows, with a fault in the launch of its backward kernel, for `fnjax check --against-forward` to find."""

import jax.numpy as jnp

import fnjax
import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def scale_kernel(x_ptr, w_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    x = tl.load(x_ptr + row * n_columns + columns, mask=mask)
    w = tl.load(w_ptr + columns, mask=mask)
    tl.store(y_ptr + row * n_columns + columns, x * w, mask=mask)


@triton.jit
def sum_kernel(dy_ptr, x_ptr, dw_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    """Compute the gradient of w: each program sums over the rows of some columns."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < n_columns
    total = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for row in range(n_rows):
        dy = tl.load(dy_ptr + row * n_columns + columns, mask=mask, other=0.0)
        x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0)
        total += dy * x
    tl.store(dw_ptr + columns, total, mask=mask)


class Scale(fnjax.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        rows, columns = x.shape
        return scale_kernel[(rows,)](x, w, jnp.empty_like(x), columns, BLOCK=triton.next_power_of_2(columns))

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        rows, columns = x.shape
        dx = scale_kernel[(rows,)](dy, w, jnp.empty_like(x), columns, BLOCK=triton.next_power_of_2(columns))
        dw = sum_kernel[(columns // 16,)](dy, x, jnp.zeros_like(w), rows, columns, BLOCK=16)  # triton.cdiv is due
        return dx, dw
