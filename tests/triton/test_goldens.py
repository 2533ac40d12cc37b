"""fnjax.triton beside what Triton's interpreter gave, and beside plain references where it has no say."""

import ast
import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from tests.triton.all_cases import CASES
from tests.triton.case import Same

HERE = Path(__file__).parent
FIRST = {(case.file, case.kernel): case for case in reversed(CASES)}


@functools.cache
def goldens(file):
    """Inputs' checksums and outputs of all launches of a file, as make_goldens.py wrote them."""
    with np.load(HERE / "goldens" / f"{file}.npz") as stored:
        return dict(stored)


def expected(case):
    """Return the results of a launch by parameter."""
    if case.reference is not None:
        return case.reference
    stored = goldens(case.file)
    assert stored[f"{case.name}/inputs"] == case.checksum(), "other inputs than the goldens' (run make_goldens)"
    return {name: stored[f"{case.name}/{name}"] for name in case.outs}


def kernel_of(case):
    return getattr(importlib.import_module(f"tests.triton.kernels.{case.file}"), case.kernel)


def launch(case, arrays):
    """The stored arrays of a launch, by parameter."""
    positional, named = case.call(arrays, tl)
    stored = kernel_of(case)[case.grid](*positional, **named)
    stored = stored if isinstance(stored, tuple) else (stored,)
    return dict(zip(kernel_of(case).stores, stored, strict=True))


@functools.cache
def fuses_half_floats():
    """Return whether x * y + z of float16 rounds once here, as on processors that compute float16 themselves."""
    x = jnp.float16(30.02)
    return bool(jax.jit(lambda x, z: x * x - z)(x, x * x))


def assert_as_expected(case, found, compiled=True):
    """Compare what a launch gives, compiled as one program or operation by operation, with what it has to give."""
    wanted = case.fused if case.fused and compiled and fuses_half_floats() else expected(case)
    for name, golden in wanted.items():
        assert found[name].shape == golden.shape, name
        assert found[name].dtype == jax.dtypes.canonicalize_dtype(golden.dtype), name
        got, largest = np.asarray(found[name]), 0.0
        if golden.dtype.kind == "f":
            largest = np.abs(golden, where=np.isfinite(golden), out=np.zeros_like(golden)).max()
        np.testing.assert_allclose(got, golden, rtol=0, atol=case.tolerance * largest, err_msg=name)


@pytest.mark.parametrize(
    "case",
    [c if i % 12 == 0 else pytest.param(c, marks=pytest.mark.slow) for i, c in enumerate(CASES)],
    ids=lambda case: case.name,
)
def test_a_launch_gives_what_tritons_interpreter_gives(case):
    """Under jit: whole numbers, comparisons, casts and Philox bit for bit, other floats within rounding."""
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    assert_as_expected(case, jax.jit(functools.partial(launch, case))(arrays))


@pytest.mark.slow  # operation by operation each is compiled
@pytest.mark.parametrize("case", list(FIRST.values())[::8], ids=lambda case: case.name)
def test_a_launch_outside_of_jit(case):
    """The same with arrays that have values: one launch of every eighth kernel."""
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    assert_as_expected(case, launch(case, arrays))


def test_numbers_may_be_traced():
    """A bound and a factor that jit traces, or that come from an array."""
    case = next(case for case in CASES if case.name == "pointwise-scale")
    kernel = kernel_of(case)

    @jax.jit
    def scale(x, out, n, factor):
        return kernel[(8,)](x, out, n, factor, BLOCK=128)

    x, out = map(jnp.asarray, case.arrays().values())
    for n, factor in ((1000, 2.0), (700, -0.5)):
        wanted = np.where(np.arange(1000) < n, factor * np.asarray(x), -7)
        np.testing.assert_array_equal(scale(x, out, n, factor), wanted)
        np.testing.assert_array_equal(scale(x, out, jnp.int32(n), jnp.float32(factor)), wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_source_tells_what_is_stored_to(case):
    """`kernel.stores` names the parameters that stores and atomics of any branch and helper may write."""
    given = case.arguments
    stored = [n for n in kernel_of(case).stores if given[n] is not None and not isinstance(given[n], Same)]
    assert stored == case.outs


def names_in(tree):
    """Return the names of the language that a file uses, as names.txt spells them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith("tl."):
                found |= {text[3:]}
            elif text.endswith(".dtype.element_ty"):
                found.add(".dtype.element_ty")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.startswith("tl."):
                found |= {f"{called}({keyword.arg}=)" for keyword in node.keywords}
            elif called.startswith("triton."):
                found |= {f"@{called[7:]}({keyword.arg})" for keyword in node.keywords}
                found.add(f"@{called[7:]}")
        elif isinstance(node, ast.If | ast.For | ast.While):
            found.add(type(node).__name__.lower())
    return found


def test_every_name_that_real_kernels_use_is_in_one_of_these():
    """Names that ten of the 1,522 counted kernels or more use, save inline assembly."""
    used = set().union(*(names_in(ast.parse(path.read_text())) for path in (HERE / "kernels").glob("*.py")))
    assert set((HERE / "names.txt").read_text().split()) <= used


def test_every_kernel_is_launched():
    """A kernel without a case would prove nothing."""
    from tests.triton.test_narrow import KERNELS as narrow

    launched = {(case.file, case.kernel) for case in CASES} | {("narrow", name) for name in narrow}
    for path in (HERE / "kernels").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                assert (path.stem, node.name) in launched
