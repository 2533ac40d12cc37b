"""Rewrites of single statements, and statements that stay as they are."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax.port import port_source
from fnjax.port.analysis.evaluator import Evaluator

HEAD = """\
import functools
import types

import einops
import numpy as np
import torch
import torch.nn.functional as F
from other import kernel
from scipy import special


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, n: int, flag: bool):
        x = x * y
"""
TAIL = "\n        return x, y\n"


@pytest.fixture(autouse=True)
def untidied(monkeypatch):
    """Return all that the rules have made, also what nothing reads here (see test_tidying)."""
    monkeypatch.setattr("fnjax.port.engine.porting.tidy", lambda made, *_: made)


def ported(body):
    """The lines of a forward with this body, and the findings."""
    text = HEAD + "".join(f"        {line}\n" for line in body.strip("\n").split("\n")) + TAIL
    result = port_source(text, strict=True)
    lines = result.code.partition("x = x * y\n")[2].rpartition("        return x, y")[0]
    return "\n".join(line.removeprefix("        ") for line in lines.rstrip().split("\n")), result.findings


STAYING = """
def roots(x, n):
    y = x.clone()
    for i in range(n):
        y[y > 0] = y[y > 0].sqrt()
    return y, len(x.nonzero()[:, 0].tolist()) * 0
def several(x):
    return roots(x, 2)[0] + 1
