"""Each way in which a Triton kernel can be reached: it is launched as in PyTorch, or raises where it stands."""

import importlib.util
import re
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("libcst")
from fnjax.port import port_source

SOURCE = """
import functools
import operator
import types
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def triple(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, 3 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


class Kernels:
    @staticmethod
    @triton.jit
    def inside(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(o_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


class Fields:
    same = double


TABLE = {"a": double, "b": triple}
LIST = [double, triple]
ALIAS = double
LAUNCH = double[(1,)]
PARTIAL = functools.partial(double[(1,)], BLOCK=8)
LAMBDA = lambda x, o: double[(1,)](x, o, 8, BLOCK=8)


def choose(flag):
    return double if flag else triple


def bind(grid):
    return double[grid]


def helper(k, x, o):
    k[(1,)](x, o, 8, BLOCK=8)


def returning(k, x, o):
    k[(1,)](x, o, 8, BLOCK=8)
    return o


def running(k, x, o):
    k.run(x, o, 8, BLOCK=8, grid=(1,))
    return o


def default(x, o, k=double):
    k[(1,)](x, o, 8, BLOCK=8)


class Runner:
    def __init__(self, k):
        self.k = k

    def __call__(self, x, o):
        self.k[(1,)](x, o, 8, BLOCK=8)


runner = Runner(double)


class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, flag=True):
        o = torch.zeros_like(x)
        grid = (1,)
        {way}
        return o

    @staticmethod
    def backward(ctx, g):
        return 2 * g, None
"""
# By the lines that launch: the kernel's factor, or None where the port raises.
WAYS = {
    "double[grid](x, o, 8, BLOCK=8)": 2,
    "result = double[grid](x, o, 8, BLOCK=8)": 2,
    "Kernels.inside[grid](x, o, 8, BLOCK=8)": 2,
    "k, g = double, grid\nk[g](x, o, 8, BLOCK=8)": 2,
    "k = double if flag else triple\nk[grid](x, o, 8, BLOCK=8)": 2,
    "(double if flag else triple)[grid](x, o, 8, BLOCK=8)": 2,
    "if flag:\n    k = triple\nelse:\n    k = double\nk[grid](x, o, 8, BLOCK=8)": 3,
    "if double is not None:\n    double[grid](x, o, 8, BLOCK=8)": 2,
    "ALIAS[grid](x, o, 8, BLOCK=8)": 2,
    "helper(double, x, o)": 2,
    "helper(k=triple, x=x, o=o)": 3,
    "o = returning(double, x, o)": 2,
    "default(x, o)": None,
    "torch.library.wrap_triton(double)[grid](x, o, 8, BLOCK=8)": 2,
    "k = torch.library.wrap_triton(double)\nk[grid](x, o, 8, BLOCK=8)": 2,
    "def inner(a, b):\n    double[grid](a, b, 8, BLOCK=8)\ninner(x, o)": 2,
    "def inner(k, a, b):\n    k[grid](a, b, 8, BLOCK=8)\ninner(triple, x, o)": 3,
    "launch = double[grid]\nlaunch(x, o, 8, BLOCK=8)": None,
    "launch = double[grid]\nlaunch(x, o_ptr=o, n=8, BLOCK=8)": None,
    "if flag:\n    launch = double[grid]\nelse:\n    launch = triple[grid]\nlaunch(x, o, 8, BLOCK=8)": None,
    "launch, one = double[grid], 1\nlaunch(x, o, 8, BLOCK=8)": None,
    "(launch := double[grid])(x, o, 8, BLOCK=8)": None,
    "(double[grid] if flag else triple[grid])(x, o, 8, BLOCK=8)": None,
    "k = torch.library.wrap_triton(double)[grid]\nk(x, o, 8, BLOCK=8)": None,
    "double.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "k = double\nk.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "k = double if flag else triple\nk.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "k = double if flag else None\nk.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "ALIAS.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "Kernels.inside.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "torch.library.wrap_triton(double).run(x, o, 8, BLOCK=8, grid=grid)": None,
    "getattr(double, 'run')(x, o, 8, BLOCK=8, grid=grid)": None,
    "double.warmup(x, o, 8, BLOCK=8, grid=grid)": None,
    "double.fn[grid](x, o, 8, BLOCK=8)": None,
    "double(x, o, 8, BLOCK=8)": None,
    "double[grid].__call__(x, o, 8, BLOCK=8)": None,
    "double.__getitem__(grid)(x, o, 8, BLOCK=8)": None,
    "operator.getitem(double, grid)(x, o, 8, BLOCK=8)": None,
    "functools.partial(double[grid], x, o)(8, BLOCK=8)": None,
    "functools.partial(double[grid], x)(o, 8, BLOCK=8)": None,
    "functools.partial(returning, double)(x, o)": None,
    "functools.reduce(lambda a, k: k[grid](x, o, 8, BLOCK=8), [double], None)": None,
    "list(map(lambda g: double[g](x, o, 8, BLOCK=8), [grid]))": None,
    "list(map(double.__getitem__, [grid]))[0](x, o, 8, BLOCK=8)": None,
    "[double[g](x, o, 8, BLOCK=8) for g in [grid]]": None,
    "[k.run(x, o, 8, BLOCK=8, grid=grid) for k in [double]]": None,
    "for k in (double, triple):\n    k[grid](x, o, 8, BLOCK=8)": None,
    "for k in LIST:\n    k.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "LIST[0][grid](x, o, 8, BLOCK=8)": None,
    "LIST[0].run(x, o, 8, BLOCK=8, grid=grid)": None,
    "TABLE['a'][grid](x, o, 8, BLOCK=8)": None,
    "TABLE.get('a').run(x, o, 8, BLOCK=8, grid=grid)": None,
    "t = {'a': double}\nt['a'].run(x, o, 8, BLOCK=8, grid=grid)": None,
    "t = {}\nt['a'] = double\nt['a'].run(x, o, 8, BLOCK=8, grid=grid)": None,
    "t = []\nt.append(double)\nt[0].run(x, o, 8, BLOCK=8, grid=grid)": None,
    "Fields.same[grid](x, o, 8, BLOCK=8)": None,
    "LAUNCH(x, o, 8, BLOCK=8)": None,
    "PARTIAL(x, o, 8)": None,
    "LAMBDA(x, o)": None,
    "choose(flag)[grid](x, o, 8, BLOCK=8)": None,
    "k = choose(flag)\nk.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "bind(grid)(x, o, 8, BLOCK=8)": None,
    "launch = bind(grid)\nlaunch(x, o, 8, BLOCK=8)": None,
    "o = running(double, x, o)": None,
    "helper(*[double, x, o])": None,
    "runner(x, o)": None,
    "Runner(double)(x, o)": None,
    "ctx.k = double\nctx.k[grid](x, o, 8, BLOCK=8)": None,
    "ctx.launch = double[grid]\nctx.launch(x, o, 8, BLOCK=8)": None,
    "types.SimpleNamespace(k=double).k.run(x, o, 8, BLOCK=8, grid=grid)": None,
    "type('T', (), {'k': double}).k[grid](x, o, 8, BLOCK=8)": None,
    "launch = lambda: double[grid]\nlaunch()(x, o, 8, BLOCK=8)": None,
    "launch = lambda k: k.run(x, o, 8, BLOCK=8, grid=grid)\nlaunch(double)": None,
    "def inner():\n    return double[grid]\ninner()(x, o, 8, BLOCK=8)": None,
    "def inner(k):\n    k.run(x, o, 8, BLOCK=8, grid=grid)\ninner(double)": None,
    "k = double if flag else triple\ndef inner():\n    k.run(x, o, 8, BLOCK=8, grid=grid)\ninner()": None,
    "held = types.SimpleNamespace(o=o)\ndouble[grid](x, held.o, 8, BLOCK=8)": None,
    "class Held:\n    pass\nheld = Held()\nheld.o = o\ndouble[grid](x, held.o, 8, BLOCK=8)": None,
}


