"""The names of functions of numbers."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def positive_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.log(x))
    tl.store(out_ptr + N + lanes, tl.log2(x))
    tl.store(out_ptr + 2 * N + lanes, tl.sqrt(x))
    tl.store(out_ptr + 3 * N + lanes, tl.rsqrt(x))
    tl.store(out_ptr + 4 * N + lanes, tl.math.log(x) + tl.math.log2(x))
    tl.store(out_ptr + 5 * N + lanes, tl.math.rsqrt(x) + tl.math.sqrt(x))
    tl.store(out_ptr + 6 * N + lanes, tl.sqrt_rn(x))


@triton.jit
def functions_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.exp(x))
    tl.store(out_ptr + N + lanes, tl.exp2(x) + tl.math.exp2(x))
    tl.store(out_ptr + 2 * N + lanes, tl.math.exp(x) - tl.exp(-x))
    tl.store(out_ptr + 3 * N + lanes, tl.sin(x))
    tl.store(out_ptr + 4 * N + lanes, tl.cos(x))
    tl.store(out_ptr + 5 * N + lanes, tl.sigmoid(x))
    tl.store(out_ptr + 6 * N + lanes, tl.math.erf(x) + tl.erf(x))
    tl.store(out_ptr + 7 * N + lanes, tl.abs(x))
    tl.store(out_ptr + 8 * N + lanes, tl.floor(x * 3))
    tl.store(out_ptr + 9 * N + lanes, tl.ceil(x * 3))
    tl.store(out_ptr + 10 * N + lanes, tl.softmax(x))


@triton.jit
def two_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)
    tl.store(out_ptr + lanes, tl.fdiv(x, y))
    tl.store(out_ptr + N + lanes, tl.math.fdiv(x, y) + tl.div_rn(x, y))
    tl.store(out_ptr + 2 * N + lanes, tl.fma(x, y, x))
    tl.store(out_ptr + 3 * N + lanes, tl.minimum(x, y) - tl.maximum(x, 0.25))
    tl.store(out_ptr + 4 * N + lanes, tl.clamp(x, -0.5, 0.5) + tl.clamp(y, min=x - 1, max=x + 1))
    tl.store(out_ptr + 5 * N + lanes, tl.where((x > 0) & (y > 0), x, tl.where(x < -1, 1.0, 0.0)))
    tl.store(out_ptr + 6 * N + lanes, tl.math.div_rn(x, y) * tl.math.fma(x, x, y))
    tl.store(out_ptr + 7 * N + lanes, x % y)


@triton.jit
def nan_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """Of a number and NaN, maximum gives the number unless told otherwise; comparisons with NaN are false."""
    lanes = tl.arange(0, N)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)
    tl.store(out_ptr + lanes, tl.maximum(x, y))
    tl.store(out_ptr + N + lanes, tl.minimum(x, y))
    tl.store(out_ptr + 2 * N + lanes, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 3 * N + lanes, tl.where(x < y, 1.0, 0.0) + tl.where(x != x, 2.0, 0.0))
    tl.store(out_ptr + 4 * N + lanes, tl.where(x == float("inf"), 1.0, x))


@triton.jit
def logic_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """and, or and not of comparisons of scalars."""
    pid = tl.program_id(0)
    x, y = tl.load(x_ptr + pid), tl.load(y_ptr + pid)
    total = 0.0
    if x > 0 and y > 0:
        total += 1.0
    if x > 1 or y > 1:
        total += 2.0
    if not x > y:
        total += 4.0
    if (x < 0 and y < 0) or (x > 1 and y > 1):
        total += 8.0
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + pid * BLOCK + lanes, tl.where((lanes < 2) | (lanes == 3), total, x), mask=lanes < n)


@triton.jit
def double_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """float64 inside; the output is float32 with or without 64-bit numbers in JAX."""
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes).to(tl.float64)
    tl.store(out_ptr + lanes, (x * x + 1.0).to(tl.float32))
