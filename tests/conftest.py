"""Fixtures for all tests."""

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit numbers for one test, whatever the configuration of the run."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
