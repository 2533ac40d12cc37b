"""Gated activations, forward and backward, and rotary embeddings."""

import fnjax.triton as triton
import fnjax.triton.language as tl

from .helpers import gelu, gelu_derivative, silu


@triton.jit
def swiglu_forward_kernel(gate_ptr, up_ptr, out_ptr, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    gate_ptr += row * stride
    up_ptr += row * stride
    out_ptr += row * stride
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    gate = tl.load(gate_ptr + lanes, mask=mask, other=0).to(tl.float32)
    up = tl.load(up_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, silu(gate).cast(up.dtype) * up, mask=mask)


@triton.jit
def swiglu_backward_kernel(grad_ptr, gate_ptr, up_ptr, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients go where the inputs were."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    grad = tl.load(grad_ptr + row * stride + lanes, mask=mask, other=0)
    gate = tl.load(gate_ptr + row * stride + lanes, mask=mask, other=0).to(tl.float32)
    up = tl.load(up_ptr + row * stride + lanes, mask=mask, other=0)
    s = tl.sigmoid(gate)
    tl.store(gate_ptr + row * stride + lanes, grad * up * (gate * s * (1 - s) + s), mask=mask)
    tl.store(up_ptr + row * stride + lanes, grad * gate * s, mask=mask)


@triton.jit
def geglu_kernel(x_ptr, grad_ptr, out_ptr, dx_ptr, n, columns, BLOCK: tl.constexpr):
    """Two halves of a row: the value, and its gate; forward and backward in one."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    row, column = offsets // columns, offsets % columns
    value = tl.load(x_ptr + row * 2 * columns + column, mask=mask, other=0.0)
    gate = tl.load(x_ptr + row * 2 * columns + columns + column, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, value * gelu(gate), mask=mask)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0)
    tl.store(dx_ptr + row * 2 * columns + column, grad * gelu(gate), mask=mask)
    tl.store(dx_ptr + row * 2 * columns + columns + column, grad * value * gelu_derivative(gate), mask=mask)


@triton.jit
def rotary_kernel(
    q_ptr, cos_ptr, sin_ptr, length, HEADS: tl.constexpr, D: tl.constexpr, BACKWARD: tl.constexpr = False
):
    """In place: the halves of each head are turned; backward turns the other way."""
    token = tl.program_id(0)
    position = token % length
    half = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + position * (D // 2) + half)
    sin = tl.load(sin_ptr + position * (D // 2) + half)
    if BACKWARD:
        sin = -sin
    heads = tl.arange(0, HEADS)
    first = q_ptr + token * HEADS * D + heads[:, None] * D + half[None, :]
    second = first + D // 2
    a, b = tl.load(first), tl.load(second)
    tl.store(first, a * cos[None, :] - b * sin[None, :])
    tl.store(second, b * cos[None, :] + a * sin[None, :])
