"""Transformer layers. Where PyTorch has a faster path for inference, these compute as in training."""

from __future__ import annotations

import copy
import math
from typing import Any

from fnjax.torch._nn.layers.linear import Linear
from fnjax.torch._nn.layers.lines import F, enter_layer, init, torch
from fnjax.torch._nn.layers.norms import LayerNorm
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.sequences.attention import MultiheadAttention
from fnjax.torch.names.registry import find


def _repeat(layer: Module, count: int) -> Any:
    return find("torch.nn.ModuleList")([copy.deepcopy(layer) for _ in range(count)])


class _Block(Module):
    """Base of encoder and decoder layers: attentions, two linear layers, and a norm and a dropout for each block.

    Attributes:
        _attentions: the names of the attentions.
    """

    _attentions: tuple[str, ...] = ()

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__()
        if isinstance(activation, str):
            if activation not in {"relu", "gelu"}:
                raise RuntimeError(f"activation should be relu/gelu, not {activation}")
            activation = getattr(F, activation)
        drop = find("torch.nn.Dropout")
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, **options))
        self.linear1 = Linear(d_model, dim_feedforward, **options)
        self.dropout = drop(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **options)
        self.norm_first, self.activation = norm_first, activation
        count = len(self._attentions) + 1
        for i in range(count):
            setattr(self, f"norm{i + 1}", LayerNorm(d_model, eps=layer_norm_eps, **options))
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

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return self-attention, attention to the memory and two linear layers, each added to its input."""
        tgt = self._add(tgt, 0, lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        masks = (memory_mask, memory_key_padding_mask, memory_is_causal)
        tgt = self._add(tgt, 1, lambda x: self._mha_block(x, memory, *masks))
        return self._add(tgt, 2, self._ff_block)


@enter_layer("transformer")
class TransformerEncoder(Module):
    """torch.nn.TransformerEncoder."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers, self.num_layers, self.norm = _repeat(encoder_layer, num_layers), num_layers, norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Any:
        """Return the layers' result one after the other."""
        options = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": bool(is_causal)}
        for layer in self.layers:
            src = layer(src, **options)
        return src if self.norm is None else self.norm(src)


@enter_layer("transformer")
class TransformerDecoder(Module):
    """torch.nn.TransformerDecoder."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers, self.num_layers, self.norm = _repeat(decoder_layer, num_layers), num_layers, norm

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return the layers' result one after the other."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


@enter_layer("transformer")
class Transformer(Module):
    """torch.nn.Transformer."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options, device=device, dtype=dtype), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options, device=device, dtype=dtype), num_decoder_layers, norm()
        )
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return the decoder's result for the encoder's."""
        axis = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[axis] != tgt.shape[axis]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """Return a mask that lets each place attend to those before it."""
        return torch.full((sz, sz), -math.inf, dtype=dtype).triu(1)
