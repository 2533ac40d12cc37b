"""What the benchmarks measure, guarded by counts and lowered text: memory, equations, shared functions."""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks.memory import ACTIVATION, SAVED, mebibytes, scanned, unrolled
from benchmarks.models import MODELS, Swish, by_hand, swish_backward, swish_forward, with_custom_vjp, with_fnjax
from benchmarks.running import costs

HAND = by_hand(swish_forward, swish_backward)


def test_memory_is_what_was_saved():
    """The peak of 32 swish layers is what save_for_backward was given, to 5 %; in scan two activations come to it."""
    assert mebibytes(unrolled(Swish.apply)) <= 1.05 * SAVED
    assert mebibytes(scanned(Swish.apply)) <= 1.05 * (SAVED + 2 * ACTIVATION)
    assert mebibytes(unrolled(by_hand(swish_forward, swish_backward, barrier=False))) > 1.5 * SAVED  # it can fail


@pytest.mark.parametrize("name", MODELS)
def test_step_program_is_that_of_custom_vjp(name):
    """A training step of each model has the operations, flops and bytes of hand-written custom_vjp, or costs less."""
    parameters, data = MODELS[name].numbers()
    forms = with_fnjax(), with_custom_vjp()
    compiled = [jax.jit(MODELS[name].step(form)).lower(parameters, *data).compile() for form in forms]
    (ours, *our_costs), (theirs, *their_costs) = map(costs, compiled)
    assert our_costs[0] > 0
    if name == "critic":  # its backward is differentiated again, and the two linearize it by other paths
        assert all(a <= b for a, b in zip(our_costs, their_costs, strict=True))
    else:
        assert (ours, our_costs) == (theirs, their_costs)


def lines(f, calls):
    """How many lines and functions the lowered text of a chain's gradient has."""

    def chain(x):
        for _ in range(calls):
            x = f(x)
        return x.sum()

    text = jax.jit(jax.grad(chain)).lower(jnp.ones(8)).as_text()
    return text.count("\n"), len(re.findall(r"func\.func", text))


def test_a_chain_shares_its_functions():
    """However long a chain, it lowers to the same functions, and each call to two lines: forward and backward."""
    lines(Swish.apply, 2)  # the first call of its kind stands by itself
    (ten, functions), (hundred, functions_of_hundred) = lines(Swish.apply, 10), lines(Swish.apply, 100)
    assert functions == functions_of_hundred
    assert hundred - ten == 2 * 90
    assert hundred < lines(HAND, 100)[0] / 5


def equations(f, calls):
    def chain(x):
        for _ in range(calls):
            x = f(x)
        return x.sum()

    return len(jax.make_jaxpr(jax.grad(chain))(jnp.ones(8)).eqns)


def test_a_chain_grows_by_few_equations():
    """Each call adds two equations to the traced gradient: forward and backward."""
    equations(Swish.apply, 2)  # the first call of all is traced straight through, into some more
    assert equations(Swish.apply, 60) - equations(Swish.apply, 50) == 2 * 10
