"""Programs with Functions, as people print them and other libraries read them."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from jax.extend.core import jaxprs_in_params

from fnjax._primitives.jaxprs import iter_equations
from fnjax.errors import MissingMethodError
from tests.zoo import CASES, SavedInput, arrays


def walk(jaxpr, found):
    """Count operations as programs of users do: by the parameters in which JAX's own calls and loops have theirs."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found[eqn.primitive.name] += 1
        for name in ("jaxpr", "call_jaxpr"):
            if name in eqn.params:
                walk(eqn.params[name], found)
    return found


def walk_all(jaxpr, found):
    """Count operations in whatever jaxpr is among the parameters."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found[eqn.primitive.name] += 1
        for inner in jaxprs_in_params(eqn.params):
            walk_all(inner, found)
    return found


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["plain", "jit", "vmap"])
@pytest.mark.parametrize("walk", [walk, walk_all])
def test_readers_of_programs_see_the_operations_of_forward(walk, wrap):
    """A counter of operations that follows JAX's conventions counts those of forward once."""
    case = next(c for c in CASES if c.name == "saved_input")
    f, (x,) = wrap(case.apply), arrays(case)
    counted, expected = (walk(jax.make_jaxpr(g)(x), Counter()) for g in (f, wrap(case.twin)))
    assert expected <= counted, counted
    assert counted - expected <= Counter({"fnjax_call": 1})
    both = lambda x: (jax.jvp(f, (x,), (x,)), jax.vjp(f, x)[1](f(x)))
    assert walk(jax.make_jaxpr(both)(x), Counter())["fnjax_linear"] == 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_programs_print_without_addresses(case):
    """The text of a program names the classes, and is the same whenever the program is made."""
    args = arrays(case)
    batch = [jnp.stack([x, x]) for x in args]
    ones = lambda y: jax.tree.map(jnp.ones_like, y)

    def both(f):
        def run(*args):
            outputs, pullback = jax.vjp(f, *args)
            return pullback(ones(outputs))

        return run

    programs = [(case.apply, args), (both(case.apply), args)]
    if case.name != "numpy_forward":
        programs += [(jax.vmap(case.apply), batch), (jax.jit(both(jax.vmap(case.apply))), batch)]
    for f, given in programs:
        equations = [e for e in iter_equations(jax.make_jaxpr(f)(*given)) if e.primitive.name.startswith("fnjax")]
        text = "".join(str(sorted(e.params.items())) for e in equations)
        assert "0x" not in text, text


def test_programs_name_the_class():
    """A call prints as its class, a batched one as what was made of it."""
    x = jnp.ones(2)
    assert "rule=SavedInput\n" in str(jax.make_jaxpr(SavedInput.apply)(x))
    assert "rule=Batched(SavedInput)\n" in str(jax.make_jaxpr(jax.vmap(SavedInput.apply))(x))


def test_jet_is_refused_by_name():
    """Taylor mode ignores rules: it names the class and the remedy."""
    with pytest.raises(MissingMethodError, match="has no rule for Functions") as caught:
        jet(SavedInput.apply, (jnp.ones(2),), ((jnp.ones(2),),))
    assert "nest jax.jvp" in str(caught.value)
    constant = lambda x: x * SavedInput.apply(jnp.ones(2))
    np.testing.assert_allclose(jet(constant, (jnp.ones(2),), ((jnp.ones(2),),))[1][0], constant(jnp.ones(2)))
