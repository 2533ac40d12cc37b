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
def misspelt_name_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tl.whree(True, tl.load(x_ptr), 0.0))


@triton.jit
def loaded_bound_kernel(x_ptr, n_ptr, out_ptr):
    total = 0.0
    for i in range(tl.load(n_ptr)):
        total += tl.load(x_ptr + i)
    tl.store(out_ptr, total)


@triton.jit
def tiles_kernel(x_ptr, out_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr):
    """Blocks of x's columns from behind, where it is asked for with masks for rows and columns."""
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = N - 1 - tl.arange(0, N)[None, :]
    mask = (i < rows) & (j < columns)
    x = tl.load(x_ptr + i * columns + j, mask=mask) if MASKED else tl.load(x_ptr + i * columns + j)
    tl.store(out_ptr + i * columns + j, x, mask=mask)


@triton.jit
def count_kernel(out_ptr, n, BLOCK: tl.constexpr):
    if tl.program_id(0) < n:
        tl.atomic_add(out_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1)


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


def test_a_grid_has_no_negative_size():
    """A size below zero."""
    says(lambda: launch((2, -1)), "grid", "negative size")


def test_a_grid_is_of_whole_numbers():
    """A float, and a number that jit traces."""
    says(lambda: launch((2.5,)), "grid", "Python integers")
    says(lambda: jax.jit(lambda size: launch((size,)))(2), "grid", "Python integers")


def test_parameters_are_given_once():
    """None too few, none twice, none that is not there."""
    says(lambda: copy_kernel[(2,)](X, X, BLOCK=4), "needs n")
    says(lambda: launch(x_ptr=X), "x_ptr")
    says(lambda: launch(UNKNOWN=3), "UNKNOWN")


def test_a_constexpr_is_no_traced_value():
    """The message says how to make an argument of jit static."""
    says(lambda: jax.jit(lambda block: launch(BLOCK=block))(4), "BLOCK", "constexpr", "static_argnums")


def test_a_torch_tensor_is_no_array():
    """A class called Tensor of a module torch is refused as a torch tensor, with or without PyTorch."""
    tensor = type("Tensor", (), {"__module__": "torch", "device": "cpu", "numpy": lambda self: X})()
    says(lambda: launch(x=tensor), "x_ptr", "torch tensor", "jnp.asarray")


def test_an_array_has_a_type_of_tritons():
    """Complex numbers have none."""
    says(lambda: launch(x=X.astype(np.complex64)), "x_ptr", "complex64", ".astype")


@pytest.mark.parametrize("given", [3, None, [1.0, 2.0], jax.ShapeDtypeStruct((8,), np.float32)], ids=str)
def test_a_pointer_is_an_array(given):
    """A number, nothing, or what else there is, where the kernel loads or stores."""
    says(lambda: launch(x=given), "x_ptr is", "pass an array")


@pytest.mark.parametrize("given", [X, None, "8"], ids=["array", "None", "str"])
def test_a_number_is_a_number(given):
    """An array with axes, nothing or a text, where the kernel counts."""
    says(lambda: launch(n=given), "n is", "pass a")


@pytest.mark.parametrize("given", [4.0, 3, "4", np.arange(2)], ids=str)
def test_a_constexpr_fits(given):
    """A value that cannot be the size of a block is an error that names the parameter."""
    says(lambda: launch(BLOCK=given), "BLOCK is")


def test_a_function_that_gives_the_grid_fails():
    """A parameter that is not there, and no argument for the parameters."""
    says(lambda: launch(lambda meta: (meta["BLOK"],)), "grid", "KeyError", "BLOCK")
    says(lambda: launch(lambda: (2,)), "grid", "x_ptr, out_ptr, n, BLOCK")


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_an_array_is_large_enough(compiled):
    """A write that is certainly out of bounds is an error, a read a warning: name, address, size and line."""
    line = copy_kernel.source.node.body[1].lineno
    with pytest.warns(RuntimeWarning, match=rf"line {line} of .* reads x_ptr\[7\], which has 5 elements .*is NaN"):
        found = compiled(lambda x: launch(x=x))(X[:5])
    np.testing.assert_array_equal(found, [*range(5), np.nan, np.nan, np.nan])
    says(lambda: compiled(lambda x: launch(out=x))(X[:7]), "writes out_ptr[7]", "7 elements", "larger array")
    says(lambda: compiled(lambda x: launch(x=X, out=x))(X[:0]), "writes out_ptr[7]", "0 elements")
    with pytest.warns(RuntimeWarning, match=r"reads x_ptr\[7\], which has 1 element "):
        found = jax.jit(lambda x: launch(x=x, out=X))(jnp.float32(3))
    np.testing.assert_array_equal(found, [3, *[np.nan] * 7])
    np.testing.assert_array_equal(compiled(lambda x: launch(x=x, n=5))(X[:5]), [*range(5), 5, 6, 7])