# What fnjax.triton's own kernels have not.
RAISING = re.compile(r"\.fn\[|double\(x")


def load(path, code):
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_launch_runs_or_raises(way, tmp_path):
    """A launch writes what the kernel stores; one that the port cannot make stays as it is, with `strict` it raises."""
    text = SOURCE.replace("{way}", textwrap.indent(way, " " * 8).lstrip())
    ported = port_source(text)
    module = load(tmp_path / "ported.py", ported.code)
    x = jnp.arange(8.0)
    if WAYS[way] is None:
        assert [c.status for c in ported.classes] == ["as_is"]
        strict = load(tmp_path / "strict.py", port_source(text, strict=True).code)
        with pytest.raises(NotImplementedError):
            strict.F.apply(x)
        expected = 2 * x
        if way.startswith("for k in"):  # the last kernel of a loop has the last word
            expected = 3 * x
        elif "warmup" in way:  # compiles only
            expected = 0 * x
        if not RAISING.search(way):
            np.testing.assert_array_equal(module.F.apply(x), expected)
            return
        with pytest.raises(Exception, match=r"not called|subscriptable"):
            module.F.apply(x)
    else:
        assert [c.status for c in ported.classes] == ["ported"], ported.findings
        np.testing.assert_array_equal(module.F.apply(x), WAYS[way] * x)
