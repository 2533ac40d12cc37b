"""Launches lowered here for a TPU, or exported: no launch needs the machine that it will run on."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from tests.triton.all_cases import CASES
from tests.triton.test_goldens import assert_as_expected, launch
from tests.wrappers import on_two_devices

WAITING = ("atomics-lock", "atomics-groups", "norms-layer-backward")  # they can refuse to wait for ever


@pytest.mark.parametrize(
    "case",
    [c if i % 8 == 0 or c.name in WAITING else pytest.param(c, marks=pytest.mark.slow) for i, c in enumerate(CASES)],
    ids=lambda case: case.name,
)
def test_a_launch_is_lowered_for_a_tpu(case):
    """All launches, those with locks as well, and with nothing in them that calls Python."""
    arrays = {
        n: jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype)) for n, a in case.arrays().items()
    }
    text = jax.jit(functools.partial(launch, case)).trace(arrays).lower(lowering_platforms=("tpu",)).as_text()
    assert "callback" not in text


@pytest.mark.parametrize("name", WAITING)
def test_a_launch_that_may_wait_is_exported(name):
    """For a TPU and for this machine, where the stored program gives what Triton's interpreter gave."""
    case = next(case for case in CASES if case.name == name)
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    exported = jax.export.export(jax.jit(functools.partial(launch, case)), platforms=("cpu", "tpu"))(arrays)
    assert_as_expected(case, jax.export.deserialize(exported.serialize()).call(arrays))


@triton.jit
def endless_kernel(lock_ptr, out_ptr):
    """Each program takes the lock, and none gives it back."""
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr + tl.program_id(0), 1.0)


def wait(lock, out):
    return endless_kernel[(2,)](lock, out)[1]


def test_an_endless_wait_is_refused_under_transformations():
    """An endless wait is an error under jit, in a batch, and differentiated, where the program can call Python."""
    lock, out = jnp.zeros(1, jnp.int32), jnp.zeros(2)
    refused = functools.partial(pytest.raises, match=r"program 1 would wait for ever in endless_kernel, line \d+")
    with refused(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(wait)(lock, out))
    with refused(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(jax.vmap(wait, (0, None)))(jnp.array([[2], [0], [3]], jnp.int32), out))
    with refused(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(lambda lock, out: jax.jvp(lambda x: wait(lock, x), (out,), (out,)))(lock, out))
    np.testing.assert_array_equal(jax.jit(wait)(lock + 2, out), 1)  # it is nobody's: all pass


def test_an_exported_program_that_would_wait_gives_nan():
    """It cannot call Python to refuse: floats are NaN, integers the largest of their type."""
    lock, out = jnp.zeros(1, jnp.int32), jnp.zeros(2)
    exported = jax.export.export(jax.jit(endless_kernel[(2,)]))(lock, out)
    for found, wanted in zip(exported.call(lock, out), (np.iinfo(np.int32).max, np.nan), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(exported.call(lock + 2, out), (2, 1), strict=True):
        np.testing.assert_array_equal(found, wanted)


@triton.jit
def ticket_kernel(count_ptr, x_ptr, out_ptr, lock_ptr):
    """Programs draw tickets, and take a lock for what they add up."""
    ticket = tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + ticket, tl.load(x_ptr + tl.program_id(0)))
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(count_ptr + 1, tl.load(count_ptr + 1) * 2 + ticket)
    tl.atomic_xchg(lock_ptr, 0)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices (forced host devices in tests/conftest.py)")
def test_programs_in_sequence_inside_of_shard_map():
    """With checks on: what programs hand on varies over the devices where memory does, what begins as zeros too."""
    x = jnp.arange(4.0)

    def launch(x):
        zeros = jnp.zeros(2, jnp.int32)
        counts, out, _ = ticket_kernel[(4,)](zeros, x, jnp.zeros(4), zeros[:1])
        return out + counts[1]

    found = jax.jit(on_two_devices(launch))(x)
    np.testing.assert_array_equal(found, np.arange(4) + 11)  # ((0 · 2 + 1) · 2 + 2) · 2 + 3
