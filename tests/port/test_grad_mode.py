"""Gradients that are switched off, in blocks and by decorators: second derivatives beside PyTorch's."""

import numpy as np
import pytest

from fnjax.port import port_source
from tests.port.test_classes import module

SOURCE = """\
import torch


{helper}
def squared(x):
    return x * x


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
{method}    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * 3 * squared(x)
"""
OFF = ["torch.no_grad()", "torch.no_grad", "torch.inference_mode()", "torch.set_grad_enabled(False)"]
ON = ["torch.enable_grad()", "torch.set_grad_enabled(True)", "torch.inference_mode(False)"]


@pytest.mark.parametrize("mode", OFF + ON)
@pytest.mark.parametrize("place", ["helper", "method"])
def test_what_is_computed_without_gradients_is_constant(mode, place):
    """One stop_gradient where the decorator stood, and none for one that leaves them on."""
    text = {"helper": "", "method": ""} | {place: f"@{mode}" if place == "helper" else f"    @{mode}\n"}
    ported = port_source(SOURCE.format(**text), "cube.py")
    assert ported.classes[0].status == "ported"
    assert ported.code.count("stop_gradient(") == (mode in OFF)
    assert "return jax.lax.stop_gradient(x * x)" in ported.code or place == "method" or mode in ON


@pytest.mark.parity
@pytest.mark.parametrize("mode", OFF[:2] + OFF[3:] + ON[:2])
@pytest.mark.parametrize("place", ["helper", "method"])
def test_second_derivatives(mode, place, tmp_path):
    """They are PyTorch's, eager and under jit."""
    pytest.importorskip("torch")
    from fnjax.port.compare import compare

    text = {"helper": "", "method": ""} | {place: f"@{mode}" if place == "helper" else f"    @{mode}\n"}
    source = SOURCE.format(**text)
    original = module(tmp_path, "original_cube", source)
    ported = module(tmp_path, "ported_cube", port_source(source).code)
    result = compare(original.Cube.apply, ported.Cube.apply, [np.array([1.0, -2.0, 0.5])])
    assert not [str(e) for e in result.entries if not e.equal]
    assert any("second" in e.what for e in result.entries)


WRITING = """\
import torch


@torch.no_grad()
def scaled_(y):
    y.mul_(2)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        g = dy * dy
        scaled_(g)
        return g
"""


def test_writing_without_gradients_is_a_finding():
    """PyTorch lets the gradients of what is written to pass unchanged, which no stop_gradient does."""
    (ported,) = port_source(WRITING, "twice.py").classes
    assert [f.code for f in ported.findings if f.severity == "error"] == ["autograd"]


SCRIPTED = """\
import torch


@torch.jit.script
def gated(x, offset: float):
    return x * torch.sigmoid(x) + offset * x


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return gated(x, w)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * gated(x, w), dy * x
"""


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.script
def test_a_scripted_float_is_constant(tmp_path):
    """A tensor for a parameter that is a float to TorchScript has no history in it."""
    pytest.importorskip("torch")
    from fnjax.port.compare import compare

    original = module(tmp_path, "original_gated", SCRIPTED)
    ported = module(tmp_path, "ported_gated", port_source(SCRIPTED).code)
    result = compare(original.Gated.apply, ported.Gated.apply, [np.array([1.0, -2.0, 0.5]), np.array(0.3)])
    assert not [str(e) for e in result.entries if not e.equal]
