"""Code around the kernels of packages: other GPUs, operators by composed names, objects of their own as outputs."""

import importlib
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("libcst")
from fnjax.port import port_source
from fnjax.port.engine.folder import port_files

X = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
HEAD = '''
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.autograd.function import FunctionCtx

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
    HAS_DESCRIPTORS = True
except ModuleNotFoundError:
    HAS_DESCRIPTORS = False

_NS = "mine"


def is_cuda():
    try:
        return torch.cuda.is_available() and torch.version.cuda is not None
    except Exception:
        return False


def is_hip():
    return getattr(torch.version, "hip", None) is not None


def supports_descriptors():
    """TMA."""
    try:
        return HAS_DESCRIPTORS and is_cuda() and torch.cuda.get_device_capability()[0] >= 9
    except Exception:
        return False


def _patch():
    if sys.platform == "plan9" or not is_hip():
        return
    from triton.backends.amd import driver
    driver.include_dirs.append("here")


_patch()


@triton.jit
def two_kernel(x, double, square, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(double + i, value * 2, mask=i < n)
    tl.store(square + i, value * value, mask=i < n)


@torch.library.custom_op(f"{_NS}::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    y, z = torch.empty_like(x), torch.empty_like(x)
    two_kernel[(triton.cdiv(x.numel(), 32),)](x, y, z, x.numel(), BLOCK=32)
    return y


@double.register_fake
def _(x):
    return torch.empty_like(x)
'''
OPERATOR = """
class Operator(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.ops.mine.double(x)

    @staticmethod
    def backward(ctx, g):
        return torch.ops.mine.double.default(g)
"""
CLASSES = {
    "Operator": OPERATOR,
    "Descriptors": """
class Descriptors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, use_tma=True):
        out, rest = torch.empty_like(x), torch.empty_like(x)
        if hasattr(triton, "set_allocator") and is_cuda():
            triton.set_allocator(lambda size, align, _: torch.empty(size, dtype=torch.int8, device="cuda"))
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
        if use_tma and supports_descriptors():
            described = TensorDescriptor(x, shape=[6, 12], strides=[12, 1], block_shape=[2, 4])
            two_kernel[grid](described, out, rest, x.numel(), BLOCK=32)
        else:
            two_kernel[grid](x, out, rest, x.numel(), BLOCK=32)
        return out

    @staticmethod
    def backward(ctx, g):
        return 2 * g, None
""",
    "Hands": '''
def both(x, double, square):
    """Write two and return a third."""
    if double.numel() == 0:
        return x
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    two_kernel[grid](x, double, square, x.numel(), BLOCK=32)
    return x + 1


class Hands(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        double, square = torch.empty_like(x), torch.empty_like(x)
        more = both(x, double, square)
        ctx.save_for_backward(double)
        return square + more

    @staticmethod
    def backward(ctx, g):
        (double,) = ctx.saved_tensors
        return g * (double + 1)
''',
    "Objects": """
@dataclass(frozen=True)
class Checked:
    width: int
    dtype: torch.dtype


class Objects(torch.autograd.Function):
    class Context(FunctionCtx):
        double: torch.Tensor

    class Kept(NamedTuple):
        double: torch.Tensor
        width: int

    class Out(NamedTuple):
        square: torch.Tensor
        kept: "Objects.Kept"

    @staticmethod
    def forward(x):
        checked = Checked(width=x.shape[1], dtype=x.dtype)
        double, square = torch.empty_like(x), torch.empty_like(x, dtype=checked.dtype)
        two_kernel[(3,)](x, double, square, x.numel(), BLOCK=32)
        return Objects.Out(square, Objects.Kept(double, checked.width))

    @staticmethod
    def setup_context(ctx: "Objects.Context", inputs, output):
        square, (double, width) = output
        ctx.save_for_backward(double)

    @staticmethod
    def backward(ctx, g, _):
        (double,) = ctx.saved_tensors
        return g * double
""",
}
VALUES = {"Operator": 2 * X, "Descriptors": 2 * X, "Hands": X * X + X + 1, "Objects": X * X}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of all classes, imported; and its text."""
    ported = port_source(HEAD + "\n".join(CLASSES.values()))
    found = [(c.name, f) for c in ported.classes for f in c.findings if f.severity == "error"]
    assert not found
    path = tmp_path_factory.mktemp("packages") / "ported_packages.py"
    path.write_text(ported.code)
    spec = importlib.util.spec_from_file_location("ported_packages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, ported.code


@pytest.mark.parametrize("name", CLASSES)
def test_values_and_gradients(port, name):
    """Under jit; the first output of several."""

    def first(x):
        out = getattr(port[0], name).apply(x)
        return out[0] if isinstance(out, tuple) else out

    out, back = jax.jit(lambda x: jax.vjp(first, x))(X)
    np.testing.assert_allclose(out, VALUES[name], rtol=1e-6)
    slope = {"Hands": 2 * X + 1, "Objects": 2 * X}.get(name, 2 * np.ones_like(X))
    np.testing.assert_allclose(back(jnp.ones_like(X))[0], slope, rtol=1e-6)


def test_what_is_for_other_gpus_falls_away(port):
    """Neither descriptors of the host nor what asks for them is in the port, nor what stands behind `return`."""
    text = port[1]
    assert not [w for w in ("TensorDescriptor", "supports_descriptors", "set_allocator", "amd", "is_hip") if w in text]


def test_what_a_helper_writes_is_returned_behind_its_result(port):
    """Wherever it ends."""
    text = port[1]
    assert "return x, double, square" in text
    assert "return x + 1, double, square" in text
    assert "found, new_double, new_square = both(x, double, square)" in text


def test_classes_keep_their_fields(port):
    """Also those annotated with types that JAX has not; and containers of arrays are traversed."""
    text = port[1]
    assert "dtype: object" in text
    assert "class Context:" in text
    assert "    pytree = True" in text


def test_an_input_among_the_arrays_of_an_object_is_a_finding():
    """PyTorch would hand the caller's own tensor through, with its history."""
    text = CLASSES["Objects"].replace("Objects.Kept(double, checked.width)", "Objects.Kept(x, checked.width)")
    ported = port_source(HEAD + text)
    assert "pytree" not in ported.code


