"""Convolutions over one, two and three axes."""

from __future__ import annotations

from typing import Any

from fnjax.torch._nn.layers.linear import reset_weight_and_bias
from fnjax.torch._nn.layers.lines import F, add_parameter, enter_layer, repeat
from fnjax.torch._nn.module.module import Module

_MODES = ("zeros", "reflect", "replicate", "circular")


@enter_layer("conv")
class _ConvNd(Module):
    """Base of the convolutions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: Any,
        dilation: tuple[int, ...],
        transposed: bool,
        output_padding: tuple[int, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ValueError(f"{name} must be divisible by groups")
        if isinstance(padding, str) and padding not in {"same", "valid"}:
            raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}")
        if padding == "same" and any(s != 1 for s in stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {set(_MODES)}, but got padding_mode='{padding_mode}'")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation
        self.transposed, self.output_padding = transposed, output_padding
        self.groups, self.padding_mode = groups, padding_mode
        self._reversed_padding_repeated_twice = self._list_padding()
        inner, outer = (out_channels, in_channels) if transposed else (in_channels, out_channels)
        add_parameter(self, "weight", (outer, inner // groups, *kernel_size), device=device, dtype=dtype)
        add_parameter(self, "bias", out_channels, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def _list_padding(self) -> list[int]:
        """Return the padding as F.pad takes it, which begins with the last axis."""
        if self.padding == "valid":
            return [0, 0] * len(self.kernel_size)
        if self.padding == "same":
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [n for t in reversed(total) for n in (t // 2, t - t // 2)]
        return [n for p in reversed(self.padding) for n in (p, p)]

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        reset_weight_and_bias(self)

    def extra_repr(self) -> str:
        """Return the options that are not the default."""
        zeros, ones = (0,) * len(self.kernel_size), (1,) * len(self.kernel_size)
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}",
            "" if self.padding == zeros else f"padding={self.padding}",
            "" if self.dilation == ones else f"dilation={self.dilation}",
            "" if self.output_padding == zeros else f"output_padding={self.output_padding}",
            "" if self.groups == 1 else f"groups={self.groups}",
            "" if self.bias is not None else "bias=False",
            "" if self.padding_mode == "zeros" else f"padding_mode={self.padding_mode}",
        ]
        return ", ".join(filter(None, parts))


class _Convolution(_ConvNd):
    """A convolution over `_rank` axes."""

    _rank = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        rank = self._rank
        super().__init__(
            in_channels,
            out_channels,
            repeat(kernel_size, rank),
            repeat(stride, rank),
            padding if isinstance(padding, str) else repeat(padding, rank),
            repeat(dilation, rank),
            False,
            (0,) * rank,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        convolve = getattr(F, f"conv{self._rank}d")
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input: Any) -> Any:
        """Return the convolution."""
        return self._conv_forward(input, self.weight, self.bias)


@enter_layer("conv")
class _ConvTransposeNd(_ConvNd):
    """A transposed convolution over `_rank` axes."""

    _rank = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        sizes = [repeat(v, self._rank) for v in (kernel_size, stride, padding, dilation)]
        options: Any = (*sizes, True, repeat(output_padding, self._rank), groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, *options)

    def _output_padding(self, input: Any, output_size: Any) -> tuple[int, ...]:
        """Return how many elements are added at the end so that the output has a size."""
        rank = self._rank
        if output_size is None:
            return self.output_padding
        before = input.ndim - rank
        output_size = list(output_size)
        if len(output_size) == before + rank:
            output_size = output_size[before:]
        if len(output_size) != rank:
            raise ValueError(
                f"ConvTranspose{rank}D: for {input.ndim}D input, output_size must have {rank} or {before + rank} "
                f"elements (got {len(output_size)})"
            )
        parts = zip(input.shape[before:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        smallest = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in parts]
        largest = [n + s - 1 for n, s in zip(smallest, self.stride, strict=True)]
        if not all(a <= n <= b for a, n, b in zip(smallest, output_size, largest, strict=True)):
            raise ValueError(
                f"requested an output size of {output_size}, but valid sizes range from {smallest} to {largest} "
                f"(for an input of {input.shape[2:]})"
            )
        return tuple(n - a for n, a in zip(output_size, smallest, strict=True))

    def forward(self, input: Any, output_size: Any = None) -> Any:
        """Return the transposed convolution."""
        more = self._output_padding(input, output_size)
        convolve = getattr(F, f"conv_transpose{self._rank}d")
        return convolve(input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)


for _n in (1, 2, 3):
    for _name, _base in ((f"Conv{_n}d", _Convolution), (f"ConvTranspose{_n}d", _ConvTransposeNd)):
        enter_layer("conv")(type(_name, (_base,), {"_rank": _n, "__doc__": f"torch.nn.{_name}."}))
