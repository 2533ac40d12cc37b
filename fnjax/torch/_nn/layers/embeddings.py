"""Embeddings."""

from __future__ import annotations

from typing import Any, Self

from fnjax.torch._nn.layers.lines import F, add_parameter, enter_layer, init
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter


class _Rows(Module):
    """A weight of one row for each index.

    Attributes:
        _word: the name of padding_idx in messages.
    """

    _word = "padding_idx"
    weight: Any

    def _start(self, sizes: tuple[int, int], padding_idx: int | None, weight: Any, trained: bool, options: Any) -> None:
        """Set the weight, which is drawn unless it is given."""
        self.num_embeddings, self.embedding_dim = sizes
        if padding_idx is not None and not -sizes[0] <= padding_idx < sizes[0]:
            raise AssertionError(f"{self._word} must be within num_embeddings")
        self.padding_idx = None if padding_idx is None else padding_idx % sizes[0]
        if weight is None:
            add_parameter(self, "weight", sizes, **options)
            self.weight.requires_grad_(trained)
            self.reset_parameters()
        else:
            if tuple(weight.shape) != sizes:
                raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
            self.weight = Parameter(weight, requires_grad=trained)

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    def _show(self, **options: Any) -> str:
        """Return the sizes, and the options that are not the default."""
        parts = [f"{name}={value}" for name, value in options.items() if value is not None and value is not False]
        return ", ".join([f"{self.num_embeddings}, {self.embedding_dim}", *parts])


def _check_rank(embeddings: Any) -> Any:
    if embeddings.ndim != 2:
        raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
    return tuple(embeddings.shape)


@enter_layer("sparse")
class Embedding(_Rows):
    """torch.nn.Embedding."""

    _word = "Padding_idx"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        options = {"device": device, "dtype": dtype}
        self._start((num_embeddings, embedding_dim), padding_idx, _weight, not _freeze, options)

    def forward(self, input: Any) -> Any:
        """Return the rows of these indices."""
        limits = (self.padding_idx, self.max_norm, self.norm_type)
        return F.embedding(input, self.weight, *limits, self.scale_grad_by_freq, self.sparse)

    def extra_repr(self) -> str:
        """Return the options."""
        return self._show(
            padding_idx=self.padding_idx,
            max_norm=self.max_norm,
            norm_type=None if self.norm_type == 2 else self.norm_type,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """Return a layer with this weight."""
        options: Any = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze)
        return cls(*_check_rank(embeddings), *options)


@enter_layer("sparse")
class EmbeddingBag(_Rows):
    """torch.nn.EmbeddingBag: sums, means or maxima of rows."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.max_norm, self.norm_type, self.mode = max_norm, norm_type, mode
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.include_last_offset = include_last_offset
        options = {"device": device, "dtype": dtype}
        self._start((num_embeddings, embedding_dim), padding_idx, _weight, True, options)

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return one row for each bag."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        """Return the options."""
        return self._show(
            max_norm=self.max_norm,
            norm_type=None if self.norm_type == 2 else self.norm_type,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=repr(self.mode),
            padding_idx=self.padding_idx,
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """Return a layer with this weight."""
        options: Any = (
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            embeddings,
            include_last_offset,
            padding_idx,
        )
        made = cls(*_check_rank(embeddings), *options)
        made.weight.requires_grad_(not freeze)
        return made
