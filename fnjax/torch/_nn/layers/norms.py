"""Normalisation layers. Running statistics are buffers, which forward writes to while training."""

from __future__ import annotations

from typing import Any

from fnjax._primitives.sharding import manual_axes
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, add_layers, constructor, enter_layer, init, repeat, torch
from fnjax.torch.errors import NotSupported
from fnjax.torch.names.process_groups import get_default


class _Norm(Layer):
    """A layer whose scales start at one, and whose shifts start at zero."""

    def reset_parameters(self) -> None:
        """Set the initial values."""
        if self.weight is not None:
            init.ones_(self.weight)
        if getattr(self, "bias", None) is not None:
            init.zeros_(self.bias)


def _sign(momentum: str = "float | None", default: bool = True, group: str = "") -> str:
    """Return the signature of a norm with statistics."""
    return (
        f"num_features: int, eps: float = 1e-5, momentum: {momentum} = 0.1, affine: bool = {default}, "
        f"track_running_stats: bool = {default}, {group}{FACTORY}, *, bias: bool = True"
    )


@enter_layer("batchnorm")
@constructor(
    _sign(),
    weight="num_features if affine else None",
    bias="num_features if affine and bias else None",
    shown=".num_features eps= momentum= affine= bias= track_running_stats=",
)
class _NormBase(_Norm):
    """Base of batch and instance norms."""

    _ranks: tuple[int, ...] = ()
    _version = 2

    def _start(self, given: dict[str, Any]) -> None:
        size, dtype, tracked = self.num_features, given["dtype"], self.track_running_stats
        self.register_buffer("running_mean", torch.zeros(size, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", torch.ones(size, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the statistics."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set the initial values."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Any) -> None:
        if input.ndim not in self._ranks:
            raise ValueError(f"expected {' or '.join(f'{r}D' for r in self._ranks)} input (got {input.ndim}D input)")


@enter_layer("batchnorm")
class _BatchNorm(_NormBase):
    """Batch norm over inputs of `_ranks` axes."""

    def forward(self, input: Any) -> Any:
        """Return the input normalised by the batch's statistics, or by the running ones."""
        self._check_input_dim(input)
        tracked = self.training and self.track_running_stats and self.num_batches_tracked is not None
        factor = 0.0 if self.momentum is None else self.momentum
        if tracked:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / self.num_batches_tracked
        known = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if known else None,
            self.running_var if known else None,
            self.weight,
            self.bias,
            self.training or (self.running_mean is None and self.running_var is None),
            factor,
            self.eps,
        )


@enter_layer("batchnorm")
@constructor(_sign(group="process_group: Any = None, "))
class SyncBatchNorm(_BatchNorm):
    """torch.nn.SyncBatchNorm under jax.jit, where a sharded batch is one batch."""

    def forward(self, input: Any) -> Any:
        """Normalise as the other batch norms do.

        Raises:
            NotSupported: in training within jax.shard_map, where each device sees its part of the batch.
        """
        if (self.training or self.running_mean is None) and (get_default() is not None or manual_axes()):
            raise NotSupported(
                "torch.nn.SyncBatchNorm in training within jax.shard_map",
                "shard the batch under jax.jit, where a batch norm sees the whole of it",
            )
        return super().forward(input)

    def _check_input_dim(self, input: Any) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: Any = None) -> Any:
        """Return a module whose batch norms are of this class, with the same parameters and statistics."""
        made = module
        if isinstance(module, _BatchNorm):
            options = (module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            made = cls(*options, process_group)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training"):
                setattr(made, name, getattr(module, name))
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


@enter_layer("instancenorm")
@constructor(_sign("float", False))
class _InstanceNorm(_NormBase):
    """Instance norm over inputs of `_ranks` axes; without a batch the first of these ranks."""

    def forward(self, input: Any) -> Any:
        """Return the input normalised by each image's statistics, or by the running ones."""
        self._check_input_dim(input)
        single = input.ndim == self._ranks[0]
        channels = input.shape[0 if single else 1]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={int(not single)} to match num_features ({self.num_features}), "
                f"but got: {channels}."
            )
        out = F.instance_norm(
            input.unsqueeze(0) if single else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )
        return out.squeeze(0) if single else out


for _n, _ranks in ((1, (2, 3)), (2, (4,)), (3, (5,))):
    enter_layer("batchnorm")(type(f"BatchNorm{_n}d", (_BatchNorm,), {"_ranks": _ranks}))
    enter_layer("instancenorm")(type(f"InstanceNorm{_n}d", (_InstanceNorm,), {"_ranks": (_n + 1, _n + 2)}))


@enter_layer("normalization")
@constructor(
    f"num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, {FACTORY}, *, bias: bool = True",
    weight="num_channels if affine else None",
    bias="num_channels if affine and bias else None",
    shown=".num_groups .num_channels eps= affine= bias=",
)
class GroupNorm(_Norm):
    """torch.nn.GroupNorm."""

    def _prepare(self, values: dict[str, Any]) -> None:
        groups, channels = values["num_groups"], values["num_channels"]
        if channels % groups:
            raise ValueError(f"num_channels ({channels}) must be divisible by num_groups ({groups})")

    def forward(self, input: Any) -> Any:
        """Return the input normalised over groups of channels."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


@constructor(weight="normalized_shape if elementwise_affine else None")
class _LastAxes(_Norm):
    """A norm over the last axes."""

    def _prepare(self, values: dict[str, Any]) -> None:
        values["normalized_shape"] = repeat(values["normalized_shape"], 1)


@enter_layer("normalization")
@constructor(
    "normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, " + FACTORY,
    bias="normalized_shape if elementwise_affine and bias else None",
    shown=".normalized_shape eps= elementwise_affine= bias=",
)
class LayerNorm(_LastAxes):
    """torch.nn.LayerNorm."""

    def forward(self, input: Any) -> Any:
        """Return the input normalised over the last axes."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


@enter_layer("normalization")
@constructor(
    f"normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, {FACTORY}",
    shown=".normalized_shape eps= elementwise_affine=",
)
class RMSNorm(_LastAxes):
    """torch.nn.RMSNorm."""

    def forward(self, input: Any) -> Any:
        """Return the input divided by its root mean square over the last axes."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


add_layers(
    "normalization",
    "LocalResponseNorm | size, alpha=0.0001, beta=0.75, k=1.0 | F.local_response_norm | .size alpha= beta= k=",
)