def tiles(size, masked, rows=3, columns=7):
    x = np.arange(size, dtype=np.float32)
    out = tiles_kernel[(2,)](x, jnp.zeros((rows, columns)), rows, columns, M=2, N=8, MASKED=masked)
    np.testing.assert_array_equal(out, np.arange(rows * columns).reshape(rows, columns))


def test_masks_of_rows_and_columns_are_understood():
    """Masked-out elements cause no warning; one element too few does, and is NaN."""
    tiles(21, True)
    with (
        pytest.warns(RuntimeWarning, match=r"reads x_ptr\[20\], which has 20 .*the mask lets it through"),
        pytest.raises(AssertionError, match=r"19., nan"),
    ):
        tiles(20, True)


def test_a_load_without_a_mask_may_hang_over():
    """People's kernels read a bit too much and do not use it: a warning; a block of nothing is NaN."""
    with pytest.warns(RuntimeWarning, match=r"tiles_kernel, line \d+ of .*reads x_ptr\[28\], which has 21 elements"):
        tiles(21, False)
    with (
        pytest.warns(RuntimeWarning, match=r"\(it has no mask\): what it finds there is NaN"),
        pytest.raises(AssertionError, match=r"(.|\n)*nan"),
    ):
        tiles(14, False, rows=4)


def test_a_condition_holds_programs_back():
    """An atomic in an `if`: three programs of four are in the array."""
    np.testing.assert_array_equal(count_kernel[(4,)](jnp.zeros(6, jnp.int32), 3, BLOCK=2), np.ones(6))
    with pytest.raises(triton.KernelError, match=r"count_kernel.*updates out_ptr\[7\], which has 6 elements"):
        count_kernel[(4,)](jnp.zeros(6, jnp.int32), 4, BLOCK=2)


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_a_name_that_is_not_there(compiled):
    """The error names it, the kernel and the line."""
    with pytest.raises(triton.KernelError) as found:
        compiled(lambda x: missing_name_kernel[(1,)](x, x))(jnp.zeros(1))
    line = missing_name_kernel.source.node.body[1].lineno
    for word in ("no_such_function", "missing_name_kernel", f"line {line}"):
        assert word in str(found.value)
    with pytest.raises(triton.KernelError, match=r"\(tl\.whree\): did you mean tl\.where\?"):
        compiled(lambda x: misspelt_name_kernel[(1,)](x, x))(jnp.zeros(1))


def test_a_loaded_bound_makes_up_no_more_than_a_block():
    """With an unknown number of iterations no array is larger than what the kernel was given, and a block."""
    text = str(jax.make_jaxpr(lambda x: loaded_bound_kernel[(1,)](x, jnp.array([3]), jnp.zeros(1)))(jnp.asarray(X)))
    sizes = [int(n) for dims in re.findall(r":\w+\[([\d,]+)\]", text) for n in dims.split(",")]
    assert max(sizes) <= len(X) + 1


@triton.jit
def halving_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    while x > 1.0:
        x = x / 2
    tl.store(out_ptr, x)


