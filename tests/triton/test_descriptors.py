"""Descriptors that are made outside of a kernel: arrays with the block that it takes at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor


def set_blocks(nargs):
    nargs["a_desc"].block_shape = [nargs["BM"], nargs["BK"]]
    nargs["b_desc"].block_shape = [nargs["BN"], nargs["BK"]]
    nargs["c_desc"].block_shape = [nargs["BM"], nargs["BN"]]


@triton.autotune([triton.Config({"BM": 16, "BN": 8, "BK": 16}, pre_hook=set_blocks)], key=["K"])
@triton.jit
def matmul_kernel(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, total)
    c_desc.store([row, column], total.to(c_desc.dtype))


def matmul(a, b, out):
    one = [1, 1]
    described = (TensorDescriptor.from_tensor(x, one) for x in (a, b, out))
    grid = lambda meta: (triton.cdiv(out.shape[0], meta["BM"]), triton.cdiv(out.shape[1], meta["BN"]))
    return matmul_kernel[grid](*described, a.shape[1])


@triton.jit
def described(given, M, N, BM: tl.constexpr, BN: tl.constexpr):
    if isinstance(given, tl.tensor_descriptor):
        return given
    return tl.make_tensor_descriptor(given, [M, N], [N, 1], [BM, BN])


@triton.jit
def double_kernel(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    described(y, M, N, BM, BN).store(at, 2 * described(x, M, N, BM, BN).load(at))


@triton.jit
def sums_kernel(x, total, largest, BM: tl.constexpr):
    block = x.load([tl.program_id(0) * BM, 0])
    total.atomic_add([0, 0], block)
    largest.atomic_max([0, 0], block)


def floats(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def test_a_product_of_described_matrices():
    """Blocks that a pre_hook sets, edges that no block divides, eager and jitted, with gradients; nothing to report."""
    a, b, out = floats(20, 24), floats(13, 24), jnp.empty((20, 13))
    wanted = a @ b.T
    for found in (matmul(a, b, out), jax.jit(matmul)(a, b, out)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda a: (matmul(a, b, out) ** 2).sum())(a)
    np.testing.assert_allclose(gradient, 2 * wanted @ b, rtol=1e-5, atol=1e-4)
    assert matmul_kernel.stores == ["c_desc"]


@pytest.mark.parametrize("x_described", [True, False])
@pytest.mark.parametrize("y_described", [True, False])
def test_a_kernel_asks_what_it_was_given(x_described, y_described):
    """`isinstance(x, tl.tensor_descriptor)`, as kernels for two generations of GPUs do; one array stays one buffer."""
    x = floats(5, 6)
    give = [lambda a: a, lambda a: TensorDescriptor.from_tensor(a, [4, 4])]
    found = double_kernel[(2, 2)](give[x_described](x), give[y_described](jnp.zeros_like(x)), 5, 6, BM=4, BN=4)
    np.testing.assert_array_equal(found, 2 * x)
    one = give[True](x)
    np.testing.assert_array_equal(double_kernel[(2, 2)](one, give[y_described](x), 5, 6, BM=4, BN=4), 2 * x)


def test_strides_and_padding_are_the_descriptors():
    """A part of an array by shape and strides; what lies outside is NaN where it says so."""
    x = floats(6, 8)
    part = TensorDescriptor(x, [3, 5], [16, 1], [4, 8], padding="nan")
    found = double_kernel[(1, 1)](part, jnp.zeros((4, 8)), 4, 8, BM=4, BN=8)
    np.testing.assert_array_equal(found[:3, :5], 2 * x[::2, :5])
    assert np.isnan(found[3]).all()
    assert np.isnan(found[:, 5:]).all()


def test_atomics_of_descriptors():
    """Programs add to one block, and take its maximum, through descriptors; nothing outside of it is written."""
    x = floats(12, 6)
    describe = TensorDescriptor.from_tensor
    total, largest = sums_kernel[(3,)](
        describe(x, [4, 8]), describe(jnp.zeros((4, 6)), [4, 8]), describe(jnp.full((4, 6), -9.0), [4, 8]), BM=4
    )
    np.testing.assert_allclose(total, x.reshape(3, 4, 6).sum(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(largest, x.reshape(3, 4, 6).max(0))


def test_a_launch_of_descriptors_is_checked():
    """A described buffer may be empty, and what is read of it before it was written is found."""
    x, empty = floats(5, 6), jax.ShapeDtypeStruct((5, 6), jnp.float32)
    describe = TensorDescriptor.from_tensor
    report = double_kernel.check[(2, 2)](describe(x, [4, 4]), describe(empty, [4, 4]), 5, 6, BM=4, BN=4)
    report.assert_clean()
    np.testing.assert_array_equal(report.outputs, 2 * x)
    report = double_kernel.check[(1, 1)](describe(empty, [4, 4]), describe(x, [4, 4]), 5, 6, BM=4, BN=4)
    assert [(f.kind, f.parameter) for f in report.findings] == [("unwritten", "x")]


def test_a_descriptor_that_cannot_be():
    """Lengths that differ, and a last axis with gaps."""
    with pytest.raises(ValueError, match="differ in length"):
        TensorDescriptor(floats(4, 4), [4, 4], [4, 1], [4])
    with pytest.raises(ValueError, match="last stride of a TensorDescriptor must be 1, not 4"):
        TensorDescriptor(floats(4, 4), [4, 4], [1, 4], [4, 4])
