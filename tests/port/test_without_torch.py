"""`fnjax port --verify` and `fnjax compare` where PyTorch is not installed: the original runs in fnjax.torch."""

import json
import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fnjax.__main__ import main
from fnjax.port import port_source
from fnjax.port.compare.reference import make_reference
from fnjax.port.compare.values import Inputs
from fnjax.port.verify import Job
from fnjax.port.verify.verification import verify_class
from tests.port.test_verify import HEAD, OWN, SWISH

NOTE = "compared with fnjax.torch"
DROP = """
class Drop(Function):
    @staticmethod
    def forward(ctx, x, p=0.5):
        mask = (torch.rand_like(x) > p).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        mask, = ctx.saved_tensors
        return grad * mask, None
"""
UPDATE = """
class Update(Function):
    @staticmethod
    def forward(ctx, x, running):
        running.mul_(0.9).add_(0.1 * x.mean(0))
        ctx.save_for_backward(x)
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0), None
"""
UNSET = """
class Unset(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.new_empty(x.shape)
        y[0] = x[0]
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad
"""
SCALE = """
@torch.library.custom_op("without_torch::scale", mutates_args=())
def scale(x: torch.Tensor, s: float) -> torch.Tensor:
    return x * s


def setup(ctx, inputs, output):
    ctx.s = inputs[1]


def backward(ctx, g):
    return g * ctx.s, None


scale.register_autograd(backward, setup_context=setup)
"""


@pytest.fixture
def hidden(monkeypatch, tmp_path):
    """A Python without PyTorch, and so are the processes that it starts."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('PyTorch is hidden')\n")
    monkeypatch.syspath_prepend(folder)
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def sides(tmp_path):
    """Write an original and its port, in which a text may be replaced."""

    def write(text, old="", new=""):
        original, ported = tmp_path / "original.py", tmp_path / "ported.py"
        original.write_text(HEAD + textwrap.dedent(text))
        port = port_source(original.read_text()).code
        assert old in port
        ported.write_text(port.replace(old, new) if old else port)
        return str(original), str(ported)

    return write


def verify(sides, name, seconds=60, **options):
    """Return the verdict on a class, found in this process."""
    job = Job(sides[0], Path(sides[0]).read_text(), name, sides[1], seconds=seconds, against="fnjax.torch", **options)
    return verify_class(job, lambda *_, **__: None)


@pytest.mark.slow
@pytest.mark.usefixtures("hidden")
def test_ports_are_verified(tmp_path, capsys, monkeypatch):
    """`port --verify` says what it compared with, on standard error and in the report."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "swish_torch.py").write_text(HEAD + SWISH)
    options = ["-o", "swish.py", "--verify", "--seconds", "4", "--report", "report.json"]
    assert main(["port", "swish_torch.py", *options]) == 0
    note, first, said = capsys.readouterr().err.split("\n", 2)
    assert note == "note: PyTorch is not installed: the reference is fnjax.torch"
    assert first == "comparing a class: up to 4 seconds of processor time each (--seconds)"
    assert said.startswith("Swish: verified: ")
    assert f"lines run: 6 of 6; {NOTE}" in said
    (found,) = json.loads((tmp_path / "report.json").read_text())["classes"]
    assert (found["verified"]["status"], found["verified"]["against"]) == ("verified", "fnjax.torch")
    assert found["verified"]["notes"] == [NOTE]


