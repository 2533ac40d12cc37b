"""Loops, branches, early returns, helpers."""

import fnjax.triton as triton
import fnjax.triton.language as tl

LIMIT: tl.constexpr = tl.constexpr(0.5)
ROUNDS = tl.constexpr(3)


@triton.jit
def static_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes)
    for i in tl.static_range(STEPS):
        if i % 2 == 0:
            x = x * 2 + i
        else:
            x = x - 1
    for _ in tl.static_range(0, ROUNDS):
        x += LIMIT
    tl.store(out_ptr + lanes, x)


@triton.jit
def loop_kernel(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    """A loop over rows: sums, a maximum and a count are carried."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    largest = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    count = 0
    for i in range(m):
        x = tl.load(x_ptr + i * n + lanes, mask=mask, other=0.0)
        total += x * (i + 1)
        largest = tl.maximum(largest, x)
        count += 1
    tl.store(out_ptr + lanes, total, mask=mask)
    tl.store(out_ptr + n + lanes, largest * count, mask=mask)


@triton.jit
def steps_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Starts, ends and steps, downwards too; the options of tl.range mean nothing here."""
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(pid * BLOCK, n, 2 * BLOCK, num_stages=3):
        total += tl.load(x_ptr + start + lanes, mask=start + lanes < n, other=0.0) * (start + 1)
    for i in range(3, -1, -1):
        total = total * 0.5 + i
    for i in tl.range(0, 2, flatten=True, warp_specialize=False):
        total += i
    tl.store(out_ptr + pid * BLOCK + lanes, total)


@triton.jit
def program_bound_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Bounds made of program ids: triangular work."""
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(0, pid + 1):
        total += tl.load(x_ptr + j * BLOCK + lanes)
    for j in range(pid, n):
        total -= 0.5 * tl.load(x_ptr + j * BLOCK + lanes)
    tl.store(out_ptr + pid * BLOCK + lanes, total)


@triton.jit
def ragged_kernel(x_ptr, bounds_ptr, out_ptr, BLOCK: tl.constexpr):
    """Sequences packed one after the other: the bounds of the loop are loaded."""
    pid = tl.program_id(0)
    first, end = tl.load(bounds_ptr + pid), tl.load(bounds_ptr + pid + 1)
    total = 0.0
    for start in range(first, end, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + lanes, mask=lanes < end, other=0.0), axis=0)
    tl.store(out_ptr + pid, total / (end - first))


@triton.jit
def while_kernel(x_ptr, out_ptr, steps_ptr):
    """Newton's square root: as many steps as it takes."""
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    guess = x
    steps = 0
    while tl.abs(guess * guess - x) > 1e-3 * x:
        guess = 0.5 * (guess + x / guess)
        steps += 1
    tl.store(out_ptr + pid, guess)
    tl.store(steps_ptr + pid, steps)


@triton.jit
def search_kernel(sorted_ptr, x_ptr, out_ptr, n):
    """A binary search: a while with branches."""
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    low = 0
    high = n
    while low < high:
        middle = (low + high) // 2
        if tl.load(sorted_ptr + middle) < x:
            low = middle + 1
        else:
            high = middle
    tl.store(out_ptr + pid, low)


@triton.jit
def branches_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """if, elif and else on what was loaded; loads and stores inside."""
    pid = tl.program_id(0)
    lanes = pid * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(x_ptr + pid * BLOCK)
    if first > 0.5:
        y = tl.load(x_ptr + lanes) * 2
        tl.store(out_ptr + lanes, y)
    elif first > -0.5:
        y = tl.load(x_ptr + lanes) - 1
        if pid % 2 == 0:
            y = -y
        tl.store(out_ptr + lanes, y)
    else:
        tl.store(out_ptr + lanes, tl.zeros((BLOCK,), tl.float32))


@triton.jit
def program_branch_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """A pointer is chosen by the program."""
    pid = tl.program_id(0)
    if tl.program_id(1) == 0:
        source = x_ptr
        factor = 1.0
    else:
        source = y_ptr
        factor = -1.0
    lanes = pid * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1) * tl.num_programs(0) * BLOCK
    tl.store(out_ptr + row + lanes, tl.load(source + lanes) * factor)


