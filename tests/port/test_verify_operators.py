"""Custom operators and their ports on arguments that are searched for."""

import pytest

from fnjax.__main__ import main

pytest.importorskip("torch")
pytestmark = pytest.mark.parity
SOURCE = """\
import torch
from torch import Tensor


@torch.library.custom_op("{space}::scale", mutates_args=())
def scale(x: Tensor, s: float) -> Tensor:
    return x * s


def setup(ctx, inputs, output):
    _, ctx.s = inputs


def backward(ctx, g):
    return g * ctx.s, None


scale.register_autograd(backward, setup_context=setup)


@torch.library.custom_op("{space}::add_into", mutates_args={{"out"}})
def add_into(out: Tensor, x: Tensor) -> None:
    out.add_(x)


lib = torch.library.Library("{space}_lib", "DEF")
lib.define("mix(Tensor a, Tensor b, float alpha=2.0) -> Tensor")


@torch.library.impl(lib, "mix", "CompositeImplicitAutograd")
def mix(a, b, alpha=2.0):
    return a + alpha * torch.sin(b)


lib.define("kernel(Tensor x) -> Tensor")
lib.impl("kernel", lambda x: x * 2, "CPU")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        return torch.ops.{space}.scale(x, s)

    @staticmethod
    def backward(ctx, g):
        return torch.ops.{space}.scale(g, ctx.s), None
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of operators and its port."""
    folder = tmp_path_factory.mktemp("operators")
    source, port = folder / "verified.py", folder / "verified_jax.py"
    source.write_text(SOURCE.format(space="verified"))
    assert main(["port", str(source), "-o", str(port)]) == 0
    return source, port


@pytest.mark.slow
def test_operators_are_verified(files, capsys):
    """Results, gradients, what is mutated and what a Library defines are compared in a process of their own."""
    assert main(["compare", *map(str, files), "--seconds", "4"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": verified: ")[0] for line in said[1:]] == [  # after the time that they may take
        "Scale",
        "verified::scale",
        "verified::add_into",
        "verified_lib::mix",
        "verified_lib::kernel",
    ]


@pytest.mark.slow
def test_a_wrong_derivative_is_found(files, tmp_path, capsys):
    """A port whose backward is twice what it should be differs, with a call to paste."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(files[1].read_text().replace("return g * ctx.s, None", "return 2 * g * ctx.s, None"))
    assert main(["compare", str(files[0]), str(wrong), "--class", "verified::scale", "--seconds", "4"]) == 3
    said = capsys.readouterr().err
    assert "verified::scale: differs: eager gradient of argument 0" in said
    assert "torch.ops.verified.scale(array([" in said


def test_an_operator_on_arguments_of_ones_own(files, capsys):
    """One operator on given arguments, and a class that calls it, in this process."""
    for name in "verified::scale", "Scale":
        assert main(["compare", *map(str, files), "--class", name, "--args", "randn(3), 2.0"]) == 0
        assert "jit   second derivative of argument 0" in capsys.readouterr().out


ASSERTING = """\
import torch


def double(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = x * 2.0 if ends.tolist() else x * 2.0
    return out


def double_fake(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    assert x.dim() == 2, f"x must be 2D, got shape {tuple(x.shape)}"
    assert ends.dtype == torch.int64
    return torch.empty_like(x)


torch.library.custom_op("asserting::double", double, mutates_args=())
torch.library.register_fake("asserting::double", double_fake)
"""


def test_what_register_fake_refuses_is_no_call(tmp_path, capsys):
    """The body takes an array of one axis, register_fake does not: the search tries others, and --args says why."""
    source, port = tmp_path / "asserting.py", tmp_path / "asserting_jax.py"
    source.write_text(ASSERTING)
    assert main(["port", str(source), "-o", str(port)]) == 0
    whole = ["compare", str(source), str(port)]
    assert main([*whole, "--args", "randn(2, 3), array([1])"]) == 0
    assert main([*whole, "--args", "randn(3), array([1])"]) == 2
    assert "register_fake does not take this call: AssertionError: x must be 2D, got" in capsys.readouterr().err


@pytest.mark.slow
def test_calls_are_searched_that_register_fake_takes(tmp_path, capsys):
    """None of the calls that agree has an array of another number of axes."""
    source, port = tmp_path / "searched.py", tmp_path / "searched_jax.py"
    source.write_text(ASSERTING.replace("asserting::", "searched::"))
    assert main(["port", str(source), "-o", str(port)]) == 0
    assert main(["compare", str(source), str(port), "--seconds", "4"]) == 0
    assert "searched::double: verified: " in capsys.readouterr().err
