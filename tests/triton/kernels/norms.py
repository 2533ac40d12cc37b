"""Root mean square and layer normalisation, forward and backward."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def rms_forward_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * stride + lanes, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + lanes, mask=mask, other=0.0)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    tl.store(rstd_ptr + row, rstd)
    tl.store(out_ptr + row * stride + lanes, x * rstd * w, mask=mask)


@triton.jit
def rms_backward_kernel(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, rows, n, rows_per_program, BLOCK: tl.constexpr):
    """Each program takes some rows and leaves its share of the weight's gradient in a row of its own."""
    program = tl.program_id(0)
    first = program * rows_per_program
    end = min(first + rows_per_program, rows)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    w = tl.load(w_ptr + lanes, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(first, end):
        dy = tl.load(dy_ptr + row * n + lanes, mask=mask, other=0.0)
        x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        m = dy * w
        dx = rstd * m - rstd * rstd * rstd / n * tl.sum(m * x, axis=0) * x
        dw += dy * x * rstd
        tl.store(dx_ptr + row * n + lanes, dx, mask=mask)
    tl.store(dw_ptr + program * n + lanes, dw, mask=mask)


@triton.jit
def layer_forward_kernel(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    """Rows longer than a block, read three times."""
    row = tl.program_id(0)
    x_ptr += row * n
    out_ptr += row * n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + lanes, mask=lanes < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + lanes, mask=lanes < n, other=0.0).to(tl.float32)
        x = tl.where(lanes < n, x - mean, 0.0)
        total += x * x
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        mask = lanes < n
        w = tl.load(w_ptr + lanes, mask=mask)
        b = tl.load(b_ptr + lanes, mask=mask)
        x = tl.load(x_ptr + lanes, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + lanes, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_backward_kernel(
    dx_ptr,
    dy_ptr,
    dw_ptr,
    db_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    lock_ptr,
    n,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients of weight and bias are gathered in a few rows, each behind a lock."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    group = row % GROUPS
    lock_ptr += group
    count_ptr = lock_ptr + GROUPS
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0)
    dy = tl.load(dy_ptr + row * n + lanes, mask=mask, other=0.0)
    w = tl.load(w_ptr + lanes, mask=mask, other=0.0)
    rstd = tl.load(rstd_ptr + row)
    hat = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    wdy = w * dy
    dx = (wdy - (hat * (tl.sum(hat * wdy, axis=0) / n) + tl.sum(wdy, axis=0) / n)) * rstd
    tl.store(dx_ptr + row * n + lanes, dx, mask=mask)
    partial_dw, partial_db = dy * hat, dy
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    if count == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        partial_dw += tl.load(dw_ptr + group * n + lanes, mask=mask)
        partial_db += tl.load(db_ptr + group * n + lanes, mask=mask)
    tl.store(dw_ptr + group * n + lanes, partial_dw, mask=mask)
    tl.store(db_ptr + group * n + lanes, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def sum_groups_kernel(dw_ptr, out_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(0, m, BLOCK_M):
        rows = i + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        total += tl.load(dw_ptr + rows[:, None] * n + columns[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + columns, tl.sum(total, axis=0), mask=columns < n)


@triton.jit
def group_kernel(x_ptr, w_ptr, out_ptr, groups, hidden, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Group normalisation: statistics over channels and positions, a scale for each channel."""
    batch, group = tl.program_id(0), tl.program_id(1)
    base = (batch * groups + group) * CHANNELS * hidden
    total, squares = 0.0, 0.0
    for start in range(0, CHANNELS * hidden, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + lanes, mask=lanes < CHANNELS * hidden, other=0.0)
        total += tl.sum(x)
        squares += tl.sum(x * x)
    count = CHANNELS * hidden
    mean = total / count
    rstd = 1.0 / tl.sqrt(squares / count - mean * mean + eps)
    for channel in tl.range(group * CHANNELS, (group + 1) * CHANNELS):
        w = tl.load(w_ptr + channel)
        for start in range(0, hidden, BLOCK):
            lanes = start + tl.arange(0, BLOCK)
            mask = lanes < hidden
            address = base + (channel - group * CHANNELS) * hidden + lanes
            x = tl.load(x_ptr + address, mask=mask, other=mean)
            tl.store(out_ptr + address, (x - mean) * rstd * w, mask=mask)
