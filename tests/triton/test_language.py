"""Language that kernels of packages use next to loads, products and reductions, compared with NumPy."""

import collections
import functools
import importlib.util
import re
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton

X = np.arange(8, dtype=np.float32) - 2.5
Pair = collections.namedtuple("Pair", "first scale")  # noqa: PYI024 - as kernels write it


@triton.jit
def indexed_kernel(x_ptr, out_ptr, N: tl.constexpr):
    program = tl.program_id(0)
    lanes = tl.arange(0, N)
    rows = tl.load(x_ptr + lanes)[None] + tl.zeros((2, N), tl.float32)[:]
    rows += (program[:, None] * 10).to(tl.float32)
    tl.store(out_ptr + program * 2 * N + tl.arange(0, 2)[:, None] * N + lanes[None], rows)


def test_indices_as_tritons():
    """`x[None]` and `x[:]` leave further axes as they are, and a colon of a scalar does nothing."""
    found = indexed_kernel[(2,)](X, jnp.zeros((2, 2, 8)), N=8)
    np.testing.assert_array_equal(found, X + np.array([0, 10])[:, None, None] + np.zeros((2, 2, 8)))


@triton.jit
def number_kernel(x_ptr, out_ptr, SCALED: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    scale = tl.load(x_ptr + 1) if SCALED else 1
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) * scale.to(tl.float32))


@pytest.mark.parametrize("scaled", [True, False])
def test_a_number_that_is_assigned_is_a_tensor(scaled):
    """`s = tl.load(p) if C else 1` has `.to`, whichever side is taken."""
    np.testing.assert_array_equal(number_kernel[(1,)](X, jnp.zeros(8), scaled, N=8), X * (X[1] if scaled else 1))


@triton.jit
def quotient_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes, rows = tl.arange(0, N), tl.arange(0, 2)
    x = tl.load(x_ptr + rows[:, None] * N + lanes[None])
    scale = tl.max(x, 1) / 127
    tl.store(out_ptr + rows[:, None] * N + lanes[None], x / scale[:, None] / 3 + x / tl.load(x_ptr))


def test_a_division_by_a_block_that_broadcasts_divides():
    """XLA makes a product with the reciprocal of it, and one division of two, which are an ulp off."""
    x = np.random.default_rng(0).uniform(0.1, 9, (2, 64)).astype(np.float32)
    scale = x.max(1, keepdims=True) / np.float32(127)
    found = quotient_kernel[(1,)](x, jnp.zeros_like(x), N=64)
    np.testing.assert_array_equal(found, x / scale / np.float32(3) + x / x[0, 0])