def bump(x):
    x.view_as(torch.empty(x.nonzero().shape[0])).add_(1)
    return x
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return several(x) * lcm(2, 3)
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * roots(x, 1)[0] * x
class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return bump(x.clone())
class Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return helper(ctx, x)
class Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _C.forward(x)
class Built(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Kernel(x)
class Loaded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return helper("forward")(x)
class Methods(torch.autograd.Function):
    @classmethod
    def project(cls, x):
        return _scaled(x)
    @classmethod
    def forward(cls, ctx, x):
        return cls.project(x) * 2
"""


def test_functions_that_cannot_be_translated_stay_pytorch(tmp_path, monkeypatch):
    """A class in JAX calls them by jax_view, those of other modules too, and gives what fnjax.torch gives."""
    (tmp_path / "staying_helper.py").write_text("def lcm(a, b):\n    return a * b\ndef _scaled(x):\n    return x * 3\n")
    source = f"import torch\nfrom staying_helper import _scaled, lcm\nfrom other import _C, Kernel, helper\n{STAYING}"
    result = port_source(source)
    assert {c.name: c.status for c in result.classes} == {
        "C": "ported", "Writes": "as_is", "Given": "as_is", "Compiled": "as_is", "Built": "as_is",
        "Loaded": "as_is", "Methods": "ported",
    }  # fmt: skip
    assert "return fnjax.torch.jax_view(several)(x) * fnjax.torch.jax_view(lcm)(2, 3)" in result.code
    assert {"lcm", "roots", "several"} <= set(result.as_is)
    assert port_source(source, strict=True).classes[0].status == "partial"
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {name: tmp_path / f"staying_{name}.py" for name in ("source", "port")}
    files["source"].write_text(source.replace("from other import _C, Kernel, helper\n", ""))
    files["port"].write_text(port_source(files["source"].read_text()).code)
    original, port = fnjax.torch.load(files["source"]), importlib.import_module("staying_port")
    assert issubclass(port.C, fnjax.Function)
    x = jnp.array([4.0, -1.0, 16.0])
    for function in (lambda c: c.apply(x), lambda c: jax.grad(lambda x: (c.apply(x) ** 2).sum())(x)):
        np.testing.assert_allclose(function(port.C), function(original.C), rtol=1e-6)
    np.testing.assert_allclose(port.Methods.apply(x), x * 6)


def executed(text):
    """Return the names that the port of a file defines."""
    names = {}
    exec(port_source(text, strict=True).code, names)
    return names


REWRITES = {
    "a view of a piece that is written to": (
        "z = x * 1\na, b, c = z.split([2, n, 3], 1)\nb.neg_()\nctx.z = z",
        (
            "z = x * 1\na, b, c = jnp.split(z, [2, n + 2], axis=1)\nb = -b\n"
            "z = _write(z, lambda a: jnp.split(a, [2, n + 2], axis=1)[1], b)\nctx.z = z"
        ),
    ),
    "an array that takes another's entries": (
        "z = torch.empty_like(x)\nz.copy_(x)\nw = z.new_empty(n, 3)\nw.copy_(x[0])\nw.copy_(torch.tensor(2.0))",
        (
            "z = jnp.empty_like(x)\nz = x.astype(z.dtype)\nw = jnp.empty((n, 3), dtype=z.dtype)\n"
            "w = jnp.broadcast_to(x[0], w.shape).astype(w.dtype)\nw = jnp.full_like(w, jnp.array(2.0))"
        ),
    ),
    "entries that take others": (
        "z = torch.zeros_like(x)\nz[0].copy_(x[1])\nw = z.half()\nw[n, 1:].copy_(x[0])\nz[[0, 1]].copy_(x[:2])",
        (
            "z = jnp.zeros_like(x)\nz = z.at[0].set(x[1])\nw = z.astype(jnp.float16)\n"
            "w = w.at[n, 1:].set(x[0].astype(w.dtype))\njnp.full_like(z[jnp.array([0, 1])], x[:2])"
        ),
    ),
    "a tuple of indices": (
        (
            "w = torch.arange(2)\nx[tuple((w,))] = 0\nx[tuple([w, w])] += 1\nz = x[(w,)] + y[tuple((n, n))]\n"
            "v = {(n,): 1}[tuple((n,))]"
        ),
        (
            "w = jnp.arange(2)\nx = x.at[tuple((w,))].set(0)\nx = x.at[tuple([w, w])].add(1)\n"
            "z = x[(w,)] + y[tuple((n, n))]\nv = {(n,): 1}[tuple((n,))]"
        ),
    ),
    "pieces that variables take, and others": (
        (
            "a, b, c = x.split(n, -1)\nd, e = torch.split(y, [n - 1, 4])\nz = x.chunk(2)\nw = y.split((1, 2, n), 1)\n"
            "v, *u = x.split(n)\nf, g = y.chunk(2, n)"
        ),
        (
            "a, b, c = _split(x, n, axis=-1)\nd, e = jnp.split(y, [n - 1])\nz = _chunk(x, 2)\n"
            "w = tuple(jnp.split(y, [1, 3], axis=1))\nv, *u = _split(x, n)\nf, g = jnp.array_split(y, 2, axis=n)"
        ),
    ),
    "one number, or several, where an index says": (
        "x[ctx.where] = 0\nx[ctx.where] = y\nx[ctx.where] = y.sum()",
        "x = _fill(x, ctx.where, 0)\nx = _set(x, ctx.where, y)\nx = _fill(x, ctx.where, jnp.sum(y))",
    ),
    "a write that the next of a chain reads": (
        "z = x * 1\na, b = z.chunk(2, -2)\nb.mul_(2).add_(z.sum())\nctx.z = z",
        (
            "z = x * 1\na, b = jnp.array_split(z, 2, axis=-2)\nb = b * 2\n"
            "z = _write(z, lambda a: jnp.array_split(a, 2, axis=-2)[1], b)\nb = b + jnp.sum(z)\n"
            "z = _write(z, lambda a: jnp.array_split(a, 2, axis=-2)[1], b)\nctx.z = z"
        ),
    ),
    "a write to a part of an axis": (
        "z = x * 1\nz.narrow(1, n, 2).zero_()",
        (
            "z = x * 1\nz = _write(z, lambda a: jax.lax.dynamic_slice_in_dim(a, n, 2, axis=1), "
            "jnp.zeros_like(jax.lax.dynamic_slice_in_dim(z, n, 2, axis=1)))"
        ),
    ),
    "a number that widens nothing": ("z = torch.tensor(1e-5).float()", "z = jnp.array(1e-5)"),
    "a whole number": ("z = torch.tensor(2).float()", "z = jnp.array(2).astype(jnp.float32)"),
    "a method": ("z = x.exp()", "z = jnp.exp(x)"),
    "an entry in a continued line": (
        "x[0] += \\\n    y[0]",
        "x = x.at[0].add(y[0])",
    ),
    "quotes in a string with values": (
        'raise ValueError(f"({x.device}, {n})")',
        "raise ValueError(f\"({'cpu'}, {n})\")",
    ),
    "an empty vector that a loop fills": (
        "z = torch.Tensor([])\nfor i in range(n):\n    z = torch.cat((z, x * i))",
        "z = jnp.array([], dtype=float)\nfor i in range(n):\n    z = _cat((z, x * i))",
    ),
    "a row with one axis more": (
        "z = torch.zeros_like(x)\nfor i in range(n):\n    z[i] = x[i:i + 1] * 2",
        "z = jnp.zeros_like(x)\nfor i in range(n):\n    z = z.at[i].set(_trimmed(x[i:i + 1] * 2, z[i]))",
    ),
    "a device that is read": (
        "dev = x.device\nz = torch.ones(2, device=dev)\nctx.dev = dev",
        'dev = "cpu"\nz = jnp.ones(2)\nctx.dev = dev',
    ),
    "a write that may reach what is None": (
        "z = x * 2\nw = z if flag else None\nz.add_(1)\nctx.w = w",
        "z = x * 2\nw = z if flag else None\nz = z + 1\nw = None if w is None else z\nctx.w = w",
    ),
    "out= of another kind": (
        "z = torch.empty_like(x)\ntorch.gt(x, 0, out=z)",
        "z = jnp.empty_like(x)\nz = (x > 0).astype(z.dtype)",
    ),
    "a module that the port does without": (
        "try:\n    import fast\n    z = fast.exp(x)\nexcept ImportError:\n    z = x.exp()",
        "z = jnp.exp(x)",
    ),
    "a cast for type checkers": ("import typing\nz = typing.cast(torch.Tensor, x) * 2", "import typing\nz = x * 2"),
    "a function that is compiled": (
        "f = lambda t: t + 1\nif flag:\n    f = torch.compile(f, dynamic=True)\nz = f(x)",
        "f = lambda t: t + 1\nz = f(x)",
    ),
    "a loop over an axis that fills an array": (
        "for i in range(x.shape[0] - 1, 0, -1):\n    x[i] = y[i] * n",
        "for i in range(x.shape[0] - 1, 0, -1):\n    x = x.at[i].set(y[i] * n)",
    ),
    "nested loops, with a power of a counter": (
        "for i in range(n):\n    for j in range(n):\n        x[i, j] = 2 ** -(i + j)",
        "for i in range(n):\n    for j in range(n):\n        x = x.at[i, j].set(2 ** -(i + j))",
    ),
    "nested loops over what may be a list": (
        "for i in range(2 * n):\n    for j in range(n):\n        x[i, j] = flag[i + j]",
        "for i in range(2 * n):\n    for j in range(n):\n        x = x.at[i, j].set(flag[i + j])",
    ),
    "an array that is made and filled": (
        "z = x.new(n, 3).zero_()\nw = torch.empty(n).fill_(2)\nv = torch.empty_like(x).fill_(n)",
        "z = jnp.zeros((n, 3), dtype=x.dtype)\nw = jnp.full(n, 2, dtype=float)\nv = jnp.full_like(x, n)",
    ),
    "a function without gradients": ("f = lambda t: t + 1\nz = torch.no_grad()(f)(x)", "f = lambda t: t + 1\nz = f(x)"),
    "an associative scan": (
        "from torch._higher_order_ops.associative_scan import associative_scan as scan\nz = scan(n, x, dim=1)",
        "z = jax.lax.associative_scan(n, x, axis=1)",
    ),
    "an alias of a module": ("z = F.relu(x)", "z = jax.nn.relu(x)"),
    "a chain": ("z = x.abs().sum(1, keepdim=True)", "z = jnp.sum(jnp.abs(x), axis=1, keepdims=True)"),
    "an entry": ("x[0, 1:] = y[0, 1:]", "x = x.at[0, 1:].set(y[0, 1:])"),
    "an entry, augmented": ("x[n] += 2", "x = x.at[n].add(2)"),
    "an in-place method": ("x.mul_(2)", "x = x * 2"),
    "a chain of in-place methods": ("x.mul_(2).add_(1)", "x = x * 2 + 1"),
    "out=": ("torch.exp(y, out=x)", "x = jnp.exp(y)"),
    "another name for the memory": ("z = x\nz += 1", "z = x\nz = z + 1\nx = z"),
    "a view that is written to": ("z = x[0]\nz.mul_(2)", "z = x[0]\nz = z * 2\nx = x.at[0].set(z)"),
    "a write to all entries": (
        "z = torch.zeros_like(x)\nz[:] = x.sum(0)\nw = torch.zeros_like(x)\nw[...] = 2",
        ("z = jnp.zeros_like(x)\nz = z.at[:].set(jnp.sum(x, axis=0))\nw = jnp.zeros_like(x)\nw = w.at[...].set(2)"),
    ),
    "a row of what a branch has chosen": (
        "v, w = x * 1, y * 1\nz = v if flag else w\nr = z[0]\nr.mul_(2)\nx = z",
        "v, w = x * 1, y * 1\nz = v if flag else w\nr = z[0]\nr = r * 2\nz = z.at[0].set(r)\nx = z",
    ),
    "a copy that only a flag asks for": ("z = x.clone() if flag else x", "z = x"),
    "a mask": ("x[x < 0] = 0", "x = jnp.where(x < 0, 0, x)"),
    "a mask through a variable": ("m = x < 0\nz = x[m]\nx[m] = z * 2", "m = x < 0\nz = x\nx = jnp.where(m, z * 2, x)"),
    "a mask, augmented": ("x[x > 1] *= 0.5", "x = jnp.where(x > 1, x * 0.5, x)"),
    "a view as itself": ("z = x.view_as(x)", "z = x"),
    "a value on several lines": ("x[0] = (\n    y[0] +\n    y[1]\n)", "x = x.at[0].set(y[0] +\n    y[1])"),
    "a list as index": ("z = x[[0, 2]]", "z = x[jnp.array([0, 2])]"),
    "a difference of reduced products": ("z = x * y\nz = z.max() - z.min()", "z = x * y\nz = jnp.max(z) - jnp.min(z)"),
    "a list of tensors as an index": (
        "i = torch.arange(2)\nx[[i, i]] = 1\nz = x[[i, None]]",
        "i = jnp.arange(2)\nx = x.at[i, i].set(1)\nz = x[i, None]",
    ),
    "a list of lists as an index": ("z = x[[[0, 1], [1, 2]]]", "z = x[jnp.array([0, 1]), jnp.array([1, 2])]"),
    "a variable with a list as index": (
        "i = [0, 0]\nx[i] += 1",
        "i = [0, 0]\nx = x.at[jnp.array(i)].set(x[jnp.array(i)] + 1)",
    ),
    "random numbers in a new array": (
        "z = torch.FloatTensor(x.size(0)).uniform_()\nw = x.new(x.size()).normal_()",
        (
            "key, subkey = jax.random.split(key)\nz = jax.random.uniform(subkey, (x.shape[0],), jnp.float32)\n"
            "key, subkey = jax.random.split(key)\nw = jax.random.normal(subkey, x.shape, x.dtype)"
        ),
    ),
    "a list that a loop has filled": (
        "z = []\nfor i in range(3):\n    z += [i, 2 * i]\nw = torch.Tensor(z)",
        "z = []\nfor i in range(3):\n    z += [i, 2 * i]\nw = jnp.array(z, dtype=float)",
    ),
    "the number in an array of one entry": (
        "z = torch.ones(1)\nw = x * z.item()",
        "z = jnp.ones(1)\nw = x * z.reshape(())",
    ),
    "dtypes as keys": (
        "z = x.dtype in {torch.float16, torch.bfloat16}\nd = {torch.float32: 1}\nw = d[torch.float32]",
        (
            "z = x.dtype in {jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16)}\nd = {jnp.dtype(jnp.float32): 1}\n"
            "w = d[jnp.dtype(jnp.float32)]"
        ),
    ),
    "axes of which there may be none": (
        "d = [i for i in range(n)]\nz = x.sum(d)",
        "d = [i for i in range(n)]\nz = jnp.sum(x, axis=d or None)",
    ),
    "a write to what a lambda makes": (
        "f = lambda t: t * 3\nz = f(x)\nz.mul_(2)",
        "f = lambda t: t * 3\nz = f(x)\nz = z * 2",
    ),
    "keywords that touch brackets": (
        (
            "assert(x.is_same_size(y))\nz = (x.exp())if(x.dim())else(y.log())\n"
            "w = [(v.exp())for v in(x.unbind())if(v.dim())]\nb = n in(x.dim(), 2)or(x.numel())and not(x.dim()is(n))\n"
            "for i in(x.unbind()): z = z + i\nif(x.dim() > n): z = y.exp()"
        ),
        (
            "assert x.shape == y.shape\nz = jnp.exp(x) if x.ndim else jnp.log(y)\n"
            "w = [jnp.exp(v) for v in tuple(x) if v.ndim]\nb = n in (x.ndim, 2) or x.size and not (x.ndim is (n))\n"
            "for i in tuple(x): z = z + i\nif (x.ndim > n): z = jnp.exp(y)"
        ),
    ),
    "writes on one line": ("z = x[0]; z.mul_(2); ctx.z = x", "z = x[0]\nz = z * 2\nx = x.at[0].set(z)\nctx.z = x"),
    "a write before a read in one statement": (
        "z = y[0]\nw = z.mul_(2) + y",
        "z = y[0]\nz = z * 2\ny = y.at[0].set(z)\nw = z + y",
    ),
    "a write that the next round of a loop sees": (
        "z = y\nfor i in range(n):\n    z += y.sum()",
        "z = y\nfor i in range(n):\n    z = z + jnp.sum(y)\n    y = z",
    ),
    "a write that a function sees": (
        "z = y[0]\nf = lambda: y.sum()\nz.mul_(2)\nw = f()",
        "z = y[0]\nf = lambda: jnp.sum(y)\nz = z * 2\ny = y.at[0].set(z)\nw = f()",
    ),
    "a copy of what a view would show": ("z = torch.t_copy(y)\nz.mul_(2)", "z = y.T\nz = z * 2"),
    "the same array under another name": ("z = torch.positive(y)\nz.mul_(2)\nw = y", "z = y\nz = z * 2\ny = z\nw = y"),
    "what is kept only for a gradient": (
        "if y.requires_grad:\n    ctx.n = 3",
        "if ctx.needs_input_grad[1]:\n    ctx.n = 3",
    ),
    "keywords from a dictionary": (
        "kw = {'dtype': x.dtype}\nz = torch.ones(3, **kw)",
        "kw = {'dtype': x.dtype}\nz = jnp.ones(3, dtype=kw[\"dtype\"])",
    ),
    "a dtype that a number leaves as it is": (
        "z = (x.float() * y).sum(-1, keepdim=True).div_(x.shape[-1])",
        "z = jnp.sum(x.astype(jnp.float32) * y, axis=-1, keepdims=True) / x.shape[-1]",
    ),
    "getattr of torch": ("z = getattr(torch, 'exp')(x)", "z = jnp.exp(x)"),
    "a local that is called jnp": ("jnp = x.exp()\nz = jnp + 1", "jnp_ = jnp.exp(x)\nz = jnp_ + 1"),
    "the number of entries of a size": (
        "z = x / torch.Size((*x.shape, 2)).numel() * torch.Size(n).numel()",
        "z = x / math.prod((*x.shape, 2)) * math.prod(tuple(n))",
    ),
    "whole numbers at equal distances": (
        "z = torch.linspace(0, n - 1, n).long()",
        "z = _linspace(0, n - 1, n).astype(int)",
    ),
    "a choice between one and the same": (
        "z = [i if not isinstance(i, torch.Tensor) else i.contiguous() for i in (x, y)]",
        "z = [i for i in (x, y)]",
    ),
    "a type": ("z = isinstance(x, torch.Tensor)", "z = isinstance(x, jax.Array)"),
    "a field of a pair": ("z = x.max(dim=1).values", "z = jnp.max(x, axis=1)"),
    "an entry of a pair": ("z = torch.min(x, 1, True)[1]", "z = jnp.argmin(x, axis=1, keepdims=True)"),
    "a pair of which one part is read": (
        "z, _ = x.max(1)\n_, w = torch.sort(y, descending=True)\nctx.z = z + w",
        "z = jnp.max(x, axis=1)\nw = jnp.argsort(y, descending=True)\nctx.z = z + w",
    ),
    "a pair of which one part is deleted": (
        "z, w = x.max(1)\ndel w\nctx.z = z",
        "z, w = _max(x, axis=1)\ndel w\nctx.z = z",
    ),
    "a pair": ("z, w = x.max(1)\nctx.z = z + w", "z, w = _max(x, axis=1)\nctx.z = z + w"),
    "what a mask was computed with": (
        "t = y.log()\nm = x > t\nx[m] = x[m] - t",
        "t = jnp.log(y)\nm = x > t\nx = jnp.where(_mask(m, x), x - _spread(t, m, x), x)",
    ),
    "an unknown value at an index that may be a mask": ("x[y] = x[y] - ctx.t", "x = _set(x, y, x[_index(y)] - ctx.t)"),
    "a view of a view whose index reads a real part": (
        "z = x * 1\nz[n.real :].t().mul_(2)\nctx.z = z",
        "z = x * 1\nz = _write(z, lambda a: a[n.real :].T, z[n.real :].T * 2)\nctx.z = z",
    ),
    "the present device": ("z = torch.ones(n, device=torch.cuda.current_device())", "z = jnp.ones(n)"),
    "the one unpacked argument": ("z = torch.square(*n)", "z = jnp.square(n[0])"),
    "no_grad": ("with torch.no_grad():\n    z = x.sin()", "z = jnp.sin(x)"),
    "an annotation with a type of torch's": ("z: torch.Tensor = x.exp()", "z: jax.Array = jnp.exp(x)"),
    "an annotation with a foreign type": ("z: kernel.Result = x.exp()", "z = jnp.exp(x)"),
    "a question about tracing": (
        "if torch.jit.is_scripting():\n    x = x * 3\nelif torch.compiler.is_compiling() or flag:\n    x = x * 2",
        "if flag:\n    x = x * 2",
    ),
    "a question about functorch": (
        "z = torch._C._are_functorch_transforms_active() or n\nw = not torch.jit.is_tracing() and flag",
        "z = n\nw = flag",
    ),
    "a dtype that is the same": ("z = x.dtype is torch.float16", "z = x.dtype == jnp.float16"),
    "the dtype of whole numbers": ("z = x.dtype != torch.long", "z = x.dtype != jnp.result_type(int)"),
    "the bool of a tensor": ("z = bool((x > 0).any())\nw = bool(y)", "z = jnp.any(x > 0)\nw = bool(y)"),
    "a scalar of NumPy's": ("z = x / np.sqrt(n)", "z = x / float(np.sqrt(n))"),
    "a small integer's sum": ("z = x.byte().sum()", "z = jnp.sum(x.astype(jnp.uint8), dtype=int)"),
    "two statements on a line": ("z = x.exp(); w = x.sin()", "z = jnp.exp(x)\nw = jnp.sin(x)"),
    "a scalar": ("z = x.max().item() * 2", "z = jnp.max(x) * 2"),
    "a whole number of a value": ("z = x * int(y.sum())", "z = x * jnp.sum(y).astype(int)"),
    "a power of a whole number of a value": (
        "k = int(y.sum())\nz = x * 2 ** -k",
        "k = jnp.sum(y).astype(int)\nz = x * float(2) ** -k",
    ),
    "a flat view of a fresh tensor": (
        "z = torch.zeros_like(x)\nw = z.flatten()\nw[n] = 1\nctx.z = z",
        "z = jnp.zeros_like(x)\nw = z.reshape(-1)\nw = w.at[n].set(1)\nz = w.reshape(z.shape)\nctx.z = z",
    ),
    "whether gradients are recorded": ("z = torch.is_grad_enabled()", "z = False"),
    "the type of a device": ("z = x.device.type == 'cuda'", "z = False"),
    "a quotient that is compared": ("z = x.sin() / y\nw = z > 3", "z = _quotient(jnp.sin(x), y)\nw = z > 3"),
    "a quotient whose shape is compared": (
        "z = x.sin() / y\nw = z is not None and z.dim() == n and (z + 1).shape[0] > n",
        "z = jnp.sin(x) / y\nw = z is not None and z.ndim == n and (z + 1).shape[0] > n",
    ),
}


@pytest.mark.parametrize("case", REWRITES)
def test_rewrites(case):
    """Each kind of statement becomes what a JAX engineer would write, and nothing is left for the hand."""
    before, after = REWRITES[case]
    made, findings = ported(before)
    assert made == after
    assert not [f for f in findings if f.severity == "error"]


NO_OPS = {
    "a list that is sorted in place": "v = list(n)\nv.sort()",
    "einops, which takes JAX's arrays": 'z = einops.rearrange(x, "a b -> b a")',
    "a message that needs no value": "if n > 3:\n    print('many', n)",
    "a Python number is no tensor": "k = n\nk += 1",
    "a branch on a Python value": "if flag:\n    k = n + 1",
    "arithmetic has JAX's meaning": "z = (x + 1) / 2 - y ** 2",
    "a slice has JAX's meaning": "z = x[..., 1:, None]",
    "the user's own object": "z = ctx.engine.run(x)",
    "what an object makes of an array": "z = x[0]\nz = ctx.engine.fill(x, z)",
    "an effect on Python's numbers": "ctx.engine.count(n)",
    "rows that are read only": "z = 0\nfor row in x:\n    z = z + row",
    "a comprehension that writes to nothing": "v, w = (t + 1 for t in (x, y))",
    "a whole number of a Python number": "k = int(n / 2)\nk = 2 ** -k",
    "an entry of a list of one's own": "z = [x * 2]\nz[0] += y\nctx.z = z",
    "NumPy of Python numbers": "k = np.sqrt(n)",
    "SciPy of a Python number": "k = special.erf(n)",
    "a constant array of NumPy": "k = np.linspace(0, 1, n).std() * np.arange(n)[1]",
    "a string's method": 'k = "a,b".split(",")',
    "a loop over numbers": "for i in range(n):\n    x = x + i",
    "ctx keeps its ways": "ctx.save_for_backward(x, y)\nctx.n = n",
}


@pytest.mark.parametrize("reason", NO_OPS)
def test_no_ops(reason):
    """Code that means the same in JAX stays, to the letter."""
    made, findings = ported(NO_OPS[reason])
    assert made == NO_OPS[reason]
    assert not findings


FINDINGS = {
    "a tensor's value as text": ("print(f'{x.mean():.2f}')", "untraced"),
    "a branch on a value": ("if x.sum() > 0:\n    x = x * 2", "untraced"),
    "a choice by a value": ("z = x if x.sum() > 0 else y", "untraced"),
    "NumPy of a tensor": ("z = np.exp(x.numpy())", "untraced"),
    "NumPy's array, which shares the memory": ("a = x.numpy()\na.sort()", "numpy"),
    "a function of torch as a value": ("f = torch.relu\nz = [f]", "operation"),
    "a sum of what a mask selects": ("z = x[x > 0].sum()", "untraced"),
    "several targets of which one is an element": ("x[0], z = y[0], y[1]", "alias"),
    "unpacked arguments of an unknown number": ("z = x.flatten(*n)", "operation"),
    "the type of a tensor": ("z = type(x) is not torch.Tensor", "operation"),
    "what only tensors have": ('z = hasattr(y, "dim")', "unknown"),
    "writes in a comprehension": ("v, w = x * 1, y * 1\nv, w = (t.clamp_(0, 1) for t in (v, w))", "alias"),
    "dtypes as keys of a list": ("d = set([torch.float16])", "unknown"),
    "whether each of several inputs needs a gradient": (
        "z = [i for i, v in enumerate((x, y)) if v.requires_grad]",
        "requires-grad",
    ),
    "the largest of a list of tensors and more": ("v = [x.sum(), y.sum()]\nz = max(*v, 1.0)", "unknown"),
    "a counter that Python needs": (
        "z = x.exp()\nw = [1, 2, 3]\nfor k in range(3):\n    z = z * w[k]\n    if z.sum() > 0:\n        break\nx = z",
        "untraced",
    ),
    "a counter in a slice": (
        "z = x.exp()\nfor k in range(3):\n    z = z * y[:k].sum()\n    if z.sum() > 0:\n        break\nx = z",
        "untraced",
    ),
    "a name that a test binds": (
        "z = x.exp()\nwhile (w := z.sum()) > 1:\n    z = z / 2\nx = z * w",
        "untraced",
    ),
    "an error that an array does not raise": (
        "try:\n    z = 1 / x.exp().sum().item()\nexcept ZeroDivisionError:\n    z = 0.0\nx = x * z",
        "untraced",
    ),
    "a write to what a list among slices selects": (
        "z = x.exp()\nat = [slice(None)] * n\nat[0] = [0, 2]\nw = z[tuple(at)]\nw += 1\nx = z",
        "alias",
    ),
    "rows of a loop that are written to": ("z = y.clone()\nfor row in z:\n    row += 1\nctx.z = z", "alias"),
    "a mask among indices": ("m = x[0] > 0\nx[:, m] = 0", "untraced"),
    "a number, a slice and an array": ("i = torch.arange(2)\nz = x[0, :, i]", "operation"),
    "a variable with a list of tensors as an index": ("i = [torch.arange(2)] * 2\nz = x[i]", "operation"),
    "a starred target next to an entry": ("z = x * 1\nz[0], *w = x\nctx.z = z", "alias"),
    "other memory for a tensor": ("z = x * 2\nz.data = y * 3\nctx.z = z", "alias"),
    "a write to what was saved before": ("z = x * 2\nctx.save_for_backward(z)\nz.add_(1)", "alias"),
    "a write to the data of what a tuple holds": ("t = [x, y]\nt[n].data += 1\nctx.t = t", "alias"),
    "a view of an index that may have no axes": ("i = x.argmax()\nz = y * 1\nz[i].add_(1)\nctx.z = z", "alias"),
    "a write through an index that has changed": ("z = x.exp()\nk = 0\nw = z[k]\nk = 1\nw += 1\nx = z", "alias"),
    "a write through a tuple that has changed": (
        "z = x.exp()\nat = [slice(None)] * n\nw = z[tuple(at)]\nat[0] = slice(0, 1)\nw += 1\nx = z",
        "alias",
    ),
    "a check whose error is handled": (
        "try:\n    assert x.exp().sum() > 0\n    z = x\nexcept AssertionError:\n    z = x * 2\nx = z",
        "untraced",
    ),
    "a row that a function is to fill": ("z = torch.empty_like(x)\nn(x[0], out=z[0])\nx = z", "alias"),
    "a list that holds what the next round writes to": (
        "p = []\nz = x * 1\nfor i in range(n):\n    p.append(z)\n    z += y\nz = p",
        "alias",
    ),
    "entries of an array of values": ("i = (x > 0).nonzero()", "untraced"),
    "a write to what a lambda gives back": ("f = lambda t: t[0]\nz = f(x)\nz.mul_(2)", "alias"),
    "a write to a row that a lambda takes": ("f = lambda: x[0]\nf().mul_(2)", "alias"),
    "a write to a row that a function takes": ("def f():\n    return x[0]\nf().mul_(2)", "alias"),
    "a write to what an unknown function gives back": ("n(x).mul_(2)", "alias"),
    "a write to one of several arguments": (
        "def f(a, b):\n    return b\nz = [x, y]\nf(*z).mul_(2)\nw = y",
        "alias",
    ),
    "a write to what two lists hold": (
        "p = [x * k for k in range(2)]\nq = list(p)\np[1].mul_(2)\nz = q[1]",
        "alias",
    ),
    "a write to what a list holds twice": ("p = [x * 2] * 2\np[0].mul_(2)\nz = p[1]", "alias"),
    "a write to what is called by two names": (
        "p = []\nfor k in range(2):\n    t = x * k\n    p.append(t)\n    p.append(t)\n    t = 0\np[0].mul_(2)\nz = p",
        "alias",
    ),
    "a write to what ctx keeps in a list": ("p = [x * 2]\nctx.p = p\np[0].mul_(2)", "alias"),
    "a write to what was saved beside a list": ("t = x * 1\nctx.save_for_backward(t, *[y])\nt.mul_(2)", "alias"),
    "a write to what was saved in the second list": (
        "t = [x * 1]\nctx.save_for_backward(*[y * 2], *t)\nt[0].mul_(2)",
        "alias",
    ),
    "a write to what a dictionary holds": ('d = {"a": x}\nx.mul_(2)\nz = d["a"]', "alias"),
    "a write to what another makes of a dictionary": (
        "d = dict(a=x)\nfor v in d.values():\n    v.mul_(2)\nz = x",
        "alias",
    ),
    "a write to the rows of an expanded tensor": ("z = x.sum(0).expand_as(x)\nz[x > 0] = 0", "alias"),
    "a write to overlapping windows": ("z = x * 1\nz.unfold(0, 2, 1).mul_(2)\nw = z", "alias"),
    "a write to windows that a function gets": (
        "def f(a):\n    a[0] = 1\nz = x * 1\nf(z.unfold(0, 2, 1))\nw = z",
        "alias",
    ),
    "a write in a loop over one tensor twice": ("z = x * 1\nfor t in (z, z):\n    t[0] /= 2\nw = z", "alias"),
    "a write beside a view of an earlier round": (
        "z = x * 1\nw = z[:1]\nfor t in z.split(1):\n    t[0] = 1\n    w = t\nv = w",
        "alias",
    ),
    "other memory for a view": ("z = x * 1\nw = z[0]\nw.data = y[0] * 2\nv = z", "alias"),
    "a write to what one branch saved": ("z = x * 2\nif flag:\n    ctx.save_for_backward(z)\nz.mul_(2)", "alias"),
    "a mask in one branch alone": ("z = x\nif flag:\n    z = x[x > 0]\nw = z.sum()", "untraced"),
    "a write that * hides": ("def f(a, b):\n    a.mul_(b)\nf(*[x, 2])", "alias"),
    "an attribute of a tensor": ("w = x.exp()\nz = w * w.scale", "unknown"),
    "out= that may be None": ("f = lambda: torch.exp(x, out=y if flag else None)", "alias"),
    "a size of a tensor": ("z = x.reshape(torch.Size(y.abs()))", "untraced"),
    "unknown name": ("z = mystery(x)", "unknown"),
    "another module": ("z = kernel(x)", "supply"),
    "Python's generator": ("import random\nz = x * random.random()", "random"),
    "NumPy's generator, of what jax.random has not": ("z = x * np.random.zipf(2.0, x.shape)", "random"),
    "NumPy's generator, of an unknown shape": ("z = x * np.random.rand(*n)", "random"),
    "a decimal number of a value": ("import decimal\nk = decimal.Decimal(x.sum())", "untraced"),
    "a collective to one process": ("torch.distributed.gather(x)", "absent"),
    "a group of some processes": ("torch.distributed.all_reduce(z, group=torch.distributed.new_group([0]))", "absent"),
    "a broadcast from a rank of the world": ("torch.distributed.broadcast(y.mul(2), 1, group=n)", "absent"),
    "a part of a size that the rank decides": ("z = x[: torch.distributed.get_rank()]", "untraced"),
    "a size that the rank decides": ("z = x.new_zeros(torch.distributed.get_rank())", "untraced"),
    "a loop that fills a list": (
        "z = []\nwhile x.sum() > 0:\n    x = x - 1\n    z.append(x)",
        "untraced",
    ),
    "a write to the enclosing function's": ("def f():\n    y.mul_(2)\nf()", "alias"),
    "a new value for a variable of the enclosing function": (
        "z = y * 1\ndef f():\n    nonlocal z\n    z = y\nf()\nz.add_(1)\nctx.z = y",
        "alias",
    ),
    "a write to what a lambda puts into a list": (
        "z = y * 2\nseen = []\nf = lambda s: seen.append(s)\nf(z)\nseen[0].add_(1)\nctx.z = z",
        "alias",
    ),
    "a write to what a comprehension puts into a list": (
        "z = y * 2\nseen = []\n[seen.append(z) for _ in range(n)]\nseen[0].add_(1)\nctx.z = z",
        "alias",
    ),
    **{
        f"a write to what an inner function puts into a list: {first}": (
            f"z = y * 2\nseen = [y * 1]\ndef f(s):\n    {first}\nf(z)\n{write}.add_(1)\nctx.z = {read}",
            "alias",
        )
        for first, write, read in (
            ("seen.append(z)", "seen[1]", "z"),
            ("seen[0] = z", "seen[0]", "z"),
            ("seen.extend([s])", "z", "seen[1]"),
        )
    },
    "draws that would share a key": ("z = [torch.rand_like(x) for _ in range(2)]", "random"),
    "draws of a lambda": ("f = lambda: torch.rand_like(x)\nz = f() - f()", "random"),
    "a read before a write in one statement": ("z = (y + 0) * y.add_(1)", "alias"),
    "a write through other bits": ("z = y.view(torch.int32)\nz[0] = 0\nw = y", "alias"),
    "out= of a pair": ("a, b = x[0], y[0]\ntorch.max(x, 1, out=(a, b))", "operation"),
    "a result that asks who differentiates": ("if y.requires_grad:\n    x = x * 2", "requires-grad"),
    "a dtype by PyTorch's name": ("z = str(x.dtype) == 'torch.float16'", "operation"),
    "a handler for what JAX does not raise": (
        "try:\n    z = torch.linalg.cholesky(x) @ y\nexcept RuntimeError:\n    z = x",
        "untraced",
    ),
    "a write to what an object of the caller keeps": ("z = n.inner.buffer\nz.copy_(x)", "alias"),
    "a write through a view of other numbers": ("z = torch.complex(x, y)\nz.real[0].mul_(2)\nctx.z = z", "alias"),
    "a mask that has changed since": ("m = x > 0\nz = y[m]\nm = x < 0\nctx.z = z.sum() + m", "untraced"),
    "an option that JAX has not": (
        "z = F.interpolate(x, 2, mode='bilinear', antialias=True)",
        "operation",
    ),
    "dropout inside attention": ("z = F.scaled_dot_product_attention(x, y, y, dropout_p=0.5)", "operation"),
    "an entry of a selection": ("m = x > 0\nz = x[m]\nz[0] = 100\ny = y * 1\ny[m] = z", "untraced"),
    "a selection as an index": ("m = x > 0\nz = torch.arange(4)[m]\nctx.z = y[z].sum()", "untraced"),
    "an in-place function that is passed on": ("f = (torch.relu_, torch.exp_)[n]\nf(x)", "operation"),
    "a function that is passed on, for a doubtful call": ("f = (torch.max, torch.min)[n]\nz = f(x, y)", "operation"),
    "keywords of which nothing is known": ("z = torch.ones(3, **n.options)", "operation"),
    "torch as a value": ("z = getattr(torch, n)(x)", "unknown"),
    "a selection that is kept": ("z = x[x > 0]\nctx.z = z", "untraced"),
    "the rows of a list of them": ("y = y.clone()\nfor row in list(y):\n    row += 1", "alias"),
    "the next row": ("y = y.clone()\nrow = next(iter(y))\nrow += 1", "alias"),
    "what a list was filled with": (
        "z = []\nfor t in (x, y):\n    z.append(t * 2)\nfor t in z:\n    t.mul_(2)\nctx.z = z",
        "alias",
    ),
    "what a list keeps of the rounds": (
        "z = []\nfor i in range(n):\n    y = y * 1\n    z.append(y)\n    y += x\nctx.z = z",
        "alias",
    ),
    "one tensor several times": ("z = [torch.zeros(3)] * n\nz[0] += x\nctx.z = z", "alias"),
    "entries that a loop stored": (
        "z = [None, None]\nfor i in range(2):\n    z[i] = x * i\nfor t in z:\n    t.mul_(2)\nctx.z = z",
        "alias",
    ),
    "a row of one of two, whose rows have names": (
        "v = x * 1\nw = v[0] if flag else y * 1\nr = v[1]\nz = w[1]\nz.mul_(2)\nctx.z = r + w",
        "alias",
    ),
    "what a branch has chosen in another round": (
        "v, w, z = x * 1, y * 1, x\nfor i in n:\n    k = v if i else w\n    z[0].add_(1)\n    z = k\nctx.z = v + z",
        "alias",
    ),
    "a reduction of einops that is a function": (
        "from einops import reduce\nz = reduce(x, 'a b -> a', torch.sum)",
        "operation",
    ),
    "a view of memory that is replaced": ("z = x * 2\nv = z[0]\nz.data = y * 3\nv.add_(1)\nctx.z = z", "alias"),
    "a hash by a table": ("k = x.long()\nprimes = (1, 73856093)\nz = k[0] * primes[n]", "int64"),
    "a hash in a loop over a table": (
        "k = x.long()\nz = torch.zeros_like(k)\nfor i, p in enumerate((1, 73856093)):\n    z ^= k * p",
        "int64",
    ),
    "a hash by a function": ("z = torch.mul(x.long(), 100003)", "int64"),
    "a whole number of more than 32 bits": ("z = x.exp() * (2 ** 31)", "int64"),
    "one in a call": ("z = torch.clamp(x, max=2147483648)", "int64"),
    "one that is written": ("x[0] = 2 ** 40", "int64"),
    "a hash in place": ("z = torch.arange(n)\nz *= 100003", "int64"),
    "a part of a version": (
        "from packaging import version\nk = version.parse(torch.__version__).local",
        "unknown",
    ),
    "a doubtful alias": ("z = y.contiguous()\nz.add_(1)", "alias"),
    "an input that is written to": ("w = 1\ny.add_(x)\ny = x", "in-place"),
    "a recomputation that the next round reads": (
        (
            "w = y\nwith torch.enable_grad():\n    for i in range(n):\n        v = (x * w).detach().requires_grad_()\n"
            "        w = v.sin()\n        z = torch.autograd.grad(w, v, y)[0]"
        ),
        "autograd",
    ),
    "a list of views that the next round reads": (
        "w = x * 1\nv = w.split(2)\nfor i in range(n):\n    for a in v:\n        a.mul_(2)\nctx.z = w",
        "alias",
    ),
    "views of neighbours in a zip": ("w = x * 1\nfor a, b in zip(w[:-1], w[1:]):\n    b.add_(a)\nctx.w = w", "alias"),
    "a counter that changes": (
        "w = torch.exp(x)\nfor i, a in enumerate(w):\n    i = i + 1\n    a += 1\nctx.w = w",
        "alias",
    ),
    "the last row of a loop": ("w = torch.exp(x)\nfor a in w:\n    n = n + 1\na += 1\nctx.w = w", "alias"),
    "rows of a list that are written to": ("w = torch.exp(x)\nfor a in list(w):\n    a += 1\nctx.w = w", "alias"),
    "a row of an iterator that is written to": ("w = torch.exp(x)\na = next(iter(w))\na += 1\nctx.w = w", "alias"),
    "a flat view of another order": (
        "w = torch.zeros_like(x, memory_format=torch.channels_last)\na = w.flatten()\na[0] = 1\nctx.w = w",
        "alias",
    ),
    "a flat view of a transposed tensor": (
        "w = torch.exp(x.t())\na = w.reshape(-1)\na[0] = 1\nctx.w = w",
        "alias",
    ),
    "windows that are written to": ("w = x * 1\nfor a in w.unfold(0, 3, 1):\n    a.mul_(2)\nctx.w = w", "alias"),
    "an entry of a list at a value": ("k = [1, 2, 3][int(x.sum())]", "untraced"),
    "a list repeated by a value": ("k = [0] * x.sum().item()", "untraced"),
    "a value in a tuple": ("k = int(x.sum()) in (1, 2)", "untraced"),
    "a range of a value": ("k = torch.arange(int(x.sum()), 20)", "untraced"),
    "a padding by a value": ("k = F.pad(x, (0, int(x.sum())))", "untraced"),
    "a mask with one value each among indices": ("m = x[0] > 0\nx[:, m] = y[0]", "untraced"),
    "types of tensors that differ": (
        "z = torch.HalfTensor if flag else torch.FloatTensor\nx = x.type(z)",
        "operation",
    ),
    "a type of tensors in a table": ("z = {'a': torch.FloatTensor}", "operation"),
    "a write to what an object keeps": ("z = types.SimpleNamespace(t=x.clone())\nw = z.t\nw.mul_(2)\ny = z.t", "alias"),
    "a layer that is passed on": ("z = torch.nn.ReLU()\nctx.z = [z]", "absent"),
    "a layer with parameters": ("x = torch.nn.Linear(3, 3)(x)", "absent"),
    "an embedding that writes to its weight": ("z = F.embedding(y, x, max_norm=1.0)", "operation"),
    "one array or one entry of it": ("if x.sum() > 0:\n    x = x[0]", "untraced"),
    "an array of booleans or of numbers": ("z = x.float()\nif x.sum() > 0:\n    z = x > 0\nctx.z = z", "untraced"),
    "a tensor or None": ("z = None\nif x.sum() > 0:\n    z = x\nctx.z = z", "untraced"),
    "as many entries as values say": ("z = [v for v in (x, y) if v.sum() > 0]", "untraced"),
    "the largest of a list": ("z = max([x.sum(), y.sum()])", "untraced"),
    "a tree of tensors": ("from torch.utils import _pytree\nz = _pytree.tree_map(lambda t: t, {'a': x})", "unknown"),
    "out= or none": ("y = torch.exp(x, out=x if flag else None)", "alias"),
    "a view that a flag chooses": ("z = x * 1\nv = z[0] if flag else z[1]\nv.mul_(2)\nctx.z = z", "alias"),
    "a write in one branch": ("z = x * 1\nw = (z.mul_(2) if flag else z).exp()\nctx.z = z", "alias"),
    "the largest by a tensor's value": ("z = max((x.sin(), x.cos()), key=lambda v: v.sum())", "untraced"),
    "a distribution of several dimensions": (
        "from torch.distributions import MultivariateNormal\nz = MultivariateNormal(x, y).log_prob(x)",
        "absent",
    ),
    "unpacked arguments of one signature or another": ("z = torch.max(*n)", "operation"),
    "unpacked arguments of a write": ("x.clamp_(*n)", "operation"),
    "a write behind a condition": ("z = x * 1\nw = flag and z.mul_(2)\nctx.z = z", "alias"),
    "a write in one branch, after another write": (
        "z = x * 1\nw = z.add_(1) * (z.mul_(2) if flag else z)\nctx.z = z",
        "alias",
    ),
    "a question about recording": ("z = x.grad_fn is None", "absent"),
    "the entries of a sparse tensor": ("x = n\nctx.z = y.values() + x", "absent"),
    "a type that is compared": ("f = lambda t, k: type(t) is k\nz = f(x, torch.Tensor)", "operation"),
    "a class that is registered by functions of its own": (
        "from torch.utils._pytree import register_pytree_node\nregister_pytree_node(n, flag, flag)",
        "unknown",
    ),
    "a tensor or another": ("z = x.sum() or y", "untraced"),
    "an array that an object is to fill": ("z = torch.empty_like(x)\nctx.engine.fill(x, z)\ny = z", "alias"),
    "a product that may need 64 bits": ("z = x.argmax(0) * 73856093 % 1024", "int64"),
    "a shift that may need 64 bits": ("z = y.long() << 16", "int64"),
    "a method that has the name of a cast": ("z = y.half(x)", "operation"),
    "whether a tensor is a parameter": ("z = x if isinstance(x, torch.nn.Parameter) else x * 2", "unknown"),
    "whole numbers that need 64 bits": ("z = (x.abs() * 2**40).to(torch.int64).argmax(0)", "int64"),
    "a function of a module that is not known": ("z = getattr(torch.nn.functional, ctx.act)(x)", "unknown"),
    "a number of a reversed loop that is returned": (
        "for i in range(3, 0, -1):\n    x = x * 2\n    if x.sum() > 10:\n        return x * i",
        "untraced",
    ),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_findings(case):
    """Code that cannot be translated is an error with its code and line."""
    body, code = FINDINGS[case]
    _, findings = ported(body)
    errors = [f for f in findings if f.severity == "error"]
    assert [f.code for f in errors] == [code]
    assert errors[0].line > 0


NOTES = {
    "double precision": ("z = x.double()", "float64"),
    "a recurrence over an axis": ("k = x.size(0)\nz = y[0]\nfor i in range(k):\n    z = z @ x + y[i]", "unrolled"),
    "a length that jit takes as it is": ("z = torch.bincount(torch.argmax(x, 1), minlength=n)", "check"),
    "a flat view that is one of contiguous inputs only": (
        "z = torch.zeros_like(x)\nw = z.flatten()\nw[n] = 1\nctx.z = z",
        "alias",
    ),
    "an effect on an object": ("ctx.engine.keep(x.exp())", "effect"),
    "a word to the device": ("torch.cuda.synchronize()", "dropped"),
    "an object that takes a value": ("n.total = x.sum()", "effect"),
    "an object that adds up values": ("n.total += x.sum().item()", "effect"),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case):
    """Code that is ported with a difference that users must know has a note."""
    body, code = NOTES[case]
    _, findings = ported(body)
    assert [(f.code, f.severity) for f in findings] == [(code, "note")]


def test_a_renamed_parameter_is_a_note():
    """A parameter under a name that the port needs is renamed, also where it is a keyword, and a note says so."""
    text = """import torch

def scaled(x, jax):
    return torch.relu(x) * jax

class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        return scaled(x, jax=n)
"""
    result = port_source(text)
    assert "def scaled(x, jax_):\n    return jax.nn.relu(x) * jax_" in result.code
    assert "scaled(x, jax_=n)" in result.code
    (cls,) = result.classes
    assert cls.status == "ported"
    assert [(f.code, f.line) for f in cls.findings] == [("renamed", 3)]


@pytest.mark.parametrize("test", ["torch.distributed.is_torchelastic_launched()", "x.stride(0) == 1"])
def test_a_class_stays_behind_a_test_that_has_no_translation(test):
    """A return behind a condition with a finding leaves the class in the output, which raises there."""
    result = port_source(f"{HEAD}        if {test}:\n            return x, y\n{TAIL}", strict=True)
    assert [c.status for c in result.classes] == ["partial"]
    assert "class C(fnjax.Function)" in result.code
    assert "raise NotImplementedError" in result.code


def test_a_helper_knows_what_it_is_given():
    """A tensor's value as the axis of a helper is a finding, in whatever form it comes; a Python number is none."""
    helper = "def along(x, dim: int = 0):\n    return x.sum(dim=dim)\n\n\nclass C("
    for argument, expected in (("x.argmax().item()", ["untraced"]), ("n", [])):
        text = HEAD.replace("class C(", helper) + f"        z = along(y, {argument})" + TAIL
        (cls,) = port_source(text, strict=True).classes
        assert [f.code for f in cls.findings] == expected


WRAPPED = """
import torch

class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        return x.exp() * n

first = C.apply
second = lambda x: C.apply(x, 2)

def third(x: torch.Tensor, n=2.0) -> torch.Tensor:
    \"\"\"It says so.\"\"\"
    return C.apply(x.float(), n)

def more(x):
    y = C.apply(x, 2)
    return y * 2

def foreign(x):
    return C.apply(torch.ops.mine.kernel(x), 2)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "from mine.nodes import *",
        "from mine.tools import torch",
        "from torch import *\nfrom torch.autograd import *\nimport torch as t",
    ],
    ids=["a sibling's star", "a sibling's torch", "torch's"],
)
def test_star_imports(imports):
    """Torch may come with a star of the file's siblings; what torch's own stars bring is known."""
    names = ("torch.autograd.Function", "torch.exp") if "mine" in imports else ("Function", "exp")
    method = "    @staticmethod\n    def forward(ctx, x):\n        return {}(x)\n"
    ported = port_source(f"{imports}\nclass C({names[0]}):\n{method.format(names[1])}")
    assert [c.status for c in ported.classes] == ["ported"], ported.findings
    assert "return jnp.exp(x)" in ported.code


def test_stars_of_the_standard_library():
    """Names that a star import of math brings are imported by name."""
    text = "from math import *\nimport torch\nclass C(torch.autograd.Function):\n    @staticmethod\n"
    ported = port_source(f"{text}    def forward(ctx, x):\n        return x * sqrt(4.0) * pi\n")
    assert not ported.findings
    assert "from math import pi, sqrt\n" in ported.code
    assert port_source(ported.code).code == ported.code


LEFT = """
import torch

def build(n):
    return torch.ops.mine.kernel(n)

def twice(n):
    return build(n) * 2

TABLE = twice(3)
OPS = {"build": build, "exp": lambda x: torch.exp(x), "twice": lambda n: twice(n)}
if len(OPS) > 2:
    def scale(x):
        return twice(x) if x is None else x * 2
else:
    def scale(x):
        return build(x)

class Table(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * TABLE

class Ops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scale(OPS["exp"](x))

class ByText(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return globals()["twice"](x)
"""


def test_what_is_left_for_the_hand_does_not_run_on_import():
    """A table that such a function makes is None, and the classes that read it are partial; what holds it stays."""
    ported = port_source(LEFT, strict=True)
    names = {}
    exec(ported.code, names)
    assert names["TABLE"] is None
    assert names["Ops"].apply(jnp.zeros(2)).tolist() == [2, 2]
    assert [c.status for c in ported.classes] == ["partial", "partial", "partial"]
    messages = {f.message for c in ported.classes for f in c.findings}
    assert "twice needs manual porting, and this reads it while the file is imported" in messages


def test_an_axis_that_may_be_none_is_guessed_as_in_torch():
    """torch.nn.functional.softmax takes the first axis, or the second, where it is given none."""
    text = "import torch.nn.functional as F\nimport torch\nclass C(torch.autograd.Function):\n    @staticmethod\n"
    names = executed(f"{text}    def forward(ctx, x, dim=None):\n        return F.softmax(x, dim)\n")
    x = jnp.arange(24.0).reshape(2, 3, 4)
    for array, axis in ((x, 0), (x[0], 1), (x[0, 0], 0)):
        assert jnp.array_equal(names["C"].apply(array), jax.nn.softmax(array, axis))
    assert jnp.array_equal(names["C"].apply(x, 2), jax.nn.softmax(x, 2))


def test_what_only_applies_a_function_comes_along():
    """Wrappers of apply are what a file's users call; one that cannot be translated stays as it is."""
    ported = port_source(WRAPPED)
    assert [c.status for c in ported.classes] == ["ported"]
    assert "first = C.apply\nsecond = lambda x: C.apply(x, 2)\n" in ported.code
    assert "def third(x: jax.Array, n=2.0) -> jax.Array:" in ported.code
    assert "return C.apply(x.astype(jnp.float32), n)" in ported.code
    assert ported.as_is == ("more", "foreign")
    assert "more" not in port_source(WRAPPED, strict=True).code


def test_an_argument_that_outlives_the_call():
    """A class or a global may keep a Python value; that it cannot keep an array under jit is said."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, s):\n"
        "        global SCALE\n        SCALE = s\n        C.scale = s\n"
        "        C.shape = x.shape\n        return SCALE * x\n"
    )
    found = port_source(text).classes[0]
    assert found.status == "ported"
    assert [f.line for f in found.findings if f.code == "effect"] == [6, 7]


def test_what_a_dead_branch_of_the_file_binds():
    """It is not what a name means; where nothing else binds the name, the port says that it has none."""
    forward = "    @staticmethod\n    def forward(ctx, x):\n        return {}(x)\n"
    text = f"""import torch
from torch.utils.cpp_extension import load

if torch.__version__ >= "1.10":
    from torch.nn.functional import softplus as smooth
elif torch.__version__ >= "1.5":
    smooth = load(name="ext", sources=["ext.cpp"]).smooth
else:
    def smooth(x):
        return x

    def old(x):
        return x * 2


class A(torch.autograd.Function):
{forward.format("smooth")}

class B(torch.autograd.Function):
{forward.format("old")}"""
    ported = port_source(text)
    assert "return jax.nn.softplus(x)" in ported.code
    assert {c.name: [f.message for f in c.findings] for c in ported.classes} == {
        "A": [],
        "B": ["the port has no old, which this reads"],
    }


def test_a_base_that_another_module_hands_on():
    """`from .base import Function` is torch's where forward takes ctx, and a note says so."""
    body = "    @staticmethod\n    def forward(ctx, x):\n        return torch.exp(x)\n"
    head = "import torch\nfrom .base import Function, Layer\nfrom .more import *\n\n"
    ported = port_source(f"{head}class A(Function):\n{body}\nclass B(Layer):\n{body}\nclass C(D.Function):\n{body}")
    assert {c.name: [f.message for f in c.findings] for c in ported.classes} == {
        "A": [".base.Function is taken for torch.autograd.Function"],
        "C": [],
    }
    assert "class A(fnjax.Function):" in ported.code
    method = body.replace("    @staticmethod\n", "")
    assert not port_source(f"{head}class A(Function):\n{method}").classes


def test_a_file_that_was_ported_by_half_is_ported_to_its_end():
    """A fnjax.Function that still calls torch is no port."""
    half = "import fnjax\nimport torch\n\n\nclass C(fnjax.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    done = port_source(f"{half}        return torch.exp(x)\n").code
    assert "import torch" not in done
    assert "return jnp.exp(x)" in done
    assert port_source(done).code == done


def test_a_partial_class_leaves_its_neighbours():
    """The file of a partial class can be imported, and its other class works."""
    text = HEAD + "        z = kernel(x)" + TAIL + HEAD.partition("\n\n\n")[2].replace("class C", "class D") + TAIL
    result = port_source(text, strict=True)
    assert [c.status for c in result.classes] == ["partial", "ported"]
    names = {}
    exec(compile(result.code, "port", "exec"), names)
    x, y = names["D"].apply(2.0, 3.0, 1, True)
    assert (x, y) == (6.0, 3.0)
    with pytest.raises(NotImplementedError, match="kernel"):
        names["C"].apply(2.0, 3.0, 1, True)


def test_gradients_that_rounds_add_up():
    """`.grad` of a tensor that asked for it before the loop is the sum of all rounds."""
    _, findings = ported(
        "z = x.detach().requires_grad_()\nfor i in range(n):\n    w = z * i\n    w.backward(y)\nx = z.grad"
    )
    assert [f.code for f in findings] == ["absent", "absent"]


def test_a_sparse_matrix_is_a_finding():
    """SciPy's sparse matrices do not take JAX's arrays under jit."""
    result = port_source(
        "import scipy.sparse\nimport torch\n\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, m: scipy.sparse.csr_array):\n        return torch.from_numpy(m @ x.numpy())\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, None\n"
    )
    assert [(f.line, f.code) for f in result.findings] == [(7, "numpy")]


def test_an_object_is_known_by_its_methods():
    """`size` of what has a method that no tensor has is not a tensor's."""
    result = port_source(
        "import torch\n\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, key, manager):\n"
        "        maps = manager.union_map(key)\n        return x[maps] * torch.zeros(manager.size(key), x.size(1))\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, None, None\n"
    )
    assert not result.findings
    assert "manager.size(key), x.shape[1]" in result.code


def test_forward_and_backward_draw_different_numbers():
    """Of the key that both would take, each gets a half."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return x * torch.rand_like(x)\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return g * torch.rand_like(g)\n"
    )
    names = executed(text)
    x = jnp.ones(5)
    y, pullback = jax.vjp(lambda x: names["C"].apply(x, jax.random.key(0)), x)
    assert not jnp.isclose(y, pullback(x)[0]).any()


def test_a_branch_that_cannot_be_traced_stays_one_of_pythons():
    """jax.lax.cond traces its branches outside jit as well, where a Python `if` runs."""
    made, findings = ported("if x.sum() > 0:\n    for k in range(int(x.max()), 0, -1):\n        x = x / k")
    assert "cond" not in made
    assert {f.code for f in findings} == {"untraced"}
    assert all(f.message.endswith("; JAX source of this runs outside jit only") for f in findings)


def test_a_backward_that_leaves_inputs_out_has_room_for_the_key():
    """PyTorch takes fewer gradients where the last inputs are left to their defaults."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, noise=False, unused=None):\n"
        "        return x + torch.rand_like(x) if noise else x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return {}\n"
    )
    for returned in ("g, None", "g", "(g, *(None,))"):
        names = executed(text.format(returned))
        assert jax.grad(lambda x, f=names["C"].apply: f(x, True, key=jax.random.key(0)))(3.0) == 1


@pytest.mark.parametrize(
    ("helper", "call", "written", "value"),
    [
        ("if flag:\n        t.mul_(2)\n        return t\n    return t * 2", "h(x, flag=False)", False, 9),
        ("if flag:\n        t.mul_(2)\n        return t\n    return t * 2", "h(x)", False, 9),
        ("if flag:\n        t.mul_(2)\n        return t\n    return t * 2", "h(x, True)", True, 12),
        ("if flag:\n        t.mul_(2)\n        return t\n    return t * 2", "h(x, n)", True, 12),
        ("if flag:\n        t.mul_(2)\n    t.add_(1)\n    return t * 2", "h(x)", True, 12),
        ("flag = not flag\n    if flag:\n        t.mul_(2)\n        return t\n    return t * 2", "h(x)", True, 12),
    ],
)
def test_a_helper_writes_where_its_flag_says_so(helper, call, written, value):
    """`inplace=False` at the call, or as the default, leaves the argument as it is; else it is returned as well."""
    text = (
        f"import torch\ndef h(t, flag=False):\n    {helper}\n"
        "class C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, n):\n"
        f"        y = {call}\n        return y + x\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, None\n"
    )
    assert [f.code for f in port_source(text).findings] == (["in-place"] if written else [])
    assert jax.tree.leaves(executed(text)["C"].apply(jnp.float32(3), True))[0] == value


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("x * 2", "False"),
        ("torch.zeros_like(x) if s is None else s.float()", "any(ctx.needs_input_grad[1:2])"),
        ("x if s is None else s", "(ctx.needs_input_grad[0] or any(ctx.needs_input_grad[1:2]))"),
        ("x.contiguous()", "ctx.needs_input_grad[0]"),
    ],
)
def test_forward_runs_without_gradients(made, expected):
    """Tensors that forward computes need no gradient; one that may be an input has the input's requires_grad."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, s=None):\n"
        f"        t = {made}\n        ctx.want = t.requires_grad\n        return x * 1\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, g if ctx.want else None\n"
    )
    assert f"ctx.want = {expected}\n" in port_source(text).code


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = args[0]\n        x[x > 0] = 2\n        return x * 1", ["in-place"]),
        (
            "x, k = args\n        ctx.save_for_backward(*args)\n        x.mul_(3)\n        return x * k",
            ["alias"],
        ),
        ("x, k = args\n        y = x.clone()\n        y.mul_(k)\n        return y", []),
        ("args[0].data += args[1]", ["alias"]),
    ],
)
def test_what_is_taken_out_of_args_is_an_input(body, found):
    """A write to it is one that the caller, and backward, would see."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, *args):\n"
        f"        {body}\n    @staticmethod\n    def backward(ctx, g):\n        return g, None\n"
    )
    assert [f.code for f in port_source(text).findings] == found


