"""Views of an axis in sections: `split`, `chunk`, `unbind`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.views.strided import _axis, narrow, select, view


@view("+split +unsafe_split +split_with_sizes +unsafe_split_with_sizes")
def split(
    x: Tensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None, split_sizes: Any = None
) -> tuple[Tensor, ...]:
    """Split an axis into sections of one size, or of these sizes."""
    sizes = next(s for s in (split_size_or_sections, split_size, split_sizes) if s is not None)
    dim = _axis(dim, x.ndim)
    n = x.layout.shape[dim]
    if not isinstance(sizes, (list, tuple)):
        sizes = [min(sizes, n - at) for at in range(0, n, sizes)] if n else [0]
    if sum(sizes) != n:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size at dimension {dim}), but "
            f"got split_sizes={list(sizes)}"
        )
    starts = np.cumsum([0, *sizes])
    return tuple(narrow(x, dim, int(start), int(size)) for start, size in zip(starts, sizes, strict=False))


@view("+chunk +unsafe_chunk")
def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Split an axis into at most so many sections of one size."""
    n = x.layout.shape[_axis(dim, x.ndim)]
    return split(x, max(-(-n // chunks), 1), dim) if n else split(x, [0] * chunks, dim)


@view("+tensor_split")
def tensor_split(
    x: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Split an axis into so many sections, or at these indices."""
    at = next(a for a in (indices_or_sections, indices, sections) if a is not None)
    at = np.asarray(at.array).tolist() if isinstance(at, Tensor) else at
    return tuple(x.show(part) for part in np.array_split(x.layout, at, _axis(dim, x.ndim)))


def _split_axis(name: str, axis: int) -> None:
    @view(f"+{name}")
    def on_axis(x: Tensor, *at: Any, **named: Any) -> tuple[Tensor, ...]:
        return tensor_split(x, *at, dim=axis if axis != 1 or x.ndim > 1 else 0, **named)


for _name, _at in {"hsplit": 1, "vsplit": 0, "dsplit": 2}.items():
    _split_axis(_name, _at)


@view("+unbind")
def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis."""
    return tuple(select(x, dim, i) for i in range(x.layout.shape[_axis(dim, x.ndim)]))
