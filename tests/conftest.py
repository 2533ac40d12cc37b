"""Fixtures for all tests."""

import gc
import os

# Four devices on the host stand in for accelerators; JAX reads this when it is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
# PyTorch runs a comparison as it is written: @torch.compile needs a C++ compiler, seconds, and rounds otherwise.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import jax
import pytest

# Files whose tests hold with strict dtype promotion and without rank promotion; the others promote in their formulas.
STRICT = {"test_captured", "test_checkify", "test_dtypes", "test_residuals", "test_runs", "test_zeros"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow what `sampled(n)` leaves out: of a table's rows that are not slow already all but every n-th."""
    tables = {}
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) and not item.get_closest_marker("slow"):
            table = tables.setdefault((item.path, item.originalname), [])
            if len(table) % sampled.args[0]:
                item.add_marker("slow")
            table.append(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run the tests of STRICT without implicit promotion, except with 64 bits, where literals have other dtypes."""
    if item.path.stem not in STRICT or jax.config.jax_enable_x64:
        return (yield)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        return (yield)


@pytest.fixture
def young_heap():
    """Leave what is older than the test out of garbage collection: a test of leaks searches the heap at each trace."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def x64():
    """64-bit numbers for one test, whatever the configuration of the run."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def x32():
    """32-bit numbers for one test, whatever the configuration of the run."""
    with jax.enable_x64(False):
        yield
