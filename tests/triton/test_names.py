"""The language as Triton has it: its names with their parameters, and the types that come out of expressions."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton.values.blocks import BlockPointer
from fnjax.triton.values.pointers import Pointer
from fnjax.triton.values.tensor import Tensor
from tests.triton.case import floats
from tests.triton.expressions import OF_BOTH, OF_X, all_of, kernels

HERE = Path(__file__).parent
SIGNATURES = {name: given for name, *given in map(str.split, (HERE / "signatures.txt").read_text().splitlines())}
# None of the 1,522 counted kernels uses one of these.
ABSENT = {
    "pair_uniform_to_normal", "philox_impl", "str_to_ty", "tensor.item", "uint_to_uniform_float",
}  # fmt: skip
# The interpreter divides truths by truths, which JAX does not; and numbers of 64 bits have no place in 32.
REFUSED = {("x // y", "int1", "int1"), ("3 // x", "int1", "int1")}
WIDE = {("x + 3000000000", "int64", "int64"), ("x < -1", "uint64", "uint64")}


def home_of(name):
    """Return the object that has a function of the language here, and the function's name there."""
    if not name.startswith("tensor."):
        return tl, name
    name = name.removeprefix("tensor.")
    return BlockPointer if name == "advance" else Pointer if name.startswith(("atomic", "store")) else Tensor, name


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_takes_what_tritons_takes(name):
    """By place, and a function by name, all that it takes in Triton 3.5.1; or it is not there at all."""
    home, short = home_of(name)
    if name in ABSENT:
        assert not hasattr(home, short)
        return
    signature = inspect.signature(getattr(home, short))
    own = [] if home is tl else [None]
    given = [p for p in SIGNATURES[name] if not p.startswith("*")]
    if not any(p.startswith("*") for p in SIGNATURES[name]):
        signature.bind(*own, *given)
    if home is tl:
        signature.bind_partial(**dict.fromkeys(given))


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    """Type and shape of an expression, for types of x and y; `-` for an error."""
    found = []
    record = lambda value: found.append(f"{value.dtype}[{'x'.join(map(str, value.shape))}]")
    module = kernels(tmp_path_factory.mktemp("kernels"), "fnjax.triton", tl.constexpr(record))

    def type_of(i, x, y):
        found.clear()
        kernel = getattr(module, f"kernel_{i}")
        try:
            jax.eval_shape(lambda n: kernel[(1,)](n, getattr(tl, x), getattr(tl, y)), jnp.array([1, 2, 3, 1]))
        except triton.KernelError:
            return "-"
        return found[0]

    return type_of


@pytest.mark.parametrize(
    ("i", "expression"),
    [pytest.param(i, e, marks=[pytest.mark.slow] if i % 4 else []) for i, e in enumerate((*OF_X, *OF_BOTH))],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_expression_has_the_type_that_triton_gives_it(i, expression, types):
    """For each type of x (and of y) that Triton's interpreter takes: promotion, reductions, scans, shapes."""
    _, *wanted = (HERE / "types.txt").read_text().splitlines()[i].split("\t")
    tried = [(x, y) for j, _, x, y in all_of() if j == i]
    for (x, y), theirs in zip(tried, wanted, strict=True):
        refused = REFUSED if jax.config.jax_enable_x64 else REFUSED | WIDE
        if theirs != "-":
            expected = "-" if (expression, x, y) in refused else theirs
            assert types(i, x, y) == expected, (expression, x, y)


@triton.jit
def truths_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    finite = ~tl.extra.cuda.libdevice.isnan(x) & ~tl.extra.libdevice.isinf(x)
    tl.store(out_ptr + lanes, tl.where(finite, x, -1.0))


def test_truths_of_libdevice_are_truths():
    """`~isnan(x)` is where x is a number; of an integer it would hold everywhere."""
    x = np.array([1.5, np.nan, np.inf, 0.0], np.float32)
    np.testing.assert_array_equal(truths_kernel[(1,)](x, jnp.zeros(4), N=4), [1.5, -1, -1, 0])


@triton.jit
def bfloat16_kernel(x_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, tl.cumsum(x, 0))
    tl.store(out_ptr + N + lanes, tl.cumprod(x, 0))
    tl.store(out_ptr + 2 * N + lanes, tl.maximum(x, -x) * x.to(tl.float32))


def test_scans_and_extremes_of_bfloat16_are_float32():
    """Triton converts before it scans or compares: nothing is rounded to eight bits on the way."""
    x = jnp.asarray(1 + floats(1, 64) / 16, jnp.bfloat16)
    wide = np.asarray(x, np.float32)
    wanted = np.cumsum(wide), np.cumprod(wide), np.abs(wide) * wide
    found = bfloat16_kernel[(1,)](x, jnp.zeros((3, 64)), N=64)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@triton.jit
def philox_kernel(out_ptr, HIGH: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + lanes, tl.randint(7, lanes.to(tl.int64) + HIGH))


def test_offsets_of_random_numbers_have_64_bits():
    """The numbers of Triton's interpreter behind 2^32, and those before 0."""
    wanted = {
        2**32: [784659805, 1019114899, 2377436705, 669835694],
        -4: [211955962, 2138791906, 316503854, 1268941616],
    }
    for high, numbers in wanted.items():
        found = philox_kernel[(1,)](jnp.zeros(4, jnp.uint32), HIGH=high, N=4)
        np.testing.assert_array_equal(found, np.array(numbers, np.uint32))


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    described = tl.make_tensor_descriptor(x_ptr, [n], [1], [N], padding_option="nan")
    into = tl.make_tensor_descriptor(out_ptr, [N], [1], [N])
    tl.store_tensor_descriptor(into, [0], tl.load_tensor_descriptor(described, [2]))


def test_a_descriptor_says_what_is_outside():
    """NaN if it is told to; and what a function stores through a descriptor comes back."""
    found = descriptor_kernel[(1,)](jnp.arange(6.0), jnp.zeros(8), 6, N=8)
    np.testing.assert_array_equal(found, [2, 3, 4, 5, *[np.nan] * 4])


@triton.jit
def powers_kernel(x_ptr, out_ptr, beta, step, N: tl.constexpr):
    correction = 1 - tl.extra.libdevice.pow(beta, step)
    tl.store(out_ptr + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)) / correction)


