"""Files with Triton kernels: launches give back what kernels store to, and the rest goes as it means."""

import ast
import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.port.triton_sources import CLASSES, DESCRIBED, KERNELS, REFUSED

pytest.importorskip("libcst")
from fnjax.port import port_source
from fnjax.port.engine.folder import port_files

X = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(6, 12)).astype(np.float32)
T = np.float32([0.4])
# Of each class its arguments, which of them are differentiated, and what its outputs are, in NumPy's words.
CASES = {
    "StarredArguments": ((X, 1.5), (0,), lambda np, x, k: x * k),
    "Described": ((X,), (0,), lambda np, x: np.concatenate([2 * x, 4 * x], 1)),
    "Helper": ((X, Y), (0, 1), lambda np, x, y: x * y),
    "Views": ((X, Y), (0, 1), lambda np, x, y: np.concatenate([2 * x, 3 * y])),
    "OnlyForTheKernel": ((X, T), (0,), lambda np, x, t: x * np.exp(t)),
    "Chosen": ((X, 1.5), (0,), lambda np, x, k: x * k),
    "InPlace": ((X, 1.5), (0,), lambda np, x, k: x * k),
    "TwoStores": ((X, Y, True), (0, 1), lambda np, x, y, _: (x + y, x * y)),
    "TwoStores one": ((X, Y, False), (0, 1), lambda np, x, y, _: x + y),
    "Guarded": ((X,), (0,), lambda np, x: np.tanh(x)),
    "Rows": ((X, T.repeat(6)), (0, 1), lambda np, x, b: x.sum(-1) + b),
    "Rows without bias": ((X,), (0,), lambda np, x: x.sum(-1)),
}
# What the port of a class says.
TEXTS = {
    "StarredArguments": ["out = scale_kernel[grid](*args, BLOCK=64)", "(g, out, g.size, **kwargs)"],
    "Helper": ["out = multiply_into(x, y, out)", "    return out", "jnp.empty(x.shape, dtype=x.dtype)"],
    "Views": ["out = out.at[:h].set(scale_kernel[blocks(x)](x, out[:h]", "both = both.at[i].set(part)"],
    "OnlyForTheKernel": ["factor = jnp.exp(t).reshape(())"],
    "Chosen": ["out = kernel[lambda meta", "out = scale_kernel[blocks(g)](x_ptr=g, out_ptr=out"],
    "InPlace": ["x = scale_kernel[blocks(x)](x, x, x.size, k, BLOCK=64)"],
    "TwoStores": ["total, product = both_kernel[blocks(x)](x, total, product, y", "unused, dx = both_kernel"],
    "Guarded": ["y = tanh_kernel[blocks(x)](x, y, x.size, BLOCK=64)", "processors = triton.processor_count()"],
    "Rows": ["_strides(x)[0]", "out = rows_kernel[(x.shape[0],)]("],
}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of all classes, imported; and its text. Next to them one with host descriptors, which stays as it is."""
    ported = port_source(KERNELS + "\n".join(CLASSES.values()), strict=True)
    assert [(c.name, c.status) for c in ported.classes] == [(name, "ported") for name in CLASSES], ported.findings
    described = port_source(KERNELS + DESCRIBED)
    assert [(c.name, c.status) for c in described.classes] == [("Described", "as_is")]
    folder = tmp_path_factory.mktemp("triton")
    modules = [execute(folder / f"ported_{i}.py", code) for i, code in enumerate((ported.code, described.code))]
    modules[0].Described = modules[1].Described
    return modules[0], ported.code


def execute(path, code):
    """Return a file with this code as a module."""
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(port, name):
    """A ported wrapper has the values and gradients of its formula, under jit and without."""
    args, argnums, formula = CASES[name]
    function = getattr(port[0], name.split(" ")[0]).apply

    def with_arrays(call, *chosen):
        given = list(args)
        for i, a in zip(argnums, chosen, strict=True):
            given[i] = a
        return call(*given)

    chosen = [args[i] for i in argnums]
    outs, back = jax.vjp(lambda *a: with_arrays(lambda *g: formula(jnp, *g), *a), *chosen)
    cotangents = jax.tree.map(lambda o: jnp.cos(jnp.arange(o.size, dtype=o.dtype)).reshape(o.shape), outs)
    for how in (jax.jit, lambda f: f):
        mine = how(lambda *a: with_arrays(function, *a))(*chosen)
        grads = how(lambda *a: jax.vjp(functools.partial(with_arrays, function), *a)[1](cotangents))(*chosen)
        for a, b in zip(jax.tree.leaves((mine, grads)), jax.tree.leaves((outs, back(cotangents))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(port, name):
    """A launch gives its stores back to the variables that hold them."""
    tree = ast.parse(port[1])
    start = port[1].index(f"class {name}(") if name != "Helper" else port[1].index("def multiply_into")
    assert tree, port[1]
    for text in TEXTS[name]:
        assert text in port[1][start:], port[1][start : start + 1500]


def test_kernels_keep_their_text(port):
    """Kernels stand in the port as they were; imports are fnjax.triton's, none is Triton's or torch's."""
    code = port[1]
    kernel = KERNELS[KERNELS.index("@triton.jit\ndef both_kernel") : KERNELS.index("@triton.heuristics")].strip()
    assert kernel in code
    lines = [n for n in ast.walk(ast.parse(code)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    modules = {a.name for n in lines if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module for n in lines if isinstance(n, ast.ImportFrom)}
    assert not {m.split(".")[0] for m in modules} & {"triton", "torch", "packaging"}
    assert "fnjax.triton.language" in modules
    for gone in ("contiguous", "device_context", "input_guard", "is_cuda", "xpu", "custom_fwd, custom_bwd"):
        assert gone not in code, gone


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """A launch that has no meaning in JAX is an error with its place."""
    text, message = REFUSED[name]
    ported = port_source(KERNELS + text)
    (cls,) = ported.classes
    errors = [f for f in cls.findings if f.severity == "error"]
    assert cls.status == "as_is"
    assert any(message in f.message and f.line > KERNELS.count("\n") for f in errors), errors


@pytest.mark.slow
def test_kernels_of_another_file(tmp_path):
    """Kernels, helpers and guards that a file imports from its package are followed."""
    wrapper = """
import torch
import triton

from mypackage.kernels import blocks, scale_kernel
from mypackage import kernels as k


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        scale_kernel[blocks(x)](x, out, x.numel(), 2.0, BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        k.scale_kernel[k.blocks(g)](g, out, g.numel(), 2.0, BLOCK=64)
        return out
"""
    files = {"mypackage/__init__.py": "", "mypackage/kernels.py": KERNELS, "mypackage/scale.py": wrapper}
    for name, text in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(text)
    given = {str(tmp_path / "source" / name): text for name, text in files.items()}
    found = port_files(given, dict.fromkeys(given, str(tmp_path / "source")))
    for name, ported in found.items():
        target = tmp_path / "made" / name.removeprefix(f"{tmp_path}/source/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(ported.code)
    assert [c.status for p in found.values() for c in p.classes] == ["ported"]
    program = "import jax, numpy as np; from mypackage.scale import Scale as S; x = np.ones((3, 5), np.float32)\n"
    program += "print(float(jax.jit(S.apply)(x).sum()), float(jax.grad(lambda x: S.apply(x).sum())(x).sum()))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path / "made", capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["30.0", "30.0"], done.stderr
