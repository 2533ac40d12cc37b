"""Transformer layers. Where PyTorch has a faster path for inference, these compute as in training."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

from fnjax.torch._nn.layers.linear import Linear
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, constructor, enter_layer, init, signed, torch
from fnjax.torch._nn.layers.norms import LayerNorm
from fnjax.torch._nn.sequences.attention import MultiheadAttention
from fnjax.torch.names.registry import find


def _repeat(name: str, values: dict[str, Any]) -> None:
    """Replace a layer among the constructor's arguments with a list of copies."""
    layer, others = values.pop(name), dict(values)
    values.clear()
    copies = [copy.deepcopy(layer) for _ in range(others["num_layers"])]
    values |= {"layers": find("torch.nn.ModuleList")(copies), **others}


_SIZES = 'dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu", '
_OPTIONS = (
    "layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True, " + FACTORY
)
_DECODED = (
    "tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, tgt_key_padding_mask: Any = None, "
    "memory_key_padding_mask: Any = None, "
)
_MASKS = ("mask", "key_padding_mask", "is_causal")


@constructor(f"d_model: int, nhead: int, {_SIZES}{_OPTIONS}")
class _Block(Layer):
    """Base of encoder and decoder layers: attentions, two linear layers, and a norm and a dropout for each block.

    Attributes:
        _attentions: the names of the attentions.
    """

    _attentions: tuple[str, ...] = ()

    def _prepare(self, values: dict[str, Any]) -> None:
        activation, norm_first = values["activation"], values["norm_first"]
        if isinstance(activation, str):
            if activation not in {"relu", "gelu"}:
                raise RuntimeError(f"activation should be relu/gelu, not {activation}")
            activation = getattr(F, activation)
        values.clear()
        values |= {"norm_first": norm_first, "activation": activation}

    def _start(self, given: dict[str, Any]) -> None:
        options = {name: given[name] for name in ("bias", "device", "dtype")}
        size, inner, dropout = given["d_model"], given["dim_feedforward"], given["dropout"]
        heads, first, drop = given["nhead"], given["batch_first"], find("torch.nn.Dropout")
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(size, heads, dropout=dropout, batch_first=first, **options))
        self.linear1 = Linear(size, inner, **options)
        self.dropout = drop(dropout)
        self.linear2 = Linear(inner, size, **options)
        count = len(self._attentions) + 1
        for i in range(count):
            setattr(self, f"norm{i + 1}", LayerNorm(size, eps=given["layer_norm_eps"], **options))
        for i in range(count):
            setattr(self, f"dropout{i + 1}", drop(dropout))

    def _attend(self, which: int, x: Any, memory: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
        attention = getattr(self, self._attentions[which])
        options = {"attn_mask": mask, "key_padding_mask": padding, "is_causal": is_causal, "need_weights": False}
        return getattr(self, f"dropout{which + 1}")(attention(x, memory, memory, **options)[0])

    def _ff_block(self, x: Any) -> Any:
        x = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return getattr(self, f"dropout{len(self._attentions) + 1}")(x)

    def _add(self, x: Any, which: int, block: Any) -> Any:
        """Add a block's result, normalised before or after."""
        norm = getattr(self, f"norm{which + 1}")
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))


