"""The number of evaluations of a statement, and their end at a fixpoint."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.port import port_source
from fnjax.port.analysis import evaluator
from fnjax.port.engine import fixpoint
from tests.port.test_classes import module

FILE = """\
import torch


{helpers}class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
{body}
        return {result}

    @staticmethod
    def backward(ctx, g):
        return g
"""


def of(rows, result="y", helpers=""):
    """A file whose forward consists of these lines."""
    return FILE.format(body="\n".join(f"        {row}" for row in rows), result=result, helpers=helpers)


def inside(heads, last):
    """A line inside of others."""
    return [f"{'    ' * i}{text}" for i, text in enumerate([*heads, last])]


def elifs(arms):
    """`if`, `elif`s and `else` on a tensor's value."""
    chain = [f"{'el' if i else ''}if s > {arms - i}:\n            y = x * {i + 1}" for i in range(arms)]
    return ["s = x.sum()", *chain, "else:", "    y = -x"]


NESTED = {
    "elif": elifs(12),
    "if": ["s, y = x.sum(), x", *inside([f"if s > {i}:" for i in range(8)], "y = y.exp()")],
    "two": ["s, y = x.sum(), x", *inside([f"if s > {i}:" for i in range(6)], "y = x + 1; t = y.exp(); y = t * y")],
    "return": ["s = x.sum()", *(f"if s > {10 - i}:\n            return x * {i}" for i in range(10)), "y = -x"],
    "for": ["y = x", *inside([f"for i{i} in range({i + 2}):" for i in range(6)], "y = y.exp()")],
    "mixed": [
        "y = x",
        *inside([f"for i{i} in range(2):" if i % 2 else f"if y.sum() > {i}:" for i in range(6)], "y = y.exp()"),
    ],
    "python": ["y = x", *inside([f"if x.dim() > {i}:" for i in range(8)], "y = y.exp()")],
}


@pytest.mark.parametrize("name", NESTED)
def test_nesting_does_not_multiply_the_evaluations(name, monkeypatch):
    """A statement is evaluated at most four times, however deep it stands."""
    cls, evaluations = evaluated(of(NESTED[name]), monkeypatch)
    assert {f.code for f in cls.findings} <= {"untraced"}, cls.findings
    assert evaluations
    assert max(evaluations) <= 4


def evaluated(text, monkeypatch):
    """The class of a file, ported, and how often each of its lines was evaluated."""
    counts = collections.Counter()
    simple = evaluator.Evaluator.port_line

    def counted(self, node, **options):
        counts[node] += 1  # which nodes that the porter makes share their places
        return simple(self, node, **options)

    monkeypatch.setattr(evaluator.Evaluator, "port_line", counted)
    (cls,) = port_source(text).classes
    monkeypatch.setattr(evaluator.Evaluator, "port_line", simple)
    return cls, [*counts.values()]


@pytest.mark.parametrize("variables", [5, 6, 9])
def test_a_loop_that_hands_values_on(variables, tmp_path):
    """The fixpoint of a loop takes as many iterations as its longest chain of assignments."""
    v = [f"v{i}" for i in range(variables)]
    handed = [f"    {b} = {a}" for a, b in reversed(list(itertools.pairwise(v)))]
    rows = [
        f"{' = '.join(v)} = 0.0",
        "for i in range(12):",
        f"    x = torch.where(torch.as_tensor({v[-1]}) > 1, x * 2, x)",
        *handed,
    ]
    ported = port_source(of([*rows, "    v0 = x.sum()"], "x"))
    assert [c.status for c in ported.classes] == ["ported"]
    start = np.array([0.5, 1.0], np.float32)
    expected, held = start.copy(), [0.0] * variables
    for _ in range(12):
        if held[-1] > 1:
            expected = expected * 2
        held = [expected.sum(), *held[:-1]]
    found = jax.jit(module(tmp_path, f"handed_{variables}", ported.code).C.apply)(jnp.array(start))
    np.testing.assert_array_equal(found, expected)


def test_what_a_long_chain_of_helpers_gives():
    """The result of the innermost function is known to be a tensor in the outermost."""
    helpers = [f"def f{i}(x):\n    return f{i + 1}(x)\n\n\n" for i in range(9)]
    text = of(["if f0(x) > 1:", "    x = x * 2"], "x", "".join([*helpers, "def f9(x):\n    return x.sum()\n\n\n"]))
    ported = port_source(text)
    assert [(f.line, f.code) for f in ported.findings] == [(47, "untraced")]


def test_a_loop_that_does_not_settle_is_a_finding(monkeypatch):
    """A loop whose fixpoint is not reached is a finding, and nothing is guessed."""
    monkeypatch.setattr(evaluator, "_ITERATIONS", -100)
    ported = port_source(of(["y = 0.0", "for i in range(3):", "    y = y + x"]), strict=True)
    assert [c.status for c in ported.classes] == ["partial"]
    assert "what i, y may be changes with each iteration of this loop" in ported.findings[0].message


def test_functions_that_do_not_settle_are_a_finding(monkeypatch):
    """The same for what functions say of each other."""
    monkeypatch.setattr(fixpoint, "_ITERATIONS", -100)
    ported = port_source(
        of(["y = f(x)"], helpers="def f(x):\n    return f(x[1:]) if len(x) > 1 else x.exp()\n\n\n"), strict=True
    )
    assert [c.status for c in ported.classes] == ["partial"]
    assert "depends on itself" in ported.findings[0].message


def test_a_helper_is_known_before_its_caller(monkeypatch):
    """A chain of helpers is evaluated once, the innermost first: who calls it need not be evaluated again."""
    counts = collections.Counter()
    statement = evaluator.Evaluator.port_statement

    def counted(self, node):
        counts[self.program.source.locate(node)] += 1
        return statement(self, node)

    monkeypatch.setattr(evaluator.Evaluator, "port_statement", counted)
    helpers = "".join(f"def f{i}(x):\n    return f{i + 1}(x) * 2\n\n\n" for i in range(6))
    port_source(of(["if f0(x) > 1:", "    x = x * 2"], "x", f"{helpers}def f6(x):\n    return x.sum()\n\n\n"))
    assert set(counts.values()) == {1}


def test_what_several_methods_leave_on_ctx():
    """Forward and backward give one attribute other values; what is known of it is what holds for both."""
    backward = ["if ctx.done:", "    raise RuntimeError", "ctx.done = True", "return g * 2", ""]
    lines = "\n        ".join(["", *backward])
    text = of(["ctx.done = False", "y = x * 2"]).replace("\n        return g\n", lines)
    ported = port_source(text)
    assert [c.status for c in ported.classes] == ["ported"]
    assert "if ctx.done:" in ported.code
