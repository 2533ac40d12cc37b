"""Numbers that are assigned to a name, or returned, are tensors in Triton: of int32, int64, float32, int1."""

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def sums_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Sums, products and shifts of int8 or uint8 with an assigned number have 32 bits, those with a constexpr 8."""
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    c = 100
    k: tl.constexpr = 4
    shift = k
    tl.store(out_ptr + lanes, x + c)
    tl.store(out_ptr + N + lanes, x * c)
    tl.store(out_ptr + 2 * N + lanes, x << shift)
    tl.store(out_ptr + 3 * N + lanes, x << k)
    c += 1
    tl.store(out_ptr + 4 * N + lanes, x - c)
    yes = N > 1
    tl.store(out_ptr + 5 * N + lanes, x + yes)


@triton.jit
def divisions_kernel(out_ptr, N: tl.constexpr):
    """// and % of an assigned difference go toward zero, those of constexprs down."""
    last = N - 20
    tl.store(out_ptr, last // 8)
    tl.store(out_ptr + 1, last % 8)
    tl.store(out_ptr + 2, (N - 20) // 8)
    tl.store(out_ptr + 3, (N - 20) % 8)


@triton.jit
def wrapping_kernel(out_ptr):
    """A sum of two int32 values wraps; a larger number is of uint32."""
    a = 2000000000
    b = a + a
    tl.store(out_ptr, b // 1000)
    u = 3000000000
    v = u + u
    tl.store(out_ptr + 1, v // 1000)


@triton.jit
def halves_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """A product of float16 and an assigned factor is of float32, as is what a loop adds up."""
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    s = 3.3
    tl.store(out_ptr + lanes, x * s)
    tl.store(out_ptr + N + lanes, x * 3.3)
    off = float("-inf")
    largest = off.to(tl.float32)
    total = 0.0
    for i in range(5):
        largest = tl.maximum(largest, tl.load(x_ptr + i).to(tl.float32))
        total += tl.load(x_ptr + i)
    tl.store(out_ptr + 2 * N + lanes, tl.where(lanes < 3, largest, total))


@triton.jit
def static_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Assigned numbers stay static: bounds, conditions."""
    lanes = tl.arange(0, N)
    rounds = N // 8
    acc = tl.zeros((N,), tl.int32)
    for i in range(rounds):
        acc += tl.load(x_ptr + lanes) * i
    if rounds > 3:
        acc += 1000
    i = 0
    while i < rounds:
        acc += i
        i += 1
    tl.store(out_ptr + lanes, acc)


@triton.jit
def three():
    return 3


@triton.jit
def pair(x):
    return x, 2.5


@triton.jit
def plus(x, K: tl.constexpr):
    return x + K


@triton.jit
def returned_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Helpers, min, max and tl.cdiv return tensors; triton.cdiv, and what a helper is given, are constexprs."""
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, x * three())
    first, second = pair(50)
    tl.store(out_ptr + N + lanes, x * first + (x * second).to(tl.int32))
    tl.store(out_ptr + 2 * N + lanes, x * min(50, 60))
    tl.store(out_ptr + 3 * N + lanes, x * tl.cdiv(99, 2))
    tl.store(out_ptr + 4 * N + lanes, x * triton.cdiv(99, 2))
    k = 100
    tl.store(out_ptr + 5 * N + lanes, plus(x, 100))
    tl.store(out_ptr + 6 * N + lanes, plus(x, k))


@triton.jit
def types_of_values(x_ptr, out_ptr):
    """Of an int8 value: what each expression's type is. Triton's own compiler accepts it (test_interpreter.py)."""
    x = tl.load(x_ptr)
    half = x.to(tl.float16)
    k: tl.constexpr = 5
    m = k
    tl.static_assert((x + k).dtype == tl.int8)
    tl.static_assert((x + (k + 1)).dtype == tl.int8)
    tl.static_assert((x + m).dtype == tl.int32)
    tl.static_assert((x & m).dtype == tl.int32)
    tl.static_assert((x + three()).dtype == tl.int32)
    tl.static_assert((x + plus(1, 2)).dtype == tl.int32)
    tl.static_assert(plus(x, 5).dtype == tl.int8)
    tl.static_assert(plus(x, m).dtype == tl.int32)
    a, b = pair(1)
    tl.static_assert(a.dtype == tl.int32)
    tl.static_assert(b.dtype == tl.float32)
    tl.static_assert((x + max(3, 4)).dtype == tl.int32)
    tl.static_assert((x + tl.cdiv(3, 4)).dtype == tl.int32)
    tl.static_assert((x + triton.cdiv(3, 4)).dtype == tl.int8)
    tl.static_assert((x + triton.next_power_of_2(3)).dtype == tl.int8)
    tl.static_assert((x + (3 if k > 4 else 4)).dtype == tl.int8)
    chosen = 3 if x > 2 else 4
    tl.static_assert(chosen.dtype == tl.int32)
    flag = k > 2
    tl.static_assert(flag.dtype == tl.int1)
    tl.static_assert((x + flag).dtype == tl.int8)
    unsigned = 3000000000
    tl.static_assert(unsigned.dtype == tl.uint32)
    wide = 5000000000
    tl.static_assert(wide.dtype == tl.int64)
    widest = 0xFFFFFFFFFFFFFFFF
    tl.static_assert(widest.dtype == tl.uint64)
    small = 1e-40
    tl.static_assert(small.dtype == tl.float64)
    large = 1e39
    tl.static_assert(large.dtype == tl.float64)
    items = (1, 2.0)
    tl.static_assert(items[0].dtype == tl.int32)
    tl.static_assert(items[1].dtype == tl.float32)
    annotated: tl.int32 = 7
    tl.static_assert(annotated.dtype == tl.int32)
    quotient = k / 2
    tl.static_assert(quotient.dtype == tl.float32)
    tl.static_assert((half * quotient).dtype == tl.float32)
    tl.static_assert((half * 2.5).dtype == tl.float16)
    tl.static_assert((half * m).dtype == tl.float16)
    tl.static_assert((half / 2).dtype == tl.float32)
    tl.static_assert(tl.fma(half, 2.0, half).dtype == tl.float32)
    tl.static_assert(tl.where(x > 1, x, 3).dtype == tl.int8)
    tl.static_assert(tl.where(x > 1, x, m).dtype == tl.int32)
    tl.static_assert(tl.maximum(1, 3).dtype == tl.int32)
    tl.static_assert(tl.abs(-1.0).dtype == tl.float32)
    tl.static_assert((x and 3).dtype == tl.int8)
    tl.static_assert((0 or x).dtype == tl.int8)
    tl.static_assert((x + float(3)).dtype == tl.float32)
    tl.static_assert((x + int(2.5)).dtype == tl.int8)
    m += 1
    tl.static_assert(m.dtype == tl.int32)
    for i in tl.static_range(2):
        tl.static_assert((x + i).dtype == tl.int8)
    for j in range(2):
        tl.static_assert((x + j).dtype == tl.int32)
    tl.store(out_ptr, x + m)


NUMBER = 3  # no constexpr


@triton.jit
def reads_a_global(x_ptr, out_ptr):
    tl.store(out_ptr, NUMBER)
