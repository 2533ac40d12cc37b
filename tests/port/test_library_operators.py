"""Custom operators as packages write them: forms that were found in the operators of benchmarks/port_library.py."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax.port import port_source
from fnjax.port.engine.folder import port_files
from fnjax.torch import jax_view

X = np.arange(1.0, 5.0, dtype=np.float32)
TYPES = """\
import torch
from typing import Optional, Sequence
from torch.types import Number


@torch.library.custom_op("portp::typed", mutates_args=())
def typed(
    x: torch.Tensor, n: Number, d: torch.dtype, s: Sequence[torch.SymInt], e: Optional[torch.dtype] = None
) -> torch.Tensor:
    return (x * n).to(d)


@torch.library.custom_op("portp::noisy", mutates_args=())
def noisy(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x + scale * torch.rand(x.shape)


@noisy.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)
"""
CHECKS = """\
import torch


def check(x, sizes):
    for n in sizes:
        torch._check_value(n >= 0, lambda: f"size {n}")


@torch.library.custom_op("portp::checked", mutates_args=())
def checked(x: torch.Tensor, n: int) -> torch.Tensor:
    check(x, [n])
    torch._check_is_size(x.shape[0])
    torch._check(x.dim() == 1, lambda: f"got {x.dim()} axes")
    torch._check(bool((x > 0).all()))
    torch._assert(n < 9, "too many")
    return x * n
"""
NAMES = """\
import torch

space = "portp"
lib = torch.library.Library(space, "DEF")


def first_impl(x):
    return x + 1


name = "first"
lib.define(f"{name}(Tensor x) -> Tensor")
lib.impl(name, first_impl, "CompositeExplicitAutograd")


def second_impl(x):
    return unknown_package.call(x)


name = "second"
lib.define(f"{name}(Tensor x) -> Tensor")
lib.impl(name, second_impl, "CompositeExplicitAutograd")


def third_impl(x, y=None):
    return x * 2 if y is None else x * y


def third_setup(ctx, inputs, output):
    ctx.factor = 2


def third_backward(ctx, g):
    return g * ctx.factor, None


name = "third"
lib.define(
    f'''
    {name}(
        Tensor x,
        Tensor? y = None) -> Tensor
    '''
)
lib.impl(name, third_impl, "CompositeExplicitAutograd")
torch.library.register_autograd(f"{space}::{name}", third_backward, setup_context=third_setup)


def grown_impl(x, y):
    x.mul_(2).add_(y)
    return x


name = "grown"
lib.define(f"{name}(Tensor(a!) x, " "Tensor y) -> Tensor(a!)")
lib.impl(name, grown_impl, "CompositeExplicitAutograd")
"""
SIZES = """\
import torch