def test_a_copy_in_backward_has_no_history():
    """The second derivative does not go through torch.tensor(x) and new_tensor(x)."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return x * 1\n    @staticmethod\n    def backward(ctx, g):\n"
        "        x, = ctx.saved_tensors\n        return g * {}\n"
    )
    for copy, expected in (("torch.tensor(x)", 0), ("g.new_tensor(x)", 0), ("torch.as_tensor(x)", 1)):
        names = executed(text.format(copy))
        assert jax.grad(jax.grad(names["C"].apply))(3.0) == expected


BUFFER = """
import torch


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, total):
        total.add_(x.sum())
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g, None
"""


def test_a_buffer_that_forward_writes_to_is_a_finding():
    """The caller's own array would stay as it was."""
    ported = port_source(BUFFER)
    assert [(f.code, f.severity) for f in ported.findings] == [("in-place", "error")]
    assert ported.as_is == ("C",)


def test_a_buffer_that_backward_writes_to_is_a_finding():
    """A write of backward to a saved buffer, which the caller would not see, is a finding."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, memory):\n        ctx.save_for_backward(x, memory)\n        return x @ memory\n"
        "    @staticmethod\n    def backward(ctx, g):\n        x, memory = ctx.saved_tensors\n"
        "        gx = g @ memory.t()\n        memory.{}\n        return {}gx, None\n"
    )
    for written, read in (("mul_(0.5)", ""), ("mul_(0.5)", "memory.sum() * ")):
        assert [f.code for f in port_source(text.format(written, read)).findings] == ["in-place"]
    assert not port_source(text.format("clone().mul_(0.5)", "")).findings


@pytest.mark.parametrize(
    "kept", ["ctx.a = ctx.b = y", "ctx.a, ctx.b = y, y[0]", "ctx.save_for_backward(y)\n        ctx.b = y"]
)
def test_what_shares_memory_on_ctx_is_a_finding_where_it_is_written_to(kept):
    """Backward would read the old entries of the one after it has written to the other."""
    read = "ctx.saved_tensors[0]" if "save" in kept else "ctx.a"
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        f"        y = x * x\n        {kept}\n        return x + 1\n    @staticmethod\n    def backward(ctx, g):\n"
        f"        a = {read}\n        {{}}\n        return g * a\n"
    )
    assert [f.code for f in port_source(text.format("ctx.b.mul_(2)")).findings] == ["alias"]
    assert not port_source(text.format("b = ctx.b * 2")).findings


@pytest.mark.parametrize("indent", ["  ", "\t"])
def test_the_indentation_is_that_of_the_file(indent):
    """Docstrings stay where they are, so the code around them does, too."""
    text = (
        'import torch\n\n\nclass C(torch.autograd.Function):\n    """One.\n\n    Two.\n    """\n\n    @staticmethod\n'
        "    def forward(ctx, x):\n        if x.dim() > 1:\n            x = x.exp()\n        return x\n"
    ).replace("    ", indent)
    expected = text.replace("import torch", "import fnjax\nimport jax.numpy as jnp").replace("torch.autograd", "fnjax")
    assert port_source(text).code == expected.replace("x.dim()", "x.ndim").replace("x.exp()", "jnp.exp(x)")


def test_only_what_the_class_reads_is_brought_along():
    """A script at the end of the file, whose variables have the names of the class's own."""
    text = (
        "import torch\nscale = 2\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        y = x * scale\n        return y\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return 2 * g\n"
        "if __name__ == '__main__':\n    x = torch.randn(3)\n    y = torch.autograd.gradcheck(C.apply, x)\n"
        "    scale = 3\n"
    )
    ported = port_source(text)
    assert "__main__" not in ported.code
    assert "scale = 2" in ported.code
    assert not ported.findings


