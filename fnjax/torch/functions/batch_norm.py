"""Normalisation with running statistics, which PyTorch updates in place."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnjax._torch_ops.registry import known
from fnjax.torch.dispatch.run import run
from fnjax.torch.functions.creation import with_out
from fnjax.torch.functions.methods import to
from fnjax.torch.memory.dtypes import DTYPES, FLOAT32
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.gradient_mode import set_mode, switch


@known("torch.nn.functional.batch_norm")
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the batch for each channel; in training the running statistics follow those of the batch."""
    if training:
        _check_size(input)
        _follow(input, running_mean, running_var, momentum, (0, *range(2, input.ndim)))
        running_mean = running_var = None
    elif running_mean is None or running_var is None:
        raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
    found = run(
        "torch.nn.functional.batch_norm",
        (input, running_mean, running_var, weight, bias, training, momentum, eps),
        {},
    )
    return to(found, input.dtype)


def _check_size(x: Tensor) -> None:
    """Check that a batch has more than one value per channel.

    Raises:
        ValueError: a channel has one value only (PyTorch's message).
    """
    if x.ndim > 1 and x.layout.size == x.layout.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape!r}")


def _follow(x: Tensor, mean: Tensor | None, var: Tensor | None, momentum: Any, dims: tuple[int, ...]) -> None:
    """Update running mean and variance in place with those of a batch; an empty batch leaves them unchanged.

    Args:
        x: the batch.
        mean: the running mean, or None.
        var: the running variance, or None.
        momentum: the weight of the batch; the old statistics have weight 1 - momentum.
        dims: the axes that are averaged over.
    """
    if not x.layout.size:
        return
    with set_mode(switch(False)):
        x = _widen(x)
        for running, name, options in ((mean, "mean", {}), (var, "var", {"correction": 1})):
            if running is not None:
                own = run(f"torch.{name}", (x, dims), options)
                own = own if own.ndim == 1 else own.mean(0)
                running.copy_(running * (1 - momentum) + own * momentum)


def _measure(x: Tensor, dims: Any, eps: float, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean over axes and the reciprocal standard deviation, in the dtype of the weight or of the input."""
    own = x.dtype if weight is None else weight.dtype
    wide = _widen(x)
    variance = run("torch.var", (wide, dims), {"correction": 0})
    return to(run("torch.mean", (wide, dims), {}), own), to(run("torch.rsqrt", (variance + eps,), {}), own)


def _widen(x: Tensor) -> Tensor:
    return to(x, FLOAT32) if x.dtype.itemsize == 2 else x


@known("torch.batch_norm")
def batch_norm_with_flags(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Apply torch.nn.functional.batch_norm."""
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@known("torch.native_batch_norm")
@with_out
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return batch_norm with the batch's mean and reciprocal standard deviation, which are empty but in training."""
    own = input.dtype if weight is None else weight.dtype
    empty = make(jnp.zeros(0, own.array), own)
    saved = _measure(input, (0, *range(2, input.ndim)), eps, weight) if training else (empty, empty)
    return (batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps), *saved)


@known("torch._native_batch_norm_legit")
@with_out
def native_batch_norm_legit(input: Tensor, weight: Any, bias: Any, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Apply native_batch_norm; the running statistics may be left out."""
    rest = rest if len(rest) == 5 else (None, None, *rest)
    return native_batch_norm(input, weight, bias, *rest)


@known("torch._batch_norm_with_update")
@with_out
def batch_norm_with_update(input: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Apply native_batch_norm in training; also return an empty tensor in place of a backend's reserve."""
    found = native_batch_norm(input, *rest[:4], True, *rest[4:])
    return (*found, make(jnp.zeros(0, jnp.uint8), DTYPES["uint8"]))


@known("torch.nn.functional.instance_norm")
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each image; the running statistics follow their mean over the batch."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.layout.size == input.layout.shape[0] * input.layout.shape[1]:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape!r}")
    _follow(input, running_mean, running_var, momentum, tuple(range(2, input.ndim)))
    found = run("torch.nn.functional.instance_norm", (input, None, None, weight, bias, True, momentum, eps), {})
    return to(found, input.dtype)


@known("torch.native_group_norm")
@with_out
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,  # noqa: N803 - as above
    C: int,  # noqa: N803 - as above
    HxW: int,  # noqa: N803 - as above
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return group_norm with mean and reciprocal standard deviation of each group."""
    saved = _measure(input.reshape(N, group, C // group * HxW), 2, eps, weight)
    return (to(run("torch.group_norm", (input, group, weight, bias, eps), {}), input.dtype), *saved)
