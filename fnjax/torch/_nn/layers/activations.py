"""Activations."""

from __future__ import annotations

from typing import Any

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, add_layers, constructor, enter_layer, init
from fnjax.torch._nn.module.module import Module

add_layers(
    "activation",
    """
Threshold | threshold, value, inplace=False | F.threshold | threshold= value= inplace?
ReLU | inplace=False | F.relu | inplace?
RReLU | lower=0.125, upper=0.3333333333333333, inplace=False | F.rrelu training | lower= upper= inplace?
Sigmoid | | torch.sigmoid |
Tanh | | torch.tanh |
Hardsigmoid Hardswish | inplace=False | F.NAME |
ELU CELU | alpha=1.0, inplace=False | F.NAME | alpha= inplace?
SELU SiLU Mish | inplace=False | F.NAME | inplace?
GLU | dim=-1 | F.glu | dim=
GELU | approximate="none" | F.gelu | approximate=
Hardshrink Softshrink | lambd=0.5 | F.NAME | .lambd
LeakyReLU | negative_slope=0.01, inplace=False | F.leaky_relu | negative_slope= inplace?
LogSigmoid Softsign Tanhshrink | | F.NAME |
Softplus | beta=1.0, threshold=20.0 | F.softplus | beta= threshold=
Softmax | dim=None | F.softmax | dim=
LogSoftmax | dim=None | F.log_softmax | dim=
Softmin | dim=None | F.softmin | dim=
""",
)


def _limit(layer: Any, values: dict[str, Any]) -> None:
    for old, new in (("min_value", "min_val"), ("max_value", "max_val")):
        given = values.pop(old)
        values[new] = values[new] if given is None else given
    if values["max_val"] <= values["min_val"]:
        raise AssertionError(
            f"max_val must be larger than min_val, got max_val={values['max_val']} and min_val={values['min_val']}"
        )


def _limit_to_6(layer: Any, values: dict[str, Any]) -> None:
    values |= {"min_val": 0.0, "max_val": 6.0}


add_layers(
    "activation",
    "Hardtanh | min_val=-1.0, max_val=1.0, inplace=False, min_value=None, max_value=None "
    "| F.hardtanh -min_value -max_value | min_val= max_val= inplace?",
    _limit,
)
add_layers(
    "activation",
    "ReLU6 | inplace: bool = False | F.hardtanh min_val max_val | inplace?",
    _limit_to_6,
    base=KNOWN["torch.nn.Hardtanh"],
)


@enter_layer("activation")
class Softmax2d(Module):
    """torch.nn.Softmax2d: over the channels of images."""

    def forward(self, input: Any) -> Any:
        """Return the softmax over the third axis from the end."""
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)


@enter_layer("activation")
@constructor(
    f"num_parameters: int = 1, init: float = 0.25, {FACTORY}",
    weight="num_parameters",
    shown="num_parameters=",
)
class PReLU(Layer):
    """torch.nn.PReLU: with a learned slope below zero."""

    def reset_parameters(self) -> None:
        """Set the slopes to their initial value."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Any) -> Any:
        """Return the activation."""
        return F.prelu(input, self.weight)