def sum_of(x, n):
    return loaded_bound_kernel[(1,)](x, n, jnp.zeros(1))[0]


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_reverse_mode_through_a_loaded_bound(compiled):
    """JAX cannot; the error names kernel, line and remedies. The value is right, and so are forward mode and vmap."""
    x, n = jnp.asarray(X), jnp.array([3])
    f = compiled(lambda x: sum_of(x, n))
    assert float(f(x)) == 3
    np.testing.assert_array_equal(jax.jacfwd(f)(x), [1, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(jax.vmap(f)(jnp.stack([x, 2 * x])), [3, 6])
    line = loaded_bound_kernel.source.node.body[1].lineno
    for words in ("Reverse-mode", f"kernel loaded_bound_kernel, line {line} of", "backward", "static_argnums"):
        with pytest.raises(triton.KernelError, match=words):
            jax.grad(f)(x)


def test_reverse_mode_through_a_while():
    """The same, of a loop that a value ends; what the launch is not differentiated in does not matter."""
    f = lambda x: halving_kernel[(1,)](x, jnp.zeros(1))[0]
    assert float(f(jnp.array([6.0]))) == 0.75
    assert float(jax.jvp(f, (jnp.array([6.0]),), (jnp.array([1.0]),))[1]) == 0.125
    line = halving_kernel.source.node.body[1].lineno
    with pytest.raises(triton.KernelError, match=rf"halving_kernel, line {line} of .*this `while`"):
        jax.grad(f)(jnp.array([6.0]))
    other = lambda y: y * jax.lax.stop_gradient(f(jnp.array([6.0])))
    assert float(jax.grad(other)(2.0)) == 0.75


@triton.jit
def packed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    if HOW == "shift":
        key = tl.sort((key << 32) | at, descending=True) & 0xFFFFFFFF
    elif HOW == "mask":
        key = key & 0xFFFFFFFF
    else:
        key = at.to(tl.int64) * 2**40
        key = tl.where(bits > 0, key, key + 1) // 2**40
    tl.store(out_ptr + at, key.to(tl.int32), mask=at < n)


def test_what_takes_64_bits(x32):
    """int64 is int32 in JAX unless 64 bits are switched on: where another number would come, that is an error."""
    x, out = jnp.asarray([0.5, -2.0, 3.0, -0.25]), jnp.zeros(4, jnp.int32)

    def packed(how):
        return packed_kernel[(1,)](x, out, 4, BLOCK=4, HOW=how)

    wrong = {"shift": "a shift of int64 by 32", "mask": "4294967295 of int64", "multiple": "the number 3298534883328"}
    for how, words in wrong.items():
        with jax.enable_x64(False), pytest.raises(triton.KernelError) as found:
            packed(how)
        for word in ("kernel packed_kernel, line", words, "takes 64 bits", "jax_enable_x64"):
            assert word in str(found.value)
    with jax.enable_x64(True):
        assert packed("shift").tolist() == jax.jit(packed, static_argnums=0)("shift").tolist() == [2, 0, 3, 1]
        assert packed("multiple").tolist() == [0, 1, 2, 3]


def test_a_lambda_is_no_kernel():
    """A kernel's text begins with `def`."""
    kernel = triton.jit(lambda x: x)
    with pytest.raises(TypeError, match="written with `def`"):
        kernel[(1,)](X)


@triton.jit
def addresses_kernel(addresses_ptr, out_ptr):
    x_ptr = tl.load(addresses_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(x_ptr))


def test_addresses_in_memory():
    """A number that was loaded is no pointer."""
    with pytest.raises(
        triton.KernelError, match=r"addresses_kernel, line \d+ .*is to become a pointer.* offsets into it"
    ):
        addresses_kernel[(1,)](jnp.zeros(2, jnp.int32), jnp.zeros(1))


@triton.jit
def changing_kernel(x_ptr, out_ptr, n, KIND: tl.constexpr, WHILE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = 0 if KIND == "int" else 0.0 if KIND == "shape" else tl.zeros((BLOCK,), tl.float16)
    i = 0
    if WHILE:
        while i < n:
            total += tl.load(x_ptr + at)
            i += 1
    else:
        for _ in range(n):
            total += tl.load(x_ptr + at)
    for _ in tl.static_range(2):
        i = i + tl.load(x_ptr)
    tl.store(out_ptr + at, total)


@pytest.mark.parametrize("of", [lambda k: k, lambda k: k.check], ids=["launch", "check"])
def test_a_loop_keeps_the_types_of_what_it_carries(of):
    """Another dtype or shape after the loop is refused, in every kind of loop but an unrolled one, as by Triton."""
    words = r"Loop-carried variable total has initial type tensor<.*> but is re-assigned to tensor<4xfloat32> in loop!"
    for n, kind, is_while in ((2, "int", False), (9, "shape", False), (9, "float16", False), (3, "float16", True)):
        with pytest.raises(triton.KernelError, match=words):
            of(changing_kernel)[(1,)](X, X, n, KIND=kind, WHILE=is_while, BLOCK=4)
    kept = of(changing_kernel)[(1,)](X.astype(np.float16), X, 9, KIND="float16", WHILE=True, BLOCK=4)
    np.testing.assert_array_equal(getattr(kept, "outputs", kept)[:4], X[:4] * 9)
