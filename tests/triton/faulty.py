"""Kernels with one fault each, and what is right next to it."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def wrong_mask_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The mask lets one lane too many through, in the last program."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets <= n
    x = tl.load(x_ptr + offsets, mask=mask)  # reads outside
    tl.store(out_ptr + offsets, x * 2, mask=mask)  # writes outside


@triton.jit
def before_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """The neighbour in front of the first element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets - 1))  # reads outside


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, rows, n, BLOCK: tl.constexpr, CHECK: tl.constexpr):
    """A block pointer that checks one axis, or both."""
    block = tl.make_block_ptr(x_ptr, (rows, n), (n, 1), (tl.program_id(0) * BLOCK, 0), (BLOCK, BLOCK), (1, 0))
    x = tl.load(block, boundary_check=CHECK)  # reads outside
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


@triton.jit
def total_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    """A sum without an atomic."""
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    total = tl.load(total_ptr)
    tl.store(total_ptr, total + tl.sum(x))  # races


@triton.jit
def atomic_total_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    """The same with one: the buffer must hold a zero."""
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(total_ptr, tl.sum(x))  # updates


@triton.jit
def overlap_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Blocks that overlap by one element."""
    lanes = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * (BLOCK - 1) + lanes
    tl.store(out_ptr + offsets, tl.load(x_ptr + lanes))  # races


@triton.jit
def same_value_kernel(out_ptr, BLOCK: tl.constexpr):
    """All programs write the same and read it back: no matter who is first."""
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, lanes)
    tl.store(out_ptr + lanes, tl.load(out_ptr + lanes))


@triton.jit
def shift_kernel(x_ptr, BLOCK: tl.constexpr):
    """In place, from the neighbour's block."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets + BLOCK)  # reads
    tl.store(x_ptr + offsets, x)  # races


@triton.jit
def average_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Adds to what is in the buffer already."""
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    old = tl.load(out_ptr + lanes, mask=mask)  # reads nothing
    tl.store(out_ptr + lanes, old + tl.load(x_ptr + lanes, mask=mask), mask=mask)


@triton.jit
def acquire(lock_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:  # waits
        pass


@triton.jit
def locked_kernel(x_ptr, out_ptr, lock_ptr, RELEASE: tl.constexpr):
    """A lock that is released after the write, before it, without order, or never."""
    x = tl.load(x_ptr + tl.program_id(0))
    acquire(lock_ptr)
    total = tl.load(out_ptr)
    if RELEASE == "early":
        tl.atomic_xchg(lock_ptr, 0)
    tl.store(out_ptr, total * 0.5 + x)
    if RELEASE == "late":
        tl.atomic_xchg(lock_ptr, 0)
    elif RELEASE == "relaxed":
        tl.atomic_xchg(lock_ptr, 0, sem="relaxed")
    elif RELEASE == "acquire and release":
        tl.atomic_xchg(lock_ptr, 0, sem="release")


@triton.jit
def chain_kernel(x_ptr, out_ptr, flag_ptr, n, STEP: tl.constexpr, WAY: tl.constexpr):
    """A running sum over programs: each waits for its neighbour, the one before or the one behind."""
    pid = tl.program_id(0)
    before = pid - STEP
    total = tl.load(x_ptr + pid)
    if (before >= 0) & (before < n):
        if WAY == "atomic":
            while tl.atomic_add(flag_ptr + before, 0) == 0:  # waits
                pass
        elif WAY == "volatile":
            flag = tl.load(flag_ptr + before, volatile=True)
            turns = 0
            while flag == 0:  # waits
                flag = tl.load(flag_ptr + before, volatile=True)
                turns += 1
        else:
            while tl.load(flag_ptr + before) == 0:  # waits
                pass
        total += tl.load(out_ptr + before)
    tl.store(out_ptr + pid, total)
    tl.atomic_xchg(flag_ptr + pid, 1)


@triton.jit
def barrier_kernel(x_ptr, out_ptr, count_ptr, BLOCK: tl.constexpr):
    """All programs wait for each other, which works where all run at once."""
    tl.atomic_add(count_ptr, 1)
    while tl.atomic_add(count_ptr, 0) < tl.num_programs(0):  # waits
        pass
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def forever_kernel(out_ptr):
    """A condition that nothing changes."""
    x = 1
    while x > 0:  # waits
        x += 1
        x = x - 1
    tl.store(out_ptr, x)


@triton.jit
def reread_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Writes a row and reads it in another order."""
    row = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + row + lanes, tl.load(x_ptr + row + lanes))
    tl.store(out_ptr + row + lanes, tl.load(out_ptr + row + (BLOCK - 1 - lanes)))


@triton.jit
def wrapped_kernel(x_ptr, out_ptr, n):
    """One statement writes each address several times: programs 0 to n - 1, then again from the start."""
    pid = tl.program_id(0)
    tl.store(out_ptr + pid % n, tl.load(x_ptr + pid))


@triton.jit
def masked_lanes_kernel(x_ptr, out_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Lanes that the mask leaves out reach what is stored by a reduction, a softmax or a branch, or do not."""
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n)  # leaves lanes out
    if OP == "max":
        x = tl.max(x, 0)
    elif OP == "min":
        x = tl.min(x, 0)
    elif OP == "softmax":
        x = tl.softmax(x)
    elif OP == "branch":
        if tl.sum(x) > 0:
            x = -x
    elif OP == "where":
        x = x + tl.sum(tl.where(lanes < n, x, 0))
    tl.store(out_ptr + lanes, x, mask=lanes < n)


@triton.jit
def masked_index_kernel(index_ptr, x_ptr, out_ptr, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Lanes that the mask leaves out are addresses of a second load, which leaves them out again, or does not."""
    lanes = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + lanes, mask=lanes < n)  # leaves indices out
    x = tl.load(x_ptr + index, mask=lanes < n if MASKED else None)
    tl.store(out_ptr + lanes, x, mask=lanes < n)