def test_variables_have_no_history():
    """In backward, whose second derivatives do not go through them."""
    text = (
        "import torch\nfrom torch.autograd import Variable\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        ctx.save_for_backward(x)\n        return x ** 3\n    @staticmethod\n"
        "    def backward(ctx, g):\n        x, = ctx.saved_tensors\n        return g * 3 * Variable(x * x)\n"
    )
    names = executed(text)
    slope = jax.grad(names["C"].apply)
    assert slope(2.0) == 12
    assert jax.grad(slope)(2.0) == 0


def test_a_decorator_may_read_what_backward_writes_to():
    """The port's backward gives its argument new values under its own name only."""
    text = (
        "import torch\ndef checked(f):\n    def g(ctx, o):\n        m = f(ctx, o)\n        return m + o.sum()\n"
        "    return g\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x"
        "\n    @staticmethod\n    @checked\n    def backward(ctx, g):\n        g.mul_(2)\n        return g\n"
    )
    assert [f.code for f in port_source(text).findings] == ["alias"]
    assert not port_source(text.replace("g.mul_(2)", "g = g * 2")).findings


def test_parameters_are_no_modules():
    """`array` is one of the standard library's, and a parameter of a function that the port carries."""
    text = (
        "import torch\nimport torch.nn.functional as F\nclass C(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return F.avg_pool2d(x, 2)\n"
    )
    assert "import array" not in port_source(text).code


