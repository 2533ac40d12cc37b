"""Embeddings."""

from __future__ import annotations

from typing import Any

from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, constructor, enter_layer, init, signed
from fnjax.torch._nn.module.parameter import Parameter


@constructor(weight="(num_embeddings, embedding_dim) if _weight is None else None")
class _Rows(Layer):
    """A weight of one row for each index.

    Attributes:
        _word: the name of padding_idx in messages.
    """

    _word = "padding_idx"
    weight: Any

    def _prepare(self, values: dict[str, Any]) -> None:
        rows, index, weight = values["num_embeddings"], values["padding_idx"], values.pop("_weight")
        if index is not None and not -rows <= index < rows:
            raise AssertionError(f"{self._word} must be within num_embeddings")
        if weight is not None and tuple(weight.shape) != (rows, values["embedding_dim"]):
            raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
        values["padding_idx"] = None if index is None else index % rows
        values.pop("_freeze", None)

    def _start(self, given: dict[str, Any]) -> None:
        """Draw the weight unless it is given."""
        trained = not given.get("_freeze")
        if given["_weight"] is None:
            self.weight.requires_grad_(trained)
            self.reset_parameters()
        else:
            self.weight = Parameter(given["_weight"], requires_grad=trained)

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])


def _from_pretrained(cls: Any, embeddings: Any, freeze: bool, **options: Any) -> Any:
    """Return a layer with this weight."""
    if embeddings.ndim != 2:
        raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
    made = cls(*embeddings.shape, _weight=embeddings, **options)
    made.weight.requires_grad_(not freeze)
    return made


_LIMITS = "max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False"


@enter_layer("sparse")
@constructor(
    f"num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, {_LIMITS}, "
    f"sparse: bool = False, _weight: Any = None, _freeze: bool = False, {FACTORY}",
    shown=".num_embeddings .embedding_dim padding_idx? max_norm? norm_type? scale_grad_by_freq? sparse?",
)
class Embedding(_Rows):
    """torch.nn.Embedding."""

    _word = "Padding_idx"

    def forward(self, input: Any) -> Any:
        """Return the rows of these indices."""
        limits = (self.padding_idx, self.max_norm, self.norm_type)
        return F.embedding(input, self.weight, *limits, self.scale_grad_by_freq, self.sparse)

    from_pretrained = classmethod(
        signed(
            f"cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None, {_LIMITS}, "
            "sparse: bool = False"
        )(_from_pretrained)
    )


@enter_layer("sparse")
@constructor(
    f'num_embeddings: int, embedding_dim: int, {_LIMITS}, mode: str = "mean", sparse: bool = False, '
    f"_weight: Any = None, include_last_offset: bool = False, padding_idx: int | None = None, {FACTORY}",
    shown=".num_embeddings .embedding_dim max_norm? norm_type? scale_grad_by_freq? mode= padding_idx?",
)
class EmbeddingBag(_Rows):
    """torch.nn.EmbeddingBag: sums, means or maxima of rows."""

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return one row for each bag."""
        options = (self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse, per_sample_weights)
        return F.embedding_bag(input, self.weight, offsets, *options, self.include_last_offset, self.padding_idx)

    from_pretrained = classmethod(
        signed(
            f'cls, embeddings: Any, freeze: bool = True, {_LIMITS}, mode: str = "mean", sparse: bool = False, '
            "include_last_offset: bool = False, padding_idx: int | None = None"
        )(_from_pretrained)
    )
