"""Specialise support functions on the literal arguments of a port, or put their expression in the place of calls."""

import jax
import jax.numpy as jnp
import libcst as cst
import pytest

from fnjax.port import port_source
from fnjax.port.torch.specialised import specialise
from fnjax.port.torch.support_text import support

# A statement; what it becomes; and what the functions still take, by name.
CASES = {
    "an argument that is left out": ("z = _linear(x, y)", "z = x @ y.T", {}),
    "parentheses": ("z = -_linear(x, y) ** 2", "z = -(x @ y.T) ** 2", {}),
    "a choice that is not known": ("z = 2 * _linear(x, y, b)", "z = 2 * _linear(x, y, b)", {"_linear": 3}),
    "an argument that is read once": ("z = _matrices(x, y)", "z = y.reshape((1,) * (x.ndim - y.ndim) + y.shape)", {}),
    "an argument that is read twice": ("z = _matrices(x, y + 1)", "z = _matrices(x, y + 1)", {"_matrices": 2}),
    "a parameter that is still read": ("z = _squeeze(x, -1)", "z = _squeeze(x, -1)", {"_squeeze": 2}),
    "one that is not read any more": (
        "z = _index_write(x, y, b, axis=0, how='add') + _index_write(b, y, x, 0, how='add')",
        "z = _index_write(x, y, b) + _index_write(b, y, x)",
        {"_index_write": 3},
    ),
    "two literals": ("z = _squeeze(-x, 0) + _squeeze(-y, 1)", "z = _squeeze(-x, 0) + _squeeze(-y, 1)", {"_squeeze": 2}),
    "equal literals of two types": (
        "z = _topk(-x, 1) + _topk(-y, True)",
        "z = _topk(-x, 1) + _topk(-y, True)",
        {"_topk": 2},
    ),
    "a literal that can be changed": ("z = _split(-x, [1, 2])", "z = _split(-x, [1, 2])", {"_split": 2}),
    "an entry of a dictionary": ("z = _reduced(x, 'sum')", "z = jnp.sum(x)", {}),
    "a key that is not there": ('z = _reduced(x, "batch")', 'z = {"mean": jnp.mean, "sum": jnp.sum}["batch"](x)', {}),
    "a function that is passed on": (
        "z = f(_linear) + _linear(x, y)",
        "z = f(_linear) + _linear(x, y)",
        {"_linear": 3},
    ),
    "arguments in a tuple": ("z = _linear(*x)", "z = _linear(*x)", {"_linear": 3}),
    "a variable number of parameters": ("z = _atleast_3d(x)", "z = _atleast_3d(x)", {"_atleast_3d": 0}),
    "a function that calls itself": ("z = _index(0)", "z = _index(0)", {"_index": 1}),
    "a parameter that is assigned to": ("z = _flatten(x, 0)", "z = _flatten(x, 0)", {"_flatten": 3}),
}

NAMES = (
    "_linear",
    "_matrices",
    "_squeeze",
    "_topk",
    "_split",
    "_reduced",
    "_atleast_3d",
    "_index",
    "_flatten",
    "_index_write",
)


def run(statement):
    """The statement and the functions that it needs, after specialisation."""
    needs = {n for n in NAMES if n in statement}
    [made], texts, modules = specialise([cst.parse_statement(statement)], needs)
    return cst.Module([made]).code.strip(), texts, modules


@pytest.mark.parametrize("name", CASES)
def test_what_a_call_becomes(name):
    """A call keeps the arguments that are not folded; a single expression replaces it."""
    statement, made, functions = CASES[name]
    text, texts, _ = run(statement)
    assert text == made
    found = {n: len(cst.parse_statement(t).params.params) for n, t in texts.items() if n in text}
    assert found == functions


def test_modules_of_what_is_left():
    """Only what the functions and expressions still read is imported."""
    assert support({"_split"})[1] == {"itertools", "jnp"}
    assert run("z = _split(-x, 2)")[2] == {"jnp"}
    assert run("z = _squeeze(x, 0)")[2] == {"jnp"}


def test_cross_entropy_without_reduction():
    """Of 43 lines those stay that the call runs, and return what they returned."""
    source = """\
import torch
import torch.nn.functional as F

class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return F.cross_entropy(x, y, reduction="none")

    @staticmethod
    def backward(ctx, grad):
        return grad, None
"""
    code = port_source(source, strict=True).code
    assert not any(word in code for word in ("reduction", "weight=", "smoothing", "_mean_of_kept", "_reduced"))
    whole = {"jax": jax, "jnp": jnp}
    exec("\n".join(support({"_cross_entropy"})[0].values()), whole)
    made = {}
    exec(code, made)
    x = jnp.sin(jnp.arange(12.0)).reshape(4, 3)
    for y in (jnp.array([0, 2, -100, 1]), jax.nn.softmax(x**2)):
        expected = whole["_cross_entropy"](x, y, reduction="none")
        assert (made["Loss"].apply(x, y) == expected).all()
