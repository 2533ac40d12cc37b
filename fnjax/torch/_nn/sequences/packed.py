"""torch.nn.utils.rnn: sequences of different lengths, padded or packed; under jit the lengths must be known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import module

torch, F = module("torch"), module("torch.nn.functional")


def _enter(function: Callable[..., Any]) -> Callable[..., Any]:
    KNOWN[f"torch.nn.utils.rnn.{function.__name__}"] = function
    return function


class _Fields(NamedTuple):
    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


@_enter
class PackedSequence(_Fields):
    """Sequences packed step after step, longest first; `batch_sizes` is the number of sequences at each step."""

    __slots__ = ()

    def __new__(
        cls, data: Any, batch_sizes: Any = None, sorted_indices: Any = None, unsorted_indices: Any = None
    ) -> Self:
        """Make it of its parts; the order back follows from the order."""
        if batch_sizes is None:
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Return the sequences in another dtype."""
        return self._replace(data=self.data.to(*args, **kwargs))


@_enter
def invert_permutation(permutation: Any) -> Any:
    """Return the order that undoes another."""
    return None if permutation is None else permutation.argsort()


def _as_list(lengths: Any) -> list[int]:
    return lengths.tolist() if isinstance(lengths, Tensor) else [int(n) for n in lengths]


@_enter
def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Return padded sequences without their padding."""
    sizes, order = np.asarray(_as_list(lengths)), None
    x = input.transpose(0, 1) if batch_first else input
    if not enforce_sorted:
        places = np.argsort(-sizes, kind="stable")
        sizes, order = sizes[places], torch.tensor(places, dtype=torch.int64)
        x = x.index_select(1, order)
    if len(sizes) != x.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={x.shape[1]})"
        )
    if (sizes[:-1] < sizes[1:]).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you "
            "do not need ONNX exportability."
        )
    if sizes[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    inside = np.arange(sizes[0])[:, None] < sizes
    time, row = (torch.tensor(i, dtype=torch.int64) for i in np.nonzero(inside))
    return PackedSequence(x[time, row], torch.tensor(inside.sum(1), dtype=torch.int64), order)


@_enter
def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Any, Any]:
    """Return the sequences with padding, and their lengths."""
    counts = np.asarray(_as_list(sequence.batch_sizes))
    longest = len(counts) if total_length is None else total_length
    if longest < len(counts):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(counts)}"
        )
    inside = np.arange(counts[0]) < np.pad(counts, (0, longest - len(counts)))[:, None]
    time, row = (torch.tensor(i, dtype=torch.int64) for i in np.nonzero(inside))
    data = sequence.data
    padded = torch.full((longest, int(counts[0]), *data.shape[1:]), padding_value, dtype=data.dtype)
    padded = padded.index_put((time, row), data)
    lengths, back = torch.tensor(inside.sum(0), dtype=torch.int64), sequence.unsorted_indices
    if back is not None:
        padded, lengths = padded.index_select(1, back), lengths[back]
    return (padded.transpose(0, 1) if batch_first else padded), lengths


@_enter
def pad_sequence(
    sequences: Iterable[Any], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    """Return sequences of one batch, padded to the longest."""
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}"
        )
    if padding_side not in {"left", "right"}:
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    sequences = tuple(sequences)
    longest = max(s.shape[0] for s in sequences)

    def pad(x: Any) -> Any:
        more = longest - x.shape[0]
        sizes = (0, more) if padding_side == "right" else (more, 0)
        return F.pad(x, (0, 0) * (x.ndim - 1) + sizes, value=padding_value)

    return torch.stack([pad(s) for s in sequences], 0 if batch_first else 1)


@_enter
def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Any]:
    """Return the sequences of a padded batch."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[:n] for row, n in zip(rows, _as_list(lengths), strict=True)]


@_enter
def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Return sequences packed."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


@_enter
def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """Return packed sequences one by one."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)