@triton.jit
def divided_kernel(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, N: tl.constexpr):
    x, y = tl.load(x_ptr + tl.arange(0, N)), tl.load(y_ptr + tl.arange(0, N))
    if OP == "//":
        tl.store(out_ptr + tl.arange(0, N), x // y)
    elif OP == "%":
        tl.store(out_ptr + tl.arange(0, N), x % y)
    elif OP == "/":
        tl.store(out_ptr + tl.arange(0, N), x / y)
    else:
        tl.store(out_ptr + tl.arange(0, N), x // 3)


@pytest.mark.parametrize("op", ["//", "%", "/"])
def test_signed_and_unsigned_integers_are_not_divided(op):
    """The words are those of Triton 3.5; a literal takes the tensor's type."""
    x, y = jnp.arange(8, dtype=jnp.uint32), jnp.arange(8, dtype=jnp.int32) + 1
    for one, other in ((x, y), (y, x)):
        with pytest.raises(triton.KernelError, match=re.escape("Cannot use /, //, or % with") + ".*Cast them"):
            divided_kernel[(1,)](one, other, jnp.zeros(8), op, N=8)
    np.testing.assert_array_equal(divided_kernel[(1,)](x, y, jnp.zeros(8), "literal", N=8), np.arange(8) // 3)


@triton.jit
def sum_kernel(x_ptr, out_ptr, N: tl.constexpr):
    total = tl.sum(tl.load(x_ptr + tl.arange(0, N)), 0)
    tl.static_assert(total.dtype == tl.float16)
    tl.store(out_ptr, total)


def test_sums_of_float16_are_rounded_once():
    """As Triton's interpreter, which adds up in float32 (NumPy's sum of float16)."""
    x = np.full(4096, 0.3, np.float16)
    found = sum_kernel[(1,)](x, jnp.zeros(1), N=4096)
    np.testing.assert_array_equal(found, np.float16(x.astype(np.float32).sum()))
    assert float(found[0]) == 1229.0


@triton.jit
def bits_kernel(x_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + lanes, tl.load(tl.cast(x_ptr, tl.pointer_type(KIND)) + lanes))


@pytest.mark.parametrize("kind", ["int32", "uint16", "uint8"])
def test_pointers_to_other_types_read_bits(kind):
    """`p.to(tl.pointer_type(...))` of an array, in types of the same and of smaller width."""
    wanted = X.view(kind)
    found = jax.jit(lambda x: bits_kernel[(1,)](x, jnp.zeros(len(wanted), kind), getattr(tl, kind), len(wanted)))(X)
    np.testing.assert_array_equal(found, wanted)


@triton.jit
def write_bits_kernel(x_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):
    program = tl.program_id(0)
    into = (out_ptr + program * 4).to(tl.pointer_type(KIND), bitcast=True)
    lanes = tl.arange(0, N)
    tl.store(into + lanes, tl.load(x_ptr + program * N + lanes) + 1, mask=lanes < N - 1)


@pytest.mark.parametrize("kind", ["int32", "int16"])
def test_pointers_to_other_types_write_bits(kind):
    """A store in another type changes the array's own bits at that place, and no others."""
    n = 16 // np.dtype(kind).itemsize
    bits = X.view(kind)
    wanted = np.zeros(8, np.float32).view(kind).copy()
    for row in range(2):
        wanted[row * n : (row + 1) * n - 1] = bits[row * n : (row + 1) * n - 1] + 1
    found = write_bits_kernel[(2,)](bits, jnp.zeros(8, jnp.float32), getattr(tl, kind), n)
    np.testing.assert_array_equal(np.asarray(found).view(kind), wanted)


@triton.jit
def tuple_kernel(pair, others, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    total = tl.load(pair.first + lanes) * pair.scale
    for i in tl.static_range(len(others)):
        total += tl.load(others[i] + lanes)
        tl.store(others[i] + lanes, total)
    tl.store(out_ptr + lanes, total)


def test_tuples_of_arrays():
    """Tuples and namedtuples hold arrays and numbers; what is stored through one comes back as a tuple."""
    found = jax.jit(lambda x: tuple_kernel[(1,)](Pair(x, 3.0), (x + 1, x + 2), jnp.zeros(8), N=8))(X)
    wanted = ([X * 3 + X + 1, X * 3 + X + 1 + X + 2], X * 3 + X + 1 + X + 2)
    assert isinstance(found[0], tuple)
    jax.tree.map(np.testing.assert_allclose, (list(found[0]), found[1]), wanted)
    slope = jax.grad(lambda x: tuple_kernel[(1,)](Pair(x, 3.0), (x, x), jnp.zeros(8), N=8)[1].sum())(X)
    np.testing.assert_allclose(slope, np.full(8, 8.0))  # one array, and so one buffer: 3x + x, then that and itself


@triton.jit
def copy_kernel(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)))


def test_a_grid_of_no_program_does_nothing():
    """The arrays come back as they were passed; kernel.check finds nothing."""
    np.testing.assert_array_equal(copy_kernel[(0,)](X, jnp.ones(8), N=8), np.ones(8))
    np.testing.assert_array_equal(copy_kernel[(3, 0)](X, jnp.ones(8), N=8), np.ones(8))


@triton.jit
def outside_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    row, lanes = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + lanes, mask=lanes < N - 1)
    tl.store(out_ptr + lanes, tl.where(lanes < n, x, 0.0), mask=(lanes < n) & (row == 0))


def test_reads_outside_that_nobody_sees():
    """A read outside of an array is a warning where its values are masked away afterwards, and a finding of check."""
    with pytest.warns(RuntimeWarning, match=r"reads x_ptr\[\d+\], which has 8 .*is NaN.*, see outside_kernel.check"):
        found = outside_kernel[(2,)](X, jnp.zeros(8), 8, N=16)
    np.testing.assert_array_equal(found, X)
    report = outside_kernel.check[(2,)](X, jnp.zeros(8), 8, N=16)
    assert {finding.kind for finding in report.findings} == {"out of bounds"}


@triton.jit
def selected_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    program, lanes = tl.program_id(0), tl.arange(0, N)
    chosen = tl.where(program == 0, x_ptr, y_ptr).to(tl.pointer_type(tl.float32))
    tl.atomic_add(2 + chosen + lanes - 2, 1.0 * lanes)
    tl.store(out_ptr + program * N + lanes, tl.load(chosen + lanes))


def test_pointers_that_are_selected():
    """They are converted, moved from both sides, and updated by atomics."""
    x, y, out = selected_kernel[(2,)](X, X + 10, jnp.zeros(16), N=8)
    np.testing.assert_array_equal(out, np.concatenate([X + np.arange(8), X + 10 + np.arange(8)]))
    np.testing.assert_array_equal(x, X + np.arange(8))
    np.testing.assert_array_equal(y, X + 10 + np.arange(8))


@triton.jit
def selu(x, scale):
    if x > 0:
        return x
    if x > -1:  # noqa: SIM108 - branches are what this is about
        y = x * scale
    else:
        y = -scale
    return y * 2


@triton.jit
def mapped_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), tl.map_elementwise(selu, x, 3.0))


