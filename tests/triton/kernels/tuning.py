"""autotune, heuristics and their decorators, in any order and as calls."""

import fnjax.triton as triton
import fnjax.triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK": 32}, num_warps=2),
    triton.Config({"BLOCK": 64}, num_warps=4, num_stages=2),
]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n, other=0.0) + 1, mask=lanes < n)


@triton.heuristics(
    {
        "BLOCK": lambda args: triton.next_power_of_2(args["n"]),
        "HAS_BIAS": lambda args: args["bias_ptr"] is not None,
        "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
    }
)
@triton.jit
def heuristic_kernel(x_ptr, bias_ptr, out_ptr, n, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + row * n + lanes)
    else:
        x = tl.load(x_ptr + row * n + lanes, mask=lanes < n, other=0.0)
    if HAS_BIAS:
        x += tl.load(bias_ptr + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + row * n + lanes, x / tl.sum(x * x, axis=0), mask=lanes < n)


@triton.heuristics({"HALF": lambda args: args["BLOCK"] // 2})
@triton.autotune([triton.Config({"WIDTH": 2}), triton.Config({"WIDTH": 4})], ["n"])
@triton.jit
def heuristics_first_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr):
    """Heuristics that see the launch, not the configuration."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + lanes, x + HALF, mask=(lanes < n) & (WIDTH > 1))


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def configuration_first_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Heuristics that see what the configuration added."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) * 3)
    else:
        tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n) * 3, mask=lanes < n)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"ROWS": lambda args: 32 // args["BLOCK"]})
@triton.heuristics({"TWICE": lambda args: 2 * args["ROWS"]})
@triton.jit
def heuristics_in_grid_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, TWICE: tl.constexpr, TIMES=3):
    """Launched by a grid that reads what the heuristics found for the configuration."""
    for row in range(ROWS):
        lanes = (tl.program_id(0) * ROWS + row) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n) * TIMES + TWICE, mask=lanes < n)


@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["total_ptr"])
@triton.jit
def reset_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + lanes, mask=lanes < n, other=0.0), axis=0))


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])
@triton.jit
def restore_kernel(x_ptr, n, BLOCK: tl.constexpr):
    """In place: trying configurations must not show."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n) * 2 + 1, mask=lanes < n)


def clear(args):
    args["total_ptr"].zero_()


@triton.autotune(
    [triton.Config({"BLOCK": 32}, pre_hook=clear), triton.Config({"BLOCK": 64}, pre_hook=clear)], key=["n"]
)
@triton.jit
def hook_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    """A hook that clears what is added to."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + lanes, mask=lanes < n, other=0.0), axis=0))


def large_enough(configs, named_args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] >= named_args["n"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK": 2**i}) for i in range(3, 8)],
    key=["n"],
    prune_configs_by={"early_config_prune": large_enough},
)
@triton.jit
def pruned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Right only with a block that holds the row: what is left after pruning."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + row * n + lanes, x - tl.sum(x, axis=0) / n, mask=lanes < n)


@triton.jit(do_not_specialize=["n", "seed"])
def unspecialised_kernel(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n) + seed, mask=lanes < n)


def plain(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=mask) - (1.0 if EVEN else 2.0), mask=mask)


called_kernel = triton.jit(plain)
called_kernel = triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})(called_kernel)
called_kernel = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(called_kernel)
