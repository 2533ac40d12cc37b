"""Attention: the function that PyTorch's modules call, and the module."""

from __future__ import annotations

import math
import warnings
from typing import Any

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.layers.linear import NonDynamicallyQuantizableLinear
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, add_parameter, constructor, enter_layer, init, signed, torch


def _as_added(mask: Any, name: str, dtype: Any, other: Any = None) -> Any:
    """Return a mask as numbers to add to the scores; a boolean mask is -inf where it is True: no attention."""
    if mask is None:
        return None
    if mask.dtype.kind not in {"bool", "float"}:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if other is not None and mask.dtype is not other.dtype:
        warnings.warn(
            f"Support for mismatched {name} and attn_mask is deprecated. Use same type for both instead.", stacklevel=4
        )
    if mask.dtype.kind == "float":
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -math.inf)


def _check_shapes(query: Any, key: Any, value: Any, key_padding_mask: Any, attn_mask: Any, num_heads: int) -> bool:
    """Return whether there is a batch; raise PyTorch's errors where ranks do not fit."""
    rank = query.ndim
    if rank not in (2, 3):
        raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {rank}-D query tensor")
    said = f"For {'batched' if rank == 3 else 'unbatched'} ({rank}-D) `query`, expected"
    if key.ndim != rank or value.ndim != rank:
        raise AssertionError(
            f"{said} `key` and `value` to be {rank}-D but found {key.ndim}-D and {value.ndim}-D tensors respectively"
        )
    for mask, name, ranks in ((key_padding_mask, "key_padding_mask", (rank - 1,)), (attn_mask, "attn_mask", (2, 3))):
        if mask is not None and mask.ndim not in ranks:
            allowed = f"`None`{',' if len(ranks) > 1 else ' or'} {' or '.join(f'{r}-D' for r in ranks)}"
            raise AssertionError(f"{said} `{name}` to be {allowed} but found {mask.ndim}-D tensor instead")
    if rank == 2 and attn_mask is not None and attn_mask.ndim == 3:
        shape = (num_heads, query.shape[0], key.shape[0])
        if tuple(attn_mask.shape) != shape:
            raise AssertionError(f"Expected `attn_mask` shape to be {shape} but got {attn_mask.shape}")
    return rank == 3


@known("torch.nn.functional.multi_head_attention_forward")
def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """Return attention over (length, batch, features), and its weights or None."""
    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, features = query.shape
    key_padding_mask = _as_added(key_padding_mask, "key_padding_mask", query.dtype, attn_mask)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    is_causal = is_causal and key_padding_mask is None and not need_weights
    attn_mask = None if is_causal else _as_added(attn_mask, "attn_mask", query.dtype)
    if features != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {features}")
    if features % num_heads:
        raise AssertionError(f"embed_dim {features} not divisible by num_heads {num_heads}")
    if not use_separate_proj_weight and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    if key.shape[:2] != value.shape[:2]:
        raise AssertionError(f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}")
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    attn_mask = _check_mask(attn_mask, length, key.shape[0], batch, num_heads)
    more = 0
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([x, b.repeat(1, batch, 1)]) for x, b in ((k, bias_k), (v, bias_v)))
        more = 1

    def split(x: Any, static: Any = None) -> Any:
        """Return heads as an axis: (batch, heads, length, features of a head)."""
        size = features // num_heads
        if static is not None:
            return static.reshape(batch, num_heads, -1, size)
        return x.reshape(-1, batch, num_heads, size).permute(1, 2, 0, 3)

    q, k, v = split(q), split(k, static_k), split(v, static_v)
    if add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        more += 1
    if more:
        attn_mask, key_padding_mask = (
            None if m is None else F.pad(m, (0, more)) for m in (attn_mask, key_padding_mask)
        )
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, None, :]
        attn_mask = padding if attn_mask is None else attn_mask + padding
    out, scores = _attend(q, k, v, attn_mask, dropout_p if training else 0.0, is_causal, need_weights)
    out = F.linear(out.permute(2, 0, 1, 3).reshape(length, batch, features), out_proj_weight, out_proj_bias)
    if scores is not None:
        scores = scores.mean(1) if average_attn_weights else scores
    if batched:
        return out, scores
    return out.squeeze(1), None if scores is None else scores.squeeze(0)


def _check_mask(mask: Any, length: int, other: int, batch: int, heads: int) -> Any:
    """Return a mask with axes for batch and heads."""
    if mask is None:
        return None
    shape = (length, other) if mask.ndim == 2 else (batch * heads, length, other)
    if tuple(mask.shape) != shape:
        raise RuntimeError(f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be {shape}.")
    return mask if mask.ndim == 2 else mask.reshape(batch, heads, length, other)


def _attend(q: Any, k: Any, v: Any, mask: Any, dropout: float, is_causal: bool, need_weights: bool) -> tuple[Any, Any]:
    if not need_weights and not dropout:
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal), None
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(*scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    scores = F.softmax(scores if mask is None else scores + mask, -1)
    scores = F.dropout(scores, dropout) if dropout else scores
    return scores @ v, scores if need_weights else None


@enter_layer("activation")
@constructor(
    "embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False, "
    "add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, "
    + FACTORY,
    in_proj_weight="(3 * embed_dim, embed_dim) if _qkv_same_embed_dim else None",
    q_proj_weight="None if _qkv_same_embed_dim else (embed_dim, embed_dim)",
    k_proj_weight="None if _qkv_same_embed_dim else (embed_dim, kdim)",
    v_proj_weight="None if _qkv_same_embed_dim else (embed_dim, vdim)",
    in_proj_bias="3 * embed_dim if bias else None",
)
class MultiheadAttention(Layer):
    """torch.nn.MultiheadAttention."""

    def _prepare(self, values: dict[str, Any]) -> None:
        size, heads = values["embed_dim"], values["num_heads"]
        if size <= 0 or heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={size} and num_heads={heads} instead"
            )
        values["head_dim"] = size // heads
        if size % heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        values |= {name: size if values[name] is None else values[name] for name in ("kdim", "vdim")}
        values["_qkv_same_embed_dim"] = values["kdim"] == size == values["vdim"]
        del values["bias"], values["add_bias_kv"]

    def _start(self, given: dict[str, Any]) -> None:
        size, options = self.embed_dim, {"device": given["device"], "dtype": given["dtype"]}
        self.out_proj = NonDynamicallyQuantizableLinear(size, size, bias=given["bias"], **options)
        for name in ("bias_k", "bias_v"):
            if given["add_bias_kv"]:
                add_parameter(self, name, (1, 1, size), **options)
            else:
                setattr(self, name, None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
            init.constant_(self.out_proj.bias, 0.0)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    @signed(
        "self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True, "
        "attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False"
    )
    def forward(self, query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, Any]:
        """Return attention and its weights."""
        swapped = self.batch_first and query.ndim == 3
        if swapped:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        own = (
            "in_proj_weight in_proj_bias bias_k bias_v add_zero_attn q_proj_weight k_proj_weight v_proj_weight training"
        )
        out, scores = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            dropout_p=self.dropout,
            out_proj_weight=self.out_proj.weight,
            out_proj_bias=self.out_proj.bias,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            **{name: getattr(self, name) for name in own.split()},
            **options,
        )
        return out.transpose(0, 1) if swapped else out, scores
