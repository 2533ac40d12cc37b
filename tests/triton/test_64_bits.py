"""Without 64 bits: int64 values that need them are findings of `kernel.check`; a lower half that suffices is none."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("x32")
NEEDED = (  # expressions of x, of int64, and m, which is 1000 in it, too
    "x * m // m", "x * m % 7", "(x * m) >> 3", "(x * m > 10).to(tl.int32)", "(x * m).to(tl.float32)",
    "tl.maximum(x * m, 0)", "tl.abs(x * m)", "tl.where(x * m, 1, 2)", "x * m / m", "tl.sum(x * m, 0) // 2",
    "tl.cumsum(x * m, 0) // m", "tl.cumsum(x * m, 0, reverse=True) // m", "tl.cdiv(x * m, m)", "x * m * 0.5",
    "(x.to(tl.float32) * 1000.0).to(tl.int64)", "x.to(tl.uint64) * 1000 // 1000", "tl.rand(1, x * m)",
)  # fmt: skip
SUFFICIENT = (
    "x * m", "x * m + 12345 & 0x7FFFFFFF", "(x * m * m ^ x) << 3", "(x * m).to(tl.int8)",
    "tl.where(x > 1, x * m, -x * m)", "x // m", "x * m - x * (m - 1) > 5", "~(x * m) | 1", "tl.sum(x * m, 0)",
)  # fmt: skip
SOURCE = """
import fnjax.triton as triton
import fnjax.triton.language as tl
"""
KERNEL = """

@triton.jit
def kernel_{i}(x_ptr, out_ptr, factor):
    lanes = tl.arange(0, 4)
    x = tl.load(x_ptr + lanes).to(tl.int64)
    m = tl.load(factor).to(tl.int64)
    tl.store(out_ptr + lanes, {expression})
"""
EXPRESSIONS = (*NEEDED, *SUFFICIENT)
X = np.array([5000000, -3000000, 7, 2147483], np.int32)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "kernels_of_64_bits.py"
    path.write_text(SOURCE + "".join(KERNEL.format(i=i, expression=text) for i, text in enumerate(EXPRESSIONS)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def of(module, expression, x=X):
    """A check's report, and what the launch stores."""
    kernel = getattr(module, f"kernel_{EXPRESSIONS.index(expression)}")
    kind = jnp.float32 if any(word in expression for word in ("float", "/ ", "0.5", "rand")) else jnp.int32
    arguments = jnp.asarray(x), jnp.zeros(4, kind), jnp.array([1000])
    return kernel.check[(1,)](*arguments), np.asarray(kernel[(1,)](*arguments))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("expression", NEEDED)
def test_a_value_that_needs_64_bits_is_a_finding(module, expression):
    """It tells the value and the line; with small values nothing is found, nor with 64 bits."""
    report, _ = of(module, expression)
    assert {finding.kind for finding in report.findings} == {"64 bits"}, report
    assert "int64, and JAX has 32 bits" in report.findings[0].message
    assert "jax_enable_x64" in report.findings[0].message
    small = np.abs(X) // 100000
    report, launched = of(module, expression, small)
    report.assert_clean()
    np.testing.assert_allclose(report.outputs, launched, rtol=1e-6)
    with jax.enable_x64(True):
        report, launched = of(module, expression)
        report.assert_clean()
        np.testing.assert_allclose(report.outputs, launched, rtol=1e-6)


@pytest.mark.parametrize("expression", SUFFICIENT)
def test_where_the_lower_half_suffices_nothing_is_found(module, expression):
    """And the launch computes what the check does, and what it computes with 64 bits."""
    report, launched = of(module, expression)
    report.assert_clean()
    np.testing.assert_array_equal(report.outputs, launched)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(of(module, expression)[1], launched)


def test_the_example_of_the_guide(module):
    """5,000,000 * 1000 // 1000: 705032 without 64 bits."""
    report, launched = of(module, "x * m // m")
    assert (int(launched[0]), int(report.outputs[0])) == (705032, 5000000)
    with jax.enable_x64(True):
        assert int(of(module, "x * m // m")[1][0]) == 5000000
