"""Losses."""

from __future__ import annotations

import math
from typing import Any

from fnjax.torch._nn.layers.linear import Linear
from fnjax.torch._nn.layers.lines import F, TableLayer, add_layers, choose_reduction, enter_layer
from fnjax.torch.names.registry import find


@enter_layer("loss")
class _Loss(TableLayer):
    """Base of the losses."""

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
        super().__init__()
        old = size_average, reduce
        self.reduction = reduction if old == (None, None) else choose_reduction(*old)


@enter_layer("loss")
class _WeightedLoss(_Loss):
    """Base of those with a weight for each class."""

    def __init__(
        self, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


_OPTIONS = 'size_average=None, reduce=None, reduction="mean"'
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
    _Loss,
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
    _WeightedLoss,
)


def _find_distance(values: dict[str, Any]) -> None:
    values["distance_function"] = values["distance_function"] or find("torch.nn.PairwiseDistance")()


add_layers(
    "loss",
    """
TripletMarginWithDistanceLoss | *, distance_function=None, margin=1.0, swap=False, reduction="mean" | F.triplet_margin_with_distance_loss |
""",
    _Loss,
    _find_distance,
)


@enter_layer("loss")
class LinearCrossEntropyLoss(_WeightedLoss):
    """torch.nn.LinearCrossEntropyLoss; PyTorch's memory `options` are ignored."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Any = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__()
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise RuntimeError(f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        self.register_buffer("weight", weight)
        self.reduction, self.num_classes, self.out_features = reduction, num_classes, out_features
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        size = math.prod(out_features, start=num_classes)
        self.linear = Linear(in_features, size, bias=bias, device=device, dtype=dtype)

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
