"""Whole numbers of every width: Triton's division, shifts and wrapping, not NumPy's."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Both of one type, which is the type of the results: they wrap; // and % go toward zero."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    y = tl.load(y_ptr + lanes, mask=mask, other=1)
    tl.store(out_ptr + lanes, x + y, mask=mask)
    tl.store(out_ptr + n + lanes, x - y, mask=mask)
    tl.store(out_ptr + 2 * n + lanes, x * y, mask=mask)
    tl.store(out_ptr + 3 * n + lanes, x // y, mask=mask)
    tl.store(out_ptr + 4 * n + lanes, x % y, mask=mask)
    tl.store(out_ptr + 5 * n + lanes, x & y, mask=mask)
    tl.store(out_ptr + 6 * n + lanes, x | y, mask=mask)
    tl.store(out_ptr + 7 * n + lanes, x ^ y, mask=mask)
    tl.store(out_ptr + 8 * n + lanes, tl.minimum(x, y), mask=mask)
    tl.store(out_ptr + 9 * n + lanes, tl.maximum(x, y), mask=mask)
    tl.store(out_ptr + 10 * n + lanes, tl.where(x < y, x, y // 2), mask=mask)
    tl.store(out_ptr + 11 * n + lanes, x // 2 + y % 2, mask=mask)


@triton.jit
def scalars_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """With numbers of Python's the type stays."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.static_assert((x + 100).dtype == x.dtype)
    tl.store(out_ptr + lanes, x + 100, mask=mask)
    tl.store(out_ptr + n + lanes, 3 * x, mask=mask)
    tl.store(out_ptr + 2 * n + lanes, x // 7, mask=mask)
    tl.store(out_ptr + 3 * n + lanes, x % 7, mask=mask)
    tl.store(out_ptr + 4 * n + lanes, x << 3, mask=mask)
    tl.store(out_ptr + 5 * n + lanes, x >> 2, mask=mask)
    tl.store(out_ptr + 6 * n + lanes, 100 - x, mask=mask)
    tl.store(out_ptr + 7 * n + lanes, x & 15, mask=mask)


@triton.jit
def negative_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, -x, mask=mask)
    tl.store(out_ptr + n + lanes, tl.abs(x), mask=mask)
    tl.store(out_ptr + 2 * n + lanes, x // -3, mask=mask)
    tl.store(out_ptr + 3 * n + lanes, x % -3, mask=mask)
    tl.store(out_ptr + 4 * n + lanes, ~x, mask=mask)


@triton.jit
def comparisons_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Unsigned numbers compare as such; results are counted as bits."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    y = tl.load(y_ptr + lanes, mask=mask, other=0)
    bits = (x < y).to(tl.int32)
    bits += (x <= y).to(tl.int32) * 2
    bits += (x > y).to(tl.int32) * 4
    bits += (x >= y).to(tl.int32) * 8
    bits += (x == y).to(tl.int32) * 16
    bits += (x != y).to(tl.int32) * 32
    bits += (x > 3).to(tl.int32) * 64
    bits += (~(x == y)).to(tl.int32) * 128
    tl.store(out_ptr + lanes, bits, mask=mask)


@triton.jit
def mixed_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Two widths: the wider one counts, and of one width the unsigned one."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    a = tl.load(a_ptr + lanes, mask=mask, other=0)
    b = tl.load(b_ptr + lanes, mask=mask, other=1)
    tl.store(out_ptr + lanes, (a + b).to(tl.int64), mask=mask)
    tl.store(out_ptr + n + lanes, (a * b).to(tl.int64), mask=mask)
    tl.store(out_ptr + 2 * n + lanes, (a - b).to(tl.int64), mask=mask)
    tl.store(out_ptr + 3 * n + lanes, tl.where(a > b, a, b).to(tl.int64), mask=mask)


@triton.jit
def to_floats_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """/ of whole numbers is a float32; whole and float numbers together are float."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    y = tl.load(y_ptr + lanes, mask=mask, other=1)
    tl.store(out_ptr + lanes, x / y, mask=mask)
    tl.store(out_ptr + n + lanes, x / 4, mask=mask)
    tl.store(out_ptr + 2 * n + lanes, x * 0.5, mask=mask)
    tl.store(out_ptr + 3 * n + lanes, x.to(tl.float32) - y, mask=mask)


@triton.jit
def widths_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """From one width to the next and back: the low bits stay, and signs are read anew."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, x.to(tl.int8).to(tl.int32), mask=mask)
    tl.store(out_ptr + n + lanes, x.to(tl.uint8).to(tl.int32), mask=mask)
    tl.store(out_ptr + 2 * n + lanes, x.to(tl.int16).to(tl.int32), mask=mask)
    tl.store(out_ptr + 3 * n + lanes, x.to(tl.uint16).to(tl.int32), mask=mask)
    tl.store(out_ptr + 4 * n + lanes, x.to(tl.uint32).to(tl.int32, bitcast=True), mask=mask)
    tl.store(out_ptr + 5 * n + lanes, tl.cast(x, tl.int16).to(tl.int8).to(tl.int32), mask=mask)
    tl.store(out_ptr + 6 * n + lanes, (x != 0).to(tl.int1).to(tl.int32) + x.to(tl.int1).to(tl.int32), mask=mask)


@triton.jit
def shifts_kernel(x_ptr, by_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Right shifts keep the sign where there is one."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    by = tl.load(by_ptr + lanes, mask=mask, other=0)
    tl.store(out_ptr + lanes, x >> by, mask=mask)
    tl.store(out_ptr + n + lanes, x << by, mask=mask)
    tl.store(out_ptr + 2 * n + lanes, (x >> by) & 1, mask=mask)


@triton.jit
def packed_kernel(packed_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Four bits each, eight to a word: the weights of quantised layers."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    word = tl.load(packed_ptr + lanes // 8, mask=mask, other=0)
    nibble = (word >> ((lanes % 8) * 4)) & 0xF
    tl.store(out_ptr + lanes, (nibble - 8).to(tl.float32) * 0.25, mask=mask)


@triton.jit
def hash_kernel(out_ptr, seed, n, BLOCK: tl.constexpr):
    """Multiplications that wrap, in 32 bits without sign."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = lanes.to(tl.uint32) * 0x9E3779B1 + seed
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = x ^ (x >> 16)
    tl.store(out_ptr + lanes, x, mask=lanes < n)
    high = tl.umulhi(x, tl.full((BLOCK,), 0xD2511F53, tl.uint32))
    tl.store(out_ptr + n + lanes, high, mask=lanes < n)


@triton.jit
def division_kernel(out_ptr, a, b):
    """Numbers that are arguments divide as tl's scalars do; cdiv; constexprs divide as Python's."""
    tl.store(out_ptr, a // b)
    tl.store(out_ptr + 1, a % b)
    tl.store(out_ptr + 2, tl.cdiv(a, 4))
    tl.store(out_ptr + 3, tl.cdiv(a, b))
    tl.store(out_ptr + 4, (tl.program_id(0) - 7) // 2)
    tl.store(out_ptr + 5, (tl.program_id(0) - 7) % 4)
    lanes = tl.arange(0, 16) - 8
    tl.store(out_ptr + 6 + tl.arange(0, 16), lanes // 3)
    tl.store(out_ptr + 22 + tl.arange(0, 16), lanes % 3)
