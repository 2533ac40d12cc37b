"""Launches that have no meaning: each error names the kernel, the parameter and what to do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def missing_name_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    tl.store(out_ptr, tl.no_such_function(x))


@triton.jit
def loaded_bound_kernel(x_ptr, n_ptr, out_ptr):
    total = 0.0
    for i in range(tl.load(n_ptr)):
        total += tl.load(x_ptr + i)
    tl.store(out_ptr, total)


X = np.arange(8, dtype=np.float32)


def launch(grid=(2,), x=X, out=X, n=8, **named):
    return copy_kernel[grid](x, out, n, **{"BLOCK": 4, **named})


def says(call, *words):
    """An error whose text has all of these words."""
    with pytest.raises((triton.KernelError, TypeError)) as found:
        call()
    text = str(found.value)
    for word in ("copy_kernel", *words):
        assert word in text, text


def test_a_grid_has_one_to_three_sizes():
    """Four sizes, or none."""
    says(lambda: launch((1, 1, 1, 1)), "grid", "one to three")
    says(lambda: launch(()), "grid", "one to three")


def test_a_grid_has_programs():
    """A size of zero, or below."""
    says(lambda: launch((0,)), "no programs", "leave the launch out")
    says(lambda: launch((2, -1)), "no programs", "leave the launch out")


def test_a_grid_is_of_whole_numbers():
    """A float, and a number that jit traces."""
    says(lambda: launch((2.5,)), "grid", "whole numbers")
    says(lambda: jax.jit(lambda size: launch((size,)))(2), "grid", "whole numbers")


def test_parameters_are_given_once():
    """None too few, none twice, none that is not there."""
    says(lambda: copy_kernel[(2,)](X, X, BLOCK=4), "needs n")
    says(lambda: launch(x_ptr=X), "x_ptr")
    says(lambda: launch(UNKNOWN=3), "UNKNOWN")


def test_a_constexpr_is_no_traced_value():
    """The message says how to make an argument of jit static."""
    says(lambda: jax.jit(lambda block: launch(BLOCK=block))(4), "BLOCK", "constexpr", "static_argnums")


def test_a_torch_tensor_is_no_array():
    """What torch calls a tensor, wherever it comes from."""
    tensor = type("Tensor", (), {"__module__": "torch", "device": "cpu", "numpy": lambda self: X})()
    says(lambda: launch(x=tensor), "x_ptr", "torch tensor", "jnp.asarray")


def test_an_array_has_a_type_of_tritons():
    """Complex numbers have none."""
    says(lambda: launch(x=X.astype(np.complex64)), "x_ptr", "complex64")


def test_a_pointer_is_an_array():
    """A number, or nothing, where the kernel loads or stores."""
    says(lambda: launch(x=3), "array")
    says(lambda: launch(x=None), "array")


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_a_name_that_is_not_there(compiled):
    """The error names it, the kernel and the line."""
    with pytest.raises(triton.KernelError) as found:
        compiled(lambda x: missing_name_kernel[(1,)](x, x))(jnp.zeros(1))
    line = missing_name_kernel.source.node.body[1].lineno
    for word in ("no_such_function", "missing_name_kernel", f"line {line}"):
        assert word in str(found.value)


def test_a_loaded_bound_makes_up_no_more_than_a_block():
    """How often the loop turns is not known, and yet no array is larger than what the kernel was given, and a block."""
    text = str(jax.make_jaxpr(lambda x: loaded_bound_kernel[(1,)](x, jnp.array([3]), jnp.zeros(1)))(jnp.asarray(X)))
    sizes = [int(n) for dims in re.findall(r":\w+\[([\d,]+)\]", text) for n in dims.split(",")]
    assert max(sizes) <= len(X) + 1


def test_reverse_mode_through_a_loaded_bound():
    """JAX cannot; the error names the kernel and what to do, and the value is still right."""
    run = lambda x: loaded_bound_kernel[(1,)](x, jnp.array([3]), jnp.zeros(1))[0]
    assert float(run(jnp.asarray(X))) == 3
    with pytest.raises(Exception, match=r"(?i)reverse-mode"):
        jax.grad(run)(jnp.asarray(X))