@enter_layer("transformer")
class TransformerEncoderLayer(_Block):
    """torch.nn.TransformerEncoderLayer."""

    _attentions = ("self_attn",)

    def _sa_block(self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False) -> Any:
        return self._attend(0, x, x, attn_mask, key_padding_mask, is_causal)

    def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
        """Return self-attention and two linear layers, each added to its input."""
        src = self._add(src, 0, lambda x: self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self._add(src, 1, self._ff_block)


@enter_layer("transformer")
class TransformerDecoderLayer(_Block):
    """torch.nn.TransformerDecoderLayer."""

    _attentions = ("self_attn", "multihead_attn")

    def _sa_block(self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False) -> Any:
        return self._attend(0, x, x, attn_mask, key_padding_mask, is_causal)

    def _mha_block(self, x: Any, mem: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False) -> Any:
        return self._attend(1, x, mem, attn_mask, key_padding_mask, is_causal)

    @signed(f"self, {_DECODED}tgt_is_causal: bool = False, memory_is_causal: bool = False")
    def forward(self, tgt: Any, memory: Any, **masks: Any) -> Any:
        """Return self-attention, attention to the memory and two linear layers, each added to its input."""
        own, other = ([masks[f"{x}_{name}"] for name in _MASKS] for x in ("tgt", "memory"))
        tgt = self._add(tgt, 0, lambda x: self._sa_block(x, *own))
        tgt = self._add(tgt, 1, lambda x: self._mha_block(x, memory, *other))
        return self._add(tgt, 2, self._ff_block)


@enter_layer("transformer")
@constructor(
    "encoder_layer: Any, num_layers: int, norm: Any = None, enable_nested_tensor: bool = True, mask_check: bool = True",
)
class TransformerEncoder(Layer):
    """torch.nn.TransformerEncoder."""

    def _prepare(self, values: dict[str, Any]) -> None:
        _repeat("encoder_layer", values)

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Any:
        """Apply the layers one after the other; return the last result."""
        options = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": bool(is_causal)}
        for layer in self.layers:
            src = layer(src, **options)
        return src if self.norm is None else self.norm(src)


@enter_layer("transformer")
@constructor("decoder_layer: Any, num_layers: int, norm: Any = None")
class TransformerDecoder(Layer):
    """torch.nn.TransformerDecoder."""

    def _prepare(self, values: dict[str, Any]) -> None:
        _repeat("decoder_layer", values)

    @signed(f"self, {_DECODED}tgt_is_causal: bool | None = None, memory_is_causal: bool = False")
    def forward(self, tgt: Any, memory: Any, tgt_is_causal: Any, **masks: Any) -> Any:
        """Apply the layers one after the other; return the last result."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_is_causal=bool(tgt_is_causal), **masks)
        return tgt if self.norm is None else self.norm(tgt)


@enter_layer("transformer")
@constructor(
    "d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6, "
    f"{_SIZES}custom_encoder: Any = None, custom_decoder: Any = None, {_OPTIONS}",
)
class Transformer(Layer):
    """torch.nn.Transformer."""

    def _prepare(self, values: dict[str, Any]) -> None:
        kept = {name: values[name] for name in ("d_model", "nhead", "batch_first")}
        values.clear()
        values |= kept

    def _start(self, given: dict[str, Any]) -> None:
        names = inspect.signature(TransformerEncoderLayer).parameters
        options = {name: given[name] for name in names}
        norm = {"eps": given["layer_norm_eps"], **{name: given[name] for name in ("bias", "device", "dtype")}}
        self.encoder = given["custom_encoder"] or TransformerEncoder(
            TransformerEncoderLayer(**options), given["num_encoder_layers"], LayerNorm(self.d_model, **norm)
        )
        self.decoder = given["custom_decoder"] or TransformerDecoder(
            TransformerDecoderLayer(**options), given["num_decoder_layers"], LayerNorm(self.d_model, **norm)
        )
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    @signed(
        "self, src: Any, tgt: Any, src_mask: Any = None, tgt_mask: Any = None, memory_mask: Any = None, "
        "src_key_padding_mask: Any = None, tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None, "
        "src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False"
    )
    def forward(
        self, src: Any, tgt: Any, src_mask: Any, src_key_padding_mask: Any, src_is_causal: Any, **masks: Any
    ) -> Any:
        """Return the decoder's result for the encoder's."""
        axis = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[axis] != tgt.shape[axis]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(tgt, memory, **masks)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """Return a mask that lets each position attend to itself and those before it."""
        return torch.full((sz, sz), -math.inf, dtype=dtype).triu(1)
