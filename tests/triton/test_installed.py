"""Kernels of packages, unchanged: loaded by fnjax.torch, or decorated by a Triton that is installed."""

import importlib.util
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax import triton

KERNELS = """
import triton
import triton.language as tl
from triton.language import load


@triton.jit
def halved(x, SCALE: tl.constexpr):
    return x * SCALE


@triton.autotune([triton.Config({"BLOCK": 8})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 8 == 0})
@triton.jit
def norm_kernel(x_ptr, out_ptr, n, SCALE: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = load(x_ptr + row * n + lanes, mask=lanes < n, other=0.0)
    total = tl.sum(x * x, axis=0)
    tl.store(out_ptr + row * n + lanes, halved(x.to(tl.float32), SCALE) * tl.rsqrt(total), mask=lanes < n)
"""
LAUNCHER = """
import torch
from .kernels import norm_kernel


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        norm_kernel[(x.shape[0],)](x, out, x.shape[1], SCALE=0.5)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        length = (x * x).sum(1, keepdim=True).sqrt()
        return 0.5 * (grad / length - x * (grad * x).sum(1, keepdim=True) / length**3)
"""
X = np.random.default_rng(3).normal(size=(3, 6)).astype(np.float32)


def plain(x):
    """The same in jax.numpy."""
    return 0.5 * x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on Python's path, whose own import fails."""
    folder = tmp_path / "kernels_of_a_package" / "ops"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('it needs a GPU')\n")
    (folder / "__init__.py").touch()
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "norm.py").write_text(LAUNCHER)
    monkeypatch.syspath_prepend(tmp_path)
    return "kernels_of_a_package.ops.norm"


def test_a_module_of_a_package_runs_as_it_is(package):
    """Value, gradient under jit, and a batch under vmap are those of jax.numpy; the package itself is not imported."""
    norm = fnjax.torch.import_module(package).Norm.apply

    def compute(call, x):
        return call(x), jax.grad(lambda x: jnp.sum(jnp.sin(call(x))))(x), jax.vmap(call)(jnp.stack([x, 2 * x]))

    found, wanted = (jax.jit(compute, static_argnums=0)(f, X) for f in (norm, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, wanted)
    assert "kernels_of_a_package" not in sys.modules


def import_file(path):
    """Return the module of a file, as Python imports it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(monkeypatch):
    """Objects as Triton has them: a kernel has its function in `fn`, and names of the language refuse plain calls."""

    class JITFunction:
        def __init__(self, fn):
            self.fn = fn

    class Heuristics(JITFunction):
        values = property(lambda self: self.rules)

    class Autotuner(JITFunction):
        keys = ("n",)

    class Config:
        pre_hook, num_warps, num_stages = None, 4, 2

        def __init__(self, kwargs):
            self.kwargs = kwargs

    def make(cls, **facts):
        def decorate(fn):
            found = cls(fn)
            vars(found).update(facts)
            return found

        return decorate

    def refuse(*args, **named):
        raise ValueError("Did you forget to add @triton.jit ?")

    language = types.ModuleType("triton.language")
    language.constexpr = type("constexpr", (), {"__module__": "triton.language.core"})
    for name in ("load", "store", "arange", "program_id", "sum", "rsqrt", "float32"):
        setattr(language, name, types.FunctionType(refuse.__code__, {}, name))
        getattr(language, name).__module__ = "triton.language.core"
    root = types.ModuleType("triton")
    root.language, root.jit, root.Config = language, JITFunction, Config
    root.autotune = lambda configs, key: make(Autotuner, configs=configs)
    root.heuristics = lambda rules: make(Heuristics, rules=rules)
    for cls in (JITFunction, Heuristics, Autotuner):
        cls.__module__ = "triton.runtime"
    monkeypatch.setitem(sys.modules, "triton", root)
    monkeypatch.setitem(sys.modules, "triton.language", language)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("given", ["kernel", "function"])
def test_a_kernel_of_an_installed_triton_takes_its_source(tmp_path, given):
    """`fnjax.triton.jit` of Triton's own kernel runs it, with its helpers and names of its language."""
    (tmp_path / "decorated.py").write_text(KERNELS)
    theirs = import_file(tmp_path / "decorated.py").norm_kernel
    kernel = triton.jit(theirs if given == "kernel" else theirs.fn.fn.fn)
    more = {} if given == "kernel" else {"EVEN": False, "BLOCK": 8}
    found = jax.jit(lambda: kernel[(3,)](X, jnp.zeros((3, 6)), 6, SCALE=0.5, **more))()
    np.testing.assert_allclose(found, plain(X), rtol=1e-6)


def test_a_kernel_of_triton_itself(tmp_path):
    """The same with Triton's own classes, where it is installed."""
    pytest.importorskip("triton")
    (tmp_path / "decorated.py").write_text(KERNELS)
    kernel = triton.jit(import_file(tmp_path / "decorated.py").norm_kernel)
    np.testing.assert_allclose(kernel[(3,)](X, jnp.zeros((3, 6)), 6, SCALE=0.5), plain(X), rtol=1e-6)


def test_the_gallerys_library():
    """The five Functions of the gallery's page, where Liger-Kernel is installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        pytest.skip("Liger-Kernel is not installed: pip install --no-deps liger-kernel")
    example = import_file(Path(__file__).parents[2] / "examples" / "triton" / "installed.py")
    for case in example.FUNCTIONS:
        assert max(example.differences(*case)) < 2e-6, case[1]


TUPLES = """
import torch
import triton
import triton.language as tl


@triton.jit
def both_kernel(x_ptrs, out_ptrs, N: tl.constexpr):
    lanes = tl.arange(0, N)
    for i in tl.static_range(2):
        tl.store(out_ptrs[i] + lanes, tl.load(x_ptrs[i] + lanes) * (i + 2))


def both(x, y):
    out = torch.zeros(2, 4)
    both_kernel[(1,)]((x, y), (out[0], out[1]), N=4)
    return out
"""


def test_tuples_of_tensors(tmp_path):
    """A launch writes into the tensors of a tuple, and so into what they are views of."""
    (tmp_path / "tuples.py").write_text(TUPLES)
    both = fnjax.torch.jax_view(fnjax.torch.load(tmp_path / "tuples.py").both)
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(jax.jit(both)(x, x + 1), np.stack([2 * x, 3 * (x + 1)]))