@pytest.mark.usefixtures("hidden")
def test_a_wrong_port_differs(sides, capsys):
    """A wrong derivative is found, and the call that is printed shows it again."""
    files = sides(SWISH, "1 + ctx.beta", "1 - ctx.beta")
    verdict = verify(files, "Swish", cases=["randn(2, 2), 1.5"], second=False, modes=("eager",))
    assert (verdict.status, verdict.reason) == ("differs", "eager gradient of argument 0")
    assert main(shlex.split(verdict.write_command(*files))[1:]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("Swish: different\n")
    assert "FAIL jit   gradient of argument 0: worst at" in printed
    assert ": fnjax.torch " in printed
    assert printed.endswith(f"note: {NOTE}\n")


TIES = """
class Ties(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.where((x < 0) & (x - x.floor() == 0.5), x.ceil(), x.round())

    @staticmethod
    def backward(ctx, grad):
        return grad
"""


@pytest.mark.usefixtures("hidden")
def test_ties_of_rounding_are_tried(sides):
    """Halves of both signs are among the calls: at -1.5 rounding up differs from rounding to even."""
    verdict = verify(
        sides(TIES, "x - jnp.floor(x)", "x + jnp.floor(x)"), "Ties", second=False, modes=("eager",), shrinks=False
    )
    assert (verdict.status, verdict.reason) == ("differs", "eager output 0")


@pytest.mark.usefixtures("hidden")
def test_random_results_are_said_not_to_be_compared(sides):
    """Another random result is not found, and the verdict says of what values were not compared."""
    files = sides(DROP, "x * mask", "x - mask")
    verdict = verify(files, "Drop", cases=["randn(3)"], enough=1, second=False, modes=("eager",))
    (note,) = verdict.notes
    assert verdict.status == "verified"
    assert note == "output 0, gradient of argument 0: random, so only shapes and dtypes are compared"


DEFAULT = """
class Scaled(Function):
    @staticmethod
    def forward(ctx, x, eps=1e-6, mode="sum", *, power=2):
        return x / (x.norm() + eps)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None
"""


@pytest.mark.usefixtures("hidden")
def test_another_default_differs(sides):
    """A default of another value is told, also where calls give all arguments."""
    verdict = verify(sides(DEFAULT, "1e-6", "1e-5"), "Scaled", cases=["randn(3), 0.1"], second=False)
    assert (verdict.status, verdict.reason) == ("differs", "the default of 'eps' is 1e-06, in the port 1e-05")


CAST = """
class Cast(Function):
    @staticmethod
    def forward(ctx, x, dtype):
        return half(x).to({})

    @staticmethod
    def backward(ctx, grad):
        return half(grad).float(), None
"""


def test_a_class_that_stays_as_it_is_differs(tmp_path, capsys):
    """It is found in its block, in a file of a folder that imports relatively, and gets fnjax.torch's dtypes."""
    half = "def half(x):\n    return 0.5 * x\n"
    for folder, dtype in ("cast_torch", "dtype"), ("cast_right", "dtype"), ("cast_wrong", "torch.float32"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "base.py").write_text(half)
        text = f"{HEAD}from .base import half\n{CAST.format(dtype)}"
        block = f"import fnjax.torch as torch\nif torch.execute_block(globals()):\n{textwrap.indent(text, '    ')}"
        (tmp_path / folder / "cast.py").write_text(text if folder == "cast_torch" else block)
    command = ["compare", str(tmp_path / "cast_torch" / "cast.py"), "--against", "fnjax.torch", "--no-second"]
    command += ["--args", "randn(3), torch.float16"]
    for folder, status in ("cast_right", 0), ("cast_wrong", 1):
        assert main([*command, str(tmp_path / folder / "cast.py")]) == status, capsys.readouterr()
    assert "dtype float32 for fnjax.torch's float16" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("Branch", OWN["Branch"], "randn(3, 4), array([1, 0, 2])"),
        ("Pair", OWN["Pair"], "randn(3), randn(3)"),
        ("Drop", DROP, "randn(3)"),
        ("Update", UPDATE, "randn(3, 2), randn(2)"),
    ],
)
def test_right_ports_are_verified(sides, name, text, call):
    """Keys, written arguments and what is marked are compared as with PyTorch."""
    verdict = verify(sides(text), name, cases=[call], enough=1, second=False, modes=("eager",))
    assert (verdict.status, verdict.calls) == ("verified", 1), verdict


