"""Analysis of programs: marks go through calls, loops and branches."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fnjax._primitives.jaxprs import propagate
from tests.zoo import SavedInput


def dependence(f, *args):
    """Return for each result of a function the names of the arguments on which it depends."""

    def mark(eqn, given, inside):
        found = inside(given)
        return [frozenset().union(*given)] * len(eqn.outvars) if found is None else found

    names = [frozenset(name) for name in "abcd"[: len(args)]]
    marks = propagate(jax.make_jaxpr(f)(*args), names, mark, lambda _: frozenset())
    return ["".join(sorted(m)) for m in marks]


TABLE = np.arange(3.0)
REMAT3 = ["ab", "ab"] if os.environ.get("JAX_REMAT3") == "1" else None  # with it, jax.checkpoint has no program inside
PROGRAMS = {
    "operations": (lambda a, b, c, d: (a + b, c * 2, 1.0), ["ab", "c", ""]),
    "constant": (lambda a, b, c, d: (jnp.asarray(TABLE) * a, jnp.asarray(TABLE) * 2), ["a", ""]),
    "jit": (lambda a, b, c, d: jax.jit(lambda x, y: (x, y * c))(a, b), ["a", "bc"]),
    "function": (lambda a, b, c, d: (SavedInput.apply(a), b), ["a", "b"]),
    "remat": (lambda a, b, c, d: jax.checkpoint(lambda x, y: (jnp.sin(x), y))(a, b), REMAT3 or ["a", "b"]),
    "custom_jvp": (lambda a, b, c, d: (jax.nn.relu(a), b), ["a", "b"]),
    "cond": (lambda a, b, c, d: lax.cond(d > 0, lambda: (a, b), lambda: (c, 2 * b)), ["acd", "bd"]),
    # What the third carries reaches the first after two more iterations.
    "scan": (
        lambda a, b, c, d: lax.scan(lambda s, x: ((s[1], s[2], s[2]), (x, s[0])), (a, b, c), jnp.stack([d, d])),
        ["abc", "bc", "c", "d", "abc"],
    ),
    "while_loop": (
        lambda a, b, c, d: lax.while_loop(lambda s: s[0] < d, lambda s: (s[0] + 1, s[2], s[2] * b), (a, b, c)),
        ["ad", "abcd", "abcd"],
    ),
    "nested": (
        lambda a, b, c, d: lax.scan(
            lambda s, _: (jax.jit(lambda x: lax.cond(x > 0, lambda: x * b, lambda: a))(s), c), d, None, 2
        ),
        ["abd", "c"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_dependence(name):
    """A result depends on what it is computed from, on the index of a branch, and on the condition of a loop."""
    f, expected = PROGRAMS[name]
    assert dependence(f, 1.0, 2.0, 3.0, 4.0) == expected


def test_a_function_is_named_in_the_program():
    """Profilers and dumps of XLA show a Function's operations, forward and backward, under its name."""
    gradient = jax.jit(jax.value_and_grad(lambda x: SavedInput.apply(x).sum()))
    text = gradient.lower(jnp.ones(3)).as_text(debug_info=True)
    assert "/jvp(SavedInput)/" in text
    assert "/transpose(jvp(SavedInput))/" in text
