"""Elementwise kernels: masks, `other`, strides, sizes that fill no block, arguments of every kind."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, factor * tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n: tl.int32, BLOCK: tl.constexpr = 64):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    offsets = tl.max_contiguous(tl.multiple_of(offsets, BLOCK), BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
    tl.store(out_ptr + offsets, x + y, mask=mask, eviction_policy="evict_last")


@triton.jit
def exact_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * 2 + 1)


@triton.jit
def other_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The value of `other` in masked lanes is stored as well."""
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=-3.5)
    tl.store(out_ptr + offsets, x)


@triton.jit
def other_tensor_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=offsets * 0.5)
    tl.store(out_ptr + offsets, x)


@triton.jit
def holes_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A mask that is no prefix; what it leaves out keeps what it was."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (offsets < n) & (offsets % 3 != 1) & ~(offsets == 6)
    x = tl.load(x_ptr + offsets, mask=mask, other=100.0)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@triton.jit
def values_mask_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A mask that depends on what was loaded."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=-1.0)
    tl.store(out_ptr + offsets, tl.sqrt(tl.maximum(x, 0.0)), mask=x > 0)


@triton.jit
def shift_kernel(x_ptr, out_ptr, n, by, BLOCK: tl.constexpr):
    """Addresses that would lie before the first element are masked."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = offsets - by
    x = tl.load(x_ptr + source, mask=(source >= 0) & (source < n), other=0.0)
    tl.store(out_ptr + offsets, x, mask=offsets < n)


@triton.jit
def reverse_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + (n - 1 - offsets), mask=mask), mask=mask)


@triton.jit
def interleaved_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Even and odd elements, each with stride two: half a rotation of pairs."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = 2 * offsets + 1 < n
    even = tl.load(x_ptr + 2 * offsets, mask=mask, other=0.0)
    odd = tl.load(x_ptr + 2 * offsets + 1, mask=mask, other=0.0)
    tl.store(out_ptr + 2 * offsets, -odd, mask=mask)
    tl.store(out_ptr + 2 * offsets + 1, even, mask=mask)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, m, n, sx_m, sx_n, so_m, so_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    x = tl.load(x_ptr + rows[:, None] * sx_m + columns[None, :] * sx_n, mask=mask)
    tl.store(out_ptr + rows[:, None] * so_m + columns[None, :] * so_n, x, mask=mask)


@triton.jit
def outer_kernel(x_ptr, y_ptr, out_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A grid of three dimensions, whose last one is the sign."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    side = tl.program_id(2)
    x = tl.load(x_ptr + rows, mask=rows < m, other=0.0)
    y = tl.load(y_ptr + columns, mask=columns < n, other=0.0)
    sign = 1 - 2 * side
    address = out_ptr + side * m * n + rows[:, None] * n + columns[None, :]
    tl.store(address, x[:, None] * y[None, :] * sign, mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def swizzled_kernel(x_ptr, out_ptr, n, columns, BLOCK: tl.constexpr):
    """Program ids taken apart by // and %, visited in another order."""
    pid = tl.program_id(0)
    row = pid % 3
    column = (pid // 3) * BLOCK
    lanes = column + tl.arange(0, BLOCK)
    mask = lanes < columns
    x = tl.load(x_ptr + row * columns + lanes, mask=mask, other=0.0)
    tl.store(out_ptr + row * columns + lanes, x + pid, mask=mask)


@triton.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(x_ptr + offsets, x * x - 1.0, mask=mask)


@triton.jit
def twice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """The second load reads what the first store wrote, if both names are one array."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(x_ptr + offsets, x + 1.0, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, y * 2.0, mask=mask)


@triton.jit
def optional_kernel(x_ptr, bias_ptr, out_ptr, n, HAS_SCALE: tl.constexpr, scale, BLOCK: tl.constexpr):
    """A pointer that may be None, and a flag."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets, mask=mask)
    if HAS_SCALE:
        x *= scale
    tl.store(out_ptr + offsets, x, mask=mask)


@triton.jit
def element_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Types are read from the pointers."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    x = x / 3.0
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def promotion_kernel(x_ptr, out_ptr, half_ptr, n, BLOCK: tl.constexpr):
    """A number of Python's promotes nothing: float16 stays float16; with float32 it becomes float32."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    half = x * 1.001 + 0.1
    tl.static_assert(half.dtype == tl.float16)
    tl.store(half_ptr + offsets, half, mask=mask)
    wide = half + tl.zeros((BLOCK,), dtype=tl.float32)
    tl.static_assert(wide.dtype == tl.float32)
    tl.store(out_ptr + offsets, wide * 1.001, mask=mask)


@triton.jit
def scalars_kernel(x_ptr, index_ptr, out_ptr, n):
    """Programs that load and store single elements."""
    pid = tl.program_id(0)
    index = tl.load(index_ptr + pid)
    value = tl.load(x_ptr + index)
    if pid < n - 1:
        following = tl.load(index_ptr + pid + 1)
        value += tl.load(x_ptr + following)
    tl.store(out_ptr + pid, value)


@triton.jit
def programs_kernel(out_ptr, BLOCK: tl.constexpr):
    """The program's indices and the numbers of programs."""
    x, y = tl.program_id(0), tl.program_id(1)
    nx = tl.num_programs(0)
    ny = tl.num_programs(axis=1)
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + (y * nx + x) * BLOCK + lanes, x + 10 * y + 100 * nx + 1000 * ny + lanes)


@triton.jit
def last_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Every program writes the same address in one statement: the last one's stays."""
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def cursor_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Pointers that are moved, and bound to their own names again."""
    pid = tl.program_id(0)
    x_ptr += pid * n
    out_ptr += pid * n
    lanes = tl.arange(0, BLOCK)
    source, target = x_ptr + lanes, out_ptr + lanes
    for start in range(0, n, BLOCK):
        mask = start + lanes < n
        tl.store(target, tl.load(source, mask=mask, other=0.0) + start, mask=mask)
        source += BLOCK
        target += BLOCK