def test_functions_of_two_numbers():
    """`libdevice.pow(beta, step)` of numbers that the launch gives, as optimizers call it; traced or not."""
    x = jnp.arange(4.0)

    def corrected(beta, step):
        return powers_kernel[(1,)](x, jnp.zeros(4), beta, step, N=4)

    for found in (corrected(0.9, 3.0), jax.jit(corrected)(0.9, 3.0), corrected(0.9, 3)):
        np.testing.assert_allclose(found, x / (1 - 0.9**3), rtol=1e-6)


@triton.jit
def methods_kernel(x_ptr, count_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    count_ptr.atomic_add(tl.sum((x > 2).to(tl.int32)))
    (out_ptr + lanes).store(x.view(2, N // 2).softmax(1).view(N))


def test_methods_of_pointers_store():
    """`pointer.store` and `pointer.atomic_add`: both arrays come back."""
    x = jnp.arange(8.0)
    count, out = methods_kernel[(1,)](x, jnp.zeros(1, jnp.int32), jnp.zeros(8), N=8)
    assert int(count[0]) == 5
    np.testing.assert_allclose(out, jax.nn.softmax(x.reshape(2, 4), axis=1).reshape(8), rtol=1e-6)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + tl.arange(0, 256), tl.histogram(tl.load(x_ptr + lanes), 256, mask=lanes < n))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int32])
def test_a_histogram_counts_what_is_in_its_range(dtype):
    """Integers outside of the bins, whose number a narrow type cannot hold, and masked lanes do not count."""
    x = np.array([0, 0, 255, 300, -1, 7, 7, 7]).astype(dtype)
    wanted = np.bincount([v for v in x[:6].astype(int) if 0 <= v < 256], minlength=256)
    found = histogram_kernel[(1,)](jnp.asarray(x), jnp.zeros(256, jnp.int32), 6, N=8)
    np.testing.assert_array_equal(found, wanted)


@triton.jit
def target_kernel(out_ptr):
    target = tl.target_info.current_target()
    if tl.target_info.is_cuda() and target.backend == "cuda":
        tl.store(out_ptr, target.arch)
    tl.store(out_ptr + 1, tl.target_info.cuda_capability_geq(8, 0) and not tl.target_info.cuda_capability_geq(9))
    tl.store(out_ptr + 2, tl.target_info.is_hip())


def test_kernels_see_the_gpu_of_the_driver():
    """`tl.target_info` answers as `triton.runtime.driver.active.get_current_target` does."""
    assert target_kernel[(1,)](jnp.zeros(3)).tolist() == [triton.runtime.driver.active.get_current_target().arch, 1, 0]