def test_operators_of_other_files(tmp_path, monkeypatch):
    """`torch.ops.mine.double` of a file that defines it is that file's function, and imported from there."""
    package = tmp_path / "operated"
    files = {str(package / "ops.py"): HEAD, str(package / "use.py"): f"import torch\n{OPERATOR}"}
    found = port_files(files, dict.fromkeys(files, str(tmp_path)))
    assert [c.status for c in found[str(package / "use.py")].classes] == ["ported"]
    package.mkdir()
    for name, ported in found.items():
        Path(name).write_text(ported.code)
    assert "from .ops import double" in found[str(package / "use.py")].code
    monkeypatch.syspath_prepend(str(tmp_path))
    apply = importlib.import_module("operated.use").Operator.apply
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: apply(x).sum()))(X), 2 * np.ones_like(X))


def test_a_class_has_the_findings_of_the_operators_that_it_calls():
    """An operator that runs outside jit only makes the class so."""
    text = HEAD.replace("return y\n", "return y + torch.zeros(int(x.sum()))\n").replace("@double.register_fake", "")
    classes = {c.name: c for c in port_source(text + OPERATOR).classes}
    assert [f.code for f in classes["Operator"].findings] == [f.code for f in classes["mine::double"].findings] != []


def test_a_function_that_calls_itself_settles():
    """The result of a recursive call has one name at any depth, so that the function's summary reaches a fixpoint."""
    text = (
        "import torch\n"
        "def halved(x, n):\n    while True:\n        found = None\n        try:\n            found = cut(x, n)\n"
        "            return found\n        except ValueError:\n            return halved(x, n - 1)\n"
        "def cut(x, n):\n    return x / n if n else x\n"
        "class C(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return halved(x, 2)\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g / 2\n"
    )
    assert not [f for f in port_source(text).findings if "depends on itself" in f.message]
