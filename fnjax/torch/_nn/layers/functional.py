"""Functions of torch.nn.functional that write to their weight, or call several others."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.layers.lines import F, signed
from fnjax.torch.dispatch.run import run
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.gradient_mode import set_mode, switch


def _limit_norms(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows at indices down to `max_norm`, in place, if their norm is larger."""
    with set_mode(switch(False)):
        rows = weight.array
        norms = jnp.linalg.vector_norm(rows.astype(jnp.float32), ord=norm_type, axis=1, keepdims=True)  # type: ignore[arg-type] # any number
        scale = jnp.where(norms > max_norm, max_norm / (norms + 1e-7), 1)
        used = jnp.zeros(rows.shape[0], bool).at[indices.array].set(True)[:, None]
        weight.detach().copy_(make(jnp.where(used, rows * scale, rows).astype(rows.dtype), weight.dtype))


@known("torch.embedding_renorm_")
def embedding_renorm_(input: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scale rows down to a norm, in place."""
    _limit_norms(input, indices, max_norm, norm_type)
    return input


@known("torch.nn.functional.embedding")
@signed(
    "input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, "
    "norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False"
)
def embedding(input: Tensor, weight: Tensor, padding_idx: Any, max_norm: Any, norm_type: float, **others: Any) -> Any:
    """Return the rows of these indices; with max_norm larger ones are scaled down in the weight first."""
    if padding_idx is not None:
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            raise AssertionError("Padding_idx must be within num_embeddings")
        padding_idx %= weight.shape[0]
    if max_norm is not None:
        _limit_norms(weight, input, max_norm, norm_type)
    return run(
        "torch.nn.functional.embedding", (input, weight, padding_idx, None, 2.0, others["scale_grad_by_freq"]), {}
    )


@known("torch.nn.functional.embedding_bag")
@signed(
    "input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, "
    'norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, '
    "per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None"
)
def embedding_bag(input: Tensor, weight: Tensor, offsets: Any, mode: str, per_sample_weights: Any, **given: Any) -> Any:
    """Return sums, means or maxima of rows; a bag is a row of indices, or begins at one of the offsets."""
    if mode not in {"sum", "mean", "max"}:
        raise ValueError("mode has to be one of sum, mean or max")
    if given["scale_grad_by_freq"]:
        if mode == "max":
            raise ValueError("max mode does not support scaling the gradient by the frequency")
        raise NotSupported("torch.nn.functional.embedding_bag: scale_grad_by_freq=True", "leave it out")
    if per_sample_weights is not None:
        if input.shape != per_sample_weights.shape:
            raise ValueError(
                f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the "
                f"same shape as the input ({input.shape})"
            )
        if mode != "sum":
            raise NotImplementedError(
                "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
                f"(got mode='{mode}'). Please open a feature request on GitHub."
            )
    if input.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if (offsets is None) != (input.ndim == 2):
        said = (
            "input is 2D, then offsets has to be None"
            if input.ndim == 2
            else "offsets has to be a 1D Tensor but got None"
        )
        raise ValueError(
            said if input.ndim == 1 else f"if {said}, as input is treated is a mini-batch of fixed length sequences"
        )
    if given["max_norm"] is not None:
        _limit_norms(weight, input, given["max_norm"], given["norm_type"])
    options = {name: given[name] for name in ("include_last_offset", "padding_idx")}
    options |= {"mode": mode, "per_sample_weights": per_sample_weights}
    return run("torch.nn.functional.embedding_bag", (input, weight, offsets), options)


@known("torch.nn.functional.linear_cross_entropy")
@signed(
    "input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, "
    'weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None, '
    "label_smoothing: float = 0.0, options: Any = None"
)
def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Any, ignore_index: Any, **given: Any
) -> Any:
    """Return the cross entropy of a linear layer's results; PyTorch's memory `options` are ignored."""
    classes, *more, features = linear_weight.shape
    shape = (*input.shape[:-1], classes, *more)
    if tuple(target.shape) == shape and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    size = math.prod([classes, *more])
    bias = None if linear_bias is None else linear_bias.reshape(size)
    logits = F.linear(input, linear_weight.reshape(size, features), bias).reshape(shape)
    del given["options"]
    return F.cross_entropy(logits, target, ignore_index=-100 if ignore_index is None else ignore_index, **given)
