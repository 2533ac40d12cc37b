"""Files that define custom operators with torch.library."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax.port import port_source
from fnjax.port.engine.folder import port_files

DECORATED = """\
import numpy as np
import torch
from torch import Tensor
from typing import Optional, Sequence, Tuple


@torch.library.custom_op("portd::numpy_sin", mutates_args=(), device_types="cpu")
def numpy_sin(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.cpu().numpy())).to(device=x.device)


@numpy_sin.register_fake
def _(x):
    return torch.empty_like(x)


def setup_context(ctx, inputs, output):
    (x,) = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos()


numpy_sin.register_autograd(backward, setup_context=setup_context)


@torch.library.custom_op("portd::scale_shift", mutates_args=())
def scale_shift(
    x: Tensor, scale: float, bias: Optional[Tensor] = None, *, dims: Sequence[int]
) -> Tuple[Tensor, Tensor]:
    y = x * scale
    if bias is not None:
        y = y + bias
    return y, y.sum(dims)


@torch.library.register_fake("portd::scale_shift")
def _(x, scale, bias=None, *, dims):
    return torch.empty_like(x), x.new_empty([n for i, n in enumerate(x.shape) if i not in dims])


def ss_setup(ctx, inputs, keyword_only_inputs, output):
    x, scale, bias = inputs
    ctx.scale, ctx.has_bias, ctx.dims, ctx.shape = scale, bias is not None, keyword_only_inputs["dims"], x.shape


def ss_backward(ctx, gy, gs):
    for d in ctx.dims:
        gs = gs.unsqueeze(d)
    g = gy + gs.expand(ctx.shape)
    return g * ctx.scale, None, g if ctx.has_bias else None


torch.library.register_autograd("portd::scale_shift", ss_backward, setup_context=ss_setup)


@torch.library.register_kernel("portd::scale_shift", "cuda")
def ss_cuda(x, scale, bias=None, *, dims):
    return _C.scale_shift(x, scale, bias, dims)
"""

LIBRARY = """\
import torch
from torch.library import Library, impl

lib = Library("portl", "FRAGMENT")
lib.define("cube(Tensor x) -> Tensor")
lib.define("twice(Tensor x) -> Tensor")


@torch.library.impl(lib, "cube", "CPU")
def cube(x):
    return x * x * x


@impl(lib, "twice", "CompositeImplicitAutograd")
def twice(x):
    return x + x


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, g):
    (x,) = ctx.saved_tensors
    return 3 * g * torch.ops.portl.twice(x * x) / 2


