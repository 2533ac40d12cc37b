"""SwiGLU: silu(a) · b, which computes silu again in backward and keeps nothing but its inputs."""

import jax
import jax.numpy as jnp

import fnjax
import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def forward_kernel(a_ptr, b_ptr, c_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    at = row * n_columns + columns
    a = tl.load(a_ptr + at, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=mask, other=0)
    tl.store(c_ptr + at, silu(a) * b, mask=mask)


@triton.jit
def backward_kernel(dc_ptr, a_ptr, b_ptr, n_columns, BLOCK: tl.constexpr):
    """Overwrite a and b with their gradients."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    at = row * n_columns + columns
    dc = tl.load(dc_ptr + at, mask=mask, other=0)
    a = tl.load(a_ptr + at, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=mask, other=0)
    sigmoid = tl.sigmoid(a)
    tl.store(a_ptr + at, dc * b * (silu(a) * (1 - sigmoid) + sigmoid), mask=mask)
    tl.store(b_ptr + at, dc * silu(a), mask=mask)


class SwiGLU(fnjax.Function):
    """silu(a) · b of a and b (rows, columns)."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        rows, columns = a.shape
        return forward_kernel[(rows,)](a, b, jnp.empty_like(a), columns, BLOCK=triton.next_power_of_2(columns))

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        rows, columns = a.shape
        da, db = backward_kernel[(rows,)](dc, a, b, columns, BLOCK=triton.next_power_of_2(columns))
        return da, db


def plain(a, b):
    """Compute the same in jax.numpy."""
    return jax.nn.silu(a) * b
