"""Pooling, padding, dropout, and other layers that change shapes or select elements."""

from __future__ import annotations

from typing import Any

from fnjax.torch._nn.layers.lines import F, Layer, TableLayer, add_layers, constructor, enter_layer, repeat

_RANKS = (1, 2, 3)


def _find_stride(layer: Any, values: dict[str, Any]) -> None:
    """Set a layer's missing stride to its kernel size; others are left as the user passed them."""
    values["stride"] = values["kernel_size"] if values["stride"] is None else values["stride"]


def _repeat_sizes(layer: Any, values: dict[str, Any]) -> None:
    """Set the stride as `_find_stride` does, and repeat single sizes for each axis."""
    _find_stride(layer, values)
    values |= {name: repeat(values[name], layer._rank) for name in ("kernel_size", "stride", "padding")}


def _check_fractional(layer: Any, values: dict[str, Any]) -> None:
    for name in ("kernel_size", "output_size", "output_ratio"):
        values[name] = None if values[name] is None else repeat(values[name], layer._rank)
    size, ratio = values["output_size"], values["output_ratio"]
    if size is None and ratio is None:
        name = f"FractionalMaxPool{layer._rank}d"
        raise ValueError(f"{name} requires specifying either an output size, or a pooling ratio")
    if size is not None and ratio is not None:
        raise ValueError("only one of output_size and output_ratio may be specified")
    if ratio is not None and not all(0 < r < 1 for r in ratio):
        raise ValueError(f"output_ratio must be between 0 and 1 (got {ratio})")


def _repeat_padding(layer: Any, values: dict[str, Any]) -> None:
    values["padding"] = repeat(values["padding"], 2 * layer._rank)


add_layers(
    "pooling",
    """
MaxPoolRANKd | kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False | F.max_poolRANKd | kernel_size= stride= padding= dilation= ceil_mode=
""",
    _find_stride,
    _RANKS,
)
add_layers(
    "pooling",
    "AvgPoolRANKd | kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True | F.avg_poolRANKd | kernel_size= stride= padding=",
    _repeat_sizes,
    (1,),
)
add_layers(
    "pooling",
    """
AvgPoolRANKd | kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None | F.avg_poolRANKd | kernel_size= stride= padding=
""",
    _find_stride,
    (2, 3),
)
add_layers(
    "pooling",
    "MaxUnpoolRANKd | kernel_size, stride=None, padding=0 | F.max_unpoolRANKd | kernel_size= stride= padding=",
    _repeat_sizes,
    _RANKS,
)
add_layers(
    "pooling",
    """
LPPoolRANKd | norm_type, kernel_size, stride=None, ceil_mode=False | F.lp_poolRANKd | norm_type= kernel_size= stride= ceil_mode=
AdaptiveAvgPoolRANKd | output_size | F.adaptive_avg_poolRANKd | output_size=
AdaptiveMaxPoolRANKd | output_size, return_indices=False | F.adaptive_max_poolRANKd | output_size=
""",
    ranks=_RANKS,
)
add_layers(
    "pooling",
    """
FractionalMaxPoolRANKd | kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None | F.fractional_max_poolRANKd |
""",
    _check_fractional,
    (2, 3),
)
add_layers(
    "padding",
    """
ConstantPadRANKd | padding, value | F.pad pad=padding -padding | padding= value=
ZeroPadRANKd | padding | F.pad pad=padding -padding | .padding
ReflectionPadRANKd | padding | F.pad pad=padding mode="reflect" -padding | .padding
ReplicationPadRANKd | padding | F.pad pad=padding mode="replicate" -padding | .padding
CircularPadRANKd | padding | F.pad pad=padding mode="circular" -padding | .padding
""",
    _repeat_padding,
    _RANKS,
)
add_layers(
    "fold",
    """
Fold | output_size, kernel_size, dilation=1, padding=0, stride=1 | F.fold | output_size= kernel_size= dilation= padding= stride=
Unfold | kernel_size, dilation=1, padding=0, stride=1 | F.unfold | kernel_size= dilation= padding= stride=
""",
)
add_layers("pixelshuffle", "PixelShuffle | upscale_factor | F.pixel_shuffle | upscale_factor=")
add_layers("pixelshuffle", "PixelUnshuffle | downscale_factor | F.pixel_unshuffle | downscale_factor=")
add_layers("channelshuffle", "ChannelShuffle | groups | F.channel_shuffle | groups=")
add_layers("flatten", "Flatten | start_dim=1, end_dim=-1 | torch.flatten | start_dim= end_dim=")
add_layers("distance", "CosineSimilarity | dim=1, eps=1e-08 | F.cosine_similarity |")


