"""Linear layers."""

from __future__ import annotations

import math
from typing import Any

from fnjax.torch._nn.layers.lines import F, add_parameter, enter_layer, init
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
class Linear(Module):
    """torch.nn.Linear: `x @ weight.T + bias`."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        add_parameter(self, "weight", (out_features, in_features), device=device, dtype=dtype)
        add_parameter(self, "bias", out_features, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        reset_weight_and_bias(self)

    def forward(self, input: Any) -> Any:
        """Return the product."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


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
class Bilinear(Module):
    """torch.nn.Bilinear: a bilinear form for each output."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        add_parameter(self, "weight", (out_features, in1_features, in2_features), device=device, dtype=dtype)
        add_parameter(self, "bias", out_features, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Any, input2: Any) -> Any:
        """Return the forms' values."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
