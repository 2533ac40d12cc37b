"""RMSNorm: a row for each program; the weight's gradient is summed by a few programs that take several rows each."""

import jax.numpy as jnp

import fnjax
import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def forward_kernel(x_ptr, w_ptr, y_ptr, scale_ptr, n_columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / n_columns + eps)
    w = tl.load(w_ptr + columns, mask=mask)
    tl.store(scale_ptr + row, scale)
    tl.store(y_ptr + row * n_columns + columns, x * scale * w, mask=mask)


@triton.jit
def backward_kernel(
    dy_ptr, x_ptr, w_ptr, scale_ptr, dx_ptr, dw_ptr, n_rows, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    w = tl.load(w_ptr + columns, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program * ROWS, min((program + 1) * ROWS, n_rows)):
        dy = tl.load(dy_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row)
        normed = x * scale
        dx = scale * (dy * w - normed * tl.sum(dy * w * normed, axis=0) / n_columns)
        dw += dy * normed
        tl.store(dx_ptr + row * n_columns + columns, dx, mask=mask)
    tl.store(dw_ptr + program * n_columns + columns, dw, mask=mask)


class RMSNorm(fnjax.Function):
    """x (rows, columns) with rows of mean square 1, times w (columns,)."""

    @staticmethod
    def forward(ctx, x, w, eps=1e-6):
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        y, scale = jnp.empty_like(x), jnp.empty(rows, jnp.float32)
        y, scale = forward_kernel[(rows,)](x, w, y, scale, columns, eps, BLOCK=block)
        ctx.save_for_backward(x, w, scale)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, scale = ctx.saved_tensors
        rows, columns = x.shape
        at_once = 4
        grid = (triton.cdiv(rows, at_once),)
        dx, dw = jnp.empty_like(x), jnp.empty((*grid, columns), jnp.float32)
        dx, dw = backward_kernel[grid](
            dy, x, w, scale, dx, dw, rows, columns, ROWS=at_once, BLOCK=triton.next_power_of_2(columns)
        )
        return dx, dw.sum(0).astype(w.dtype), None


def plain(x, w, eps=1e-6):
    """Compute the same in jax.numpy."""
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + eps) * w
