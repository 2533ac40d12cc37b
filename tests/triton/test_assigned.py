"""Numbers that kernels assign to names: tensors, whose types are Triton's; what is known of them stays known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from tests.triton.all_cases import CASES
from tests.triton.kernels import assigned
from tests.triton.test_goldens import assert_as_expected, kernel_of

ASSIGNED = [case for case in CASES if case.file == "assigned"]


def test_types_are_those_of_tritons_compiler():
    """The static_asserts of the kernel, which `make triton` has checked by Triton's compiler."""
    launch = assigned.types_of_values[(1,)]
    jax.eval_shape(launch, jax.ShapeDtypeStruct((1,), jnp.int8), jax.ShapeDtypeStruct((1,), jnp.int32))


@pytest.mark.parametrize("case", ASSIGNED, ids=lambda case: case.name)
def test_a_check_agrees_with_the_launch(case):
    """`kernel.check` gives what Triton's interpreter gives, and finds nothing."""
    positional, named = case.call(case.arrays(), tl)
    report = kernel_of(case).check[case.grid](*positional, **named)
    report.assert_clean()
    assert_as_expected(case, dict(zip(case.outs, [report.outputs], strict=True)))


@triton.jit
def blocks_kernel(x_ptr, out_ptr, N: tl.constexpr):
    half = N // 2
    axis = 0
    x = tl.load(x_ptr + tl.arange(0, half)[:, None] * 2 + tl.arange(0, 2)[None, :])
    out = tl.full((half,), 1.0, tl.float32)
    for i in range(half):
        out += i
    if half == 8:
        tl.static_assert(x.shape[0] == half)
        out += tl.sum(x, 1)
        axis += 1
    out += tl.sum(tl.expand_dims(x, axis).reshape(half, 2), axis)
    tl.store(out_ptr + tl.arange(0, half), out)


def test_known_values_stay_static():
    """Shapes, bounds, axes and conditions that hang on an assigned number are known at trace time."""
    x = np.arange(16, dtype=np.float32)
    found = blocks_kernel[(1,)](jnp.asarray(x), jnp.zeros(8), N=16)
    rows = x.reshape(8, 2)
    np.testing.assert_array_equal(found, 1 + sum(range(8)) + 2 * rows.sum(1))


@triton.jit
def branches_kernel(x_ptr, out_ptr):
    if tl.load(x_ptr) > 0:
        size = 4
        value = 1.0
    else:
        size = 4
        value = 2.0
    tl.store(out_ptr + tl.arange(0, size), value)


def test_a_number_that_both_branches_assign_stays_known():
    """Of an `if` on a value."""
    np.testing.assert_array_equal(branches_kernel[(1,)](jnp.ones(1), jnp.zeros(4)), 1)


@triton.jit
def double_kernel(out_ptr):
    x = 1e300
    tl.store(out_ptr, (x * 1e-300).to(tl.float32))
    tl.store(out_ptr + 1, x.to(tl.float32))
    tiny = 1e-300
    y = tiny + tl.load(out_ptr) * 0
    tl.store(out_ptr, (y * x).to(tl.float32))


def test_a_float_that_needs_64_bits_is_refused_without_them(x32):
    """It would be infinity, or zero."""
    with jax.enable_x64(True):
        found = double_kernel[(1,)](jnp.zeros(2, jnp.float32))
    np.testing.assert_allclose(found, [1, np.inf])
    with pytest.raises(triton.KernelError, match=r"1e-300 of float64 takes 64 bits"):
        double_kernel[(1,)](jnp.zeros(2, jnp.float32))
