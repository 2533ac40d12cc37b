"""Pooling, padding, dropout, and what else changes shapes or picks elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnjax.torch._nn.layers.lines import F, Prepare, TableLayer, add_layers, enter_layer, repeat
from fnjax.torch._nn.module.module import Module


def _add_each_rank(file: str, text: str, prepare: Callable[[int], Prepare], ranks: tuple[int, ...] = (1, 2, 3)) -> None:
    """Enter layers over one, two and three axes; RANK in `text` is replaced by their number."""
    for rank in ranks:
        add_layers(file, text.replace("RANK", str(rank)), prepare=prepare(rank))


def _find_stride(rank: int) -> Prepare:
    """Return a function that sets a layer's missing stride to its kernel size; others are left as the user passed them."""

    def prepare(values: dict[str, Any]) -> None:
        values["stride"] = values["kernel_size"] if values["stride"] is None else values["stride"]

    return prepare


def _repeat_sizes(rank: int) -> Prepare:
    """Return a function that sets the stride as `_find_stride` does, and repeats single sizes for each axis."""

    def prepare(values: dict[str, Any]) -> None:
        _find_stride(rank)(values)
        values |= {name: repeat(values[name], rank) for name in ("kernel_size", "stride", "padding")}

    return prepare


def _keep(rank: int) -> Prepare:
    return lambda values: None


def _check_fractional(rank: int) -> Prepare:
    def prepare(values: dict[str, Any]) -> None:
        for name in ("kernel_size", "output_size", "output_ratio"):
            values[name] = None if values[name] is None else repeat(values[name], rank)
        size, ratio = values["output_size"], values["output_ratio"]
        if size is None and ratio is None:
            raise ValueError(f"FractionalMaxPool{rank}d requires specifying either an output size, or a pooling ratio")
        if size is not None and ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if ratio is not None and not all(0 < r < 1 for r in ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {ratio})")

    return prepare


def _repeat_padding(rank: int) -> Prepare:
    def prepare(values: dict[str, Any]) -> None:
        values["padding"] = repeat(values["padding"], 2 * rank)

    return prepare


_add_each_rank(
    "pooling",
    """
MaxPoolRANKd | kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False | F.max_poolRANKd | kernel_size= stride= padding= dilation= ceil_mode=
""",
    _find_stride,
)
add_layers(
    "pooling",
    "AvgPool1d | kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True | F.avg_pool1d | kernel_size= stride= padding=",
    prepare=_repeat_sizes(1),
)
_add_each_rank(
    "pooling",
    """
AvgPoolRANKd | kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None | F.avg_poolRANKd | kernel_size= stride= padding=
""",
    _find_stride,
    (2, 3),
)
_add_each_rank(
    "pooling",
    "MaxUnpoolRANKd | kernel_size, stride=None, padding=0 | F.max_unpoolRANKd | kernel_size= stride= padding=",
    _repeat_sizes,
)
_add_each_rank(
    "pooling",
    """
LPPoolRANKd | norm_type, kernel_size, stride=None, ceil_mode=False | F.lp_poolRANKd | norm_type= kernel_size= stride= ceil_mode=
AdaptiveAvgPoolRANKd | output_size | F.adaptive_avg_poolRANKd | output_size=
AdaptiveMaxPoolRANKd | output_size, return_indices=False | F.adaptive_max_poolRANKd | output_size=
""",
    _keep,
)
_add_each_rank(
    "pooling",
    """
FractionalMaxPoolRANKd | kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None | F.fractional_max_poolRANKd |
""",
    _check_fractional,
    (2, 3),
)
_add_each_rank(
    "padding",
    """
ConstantPadRANKd | padding, value | F.pad pad=padding -padding | padding= value=
ZeroPadRANKd | padding | F.pad pad=padding -padding | .padding
ReflectionPadRANKd | padding | F.pad pad=padding mode="reflect" -padding | .padding
ReplicationPadRANKd | padding | F.pad pad=padding mode="replicate" -padding | .padding
CircularPadRANKd | padding | F.pad pad=padding mode="circular" -padding | .padding
""",
    _repeat_padding,
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


def _rename_norm(values: dict[str, Any]) -> None:
    values["norm"] = values.pop("p")


add_layers(
    "distance",
    "PairwiseDistance | p=2.0, eps=1e-06, keepdim=False | F.pairwise_distance p=norm |",
    prepare=_rename_norm,
)


@enter_layer("dropout")
class _DropoutNd(TableLayer):
    """Base of the dropouts."""


def _check_probability(values: dict[str, Any]) -> None:
    if not 0 <= values["p"] <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {values['p']}")


add_layers(
    "dropout",
    """
Dropout Dropout1d Dropout2d Dropout3d | p=0.5, inplace=False | F.NAME training | p= inplace=
AlphaDropout | p=0.5, inplace=False | F.alpha_dropout training | p= inplace=
FeatureAlphaDropout | p=0.5, inplace=False | F.feature_alpha_dropout training | p= inplace=
""",
    _DropoutNd,
    _check_probability,
)


@enter_layer("upsampling")
class Upsample(Module):
    """torch.nn.Upsample."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name, self.size = type(self).__name__, size
        several = isinstance(scale_factor, tuple)
        self.scale_factor = (
            tuple(map(float, scale_factor)) if several else float(scale_factor) if scale_factor else None
        )
        self.mode, self.align_corners, self.recompute_scale_factor = mode, align_corners, recompute_scale_factor

    def forward(self, input: Any) -> Any:
        """Return the input at another resolution."""
        options = (self.size, self.scale_factor, self.mode, self.align_corners)
        return F.interpolate(input, *options, recompute_scale_factor=self.recompute_scale_factor)

    def extra_repr(self) -> str:
        """Return the options."""
        size = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{size}, mode={self.mode!r}"


@enter_layer("upsampling")
class UpsamplingNearest2d(Upsample):
    """torch.nn.UpsamplingNearest2d."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


@enter_layer("upsampling")
class UpsamplingBilinear2d(Upsample):
    """torch.nn.UpsamplingBilinear2d."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


@enter_layer("flatten")
class Unflatten(Module):
    """torch.nn.Unflatten."""

    def __init__(self, dim: Any, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(unflattened_size, (tuple, list)):
            raise TypeError(
                f"unflattened_size must be a tuple of ints, but found type {type(unflattened_size).__name__}"
            )
        for at, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise TypeError(
                    "unflattened_size must be tuple of ints, but found element of type "
                    f"{type(size).__name__} at pos {at}"
                )
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Any) -> Any:
        """Return the input with one axis as several."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
