"""Launches of integers.py, random_numbers.py and assigned.py."""

import numpy as np

from tests.triton.case import cases_of, floats, integers, out

case, INTEGERS = cases_of("integers")
N, BLOCK = 60, 64
SIGNED, UNSIGNED = (np.int8, np.int16, np.int32), (np.uint8, np.uint16, np.uint32)


def some(seed, dtype):
    """All sizes, and small ones among them."""
    numbers = integers(seed, N, dtype=dtype)
    numbers[::3] = integers(seed + 1, N, dtype=dtype, low=max(np.iinfo(dtype).min, -9), high=10)[::3]
    return numbers


def divisors(seed, dtype):
    numbers = some(seed, dtype)
    numbers[numbers == 0] = 3
    numbers[numbers == dtype(-1) if np.iinfo(dtype).min else numbers == 0] = 5  # the smallest by -1 is undefined
    return numbers


for dtype in SIGNED + UNSIGNED:
    name, seed = np.dtype(dtype).name, 100 + 10 * np.dtype(dtype).num
    x, y = some(seed, dtype), divisors(seed + 2, dtype)
    case(f"arithmetic-{name}", "arithmetic", 1, x_ptr=x, y_ptr=y, out_ptr=out(12, N, dtype=dtype, fill=7), n=N,
         BLOCK=BLOCK)  # fmt: skip
    case(f"scalars-{name}", "scalars", 1, x_ptr=x, out_ptr=out(8, N, dtype=dtype, fill=7), n=N, BLOCK=BLOCK)
    case(f"comparisons-{name}", "comparisons", 1, x_ptr=x, y_ptr=np.where(x % 3 == 0, x, y),
         out_ptr=out(N, dtype=np.int32), n=N, BLOCK=BLOCK)  # fmt: skip
    case(f"to-floats-{name}", "to_floats", 1, x_ptr=x, y_ptr=y, out_ptr=out(4, N), n=N, BLOCK=BLOCK, tolerance=2e-7)
    by = integers(seed + 4, N, dtype=dtype, low=0, high=np.iinfo(dtype).bits)
    case(f"shifts-{name}", "shifts", 1, x_ptr=x, by_ptr=by, out_ptr=out(3, N, dtype=dtype, fill=7), n=N, BLOCK=BLOCK)
for dtype in SIGNED:
    case(f"negative-{np.dtype(dtype).name}", "negative", 1, x_ptr=some(120, dtype),
         out_ptr=out(5, N, dtype=dtype, fill=7), n=N, BLOCK=BLOCK)  # fmt: skip
for a, b in (
    (np.int8, np.int32),
    (np.int8, np.int16),
    (np.uint8, np.int16),
    (np.int32, np.uint32),
    (np.uint8, np.int8),
):
    limit = 100  # the results fit into 64 bits, and into 32 where JAX has no wider numbers
    x = integers(130, N, dtype=a, low=max(np.iinfo(a).min, -limit), high=limit)
    y = integers(131, N, dtype=b, low=max(np.iinfo(b).min, -limit), high=limit)
    case(f"mixed-{np.dtype(a).name}-{np.dtype(b).name}", "mixed", 1, a_ptr=x, b_ptr=y,
         out_ptr=out(4, N, dtype=np.int32), n=N, BLOCK=BLOCK)  # fmt: skip
case("widths", "widths", 1, x_ptr=integers(140, N), out_ptr=out(7, N, dtype=np.int32), n=N, BLOCK=BLOCK)
case("packed", "packed", 3, packed_ptr=integers(141, 20), out_ptr=out(150), n=150, BLOCK=64)
case("hash", "hash", 2, out_ptr=out(2, 100, dtype=np.uint32, fill=7), seed=12345, n=100, BLOCK=64)
for a, b in ((17, 5), (-17, 5), (17, -5)):
    case(f"division-{a}-{b}", "division", 1, out_ptr=out(38, dtype=np.int32), a=a, b=b)

case, RANDOM = cases_of("random_numbers")
for seed in (0, 42, 2**31 - 1, 123456789012345):
    case(f"rand-{seed}", "rand", 4, out_ptr=out(200), n=200, seed=seed, BLOCK=64)
case("rounds", "rounds", 1, out_ptr=out(64), seed=3, N=64)
case("randn", "randn", 4, out_ptr=out(200), n=200, seed=7, BLOCK=64, tolerance=2e-6)
case("randint", "randint", 1, out_ptr=out(64, dtype=np.int32), four_ptr=out(4, 64, dtype=np.int32), seed=11, N=64)
case("four", "four", 1, out_ptr=out(4, 64), seed=13, N=64, tolerance=2e-6)
case("philox", "philox", 1, out_ptr=out(4, 64, dtype=np.uint32, fill=7), seed=1234, N=64)
case("seeded", "seeded", 3, seed_ptr=integers(150, 3, low=0, high=2**31 - 1), out_ptr=out(3, 32), N=32)
case("dropout", "dropout", 4, x_ptr=floats(151, 200), out_ptr=out(200), n=200, p=0.3, seed=5, BLOCK=64, tolerance=2e-7)

case, ASSIGNED = cases_of("assigned")
SMALL = np.array([100, 101, -3, 0], np.int8)
for dtype in (np.int8, np.uint8):
    x = SMALL.astype(dtype)
    case(f"sums-{np.dtype(dtype).name}", "sums", 1, x_ptr=x, out_ptr=out(6, 4, dtype=np.int32), N=4)
case("divisions", "divisions", 1, out_ptr=out(4, dtype=np.int32), N=7)
case("wrapping", "wrapping", 1, out_ptr=out(2, dtype=np.int32))
case("halves", "halves", 1, x_ptr=floats(180, 8, dtype=np.float16), out_ptr=out(3, 8), N=8)
for n in (16, 64):
    case(f"static-{n}", "static", 1, x_ptr=integers(181, n), out_ptr=out(n, dtype=np.int32), N=n)
# The interpreter leaves a helper's number a number; here are the compiler's types: int32, but int8 next to constexprs.
WIDE = SMALL.astype(np.int32)
returned = [WIDE * 3, WIDE * 50 + np.trunc(WIDE * 2.5).astype(np.int32), WIDE * 50, WIDE * 50]
returned += [(SMALL * np.int8(50)).astype(np.int32), (SMALL + np.int8(100)).astype(np.int32), WIDE + 100]
case("returned", "returned", 1, x_ptr=SMALL, out_ptr=out(7, 4, dtype=np.int32), N=4,
     reference={"out_ptr": np.stack(returned).astype(np.int32)})  # fmt: skip

CASES = [*INTEGERS, *RANDOM, *ASSIGNED]