def test_nested_loops_are_walked_in_polynomial_time(monkeypatch):
    """Each loop is walked until it settles, and each branch in several ways: none of that is done again and again."""
    visits = []
    statement = Evaluator.port_statement
    monkeypatch.setattr(Evaluator, "port_statement", lambda walk, node: visits.append(node) or statement(walk, node))

    def visited(depth):
        body, indent = "", " " * 8
        for k in range(depth):
            body += f"{indent}for i{k} in range(n):\n{indent}    if x.sum() > {k}:\n{indent}        rows.append(x)\n"
            indent += " " * 8
        visits.clear()
        port_source(
            "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, n):\n"
            f"        rows = []\n{body}{indent}x = x * 2\n        return x\n"
        )
        return len(visits)

    assert visited(4) < 4 * visited(3)  # each level walks the next a dozen times


def test_both_halves_share_what_functions_change():
    """A global that functions change is one: what reads it stays in the half that has those functions."""
    text = (
        "import torch\nimport unknown_package\n\nscale = 1.0\nrows = [2.0]\n\n\ndef set_scale(s):\n    global scale\n"
        "    scale = unknown_package.f(s)\n\n\n"
    )
    for name, value in (("C", "scale"), ("D", "unknown_package.f(x)"), ("E", "rows[0]")):
        text += (
            f"class {name}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            f"        {'set_scale(3.0)' if name == 'D' else 'pass'}\n        return x * {value}\n\n\n"
        )
    classes = port_source(text).classes
    assert {c.name: c.status for c in classes} == {"C": "as_is", "D": "as_is", "E": "ported"}
    assert "functions change scale, and some" in classes[0].findings[0].message


