"""Atomics: their sums, their old values, locks and tickets."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def add_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """All programs add their blocks to one row."""
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * n + lanes, mask=lanes < n, other=0.0)
    tl.atomic_add(out_ptr + lanes, x, mask=lanes < n)


@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0), sem="relaxed")


@triton.jit
def count_kernel(index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A histogram: the same address several times in one block."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    index = tl.load(index_ptr + lanes, mask=mask, other=0)
    tl.atomic_add(out_ptr + index, 1, mask=mask)


@triton.jit
def scatter_add_kernel(index_ptr, x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """The gradient of an embedding."""
    row = tl.program_id(0)
    index = tl.load(index_ptr + row)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + lanes, mask=lanes < columns)
    tl.atomic_add(out_ptr + index * columns + lanes, x, mask=lanes < columns)


@triton.jit
def extremes_kernel(x_ptr, max_ptr, min_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask, other=0)
    tl.atomic_max(max_ptr + lanes % 4, x, mask=mask)
    tl.atomic_min(min_ptr + lanes % 4, x, mask=mask)


@triton.jit
def bits_kernel(x_ptr, or_ptr, and_ptr, xor_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * BLOCK + lanes)
    tl.atomic_or(or_ptr + lanes, x)
    tl.atomic_and(and_ptr + lanes, x)
    tl.atomic_xor(xor_ptr + lanes, x)


@triton.jit
def ticket_kernel(x_ptr, out_ptr, counter_ptr, BLOCK: tl.constexpr):
    """Each program draws a number and writes to that place: programs run in order here."""
    ticket = tl.atomic_add(counter_ptr, 1)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + ticket * BLOCK + tl.arange(0, BLOCK), x)


@triton.jit
def old_values_kernel(x_ptr, old_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * BLOCK + lanes)
    old = tl.atomic_add(out_ptr + lanes, x)
    tl.store(old_ptr + pid * BLOCK + lanes, old)


@triton.jit
def exchange_kernel(x_ptr, slot_ptr, old_ptr):
    pid = tl.program_id(0)
    old = tl.atomic_xchg(slot_ptr, tl.load(x_ptr + pid))
    tl.store(old_ptr + pid, old)


@triton.jit
def compare_kernel(x_ptr, slot_ptr, old_ptr):
    """Only who finds what it expects writes."""
    pid = tl.program_id(0)
    old = tl.atomic_cas(slot_ptr, pid // 2, tl.load(x_ptr + pid))
    tl.store(old_ptr + pid, old)


@triton.jit
def lock_kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    """A spin lock around a read and a write; the sum has a factor, so that the order matters."""
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * n + lanes, mask=lanes < n, other=0.0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    total = tl.load(out_ptr + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + lanes, total * 0.5 + x, mask=lanes < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def groups_kernel(x_ptr, out_ptr, lock_ptr, count_ptr, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Locks by group; the first one of a group writes, the others add."""
    pid = tl.program_id(0)
    group = pid % GROUPS
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + pid * n + lanes, mask=mask, other=0.0)
    lock_ptr += group
    count_ptr += group
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    if count == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        x += tl.load(out_ptr + group * n + lanes, mask=mask)
    tl.store(out_ptr + group * n + lanes, x, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def last_one_kernel(x_ptr, partial_ptr, out_ptr, counter_ptr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """The last program sums what all have left: a reduction in one launch."""
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))
    tl.store(partial_ptr + pid, tl.sum(x * x, axis=0))
    done = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
    if done == tl.num_programs(0) - 1:
        parts = tl.load(partial_ptr + tl.arange(0, PROGRAMS))
        tl.store(out_ptr, tl.sqrt(tl.sum(parts, axis=0)))
        tl.atomic_xchg(counter_ptr, 0, sem="release")
