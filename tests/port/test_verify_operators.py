"""Custom operators and their ports on arguments that are searched for."""

import pytest

from fnjax.__main__ import main

pytest.importorskip("torch")
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
def test_operators_are_proved(files, capsys):
    """Results, gradients, what is mutated and what a Library defines are compared in a process of their own."""
    assert main(["compare", *map(str, files), "--seconds", "4"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": proved: ")[0] for line in said] == [
        "verified::scale",
        "verified::add_into",
        "verified_lib::mix",
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
    """One operator on given arguments, in this process."""
    assert main(["compare", *map(str, files), "--class", "verified::scale", "--args", "randn(3), 2.0"]) == 0
    assert "jit   second derivative of argument 0" in capsys.readouterr().out