@torch.library.custom_op("portp::tiles", mutates_args=())
def tiles(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.view(n, -1).clone()


@torch.library.register_fake("portp::tiles")
def tiles_fake(x, n):
    ctx = torch.library.get_ctx()
    return x.new_empty(ctx.new_dynamic_size(), n)


if not hasattr(torch.ops, "portp") or not hasattr(torch.ops.portp, "halved"):

    @torch.library.custom_op("portp::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2
"""
MAKERS = """\
from typing import Any

import torch

TABLE = {}


def versioned(kind, version, fake):
    def decorator(func):
        overload = f"set{version}"
        op = torch.library.custom_op(f"portp::{kind}.{overload}", mutates_args=())(func)
        TABLE[kind] = func
        op.register_fake(fake)
        return op

    return decorator


def with_fake(name, *, mutates_args=(), schema=None):
    \"\"\"Its body gives the shapes as well.\"\"\"

    def register(fn):
        op = torch.library.custom_op(name, mutates_args=mutates_args, schema=schema)(fn)
        torch.library.register_fake(name)(fn)
        return op

    return register


lib = torch.library.Library("portp", "FRAGMENT")
SEEN = set()


def tracked(library, name):
    SEEN.add(name)
    return torch.library.impl(library, name, "CPU")


lib.define("halfed(Tensor x) -> Tensor")


@tracked(lib, "halfed")
def halfed(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def sine_fake(x):
    return torch.empty_like(x)


@versioned("Sine", 23, sine_fake)
def sine_23(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@with_fake("portp::any", schema="(Tensor x, Any y) -> Tensor")
def anything(x: torch.Tensor, y: Any) -> torch.Tensor:
    return x * y
"""
SPLIT = """\
import numpy as np
import torch
from typing import List


@torch.library.custom_op("portp::split", mutates_args=())
def split(x: torch.Tensor, at: List[int], dim: int) -> List[torch.Tensor]:
    return [torch.tensor(part, dtype=x.dtype) for part in np.split(x.numpy(), at, axis=dim)]


@split.register_fake
def _(x, at, dim):
    return [part.clone() for part in torch.tensor_split(x, at, dim)]
"""
FOLDER = {
    "folder/geometry.py": "import torch\n\n\ndef distance(x, i):\n    return (x[i[0]] - x[i[1]]).norm(dim=1)\n",
    "folder/ops.py": """\
import torch
from .geometry import distance


@torch.library.custom_op("portp::bonds", mutates_args=())
def bonds(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i[0]].sum(1) * 0


@bonds.register_kernel("cpu")
def cpu_bonds(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return distance(x, i)
""",
}


@pytest.fixture
def made(tmp_path):
    """The module that a text is ported to, and the port."""

    def port(text):
        ported = port_source(text)
        path = tmp_path / "ported.py"
        path.write_text(ported.code)
        spec = importlib.util.spec_from_file_location("ported", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, ported

    return port


def test_types_of_a_schema(made):
    """Dtypes, numbers and symbolic sizes stay in the schema, and a body that draws has its key there."""
    module, ported = made(TYPES)
    assert {c.status for c in ported.classes} == {"ported"}
    assert module.typed.schema == "(Tensor x, Scalar n, ScalarType d, SymInt[] s, ScalarType? e=None) -> Tensor"
    np.testing.assert_array_equal(module.typed(X, 2, jnp.dtype("int32"), [1]), 2 * X.astype(int))
    assert module.noisy.schema == "(Tensor x, float scale=1.0, Tensor? key=None) -> Tensor"
    key = jax.random.key(0)
    np.testing.assert_allclose(jax.jit(module.noisy)(X, key=key), X + jax.random.uniform(key, X.shape), rtol=1e-6)


def test_checks(made):
    """torch._check and its like raise what they raise there, beside a helper that is called check."""
    module, _ = made(CHECKS)
    np.testing.assert_array_equal(module.checked(X, 2), 2 * X)
    for args, error, text in (
        ((X, -1), ValueError, "size -1"),
        ((X[None], 1), RuntimeError, "got 2 axes"),
        ((-X, 1), RuntimeError, "Expected cond"),
        ((X, 9), AssertionError, "too many"),
    ):
        with pytest.raises(error, match=text):
            module.checked(*args)


def test_names_that_a_variable_holds(made):
    """An operator's name is what the variable holds at its line, and a finding in one operator is none of another."""
    _, ported = made(NAMES)
    assert {c.name: c.status for c in ported.classes} == {
        "portp::first": "ported",
        "portp::second": "as_is",
        "portp::third": "ported",
        "portp::grown": "ported",
    }
    np.testing.assert_array_equal(fnjax.ops.portp.first(X), X + 1)
    np.testing.assert_array_equal(jax.grad(lambda x: fnjax.ops.portp.third(x).sum())(X), np.full(4, 2.0))
    for result in jax.jit(fnjax.ops.portp.grown)(X, X):
        np.testing.assert_array_equal(result, 3 * X)


def test_shapes_with_symbolic_sizes(made):
    """A register_fake that makes symbolic sizes is dropped with a note; what a hasattr of torch.ops guards is found."""
    module, ported = made(SIZES)
    assert {c.name: c.status for c in ported.classes} == {"portp::tiles": "ported", "portp::halved": "ported"}
    assert any("sizes that only its values tell" in f.message for f in ported.findings)
    assert jax.jit(lambda x: module.tiles(x, 2))(X).shape == (2, 2)
    np.testing.assert_array_equal(module.halved(X), X / 2)


def test_functions_that_return_a_decorator(made):
    """Such a file stays PyTorch source, and its operators are operators."""
    module, ported = made(MAKERS)
    assert (ported.classes, len(ported.as_is)) == ((), 7)
    np.testing.assert_allclose(fnjax.ops.portp.Sine.set23(X), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax_view(module.sine_23))(X), np.sin(X), rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(jax_view(module.anything))(X, X), X * X)
    np.testing.assert_array_equal(jax_view(module.anything)(X, 3), X * 3)
    np.testing.assert_array_equal(fnjax.ops.portp.halfed(X), X / 2)


def test_numpy_splits(made):
    """NumPy's splits of a body are jax.numpy's."""
    module, _ = made(SPLIT)
    for run in (module.split, jax.jit(module.split, static_argnums=(1, 2))):
        first, second = run(X, (1,), 0)
        np.testing.assert_array_equal(first, X[:1])
        np.testing.assert_array_equal(second, X[1:])


def test_what_a_kernel_needs_of_other_files():
    """A function that is registered for an operator brings along what it calls in other files."""
    ported = port_files(FOLDER, dict.fromkeys(FOLDER, "folder"))["folder/ops.py"]
    assert [(c.name, c.status) for c in ported.classes] == [("portp::bonds", "ported")]
    assert "from .geometry import distance" in ported.code
