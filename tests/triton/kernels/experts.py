"""Mixtures of experts, quantised products, pooling: addresses that are loaded or taken apart."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def route_kernel(logits_ptr, weight_ptr, expert_ptr, E: tl.constexpr, K: tl.constexpr):
    """The K best of a softmax, one after the other, and their weights brought to the sum of one."""
    token = tl.program_id(0)
    lanes = tl.arange(0, E)
    x = tl.load(logits_ptr + token * E + lanes)
    p = tl.exp(x - tl.max(x, axis=0))
    p = p / tl.sum(p, axis=0)
    total = 0.0
    for i in tl.static_range(K):
        best = tl.argmax(p, axis=0)
        weight = tl.max(p, axis=0)
        total += weight
        tl.store(weight_ptr + token * K + i, weight)
        tl.store(expert_ptr + token * K + i, best)
        p = tl.where(lanes == best, -1.0, p)
    chosen = tl.arange(0, K)
    tl.debug_barrier()
    weights = tl.load(weight_ptr + token * K + chosen)
    tl.store(weight_ptr + token * K + chosen, weights / total)


@triton.jit
def count_kernel(expert_ptr, count_ptr, rank_ptr, n, BLOCK: tl.constexpr):
    """Count the tokens of each expert; the old value of the counter is the token's place."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    expert = tl.load(expert_ptr + lanes, mask=mask, other=0)
    rank = tl.atomic_add(count_ptr + expert, 1, mask=mask)
    tl.store(rank_ptr + lanes, rank, mask=mask)


