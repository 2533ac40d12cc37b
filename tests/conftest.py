"""Fixtures for all tests."""

import os

# Four devices on the host stand in for accelerators; JAX reads this when it is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
# PyTorch runs a comparison as it is written: @torch.compile needs a C++ compiler, seconds, and rounds otherwise.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit numbers for one test, whatever the configuration of the run."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
