"""Convolutions over one, two and three axes."""

from __future__ import annotations

from typing import Any

from fnjax.torch._nn.layers.linear import reset_weight_and_bias
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, constructor, enter_layer, repeat

_MODES = ("zeros", "reflect", "replicate", "circular")


_CHANNELS = "in_channels: int, out_channels: int"


@enter_layer("conv")
@constructor(
    f"{_CHANNELS}, kernel_size: tuple[int, ...], stride: tuple[int, ...], padding: Any, "
    "dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...], groups: int, bias: bool, "
    f"padding_mode: str, {FACTORY}",
    weight="(*((in_channels, out_channels // groups) if transposed else (out_channels, in_channels // groups)), "
    "*kernel_size)",
    bias="out_channels if bias else None",
)
class _ConvNd(Layer):
    """Base of the convolutions."""

    _rank = 0

    def _prepare(self, values: dict[str, Any]) -> None:
        groups, padding, mode = values["groups"], values["padding"], values["padding_mode"]
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        for name in ("in_channels", "out_channels"):
            if values[name] % groups:
                raise ValueError(f"{name} must be divisible by groups")
        if isinstance(padding, str) and padding not in {"same", "valid"}:
            raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}")
        if padding == "same" and any(s != 1 for s in values["stride"]):
            raise ValueError("padding='same' is not supported for strided convolutions")
        if mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {set(_MODES)}, but got padding_mode='{mode}'")

    def _start(self, given: dict[str, Any]) -> None:
        self._reversed_padding_repeated_twice = self._list_padding()
        self.reset_parameters()

    def _repeat_sizes(self, values: dict[str, Any], **others: Any) -> None:
        """Repeat single sizes for each axis, and add those that only one kind of convolution takes."""
        values |= others
        for name in ("kernel_size", "stride", "padding", "dilation", "output_padding"):
            values[name] = values[name] if isinstance(values[name], str) else repeat(values[name], self._rank)

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


@constructor(
    f"{_CHANNELS}, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, "
    f'bias: bool = True, padding_mode: str = "zeros", {FACTORY}',
)
class _Convolution(_ConvNd):
    """A convolution over `_rank` axes."""

    def _prepare(self, values: dict[str, Any]) -> None:
        self._repeat_sizes(values, transposed=False, output_padding=0)
        super()._prepare(values)

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
@constructor(
    f"{_CHANNELS}, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, "
    f'groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", {FACTORY}',
)
class _ConvTransposeNd(_ConvNd):
    """A transposed convolution over `_rank` axes."""

    def _prepare(self, values: dict[str, Any]) -> None:
        if values["padding_mode"] != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        self._repeat_sizes(values, transposed=True)
        super()._prepare(values)

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