torch.library.register_autograd("portl::cube", _backward, setup_context=_setup)


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.ops.portl.cube(x) + torch.ops.portl.twice.default(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (3 * x**2 + 2)
"""

CALLED = """\
import torch
from torch.library import custom_op


def _fwd(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.roll(x, k, -1)


roll = custom_op("portc::roll", _fwd, mutates_args=())


def _bwd(ctx, g):
    return torch.ops.portc.roll(g, -ctx.k), None


def _setup(ctx, inputs, output):
    ctx.k = inputs[1]


torch.library.register_autograd("portc::roll", _bwd, setup_context=_setup)


@torch.library.register_fake("portc::roll")
def _(x, k):
    return torch.empty_like(x)


@roll.register_vmap
def _vmap(info, in_dims, x, k):
    return roll(x.movedim(in_dims[0], 0), k), 0
"""

INFERRED = """\
import numpy as np
import torch
from torch.library import Library, infer_schema

lib = Library("porti", "FRAGMENT")


def body(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.cos(x.numpy()))


lib.define("cosine" + infer_schema(body, mutates_args=()))
lib.impl("cosine", body, dispatch_key="CPU")
lib._register_fake("cosine", lambda x: torch.empty_like(x))
"""

MUTATING = """\
import torch


@torch.library.custom_op("portm::add_", mutates_args={"x"})
def add_(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("portm::norm_out", mutates_args=("out",))
def norm_out(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    s = x.norm()
    out.copy_(x / s)
    return s


@norm_out.register_fake
def _(x, out):
    return x.new_empty(())
"""

FORMS = """\
import torch
from torch.library import Library, define, impl, infer_schema

NS = "portf"
lib = Library(NS, "FRAGMENT")


@torch.library.define(lib, "decorated(Tensor x) -> Tensor")
def decorated(x):
    return x.cos()


@define(lib, "again(Tensor x, float a=2.0) -> Tensor", alias_analysis="")
def again(x, a=2.0):
    return x * a


def tripled(x):
    return x * 3


lib.define("implicit(Tensor x) -> Tensor")
impl(lib, "implicit", "CompositeImplicitAutograd")(tripled)


@impl(lib, "without_key")
def without_key(x):
    return x * 5


lib.define("without_key(Tensor x) -> Tensor")


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


torch.library.define("portf::inferred", infer_schema(cubed, mutates_args=()))
torch.library.impl("portf::inferred", "CompositeImplicitAutograd", cubed)


@torch.library.custom_op(f"{NS}::formatted", mutates_args=())
def formatted(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.portf.again(x, 3.0) + 1


torch.library.register_autograd(formatted, lambda ctx, g: g * 3)


@torch.library.register_fake(torch.ops.portf.formatted.default)
def _(x):
    return torch.empty_like(x)
"""

BRANCHES = """\
import torch

try:
    import math
    HAS_MATH = True
except ImportError:
    HAS_MATH = False

if HAS_MATH:

    @torch.library.custom_op("porth::wave", mutates_args=())
    def wave(x: torch.Tensor, k: float) -> torch.Tensor:
        return torch.sin(x * k) * math.pi

    @wave.register_fake
    def _(x, k):
        return torch.empty_like(x)

    def _setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def _backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.k * math.pi * torch.cos(x * ctx.k), None

    wave.register_autograd(_backward, setup_context=_setup)

try:

    @torch.library.custom_op("porth::shift", mutates_args=())
    def shift(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @torch.library.register_fake("porth::shift")
    def shift_fake(x):
        return torch.empty_like(x)

    torch.library.register_autograd("porth::shift", lambda ctx, g: g * 1)
except AttributeError:
    shift = None
"""


def module(path, name, text):
    (path / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, path / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def both(tmp_path):
    """The original and its port."""
    pytest.importorskip("torch")

    def make(text, status="ported"):
        ported = port_source(text)
        assert {c.status for c in ported.classes} == {status}, ported.findings
        return module(tmp_path, "original", text), module(tmp_path, "ported", ported.code)

    return make


@pytest.mark.parametrize("text", [DECORATED, LIBRARY, CALLED, MUTATING, FORMS, BRANCHES])
def test_ported_whole(text):
    """All forms of definition and registration are ported, no name of torch is left, a second port changes nothing."""
    ported = port_source(text)
    assert {c.status for c in ported.classes} == {"ported"}, ported.findings
    assert "torch" not in ported.code
    again = port_source(ported.code)
    assert (again.code or ported.code) == ported.code


def test_names():
    """Operators are named by their qualified names, beside the classes of the file."""
    assert [c.name for c in port_source(LIBRARY).classes] == ["Both", "portl::cube", "portl::twice"]


def test_other_kernels_are_left_out():
    """A kernel for another platform goes where there is a body, with a note."""
    ported = port_source(DECORATED)
    assert "_C" not in ported.code
    assert [f.message for f in ported.findings if f.code != "callback"] == [
        "the kernel for cuda is dropped: the body of portd::scale_shift runs there too"
    ]


def test_what_is_mutated_is_returned():
    """Body and fake return the new values of what the operator mutates, behind their own results."""
    code = port_source(MUTATING).code
    assert "    x = x + y\n    return x\n" in code
    assert "    return s, out\n" in code
    assert "    return jnp.empty((), dtype=x.dtype), out\n" in code


def test_an_operator_of_another_file_is_a_finding():
    """An operator that the file does not define is a finding."""
    text = DECORATED + "\n\n@torch.library.custom_op('portd::f', mutates_args=())\ndef f(x: Tensor) -> Tensor:\n"
    ported = port_source(text + "    return torch.ops.elsewhere.g(x)\n")
    (finding,) = [f for f in ported.findings if f.severity == "error"]
    assert finding.message == ("the file does not define the operator elsewhere::g: define it with fnjax.custom_op")
    assert {c.name: c.status for c in ported.classes}["portd::f"] == "as_is"


def test_a_schema_that_is_inferred(tmp_path):
    """A Library with infer_schema, impl and _register_fake, as serving packages write it, is ported."""
    ported = module(tmp_path, "inferred", port_source(INFERRED).code)
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    np.testing.assert_allclose(jax.jit(fnjax.ops.porti.cosine)(x), np.cos(x), rtol=1e-6)
    assert fnjax.ops.porti.cosine.schema == "(Tensor x) -> Tensor"
    assert ported.body(x).shape == jax.eval_shape(fnjax.ops.porti.cosine, x).shape


@pytest.mark.parity
def test_numbers_of_decorated_operators(both):
    """Values, gradients and schemas are PyTorch's."""
    import torch

    original, ported = both(DECORATED)
    x, b = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    tx, tb = (torch.tensor(a, requires_grad=True) for a in (x, b))
    y, s = original.scale_shift(original.numpy_sin(tx), 2.0, tb, dims=[1])
    (y.sin().sum() + (s**2).sum()).backward()

    @jax.jit
    def loss(x, b):
        y, s = ported.scale_shift(ported.numpy_sin(x), 2.0, b, dims=[1])
        return jnp.sin(y).sum() + (s**2).sum()

    for theirs, ours in zip((tx.grad, tb.grad), jax.grad(loss, (0, 1))(x, b), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
    schema = str(torch.ops.portd.scale_shift.default._schema)
    assert fnjax.ops.portd.scale_shift.schema == schema.removeprefix("portd::scale_shift")


@pytest.mark.parity
def test_numbers_of_a_library(both):
    """Operators that a Library defines, called by name inside a Function and inside a backward."""
    import torch

    original, ported = both(LIBRARY)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    for theirs, ours in ((original.Both.apply, ported.Both.apply), (torch.ops.portl.cube, fnjax.ops.portl.cube)):
        tx = torch.tensor(x, requires_grad=True)
        theirs(tx).sum().backward()
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x: ours(x).sum()))(x), tx.grad.numpy(), rtol=1e-6)  # noqa: B023
    assert float(jax.grad(fnjax.ops.portl.twice)(1.0)) == 2.0


ASKING = """\
import torch
from .utils import is_torch_available


def grouped(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out, start = torch.zeros_like(x), 0
    for i, end in enumerate(ends.tolist()):
        if start == end:
            continue
        torch.mul(x[start:end], 2.0 + i, out=out[start:end])
        start = end
    return out


if is_torch_available():
    torch.library.custom_op("porta::grouped", grouped, mutates_args=())
    torch.library.register_fake("porta::grouped", lambda x, ends: torch.empty_like(x))
"""


def test_a_body_that_asks_for_numbers_keeps_its_branches(tmp_path):
    """It runs on numbers: Python's `if` and slices stay, and under jit it is a callback with the registered shapes."""
    ported = port_source(ASKING)
    assert [c.status for c in ported.classes] == ["ported"]
    assert {f.code for f in ported.findings} == {"callback"}
    assert "        if start == end:\n            continue\n" in ported.code
    module(tmp_path, "ported_grouped", ported.code)
    x, ends = np.arange(8.0, dtype=np.float32).reshape(4, 2), np.array([1, 1, 4])
    expected = x * np.array([[2], [4], [4], [4]])
    for call in (fnjax.ops.porta.grouped, jax.jit(fnjax.ops.porta.grouped)):
        np.testing.assert_array_equal(call(x, ends), expected)


def test_without_shapes_such_a_body_is_a_finding():
    """No callback can take its place under jit."""
    (cls,) = port_source(ASKING.replace("torch.library.register_fake", "print")).classes
    assert cls.status == "as_is"
    assert "untraced" in {f.code for f in cls.findings}


FORM_NAMES = ("decorated", "again", "implicit", "without_key", "inferred", "formatted")


@pytest.mark.parity
def test_numbers_of_every_form(both):
    """A body that define decorates, impl's curried form, no dispatch key, names that are put together, operators."""
    import torch

    both(FORMS)
    x = np.linspace(-1, 2, 4, dtype=np.float32)
    for name in FORM_NAMES:
        theirs, ours = getattr(torch.ops.portf, name), getattr(fnjax.ops.portf, name)
        tx = torch.tensor(x, requires_grad=True)
        theirs(tx).sin().sum().backward()
        np.testing.assert_allclose(jax.jit(ours)(x), theirs(tx).detach().numpy(), rtol=1e-6)
        gradient = jax.jit(jax.grad(lambda x: jnp.sin(ours(x)).sum()))(x)  # noqa: B023 - called here
        np.testing.assert_allclose(gradient, tx.grad.numpy(), rtol=1e-4, atol=1e-5)


BODIES = """\
import torch
import elsewhere as _C

lib = torch.library.Library("portb", "FRAGMENT")
lib.define("first(Tensor x) -> Tensor")
lib.define("squared(Tensor x) -> Tensor")
lib.define("sine(Tensor x) -> Tensor")
lib.impl("squared", lambda x: x * x, "CPU")
lib.impl("sine", lambda x: torch.sin(x), "CUDA")


@torch.library.impl(lib, "first", "CUDA")
def first_cuda(x):
    return _C.first(x)


@torch.library.impl(lib, "first", "Meta")
def first_meta(x):
    return torch.empty_like(x)


@torch.library.impl(lib, "first", "CPU")
def first_cpu(x):
    return x**3
"""


def test_the_body_is_one_that_can_be_ported(tmp_path):
    """The CPU's implementation is preferred to CUDA's in any order, and may be a lambda."""
    ported = port_source(BODIES)
    assert {c.name: c.status for c in ported.classes} == dict.fromkeys(
        ("portb::first", "portb::squared", "portb::sine"), "ported"
    )
    assert [f.message for f in ported.findings] == [
        "the kernel for CUDA is dropped: the body of portb::first runs there too"
    ]
    module(tmp_path, "ported_bodies", ported.code)
    x = np.arange(3, dtype=np.float32)
    for name, f in (("first", lambda x: x**3), ("squared", np.square), ("sine", np.sin)):
        np.testing.assert_allclose(jax.jit(getattr(fnjax.ops.portb, name))(x), f(x), rtol=1e-6)


def test_a_lambda_that_mutates_is_a_finding():
    """Nothing returns the new value."""
    text = BODIES.replace("squared(Tensor x)", "squared(Tensor(a!) x)")
    found = {c.name: c for c in port_source(text).classes}["portb::squared"]
    assert found.status == "as_is"
    assert "portb::squared mutates x: let a function of the file return its new value" in found.findings[0].message


UNDEFINED = """\
import torch


@torch.library.impl("portu::f", "CPU")
def f(x):
    return x.cos()


def g(x):
    return x * 2


lib = torch.library.Library("portu", "IMPL")
torch.library.impl(lib, "g", "CPU")(g)
lib.impl("h", g, "CPU")


@torch.library.register_fake("portu::f")
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("portu::whole", mutates_args=())
def whole(x: torch.Tensor) -> torch.Tensor:
    return f(g(x))


@torch.library.custom_op("portu::calls", mutates_args=())
def calls(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.portu.f(x)
"""


def test_what_the_file_does_not_define_is_a_finding(tmp_path):
    """Bodies for operators of elsewhere are functions of the port, which can be imported; their use raises."""
    ported = port_source(UNDEFINED, strict=True)
    found = {c.name: c for c in ported.classes}
    assert {name: c.status for name, c in found.items()} == {
        "portu::f": "partial",
        "portu::g": "partial",
        "portu::h": "partial",
        "portu::whole": "ported",
        "portu::calls": "partial",
    }
    message = found["portu::f"].findings[0].message
    assert "the file does not define portu::f" in message
    assert 'fnjax.custom_op("portu::f", f, mutates_args=())' in message
    made = module(tmp_path, "ported_undefined", ported.code)
    np.testing.assert_allclose(made.whole(np.ones(2, np.float32)), np.full(2, np.cos(2)), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="does not define the operator portu::f"):
        made.calls(np.ones(2, np.float32))


@pytest.mark.parity
def test_numbers_of_operators_in_branches(both):
    """Operators that stand in an `if` or a `try`, decorated, with all that is registered for them."""
    import torch

    original, ported = both(BRANCHES)
    x = np.linspace(-1, 2, 4, dtype=np.float32)
    tx = torch.tensor(x, requires_grad=True)
    y = original.shift(original.wave(tx, 2.0))
    (y**2).sum().backward()
    np.testing.assert_allclose(jax.jit(ported.wave, static_argnums=1)(x, 2.0) + 1, y.detach().numpy(), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: (ported.shift(ported.wave(x, 2.0)) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, tx.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parity
def test_numbers_of_called_operators(both):
    """An operator made by a call, with a batching rule."""
    import torch

    original, ported = both(CALLED)
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    w = torch.tensor(x, requires_grad=True)
    (original.roll(w, 1) * torch.arange(3)).sum().backward()
    gradient = jax.grad(lambda x: (ported.roll(x, 1) * jnp.arange(3)).sum())(x)
    np.testing.assert_array_equal(gradient, w.grad.numpy())
    batched = torch.vmap(original.roll, in_dims=(0, None))(torch.tensor(x), 1)
    np.testing.assert_array_equal(jax.vmap(ported.roll, (0, None))(x, 1), batched.numpy())


@pytest.mark.parity
def test_numbers_of_mutating_operators(both):
    """The new values come back."""
    import torch

    original, ported = both(MUTATING)
    x, out = np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32)
    into = torch.tensor(out)
    s = original.norm_out(torch.tensor(x), into)
    np.testing.assert_allclose(jax.jit(ported.norm_out)(x, out)[0], s.numpy())
    np.testing.assert_allclose(jax.jit(ported.norm_out)(x, out)[1], into.numpy())
    np.testing.assert_array_equal(ported.add_(x, x), 2 * x)


SHARED = """\
import torch
from portr.utils import direct_register_custom_op


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def doubled_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


direct_register_custom_op(op_name="doubled", op_func=doubled, mutates_args=[], fake_impl=doubled_fake)


def scale_into(out: torch.Tensor, x: torch.Tensor, s: float) -> None:
    out.copy_(torch.ops.portr.doubled(x) * s)


def scale_into_fake(out: torch.Tensor, x: torch.Tensor, s: float) -> None:
    return


if torch.cuda.is_available() or True:
    direct_register_custom_op("scale_into", scale_into, ["out"], scale_into_fake, dispatch_key="CUDA")
"""
SHARED_NAMES = ("doubled", "doubled_fake", "scale_into", "scale_into_fake")
SHARING = """\
import torch

lib = torch.library.Library("portr_own", "FRAGMENT")


def register(op_name, op_func, mutates_args, fake_impl=None, target_lib=None, dispatch_key="CUDA"):
    schema = torch.library.infer_schema(op_func, mutates_args=mutates_args)
    my_lib = target_lib or lib
    my_lib.define(op_name + schema)
    my_lib.impl(op_name, op_func, dispatch_key=dispatch_key)
    if fake_impl is not None:
        my_lib._register_fake(op_name, fake_impl)
"""


def test_functions_that_register_what_they_are_given(tmp_path, monkeypatch):
    """Operators that a function of the file, or of another of the folder, registers stay PyTorch source."""
    own = SHARING + SHARED.partition("direct_register_custom_op\n")[2].replace("direct_register_custom_op", "register")
    ported = port_source(own.replace("ops.portr.", "ops.portr_own."))
    assert (ported.classes, set(ported.as_is)) == ((), {"register", *SHARED_NAMES})
    module(tmp_path, "ported_shared", ported.code)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(fnjax.ops.portr_own.scale_into)(jnp.zeros(3), x, 3.0), 6 * x)

    second = SHARING.replace("def register", "def direct_register_custom_op").replace("portr_own", "portr")
    files = {"folder/layer.py": SHARED.replace("from portr.utils", "from .utils"), "folder/utils.py": second}
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "portr_folder").mkdir()
    for name, made in port_files(files, dict.fromkeys(files, "folder")).items():
        (tmp_path / name.replace("folder", "portr_folder")).write_text(made.code)
    importlib.import_module("portr_folder.layer")
    np.testing.assert_array_equal(jax.jit(fnjax.ops.portr.scale_into)(jnp.zeros(3), x, 3.0), 6 * x)


TYPES = """\
import torch
from torch import Tensor
from torch.types import Number
from typing import List, Optional


@torch.library.custom_op("portt::factory", mutates_args=())
def factory(shape: List[int], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, device=device, dtype=dtype)


@torch.library.custom_op("portt::cast", mutates_args=())
def cast(x: Tensor, s: Number, dtype: Optional[torch.dtype] = None) -> Tensor:
    y = x * s
    return y if dtype is None else y.to(dtype)
"""


def test_types_that_a_schema_is_inferred_from(tmp_path):
    """Annotations by dtypes, devices and numbers stay, as the types that fnjax.custom_op knows."""
    made = module(tmp_path, "ported_types", port_source(TYPES).code)
    assert fnjax.ops.portt.factory.schema == "(SymInt[] shape, Device device, ScalarType dtype=float32) -> Tensor"
    assert fnjax.ops.portt.cast.schema == "(Tensor x, Scalar s, ScalarType? dtype=None) -> Tensor"
    assert made.factory([2], jax.devices()[0]).tolist() == [1.0, 1.0]
    assert made.cast(jnp.ones(2), 2.5, jnp.int32).dtype == jnp.int32


HOST = """\
import numpy as np
import torch
from scipy import ndimage
from typing import Optional


@torch.library.custom_op("portn::label", mutates_args=())
def label(x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
    \"\"\"The regions.\"\"\"
    a = x.detach().cpu().numpy()
    if mask is not None:
        a[mask.numpy()] = 0
    out, n = ndimage.label(a > 0)
    for i in range(1, n + 1):
        if (out == i).sum() == 1:
            out[out == i] = -1
    return torch.as_tensor(out, dtype=torch.int32, device=x.device).to(x.device)


@label.register_fake
def _(x, mask=None):
    return torch.empty_like(x, dtype=torch.int32)


@torch.library.custom_op("portn::sin_", mutates_args={"x"}, device_types="cpu")
def sin_(x: torch.Tensor) -> None:
    x_np = x.numpy()
    np.sin(x_np, out=x_np)
"""


@pytest.mark.parity
def test_numbers_of_bodies_on_numpy_arrays(both):
    """They stay PyTorch source, and are callbacks under jit; what is written to an argument's memory comes back."""
    import torch

    pytest.importorskip("scipy")
    _, ported = both(HOST, "as_is")
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    mask = x > 1
    for more in ((), (mask,)):
        expected = torch.ops.portn.label(torch.tensor(x), *map(torch.tensor, more)).numpy()
        for call in (ported.label, jax.jit(ported.label)):
            np.testing.assert_array_equal(call(x, *more), expected)
    into = torch.tensor(x)
    torch.ops.portn.sin_(into)
    for call in (ported.sin_, jax.jit(ported.sin_)):
        np.testing.assert_allclose(call(x), into.numpy(), rtol=1e-6)


def test_a_file_that_only_registers_says_for_what():
    """As for an operator in C++, whose file has its derivative: there is no body to port."""
    ported = port_source(
        "import torch\n\n\n"
        '@torch.library.register_fake("extension::muladd")\ndef _(a, b):\n    return torch.empty_like(a)\n\n\n'
        'torch.library.register_autograd("extension::muladd", lambda ctx, g: (g, g))\n',
        "ops.py",
    )
    assert ported.problem == (
        "ops.py has no torch.autograd.Function class and no custom operator; it does not define extension::muladd, for "
        "which it registers"
    )


@pytest.mark.parametrize(("annotation", "notes"), [("", 1), (": list[int]", 0)])
def test_dimensions_that_only_the_schema_tells_of(annotation, notes):
    """An empty list of them means another thing in JAX: the body has to say that it is a list."""
    text = (
        'import torch\nlib = torch.library.Library("mine", "DEF")\nlib.define("s(Tensor x, int[] dims) -> Tensor")\n'
        f'@torch.library.impl(lib, "s", "CPU")\ndef s(x, dims{annotation}):\n    return torch.sum(x, dim=dims)\n'
    )
    ported = port_source(text)
    assert len([f for f in ported.findings if "an empty dims" in f.message]) == notes
    assert ("axis=dims or None" in ported.code) == (not notes)