@triton.jit
def return_kernel(x_ptr, length_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Programs that return early, by their number and by what they loaded."""
    row, block = tl.program_id(0), tl.program_id(1)
    if block * BLOCK >= n:
        return
    length = tl.load(length_ptr + row)
    if block * BLOCK >= length:
        return
    lanes = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + lanes, mask=lanes < length, other=0.0)
    tl.store(out_ptr + row * n + lanes, x + 1, mask=lanes < n)


@triton.jit
def ternary_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, NEGATE: tl.constexpr):
    pid = tl.program_id(0)
    lanes = pid * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0.0)
    factor = -1.0 if NEGATE else 1.0
    first = tl.load(x_ptr + pid * BLOCK)
    added = 10.0 if first > 0 else 20.0
    end = n if pid == tl.num_programs(0) - 1 else (pid + 1) * BLOCK
    tl.store(out_ptr + lanes, x * factor + added + end, mask=mask)


@triton.jit
def sign_of(x):
    """A helper with several returns, decided by a value."""
    if x > 0.5:
        return 1.0
    if x < -0.5:
        return -1.0
    return 0.0


@triton.jit
def row_and_column(pid, columns):
    return pid // columns, pid % columns


@triton.jit
def polynomial(x, DEGREE: tl.constexpr = 2):
    y = x * 0 + 1
    for _ in tl.static_range(DEGREE):
        y = y * x + 1
    return y


@triton.jit
def write(out_ptr, offsets, value, mask):
    """Stores through a helper: the caller's parameter is stored to."""
    tl.store(out_ptr + offsets, value, mask=mask)


@triton.jit
def helpers_kernel(x_ptr, out_ptr, columns, n, BLOCK: tl.constexpr):
    row, column = row_and_column(tl.program_id(0), columns)
    lanes = column * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
    sign = sign_of(tl.load(x_ptr + row * n + column * BLOCK))
    write(out_ptr, row * n + lanes, sign + polynomial(x) + polynomial(x, DEGREE=3), mask)


@triton.jit
def nested_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    """A loop in a loop, with branches on both variables; the inner one's sum is carried by the outer one."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(rows):
        inner = tl.zeros((BLOCK,), tl.float32)
        for j in range(columns):
            x = tl.load(x_ptr + (i * columns + j) * BLOCK + lanes)
            if j > i:
                inner += x
            elif j == i:
                inner += 2 * x
        if i > 0:
            total = total * 0.5 + inner
        else:
            total = inner
        tl.store(out_ptr + i * BLOCK + lanes, total)


@triton.jit
def first_turn_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A load of one iteration is used by the next one."""
    lanes = tl.arange(0, BLOCK)
    before = tl.load(x_ptr + lanes)
    for i in range(1, n):
        now = tl.load(x_ptr + i * BLOCK + lanes)
        tl.store(out_ptr + (i - 1) * BLOCK + lanes, now - before)
        before = now


@triton.jit
def read_back_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A turn reads what the turn before wrote."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    width = tl.num_programs(0) * BLOCK
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes))
    for i in range(1, n):
        before = tl.load(out_ptr + (i - 1) * width + lanes)
        tl.store(out_ptr + i * width + lanes, before * 0.5 + tl.load(x_ptr + i * width + lanes))
        tl.debug_barrier()


@triton.jit
def empty_loop_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A loop without a turn leaves what was there."""
    lanes = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + lanes)
    for _ in range(4, n):
        total += 1
    tl.store(out_ptr + lanes, total)


@triton.jit
def typed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A block of one number, to which iterations add."""
    lanes = tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0, tl.float32)
    for i in range(n):
        total += tl.load(x_ptr + i * BLOCK + lanes)
    tl.store(out_ptr + lanes, total)


@triton.jit
def default_kernel(x_ptr, out_ptr, n, factor=2.0, OFFSET: tl.constexpr = 1.5, BLOCK: tl.constexpr = 16):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + lanes, x * factor + OFFSET, mask=lanes < n)


@triton.jit
def methods_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Arguments that are whole numbers are tl's scalars, with methods; n may be moved and asserted about."""
    tl.static_assert(BLOCK % 16 == 0, "BLOCK is a multiple of 16")
    pid = tl.program_id(0).to(tl.int64)
    rows = n.to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    mask = lanes.to(tl.int64) < rows
    x = tl.load(x_ptr + pid * rows + lanes, mask=mask, other=0.0)
    tl.store(out_ptr + pid * rows + lanes, x * n.to(tl.float32), mask=mask)