@triton.jit
def experts_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    token_ptr,
    expert_ptr,
    weight_ptr,
    tokens,
    n,
    k,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Blocks of sorted tokens, each of one expert, whose number is loaded."""
    pid = tl.program_id(0)
    blocks_n = tl.cdiv(n, BLOCK_N)
    pid_m, pid_n = pid // blocks_n, pid % blocks_n
    slots = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    token = tl.load(token_ptr + slots)
    real = token < tokens
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    expert = tl.load(expert_ptr + pid_m)
    if expert == -1:
        return
    x_ptrs = x_ptr + (token[:, None] // K * k + inner[None, :])
    w_ptrs = w_ptr + expert * n * k + (inner[:, None] + columns[None, :] * k)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(0, tl.cdiv(k, BLOCK_K)):
        x = tl.load(x_ptrs, mask=real[:, None] & (inner[None, :] < k - i * BLOCK_K), other=0.0)
        w = tl.load(w_ptrs, mask=(inner[:, None] < k - i * BLOCK_K) & (columns[None, :] < n), other=0.0)
        acc += tl.dot(x, w)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    if WEIGHTED:
        acc = acc * tl.load(weight_ptr + token, mask=real, other=0)[:, None]
    out = out_ptr + token[:, None] * n + columns[None, :]
    tl.store(out, acc, mask=real[:, None] & (columns[None, :] < n))


@triton.jit
def groups_kernel(
    a_ptr, b_ptr, c_ptr, sizes_ptr, GROUPS: tl.constexpr, n, k, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr
):
    """Products of groups of rows, of loaded sizes, one grid for all: tiles are counted across the groups."""
    tile = tl.program_id(0)
    passed = 0
    first = 0
    for group in range(GROUPS):
        m = tl.load(sizes_ptr + group)
        blocks_n = tl.cdiv(n, BLOCK)
        tiles = tl.cdiv(m, BLOCK) * blocks_n
        while tile >= passed and tile < passed + tiles:
            inside = tile - passed
            rows = inside // blocks_n * BLOCK + tl.arange(0, BLOCK)
            columns = inside % blocks_n * BLOCK + tl.arange(0, BLOCK)
            acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for start in range(0, k, BLOCK):
                inner = start + tl.arange(0, BLOCK)
                a_mask = (rows[:, None] < m) & (inner[None, :] < k)
                a = tl.load(a_ptr + (first + rows[:, None]) * k + inner[None, :], mask=a_mask, other=0.0)
                b_mask = (inner[:, None] < k) & (columns[None, :] < n)
                b = tl.load(b_ptr + group * k * n + inner[:, None] * n + columns[None, :], mask=b_mask, other=0.0)
                acc += tl.dot(a, b)
            mask = (rows[:, None] < m) & (columns[None, :] < n)
            tl.store(c_ptr + (first + rows[:, None]) * n + columns[None, :], acc, mask=mask)
            tile += PROGRAMS
        passed += tiles
        first += m


@triton.jit
def four_bits_kernel(
    x_ptr,
    packed_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    n,
    k,
    GROUP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Weights of four bits, eight to a word along the inner dimension; scales and zeros by groups of rows."""
    m = tl.arange(0, M)
    columns = tl.program_id(0) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    acc = tl.zeros((M, N), dtype=tl.float32)
    shifts = (inner % 8) * 4
    for i in range(k // K):
        rows = i * K + inner
        x = tl.load(x_ptr + m[:, None] * k + rows[None, :])
        word = tl.load(packed_ptr + (rows[:, None] // 8) * n + columns[None, :])
        group = (i * K) // GROUP
        scale = tl.load(scale_ptr + group * n + columns)
        zero = tl.load(zero_ptr + group * (n // 8) + columns // 8)
        zero = (zero >> ((columns % 8) * 4)) & 0xF
        w = (((word >> shifts[:, None]) & 0xF) - zero[None, :]).to(tl.float32) * scale[None, :]
        acc = tl.dot(x, w, acc)
    tl.store(out_ptr + m[:, None] * n + columns[None, :], acc)


@triton.jit
def pool_kernel(
    x_ptr, out_ptr, index_ptr, c, h, w, oh, ow, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):
    """The maximum of each window and where it is: an offset taken apart into four."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.num_programs(1) * c * oh * ow
    offsets += tl.program_id(1) * c * oh * ow
    mask = offsets < min(total, (tl.program_id(1) + 1) * c * oh * ow)
    column = offsets % ow
    row = (offsets // ow) % oh
    plane = offsets // (ow * oh)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    where = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            y, x = row * S - P + i, column * S - P + j
            inside = mask & (y >= 0) & (y < h) & (x >= 0) & (x < w)
            value = tl.load(x_ptr + (plane * h + y) * w + x, mask=inside, other=float("-inf"))
            where = tl.where(value > best, y * w + x, where)
            best = tl.maximum(best, value)
    tl.store(out_ptr + offsets, best, mask=mask)
    tl.store(index_ptr + offsets, where, mask=mask)


@triton.jit
def bilinear_kernel(x_ptr, grid_ptr, out_ptr, h, w, n, C: tl.constexpr, BLOCK: tl.constexpr):
    """Four neighbours of each point, at addresses that are counted from floats."""
    points = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = points < n
    gx = tl.load(grid_ptr + points * 2, mask=mask, other=0.0)
    gy = tl.load(grid_ptr + points * 2 + 1, mask=mask, other=0.0)
    x = (gx + 1) * 0.5 * (w - 1)
    y = (gy + 1) * 0.5 * (h - 1)
    x0, y0 = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    fx, fy = x - x0, y - y0
    for channel in tl.static_range(C):
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for dy in tl.static_range(2):
            for dx in tl.static_range(2):
                column, row = x0 + dx, y0 + dy
                weight = (fx if dx == 1 else 1 - fx) * (fy if dy == 1 else 1 - fy)
                inside = mask & (column >= 0) & (column < w) & (row >= 0) & (row < h)
                value = tl.load(x_ptr + (channel * h + row) * w + column, mask=inside, other=0.0)
                total += weight * value
        tl.store(out_ptr + channel * n + points, total, mask=mask)


@triton.jit
def dropout_norm_kernel(
    x_ptr,
    residual_ptr,
    w_ptr,
    seed_ptr,
    out_ptr,
    residual_out_ptr,
    n,
    p,
    eps,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Dropout, a residual and a norm in one: each row has a seed of its own."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + row * n + lanes, mask=mask, other=0.0).to(tl.float32)
    keep = tl.rand(tl.load(seed_ptr + row).to(tl.uint32), lanes) > p
    x = tl.where(keep, x / (1.0 - p), 0.0)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * n + lanes, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual_out_ptr + row * n + lanes, x, mask=mask)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(out_ptr + row * n + lanes, centred * rstd * tl.load(w_ptr + lanes, mask=mask), mask=mask)
