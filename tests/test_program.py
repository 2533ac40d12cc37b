"""Nothing to pay at run time: the optimised program has the operations of hand-written jax.custom_vjp."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.by_hand import PAIRS, arguments, loss
from tests.zoo import CASES


def operations(f, *args):
    """Return the number of occurrences of each operation in the compiled program of `f`."""
    text = jax.jit(f).lower(*args).compile().as_text()
    return collections.Counter(re.findall(r" = \S+ ([a-z][a-z0-9-]*)\(", text))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("depth", [1, 3])
def test_gradient_program_is_that_of_custom_vjp(name, depth):
    """jit(value_and_grad) of a Function compiles to the operations of custom_vjp, one call or several."""
    apply, by_hand, _ = PAIRS[name]
    args = arguments(name)
    every = tuple(range(len(args)))
    got = operations(jax.value_and_grad(loss(apply, depth), every), *args)
    want = operations(jax.value_and_grad(loss(by_hand, depth), every), *args)
    assert got == want
    assert sum(got.values()) > 3  # the pattern found operations at all


@pytest.mark.parametrize("name", ["saved_input", "saved_output", "saved_intermediate"])
@pytest.mark.parametrize("depth", [2, 5])
def test_chain_of_one_function_is_that_of_custom_vjp(name, depth):
    """F(F(x)) and longer chains, with nothing between the calls, compile to the operations of custom_vjp."""
    apply, by_hand, _ = PAIRS[name]

    def chained(f):
        return jax.value_and_grad(lambda x: functools.reduce(lambda x, _: f(x), range(depth), x).sum())

    args = arguments(name)
    assert operations(chained(apply), *args) == operations(chained(by_hand), *args)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PAIRS)
def test_batched_program_is_that_of_custom_vjp(name):
    """The same under vmap."""
    apply, by_hand, _ = PAIRS[name]
    args = arguments(name, batch=(6,))
    every = tuple(range(len(args)))
    grad = lambda f: jax.grad(lambda *args: jax.vmap(loss(f))(*args).sum(), every)
    assert operations(grad(apply), *args) == operations(grad(by_hand), *args)


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "numpy_forward"], ids=lambda c: c.name)
def test_forward_program_is_that_of_the_body(case):
    """Without differentiation the compiled program is that of the plain formula."""
    args = [jnp.asarray(x) for x in case.inputs(np.random.default_rng(0))]
    assert operations(case.apply, *args) == operations(case.twin, *args)