def test_the_schema_of_an_operator_keeps_its_annotations():
    """An operator of which the port would lose an annotation stays PyTorch source: an import would fail."""
    text = (
        "import torch\nfrom other import Base\nclass Handle(Base):\n    pass\n"
        '@torch.library.custom_op("portq::f", mutates_args=())\ndef f(x: torch.Tensor, h: {}) -> torch.Tensor:\n'
        "    return x * 2\n"
    )
    assert [c.status for c in port_source(text.format("int")).classes] == ["ported"]
    (lost,) = port_source(text.format("Handle")).classes
    assert lost.status == "as_is"
    assert "the port has no Handle" in lost.findings[0].message


@pytest.mark.parametrize("around", ["if True:", "def __init__(self):"])
def test_a_class_that_the_port_lacks_is_a_finding(around):
    """In a module the porter reads functions and classes only, and a module's methods stay PyTorch source."""
    text = (
        f"import torch\nclass Norm(torch.nn.Module):\n    {around}\n        class F(torch.autograd.Function):\n"
        "            @staticmethod\n            def forward(ctx, x):\n                return x * 3\n"
    )
    (cls,) = port_source(text).classes
    assert cls.status == "as_is"
    assert "to the top level" in cls.findings[0].message


@pytest.mark.parametrize(
    ("between", "read"),
    [
        ("s = ctx.saved_tensors\n        s[0].mul_(2)", "s[0]"),  # the tuple has the same tensor
        ("s = ctx.saved_tensors\n        a = s[0]\n        a.mul_(2)", "a * s[1]"),  # it may be read of the tuple
    ],
)
def test_entries_of_what_was_saved_are_written_to(between, read):
    """A write is seen through the tuple that ctx.saved_tensors gave, where that is read again."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, y):\n"
        "        ctx.save_for_backward(x, y)\n        return x * y\n    @staticmethod\n    def backward(ctx, g):\n"
        f"        {between}\n        return g * {read}, g\n"
    )
    assert [f.code for f in port_source(text).findings] == ["alias"]


SHARED = {
    "tensors in a list that a helper writes to": (
        "def f(ts):\n    for t in ts:\n        t.mul_(2)\n",
        "y = x.clone()\n        f([y])\n        return y",
    ),
    "what *args are": (
        "def f(*ts):\n    for t in ts:\n        t.mul_(2)\n",
        "y = x.clone()\n        f(y)\n        return y",
    ),
    "a part of a tuple": (
        "def f(p):\n    a, k = p\n    a.mul_(k)\n",
        "y = x.clone()\n        f((y, 2))\n        return y",
    ),
    "views that a helper lists": (
        "def f(t):\n    return [t[i] for i in range(2)]\n",
        "y = x.clone()\n        for r in f(y):\n            r.mul_(2)\n        return y",
    ),
    "views that a generator gives": (
        "def f(t):\n    for i in range(2):\n        yield t[i]\n",
        "y = x.clone()\n        for r in f(y):\n            r.mul_(2)\n        return y",
    ),
    "one of two results may be the other": (
        "def f(x, r=None):\n    y = x * 2\n    if r is None:\n        r = y\n    return y, r\n",
        "y, r = f(x)\n        y.mul_(2)\n        return y + r",
    ),
    "a dictionary's entry": ("", 'y = x.clone()\n        d = {"a": y}\n        d["a"].mul_(2)\n        return y'),
    "an entry under another name": (
        "",
        'y = x.clone()\n        d = {"a": y}\n        t = d["a"]\n        t.mul_(2)\n        return y',
    ),
    "views that map gives": (
        "",
        "y = x.clone()\n        v = list(map(lambda i: y[i], range(2)))\n        y.mul_(2)\n        return v[0]",
    ),
    "what may be the tensor that is saved": (
        "",
        "y = x if k else x.clone()\n        ctx.save_for_backward(x)\n        y.mul_(2)\n        return y",
    ),
    "a name that means another tensor than the saved one": (
        "",
        "y = x * 2\n        ctx.save_for_backward(y)\n        if k:\n            y = y + 1\n        return y.mul_(2)",
    ),
    "a copy that out= fills": (
        "",
        "y = x.clone()\n        torch.add(x[:1], 1, out=y[:1].contiguous())\n        return y",
    ),
    "a flag that says whether it is written to": (
        "import torch.nn.functional as F\n",
        "y = x.clone()\n        F.relu(y, inplace=k)\n        return y",
    ),
}


@pytest.mark.parametrize(("helper", "body"), SHARED.values(), ids=SHARED.keys())
def test_memory_that_may_be_shared_is_a_finding(helper, body):
    """A write that something else may see is translated with its alias, or a finding; never dropped."""
    text = (
        f"import torch\n{helper}class C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, k):\n"
        f"        {body}\n"
    )
    assert [f.code for f in port_source(text).findings if f.severity == "error"] == ["alias"]


@pytest.mark.parametrize(
    ("made", "read", "expected"),
    [
        ("g.contiguous()", "h", ""),
        ("g if k else g.contiguous()", "h", ""),
        ("g.half()", "h.to(g.dtype)", ""),
        (
            "g.contiguous()",
            "h + g",
            "whether this write changes 'g' cannot be told",
        ),
        ("g.t().to(g.dtype)", "h + g", "whether this write changes 'g' cannot be told"),
        ("g if k else g.contiguous()", "h + g", "whether this write changes 'g' cannot be told"),
    ],
)
@pytest.mark.parametrize("written", ["h[:, 0].neg_()", "v = h[:, 0]\n        v.neg_()", "h[:, 0] = 0", "h[:, 0] *= 2"])
def test_a_write_to_what_may_be_a_copy(made, read, expected, written):
    """A write to what is the same memory or a copy is a finding only if the other memory is read later."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, k: bool):\n"
        f"        ctx.k = k\n        return x * 2\n    @staticmethod\n    def backward(ctx, g):\n        k = ctx.k\n"
        f"        h = {made}\n        {written}\n        return {read}, None\n"
    )
    messages = [f.message for f in port_source(text).findings]
    assert len(messages) == bool(expected)
    assert all(expected in m for m in messages)


