"""bfloat16 and float8, where the interpreter is wrong: compared with float32 instead."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def scale_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Both in 16 bits, the result in that of the output."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0.0)
    y = tl.load(y_ptr + lanes, mask=mask, other=0.0)
    tl.store(out_ptr + lanes, x * y, mask=mask)


@triton.jit
def rms_kernel(x_ptr, w_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    """Counted in float32, rounded once."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + lanes, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / n + eps) * w
    tl.store(out_ptr + row * n + lanes, y.to(tl.bfloat16), mask=mask)


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b))


@triton.jit
def cast_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """To the type of the output: to the nearest, ties to even."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def eight_bits_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Through float8 of each kind and back."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0.0)
    tl.store(out_ptr + lanes, x.to(tl.float8e4nv).to(tl.float32), mask=mask)
    tl.store(out_ptr + n + lanes, x.to(tl.float8e5).to(tl.float32), mask=mask)


@triton.jit
def libdevice_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Functions that the interpreter does not have."""
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.extra.cuda.libdevice.tanh(x))
    tl.store(out_ptr + N + lanes, tl.extra.cuda.libdevice.rint(x * 4))
    tl.store(out_ptr + 2 * N + lanes, tl.extra.cuda.libdevice.erf(x))
    tl.store(out_ptr + 3 * N + lanes, tl.extra.cuda.libdevice.log1p(tl.abs(x)))
    tl.store(out_ptr + 4 * N + lanes, tl.extra.cuda.libdevice.div_rn(x, x + 3.0))
