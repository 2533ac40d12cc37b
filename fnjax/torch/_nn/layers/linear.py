"""Linear layers."""

from __future__ import annotations

import math
from typing import Any

from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, constructor, enter_layer, init
from fnjax.torch._nn.module.module import Module


@enter_layer("linear")
class Identity(Module):
    """torch.nn.Identity: takes any arguments, and hands on its input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """Return the input."""
        return input


@enter_layer("linear")
@constructor(
    f"in_features: int, out_features: int, bias: bool = True, {FACTORY}",
    weight="(out_features, in_features)",
    bias="out_features if bias else None",
    shown="in_features= out_features= bias=",
)
class Linear(Layer):
    """torch.nn.Linear: `x @ weight.T + bias`."""

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        reset_weight_and_bias(self)

    def forward(self, input: Any) -> Any:
        """Return the product."""
        return F.linear(input, self.weight, self.bias)


def reset_weight_and_bias(layer: Any) -> None:
    """Draw a weight and a bias that are uniform within 1 / √fan_in, as Linear and the convolutions start."""
    init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
    if layer.bias is not None:
        fan_in = init._calculate_fan_in_and_fan_out(layer.weight)[0]
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
        init.uniform_(layer.bias, -bound, bound)


@enter_layer("linear")
class NonDynamicallyQuantizableLinear(Linear):
    """Linear, as MultiheadAttention has it."""


@enter_layer("linear")
@constructor(
    f"in1_features: int, in2_features: int, out_features: int, bias: bool = True, {FACTORY}",
    weight="(out_features, in1_features, in2_features)",
    bias="out_features if bias else None",
    shown="in1_features= in2_features= out_features= bias=",
)
class Bilinear(Layer):
    """torch.nn.Bilinear: a bilinear form for each output."""

    def _prepare(self, values: dict[str, Any]) -> None:
        if values["in1_features"] <= 0:
            raise ValueError(f"in1_features must be > 0, but got {values['in1_features']}")

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        draw_uniform(self, self.weight.shape[1])

    def forward(self, input1: Any, input2: Any) -> Any:
        """Return `input1 @ A @ input2 + b` for the matrix A of each output."""
        return F.bilinear(input1, input2, self.weight, self.bias)


def draw_uniform(layer: Module, size: int) -> None:
    """Draw all parameters of a layer uniformly between -1 / √size and 1 / √size."""
    bound = 1 / math.sqrt(size) if size > 0 else 0
    for parameter in layer.parameters():
        init.uniform_(parameter, -bound, bound)
