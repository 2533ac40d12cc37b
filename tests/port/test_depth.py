"""Files that are nested too deeply: one clear line, whatever the depth."""

import pytest

from fnjax.port import port_source
from fnjax.port.tree.depth import is_too_deep

FILE = """\
import torch


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {}

    @staticmethod
    def backward(ctx, g):
        return g
"""
DEEP = {
    "parentheses": lambda n: "(" * n + "x" + ")" * n,
    "open": lambda n: "(" * n,
    "lists": lambda n: "[" * n + "]" * n,
    "calls": lambda n: "f(" * n + "x" + ")" * n,
    "minus": lambda n: "-" * n + "x",
    "not": lambda n: "not " * n + "x",
    "sum": lambda n: "x" + " + x" * n,
    "power": lambda n: "x" + " ** x" * n,
    "methods": lambda n: "x" + ".exp()" * n,
    "lambdas": lambda n: "lambda: " * n + "x",
    "either": lambda n: "x if x else " * n + "x",
    "and": lambda n: "x" + " and x" * n,
    "less": lambda n: "x" + " < x" * n,
    "strings": lambda n: "len(" + "'a' " * n + ")",
    "formatted": lambda n: "len(" + "f'{x}' " * n + ")",
}


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1100, 20_000])
@pytest.mark.parametrize("name", DEEP)
def test_what_is_too_deep_is_said_in_one_line(name, depth):
    """The parser is not asked for what ends the process."""
    ported = port_source(FILE.format(DEEP[name](depth)), "deep.py")
    assert ported.problem == "deep.py is nested too deeply for the porter"
    assert not ported.readable


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DEEP if name != "open"])
def test_what_python_reads_is_read(name):
    """A few of each are no problem, nor are many that do not stand in each other."""
    assert not is_too_deep(FILE.format(DEEP[name](60)))
    assert not port_source(FILE.format(DEEP[name](10))).problem
    assert not is_too_deep("\n".join(["y = 'a', f'{x}', (1 and 2) < 3"] * 2000))