KEPT = {
    "a dictionary of the file": "if n not in CACHE:\n        CACHE[n] = torch.arange(n)\n    return CACHE[n]",
    "a global": "global TABLE\n    if TABLE is None:\n        TABLE = torch.arange(n)\n    return TABLE",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_arrays_that_outlive_a_call_are_a_finding(body):
    """Under jit they would be those of a trace that has ended."""
    text = (
        f"import torch\nCACHE, TABLE = {{}}, None\ndef table(n):\n    {body}\n"
        "class C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * table(x.shape[-1])\n"
    )
    assert [f.code for f in port_source(text).findings] == ["untraced"]


def test_what_backward_puts_into_an_argument_is_a_finding():
    """Backward gets a copy of what forward kept on ctx."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, store):\n"
        "        ctx.store = store\n        return x * 2\n    @staticmethod\n    def backward(ctx, g):\n"
        '        ctx.store["g"] = g.sum().item()\n        return g * 2, None\n'
    )
    assert [f.code for f in port_source(text).findings] == ["in-place"]


def test_constants_of_the_class_around_are_kept():
    """And its helpers, as far as the file's Functions read them."""
    text = (
        "import torch\nclass Layer(torch.nn.Module):\n    K = 2.0\n    L = K * 3\n    unused = torch.nn.ReLU()\n"
        "    @staticmethod\n    def scaled(x):\n        return x * Layer.L\n"
        "    class F(torch.autograd.Function):\n        @staticmethod\n        def forward(ctx, x):\n"
        "            return Layer.scaled(x)\n"
    )
    ported = port_source(text)
    names = {}
    exec(ported.code, names)
    assert [(c.status, c.findings) for c in ported.classes] == [("ported", ())]
    assert names["Layer"].F.apply(2.0) == 12
    assert not hasattr(names["Layer"], "unused")


def test_a_class_whose_method_holds_a_function_stays_whole():
    """The Function may read any member of the instance."""
    text = (
        "import torch\nfrom dataclasses import dataclass\n@dataclass\nclass Format:\n    bits: int = 3\n"
        "    def quantise(self, x): return torch.round(x * self.bits) / self.bits\n"
        "    def fwd(self, x):\n        class Q(torch.autograd.Function):\n"
        "            @staticmethod\n            def forward(ctx, x): return self.quantise(x)\n"
        "            @staticmethod\n            def backward(ctx, g): return g * self.bits\n"
        "        return Q.apply(x)\n"
    )
    names = {}
    exec(port_source(text, strict=True).code, names)
    made = names["Format"](bits=4)
    assert made.fwd(0.3) == 0.25
    assert jax.grad(made.fwd)(0.3) == 4


def test_a_counted_loop_that_draws_is_unrolled():
    """Its key is another one in each iteration."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        s = torch.zeros(x.size(0))\n        for i in range(x.size(0)):\n            s[i] = torch.rand(())\n"
        "        return s * x\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"
    )
    names = {}
    exec(port_source(text, strict=True).code, names)
    found = jax.jit(names["C"].apply)(jnp.ones(3), jax.random.key(0))
    assert len({*found.tolist()}) == 3


def test_a_selection_that_is_returned_leaves_others_whole():
    """Entries that a mask selects are taken out where they must be; those of another mask stay in their places."""
    text = (
        "import torch\nclass C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, y):\n"
        "        m = x > 0\n        k = y > 0\n        z = torch.zeros_like(y)\n"
        "        t = y[k]\n        z[k] = t * 2\n        picked = x[m]\n        return picked, z\n"
        "    @staticmethod\n    def backward(ctx, g, h):\n        return None, None\n"
    )
    ported = port_source(text, strict=True)
    assert [f.code for f in ported.findings] == ["untraced"]
    assert "picked = x[m]\n" in ported.code
    assert "z = jnp.where(k, t * 2, z)\n" in ported.code
