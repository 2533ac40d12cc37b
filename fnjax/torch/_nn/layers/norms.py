"""Normalisation layers. Running statistics are buffers, which forward writes to while training."""

from __future__ import annotations

from typing import Any

from fnjax._primitives.sharding import manual_axes
from fnjax.torch._nn.layers.lines import F, add_layers, add_parameter, enter_layer, init, torch
from fnjax.torch._nn.module.module import Module
from fnjax.torch.errors import NotSupported
from fnjax.torch.names.process_groups import get_default


def _start(layer: Any) -> None:
    """Set scales to one and shifts to zero."""
    if layer.weight is not None:
        init.ones_(layer.weight)
    if getattr(layer, "bias", None) is not None:
        init.zeros_(layer.bias)


@enter_layer("batchnorm")
class _NormBase(Module):
    """Base of batch and instance norms."""

    _ranks: tuple[int, ...] = ()
    _version = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        add_parameter(self, "weight", num_features, affine, device=device, dtype=dtype)
        add_parameter(self, "bias", num_features, affine and bias, device=device, dtype=dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.zeros(num_features, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", torch.ones(num_features, dtype=dtype) if tracked else None)
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
        _start(self)

    def _check_input_dim(self, input: Any) -> None:
        if input.ndim not in self._ranks:
            raise ValueError(f"expected {' or '.join(f'{r}D' for r in self._ranks)} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


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
class SyncBatchNorm(_BatchNorm):
    """torch.nn.SyncBatchNorm under jax.jit, where a sharded batch is one batch."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def forward(self, input: Any) -> Any:
        """Return as the other batch norms.

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
class _InstanceNorm(_NormBase):
    """Instance norm over inputs of `_ranks` axes; without a batch the first of these ranks."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

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
class GroupNorm(Module):
    """torch.nn.GroupNorm."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        add_parameter(self, "weight", num_channels, affine, device=device, dtype=dtype)
        add_parameter(self, "bias", num_channels, affine and bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values."""
        _start(self)

    def forward(self, input: Any) -> Any:
        """Return the input normalised over groups of channels."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        shown = f"eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, {shown}"


class _LastAxes(Module):
    """A norm over the last axes."""

    def __init__(self, normalized_shape: Any, eps: Any, elementwise_affine: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        add_parameter(self, "weight", shape, elementwise_affine, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Set the initial values."""
        _start(self)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


@enter_layer("normalization")
class LayerNorm(_LastAxes):
    """torch.nn.LayerNorm."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        add_parameter(self, "bias", self.normalized_shape, elementwise_affine and bias, device=device, dtype=dtype)
        self.reset_parameters()

    def forward(self, input: Any) -> Any:
        """Return the input normalised over the last axes."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{super().extra_repr()}, bias={self.bias is not None}"


@enter_layer("normalization")
class RMSNorm(_LastAxes):
    """torch.nn.RMSNorm."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.reset_parameters()

    def forward(self, input: Any) -> Any:
        """Return the input divided by its root mean square over the last axes."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


add_layers(
    "normalization",
    "LocalResponseNorm | size, alpha=0.0001, beta=0.75, k=1.0 | F.local_response_norm | .size alpha= beta= k=",
)