def test_functions_of_scalars_are_mapped():
    """Branches and early returns of the function are taken element by element."""
    wanted = np.where(X > 0, X, 2 * np.where(X > -1, X * 3, -3.0))
    np.testing.assert_array_equal(jax.jit(lambda: mapped_kernel[(1,)](X, jnp.zeros(8), N=8))(), wanted)


@triton.jit
def relu_of(x, y):
    return tl.maximum(x, 0.0) + y


@triton.jit
def assembly_kernel(x_ptr, out_ptr, GIVEN: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    if GIVEN:
        y = tl.inline_asm_elementwise("max.f32 $0, $1, 0;", "=f,f,f", [x, x], tl.float32, True, 1, substitute=relu_of)
    else:
        y = tl.inline_asm_elementwise("max.f32 $0, $1, 0;", "=f,f,f", [x, x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + tl.arange(0, N), y)


def test_assembly_has_a_substitute():
    """Its text is for a GPU: a function stands for it, and without one the error says so."""
    found = assembly_kernel[(1,)](X, jnp.zeros(8), True, N=8)
    np.testing.assert_array_equal(found, np.maximum(X, 0) + X)
    with pytest.raises(triton.KernelError, match=r"inline assembly is for one kind of GPU.*substitute=function"):
        assembly_kernel[(1,)](X, jnp.zeros(8), False, N=8)


@triton.jit
def scaled_kernel(a_ptr, a_scale, b_ptr, b_scale, out_ptr, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr):
    m, n = tl.arange(0, 16), tl.arange(0, 16)
    wide: tl.constexpr = K // 2 if A == "e2m1" else K
    a = tl.load(a_ptr + m[:, None] * wide + tl.arange(0, wide)[None, :])
    b = tl.load(b_ptr + tl.arange(0, K)[:, None] * 16 + n[None, :])
    of_a = tl.load(a_scale + m[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    of_b = tl.load(b_scale + n[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    out = tl.dot_scaled(a, of_a, A, b, of_b, B)
    tl.store(out_ptr + m[:, None] * 16 + n[None, :], out)


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e5m2"), ("e2m1", "e4m3")])
def test_products_in_microscaling_formats(a, b):
    """The numbers are those of ml_dtypes' formats times powers of two, multiplied in float64."""
    kinds = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2, "e2m1": jnp.float4_e2m1fn}
    draw = np.random.default_rng(5)
    x = draw.normal(size=(16, 64)).astype(np.float32).astype(kinds[a])
    y = draw.normal(size=(64, 16)).astype(np.float32).astype(kinds[b])
    of_x, of_y = (draw.integers(124, 130, (16, 2)).astype(np.uint8) for _ in range(2))
    wide = [np.asarray(v).astype(np.float64) for v in (x, y)]
    wanted = (wide[0] * np.repeat(2.0 ** (of_x.astype(int) - 127), 32, 1)) @ (
        wide[1] * np.repeat(2.0 ** (of_y.astype(int) - 127), 32, 1).T
    )
    bits = np.asarray(x).view(np.uint8)
    packed = bits[:, ::2] & 15 | bits[:, 1::2] << 4 if a == "e2m1" else bits
    found = scaled_kernel[(1,)](packed, of_x, np.asarray(y).view(np.uint8), of_y, jnp.zeros((16, 16)), a, b, 64)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@triton.jit
def rows_kernel(x_ptr, rows_ptr, out_ptr, n, N: tl.constexpr):
    described = tl.make_tensor_descriptor(x_ptr, [n, N], [N, 1], [1, N])
    into = tl.make_tensor_descriptor(out_ptr, [n, N], [N, 1], [1, N])
    rows = tl.load(rows_ptr + tl.arange(0, 4))
    into.scatter(described.gather(rows, 1), rows, 0)


def test_descriptors_gather_and_scatter_rows():
    """Rows at any offsets, from a column on; what is outside of the array is zero, and dropped."""
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    rows = np.array([4, 0, 9, 2], np.int32)
    wanted = np.zeros((6, 4), np.float32)
    for row in (4, 0, 2):
        wanted[row, :3] = x[row, 1:]
    np.testing.assert_array_equal(rows_kernel[(1,)](x, rows, jnp.zeros((6, 4)), 6, N=4), wanted)


@triton.jit
def norm_of(self):
    return tl.sqrt(self.x * self.x + self.y * self.y)


@tl.core._aggregate
class Point:
    x: tl.tensor
    y: tl.tensor
    norm = norm_of

    def __init__(self, x, y):
        self.x = x
        self.y = y


@triton.constexpr_function
def doubled(n):
    return [2 * n][0]


@triton.jit
def aggregate_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    point = Point(tl.load(x_ptr + lanes), 1.0)
    for _ in range(5):
        point = Point(point.x, tl.add(point.y, 1.0))
    wide: tl.constexpr = doubled(N) + tl.core._unwrap_if_constexpr(tl.standard._log2(N))
    tl.store(out_ptr + lanes, point.norm() + wide)


def test_aggregates_and_functions_of_constexprs():
    """Fields are carried by loops, and methods are kernels; plain functions are called with constexprs."""
    found = aggregate_kernel[(1,)](X, jnp.zeros(8), N=8)
    np.testing.assert_allclose(found, np.sqrt(X**2 + 36) + 16 + 3, rtol=1e-6)


def test_names_of_the_host():
    """Launchers find a driver, errors to catch, a warmed-up kernel to ask, and `reinterpret`."""
    properties = triton.runtime.driver.active.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] > 0
    assert issubclass(triton.runtime.errors.OutOfResources, triton.OutOfResources)
    triton.set_allocator(lambda size, alignment, stream: None)
    compiled = copy_kernel.warmup(X, X, N=8, grid=(1,))
    compiled._init_handles()
    assert compiled.n_regs * compiled.metadata.num_warps > 0
    np.testing.assert_array_equal(compiled[(1,)](X, jnp.zeros(8), N=8), X)
    assert copy_kernel.run(X, X, N=8, grid=(1,), warmup=True).metadata.shared == 0
    np.testing.assert_array_equal(triton.reinterpret(X, tl.int32), X.view(np.int32))
    with pytest.raises(TypeError, match="one width, not float32 and int8"):
        triton.reinterpret(X, tl.int8)


def test_tables_of_measurements(capsys):
    """`perf_report` calls the function for each row and line, and prints what it returned; do_bench gives times."""
    given = []

    @triton.testing.perf_report(
        triton.testing.Benchmark(
            ["n", "m"], [2, (3, 4)], "provider", ["a", "b"], ["A", "B"], plot_name="of two", args={"c": 1}
        )
    )
    def measured(n, m, provider, c):
        given.append((n, m, provider, c))
        return 1.5 * n * m if provider == "a" else (2.5, 2.0, 3.0)

    assert measured.run(print_data=True, return_df=True) == [
        {"n": 2, "m": 2, "A": 6.0, "B": 2.5},
        {"n": 3, "m": 4, "A": 18.0, "B": 2.5},
    ]
    assert given == [(2, 2, "a", 1), (2, 2, "b", 1), (3, 4, "a", 1), (3, 4, "b", 1)]
    assert capsys.readouterr().out.split()[:6] == ["of", "two:", "n", "m", "A", "B"]
    times = triton.testing.do_bench(lambda: jnp.zeros(3), warmup=1, rep=2, quantiles=[0.2, 0.8])
    assert 0 < times[0] <= times[1]
    with pytest.raises(ValueError, match="return_mode"):
        triton.testing.do_bench(lambda: None, return_mode="modal")


ABSENT = """
import fnjax.triton as triton
import fnjax.triton.language as tl
from fnjax.triton import compile_to_asm
from fnjax.triton.language import load, never_there
from fnjax.triton.language.extra.libdevice import exp, j0
from fnjax.triton.language.math import never_either


@triton.jit
def kernel(x_ptr, out_ptr, USE: tl.constexpr):
    x = load(x_ptr)
    if USE == "name":
        x = never_there(x)
    elif USE == "function":
        x = j0(x)
    tl.store(out_ptr, exp(x))
"""


def test_names_that_are_not_there_fail_when_they_are_used(tmp_path):
    """A file that imports one is imported; what uses it raises, and hasattr says that it is not there."""
    (tmp_path / "absent.py").write_text(ABSENT)
    spec = importlib.util.spec_from_file_location("absent", tmp_path / "absent.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.kernel[(1,)](X, jnp.zeros(1), ""), np.exp(X[:1]), rtol=1e-6)
    for use, name in (("name", "triton.language.never_there"), ("function", "triton.language.extra.libdevice.j0")):
        with pytest.raises(triton.KernelError, match=rf"line \d+ .*{name} is not available in fnjax\.triton"):
            module.kernel[(1,)](X, jnp.zeros(1), use)
    with pytest.raises(AttributeError, match=r"triton\.compile_to_asm is not available"):
        module.compile_to_asm("text")
    with pytest.raises(AttributeError, match=r"never_either is not available"):
        module.never_either(1)
    assert not hasattr(tl, "never_there")
    assert not hasattr(tl.math, "never_either")
    assert not hasattr(triton, "compile_to_asm")
    with pytest.raises(AttributeError):
        tl.never_there  # noqa: B018 - the access is the test


@triton.jit
def shaped_pointers_kernel(x_ptr, out_ptr):
    """Blocks of pointers in other shapes, by functions and by methods."""
    pointers = x_ptr + tl.arange(0, 8)
    total = tl.sum(tl.load(tl.reshape(pointers, (2, 4))), 0) + tl.sum(tl.load(pointers.view(4, 2).T), 0)
    wide, _ = tl.broadcast(tl.expand_dims(pointers, 0), tl.arange(0, 4)[:, None])
    total += tl.sum(tl.load(tl.permute(tl.broadcast_to(pointers[None, :], (4, 8)), (1, 0))), 0)
    tl.store(out_ptr + tl.arange(0, 4), total + tl.sum(tl.load(wide), 1))


def test_blocks_of_pointers_change_their_shape():
    """As the blocks of what they point to do."""
    x = np.arange(8, dtype=np.float32)
    found = shaped_pointers_kernel[(1,)](jnp.asarray(x), jnp.empty(4))
    np.testing.assert_array_equal(found, x.reshape(2, 4).sum(0) + x.reshape(4, 2).T.sum(0) + 2 * x.sum())


limits = ModuleType("torch")


def finfo(kind):
    """Return what a class of PyTorch's has."""
    return np.finfo(kind)


limits.finfo = finfo


@triton.jit
def larger_of(a, b):
    if tl.abs(a) >= tl.abs(b):
        return a
    return b


@triton.jit
def first_largest(a, i, b, j):
    if a >= b:
        value, at = a, i
    else:
        value, at = b, j
    return value, at


@triton.jit
def branching_kernel(x_ptr, one_ptr, all_ptr, at_ptr, N: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    lanes = tl.arange(0, N).to(tl.dtype("int32"))
    x = tl.load(x_ptr + lanes, mask=lanes < N, other=-limits.finfo("float32").max)
    tl.store(one_ptr, tl.reduce(x, 0, larger_of))
    tl.store(all_ptr + lanes, tl.associative_scan(x, 0, larger_of))
    _, at = tl.reduce((x, lanes), 0, first_largest)
    tl.store(at_ptr, at)
    tl.extra.cuda.gdc_launch_dependents()


class Tuned(triton.KernelInterface):
    """A package's own autotuner."""

    def run(self, *args, grid, **named):
        return branching_kernel.run(*args, grid=grid, **named, N=4)


def test_functions_that_combine_may_branch():
    """An `if` on the scalars of a reduction or scan decides element by element, in launches, checks and derivatives."""
    x = jnp.asarray([1.0, -5.0, 3.0, 2.0])
    out = jnp.zeros(1), jnp.zeros(4), jnp.zeros(1, jnp.int32)
    for found in (Tuned()[(1,)](x, *out), branching_kernel.check[(1,)](x, *out, N=4).outputs):
        for ours, wanted in zip(found, ([-5], [1, -5, -5, -5], [2]), strict=True):
            np.testing.assert_array_equal(ours, wanted)
    grad = jax.grad(lambda x: branching_kernel[(1,)](x, *out, N=4)[1].sum())(x)
    np.testing.assert_array_equal(grad, [1, 3, 0, 0])


@triton.jit
def chosen_kernel(x_ptr, y_ptr, z_ptr, by_ptr, out_ptr, OP: tl.constexpr, B: tl.constexpr):
    """An access to one of three arrays by lane; the old values are stored."""
    i = tl.arange(0, B)
    by = tl.load(by_ptr + i)
    chosen = tl.where(by == 0, x_ptr + i, tl.where(by == 1, y_ptr, z_ptr) + i)
    if OP == "cas":
        old = tl.atomic_cas(chosen, 2, 9)
    elif OP == "method":
        old = tl.reshape(tl.trans(tl.reshape(chosen, (2, B // 2))).atomic_xchg(9), (B,))
    elif OP == "block":
        old = tl.load(tl.make_block_ptr(tl.where(tl.load(by_ptr) > 0, x_ptr, y_ptr), (B,), (1,), (0,), (B,), (0,)))
    else:
        old = tl.load(chosen)
        tl.store(chosen, old + 1)
    tl.store(out_ptr + i, old)


@pytest.mark.parametrize("op", ["cas", "method", "block", "load and store"])
def test_accesses_to_pointers_that_are_selected(op):
    """Every lane accesses the array that is selected for it, eagerly, under jit, and in kernel.check."""
    by = np.array([0, 1, 2, 2, 1, 0, 0, 1], np.int32)
    arrays = [np.arange(8, dtype=np.int32) % 4 + i for i in range(3)]
    lanes = np.arange(8)
    before = np.stack(arrays)[by, lanes]
    after = np.stack(arrays)
    if op == "block":
        before = arrays[1]
    else:
        after[by, lanes] = {"cas": np.where(before == 2, 9, before), "method": 9, "load and store": before + 1}[op]
    order = lanes.reshape(2, 4).T.reshape(-1) if op == "method" else lanes
    launch = functools.partial(chosen_kernel[(1,)], OP=op, B=8)
    given = [*map(jnp.asarray, arrays), jnp.asarray(by), jnp.zeros(8, jnp.int32)]
    for found in (launch(*given), jax.jit(launch)(*given)):
        np.testing.assert_array_equal(np.stack(found[:3]), after)
        np.testing.assert_array_equal(found[3], before[order])
    assert chosen_kernel.check[(1,)](*given, OP=op, B=8).ok


@triton.jit
def ping_pong_kernel(x_ptr, out_ptr, n_ptr):
    at = x_ptr
    for _ in range(6):
        at = tl.where(tl.load(n_ptr) > 0, at + 1, at)
    tl.store(out_ptr, tl.load(at))


def test_a_pointer_that_a_loop_selects():
    """A selection between two pointers into one array is a pointer into it, which loops carry."""
    for n in (0, 1):
        assert ping_pong_kernel[(1,)](X, jnp.zeros(1), jnp.full(1, n))[0] == X[6 * n]


@triton.jit
def wrongly_selected_kernel(x_ptr, n_ptr, out_ptr, KIND: tl.constexpr):
    if KIND == 0:
        tl.store(out_ptr, tl.load(tl.where(tl.load(x_ptr) > 0, x_ptr, n_ptr)))
    elif KIND == 1:
        tl.store(out_ptr, tl.load(tl.where(tl.load(x_ptr) > 0, x_ptr, 3)))
    elif KIND == 2:
        if x_ptr == out_ptr:
            tl.store(out_ptr, 1.0)
    else:
        tl.store(out_ptr, tl.load(x_ptr, mask=tl.arange(0, 4) < 2))


@pytest.mark.parametrize("kind", range(4))
def test_pointers_that_cannot_be_selected(kind):
    """Pointers to different types, a pointer or a number, comparisons of pointers, and masks of another shape."""
    words = ["different types", "a pointer or a value", "an array is used as a number|compared", "does not broadcast"]
    with pytest.raises(triton.KernelError, match=words[kind]):
        wrongly_selected_kernel[(1,)](X, jnp.zeros(4, jnp.int32), jnp.zeros(4), KIND=kind)


@triton.jit
def maximum_of_bits_kernel(best_ptr, x_ptr, old_ptr, OLD: tl.constexpr, B: tl.constexpr):
    """The maximum of positive floats by their bits, as kernels take it that are for GPUs without one of floats."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    bits = tl.load(x_ptr + i).to(tl.int32, bitcast=True)
    if OLD:
        tl.store(old_ptr + i, tl.atomic_cas(best_ptr.to(tl.pointer_type(tl.int32)) + i, 0, bits))
    else:
        tl.atomic_max(best_ptr.to(tl.pointer_type(tl.int32)) + i % 2, bits)


@pytest.mark.parametrize("old", [False, True])
def test_atomics_on_the_bits_of_an_array(old):
    """An atomic through a pointer to another type reads and writes the bits of the array, in kernel.check, too."""
    x = jnp.abs(jnp.asarray(X)) + 0.25
    best, seen = maximum_of_bits_kernel[(2,)](jnp.zeros(8, jnp.float32), x, jnp.ones(8, jnp.int32), OLD=old, B=4)
    np.testing.assert_array_equal(best, x if old else [*x.reshape(4, 2).max(0), *[0] * 6])
    np.testing.assert_array_equal(seen, 0 if old else 1)
    report = maximum_of_bits_kernel.check[(2,)](jnp.zeros(8, jnp.float32), x, jnp.ones(8, jnp.int32), OLD=old, B=4)
    assert report.ok, report


@triton.jit
def transposed_store_kernel(x_ptr, out_ptr, HOW: tl.constexpr):
    i = tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4)[None, :]
    x = tl.load(x_ptr + i)
    if HOW == "trans":
        tl.store(tl.trans(out_ptr + i), tl.trans(x))
    elif HOW == "permute":
        tl.store(tl.permute(out_ptr + i, (1, 0)), tl.permute(x, (1, 0)))
    else:
        block, _ = tl.broadcast(out_ptr, i)
        tl.store(block + i, x)


@pytest.mark.parametrize("how", ["trans", "permute", "broadcast"])
def test_stores_through_rearranged_pointers(how):
    """A store through a pointer that a function of shapes has moved is one to its array, which is returned."""
    assert transposed_store_kernel.stores == ["out_ptr"]
    np.testing.assert_array_equal(transposed_store_kernel[(1,)](X, jnp.zeros(8), HOW=how), X)


@triton.jit
def dictionary_kernel(out_ptr):
    places = {"a": out_ptr}
    tl.store(places["a"] + tl.program_id(0), 1.0)


@triton.jit
def renamed_kernel(out_ptr):
    write = tl.atomic_xchg
    write(out_ptr, 1.0)


@pytest.mark.parametrize("kernel", [dictionary_kernel, renamed_kernel])
def test_a_store_that_is_not_traced_back_to_its_array_is_refused(kernel):
    """Its array would not be returned: what the kernel has stored would be lost without a word."""
    with pytest.raises(triton.KernelError, match="stores to out_ptr by an expression that is not traced back to it"):
        kernel[(2,)](jnp.zeros(2))