@pytest.mark.slow
@pytest.mark.usefixtures("hidden")
def test_what_is_not_determined(sides):
    """Memory that nobody sets holds another number in each of two runs, which is told."""
    verdict = verify(sides(UNSET), "Unset", cases=["randn(3)"], seconds=3)
    assert (verdict.status, verdict.reason[-30:]) == ("not tried", "its results are not determined")


@pytest.mark.usefixtures("hidden")
def test_operators_of_both_sides_are_two(sides, capsys):
    """Original and port define operators of one name: a wrong derivative of the port is not compared with itself."""
    files = sides(SCALE, "return g * ctx.s", "return 2 * g * ctx.s")
    assert main(["compare", *files, "--args", "randn(3), 2.0", "--no-second"]) == 1
    printed = capsys.readouterr().out
    assert "ok   jit   output 0" in printed
    assert "FAIL jit   gradient of argument 0" in printed


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "pytorch"], "--against pytorch: PyTorch is not installed: install it, or compare with fnjax"),
        (["--devices", "2", "--args", "ones(2)"], "--devices runs PyTorch's gloo processes, and needs PyTorch"),
    ],
)
def test_what_needs_pytorch(sides, capsys, options, message):
    """Options that need PyTorch say so if it is not installed."""
    assert main(["compare", *sides(SWISH), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("hidden")
def test_check_against_pytorch_needs_it(sides, capsys):
    """No other reference is advised: fnjax.torch is what is checked."""
    assert main(["check", sides(SWISH)[0], "--against", "pytorch"]) == 2
    assert capsys.readouterr().err == "fnjax: --against pytorch: PyTorch is not installed: install it\n"


@pytest.mark.parity
@pytest.mark.parametrize("name", OWN)
def test_both_references_are_equal(name, tmp_path):
    """fnjax.torch has PyTorch's outputs, gradients and second derivatives for the same class and cotangents."""
    pytest.importorskip("torch")
    args = {
        "Swish": [np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3), 1.5],
        "Branch": [np.sin(np.arange(12, dtype=np.float32)).reshape(3, 4), np.array([1, 3, 0]), None, "sum"],
        "Affine": [
            np.cos(np.arange(n, dtype=np.float32)).reshape(s) for n, s in [(6, (2, 3)), (12, (4, 3)), (4, (4,))]
        ],
        "Pair": [np.sin(np.arange(8, dtype=np.float32)), np.cos(np.arange(8, dtype=np.float32))],
        "Held": [np.linspace(-1, 1, 5, dtype=np.float32)],
    }[name]
    file = tmp_path / "both.py"
    file.write_text(HEAD + OWN[name])
    found = []
    for against in ("pytorch", "fnjax.torch"):
        reference = make_reference(against)
        cls = getattr(reference.load(str(file)), name)
        found.append(reference.run(cls.apply, Inputs(args))[0])
    if name == "Branch":  # it saves what forward computed, which PyTorch takes for constant
        found = [replace(r, seconds=[]) for r in found]
    for left, right in zip(*([r.outputs, r.gradients, r.seconds] for r in found), strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_allclose(np.zeros_like(b) if a is None else a, b, rtol=2e-5, atol=2e-6)


def test_an_argument_with_a_gradient_is_of_real_numbers():
    """Integers, with which the class runs as well, are replaced by real numbers, of a shape that fits."""
    from fnjax.port.verify.calls import Array, draw_call
    from fnjax.port.verify.sandboxed_calls import Tried
    from fnjax.port.verify.searching import Search

    def calls(call):
        real, index = call.recipe
        fits = real.kind == "index" or real.shape == index.shape
        return Tried(call, "" if fits else "an invalid gradient", (0,), frozenset())

    search = object.__new__(Search)
    search.calls, search.graded = calls, (0,)
    found = calls(draw_call([Array((3, 5), "index", 4), Array((3, 4), "index", 4)], 0))
    assert [(r.kind, r.shape) for r in search._prefer_real(found).call.recipe] == [
        ("normal", (3, 4)),
        ("index", (3, 4)),
    ]
