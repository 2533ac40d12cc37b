"""From one type to another."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def cast_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """To the type of the output."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def implicit_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A store casts to the type of what it writes to."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=mask, other=0), mask=mask)


@triton.jit
def given_kernel(x_ptr, out_ptr, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """To a type that is an argument, and back."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    small = tl.cast(x, dtype=DTYPE)
    if DTYPE == tl.float16:
        small = small * 2
    tl.store(out_ptr + lanes, small.to(tl.float32), mask=mask)


@triton.jit
def bitcast_kernel(x_ptr, out_ptr, back_ptr, n, BLOCK: tl.constexpr):
    """The bits of a float as a whole number: the sign is cleared, the exponent raised."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    bits = tl.load(x_ptr + lanes, mask=mask, other=0).to(tl.int32, bitcast=True)
    tl.store(out_ptr + lanes, bits, mask=mask)
    bits = (bits & 0x7FFFFFFF) + (1 << 23)
    tl.store(back_ptr + lanes, bits.to(tl.float32, bitcast=True), mask=mask)


@triton.jit
def quantise_kernel(x_ptr, out_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    """int8 with one scale for each row."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
    scale = tl.max(tl.abs(x), 0) / 127.0
    rounded = tl.floor(x / scale + 0.5)
    tl.store(out_ptr + row * n + lanes, tl.clamp(rounded, min=-127.0, max=127.0).to(tl.int8), mask=mask)
    tl.store(scale_ptr + row, scale)


@triton.jit
def half_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Each operation of float16 rounds."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0.0)
    y = tl.load(y_ptr + lanes, mask=mask, other=1.0)
    tl.store(out_ptr + lanes, x * y + x - y * 0.3, mask=mask)
    tl.store(out_ptr + n + lanes, tl.maximum(x, y) * x, mask=mask)


@triton.jit
def pointers_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Offsets in 64 bits; a Boolean array is read and written as numbers."""
    pid = tl.program_id(0).to(tl.int64)
    lanes = pid * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = lanes < n
    flags = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, flags == 0, mask=mask)


@triton.jit
def toward_zero_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """fp_downcast_rounding="rtz" rounds toward zero."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0.0)
    tl.store(out_ptr + lanes, tl.cast(x, dtype=tl.float16, fp_downcast_rounding="rtz"), mask=mask)