def _rename_norm(layer: Any, values: dict[str, Any]) -> None:
    values["norm"] = values.pop("p")


add_layers(
    "distance",
    "PairwiseDistance | p=2.0, eps=1e-06, keepdim=False | F.pairwise_distance p=norm |",
    _rename_norm,
)


@enter_layer("dropout")
class _DropoutNd(TableLayer):
    """Base of the dropouts."""


def _check_probability(layer: Any, values: dict[str, Any]) -> None:
    if not 0 <= values["p"] <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {values['p']}")


add_layers(
    "dropout",
    """
Dropout Dropout1d Dropout2d Dropout3d | p=0.5, inplace=False | F.NAME training | p= inplace=
AlphaDropout | p=0.5, inplace=False | F.alpha_dropout training | p= inplace=
FeatureAlphaDropout | p=0.5, inplace=False | F.feature_alpha_dropout training | p= inplace=
""",
    _check_probability,
    base=_DropoutNd,
)


@enter_layer("upsampling")
@constructor(
    'size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None, '
    "recompute_scale_factor: bool | None = None",
)
class Upsample(Layer):
    """torch.nn.Upsample."""

    def _prepare(self, values: dict[str, Any]) -> None:
        factor, values["name"] = values["scale_factor"], type(self).__name__
        several = isinstance(factor, tuple)
        values["scale_factor"] = tuple(map(float, factor)) if several else float(factor) if factor else None

    def forward(self, input: Any) -> Any:
        """Return the input at another resolution."""
        options = (self.size, self.scale_factor, self.mode, self.align_corners)
        return F.interpolate(input, *options, recompute_scale_factor=self.recompute_scale_factor)

    def extra_repr(self) -> str:
        """Return the options."""
        size = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{size}, mode={self.mode!r}"


@enter_layer("upsampling")
@constructor("size: Any = None, scale_factor: Any = None")
class UpsamplingNearest2d(Upsample):
    """torch.nn.UpsamplingNearest2d."""

    def _prepare(self, values: dict[str, Any]) -> None:
        values |= {"mode": "nearest", "align_corners": None, "recompute_scale_factor": None}
        super()._prepare(values)


@enter_layer("upsampling")
@constructor("size: Any = None, scale_factor: Any = None")
class UpsamplingBilinear2d(Upsample):
    """torch.nn.UpsamplingBilinear2d."""

    def _prepare(self, values: dict[str, Any]) -> None:
        values |= {"mode": "bilinear", "align_corners": True, "recompute_scale_factor": None}
        super()._prepare(values)


@enter_layer("flatten")
@constructor("dim: Any, unflattened_size: Any")
class Unflatten(Layer):
    """torch.nn.Unflatten."""

    def _prepare(self, values: dict[str, Any]) -> None:
        sizes = values["unflattened_size"]
        if not isinstance(sizes, (tuple, list)):
            raise TypeError(f"unflattened_size must be a tuple of ints, but found type {type(sizes).__name__}")
        for at, size in enumerate(sizes):
            if not isinstance(size, int):
                raise TypeError(
                    "unflattened_size must be tuple of ints, but found element of type "
                    f"{type(size).__name__} at pos {at}"
                )

    def forward(self, input: Any) -> Any:
        """Return the input with one axis as several."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
