"""Losses."""

from __future__ import annotations

import math
from typing import Any

from fnjax.torch._nn.layers.linear import Linear
from fnjax.torch._nn.layers.lines import FACTORY, F, TableLayer, add_layers, constructor, enter_layer
from fnjax.torch.names.registry import find


def _choose_reduction(size_average: Any, reduce: Any) -> str:
    """Return the `reduction` that PyTorch's two older options of losses mean."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


_OPTIONS = 'size_average: Any = None, reduce: Any = None, reduction: str = "mean"'


@enter_layer("loss")
@constructor(_OPTIONS)
class _Loss(TableLayer):
    """Base of the losses."""

    def _prepare(self, values: dict[str, Any]) -> None:
        old = values.pop("size_average", None), values.pop("reduce", None)
        if old != (None, None):
            values["reduction"] = _choose_reduction(*old)


@enter_layer("loss")
@constructor(f"weight: Any = None, {_OPTIONS}")
class _WeightedLoss(_Loss):
    """Base of losses with a weight for each class."""


_CLASSES = 'weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"'
add_layers(
    "loss",
    f"""
L1Loss | {_OPTIONS} | F.l1_loss |
MSELoss | {_OPTIONS} | F.mse_loss |
SoftMarginLoss | {_OPTIONS} | F.soft_margin_loss |
MultiLabelMarginLoss | {_OPTIONS} | F.multilabel_margin_loss |
SmoothL1Loss | {_OPTIONS}, beta=1.0 | F.smooth_l1_loss |
HuberLoss | reduction="mean", delta=1.0 | F.huber_loss |
KLDivLoss | {_OPTIONS}, log_target=False | F.kl_div |
HingeEmbeddingLoss | margin=1.0, {_OPTIONS} | F.hinge_embedding_loss |
CosineEmbeddingLoss | margin=0.0, {_OPTIONS} | F.cosine_embedding_loss |
MarginRankingLoss | margin=0.0, {_OPTIONS} | F.margin_ranking_loss |
TripletMarginLoss | margin=1.0, p=2.0, eps=1e-06, swap=False, {_OPTIONS} | F.triplet_margin_loss |
GaussianNLLLoss | *, full=False, eps=1e-06, reduction="mean" | F.gaussian_nll_loss |
PoissonNLLLoss | log_input=True, full=False, size_average=None, eps=1e-08, reduce=None, reduction="mean" | F.poisson_nll_loss |
CTCLoss | blank=0, reduction="mean", zero_infinity=False | F.ctc_loss |
BCEWithLogitsLoss | weight=None, {_OPTIONS}, pos_weight=None | F.binary_cross_entropy_with_logits |
""",
    base=_Loss,
)
add_layers(
    "loss",
    f"""
NLLLoss NLLLoss2d | {_CLASSES} | F.nll_loss |
CrossEntropyLoss | {_CLASSES}, label_smoothing=0.0 | F.cross_entropy |
BCELoss | weight=None, {_OPTIONS} | F.binary_cross_entropy |
MultiLabelSoftMarginLoss | weight=None, {_OPTIONS} | F.multilabel_soft_margin_loss |
MultiMarginLoss | p=1, margin=1.0, weight=None, {_OPTIONS} | F.multi_margin_loss |
""",
    base=_WeightedLoss,
)


def _find_distance(layer: Any, values: dict[str, Any]) -> None:
    values["distance_function"] = values["distance_function"] or find("torch.nn.PairwiseDistance")()


add_layers(
    "loss",
    """
TripletMarginWithDistanceLoss | *, distance_function=None, margin=1.0, swap=False, reduction="mean" | F.triplet_margin_with_distance_loss |
""",
    _find_distance,
    base=_Loss,
)


@enter_layer("loss")
@constructor(
    "in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False, "
    f'{FACTORY}, reduction: str = "mean", weight: Any = None, ignore_index: int | None = None, '
    "label_smoothing: float = 0.0, options: Any = None",
)
class LinearCrossEntropyLoss(_WeightedLoss):
    """torch.nn.LinearCrossEntropyLoss; PyTorch's memory `options` are ignored."""

    def _prepare(self, values: dict[str, Any]) -> None:
        weight, smoothing, shape = values["weight"], values["label_smoothing"], (values["num_classes"],)
        if weight is not None and tuple(weight.shape) != shape:
            raise RuntimeError(f"expected weight shape to be {shape}, got {tuple(weight.shape)}")
        if not 0 <= smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {smoothing}")
        del values["in_features"], values["bias"]

    def _start(self, given: dict[str, Any]) -> None:
        size = math.prod(self.out_features, start=self.num_classes)
        options = {name: given[name] for name in ("bias", "device", "dtype")}
        self.linear = Linear(given["in_features"], size, **options)

    def forward(self, input: Any, target: Any) -> Any:
        """Return the loss."""
        shape, linear = (self.num_classes, *self.out_features), self.linear
        return F.linear_cross_entropy(
            input,
            linear.weight.reshape(*shape, linear.in_features),
            target,
            linear_bias=None if linear.bias is None else linear.bias.reshape(*shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        """Return the options."""
        names = ("num_classes", "out_features", "reduction", "ignore_index", "label_smoothing", "options")
        shown = {name: getattr(self, name) for name in names}
        shown = {"in_features": self.linear.in_features, **shown}
        parts = [f"{name}={value}" for name, value in shown.items()]
        return ", ".join([*parts[:3], f"bias={self.linear.bias is not None}", *parts[3:]])
