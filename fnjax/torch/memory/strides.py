"""Strides of results, by PyTorch's rules from the strides of the arguments.

A result is dense: its elements are one after the other in memory, in some order of the axes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

Strides = tuple[int, ...]
Strided = tuple[tuple[int, ...], Strides]  # a shape and its strides

_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # by rank the axes of torch.channels_last, the innermost last
FORMATS = {"channels_last": 4, "channels_last_3d": 5}


def pack(shape: Sequence[int], order: Sequence[int] | None = None) -> Strides:
    """Return the strides of dense memory with the axes in an order, the innermost last; by default contiguous ones."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


_pack = functools.lru_cache(4096)(pack)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements are one after the other in memory, in any order of the axes."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step and 0 not in shape:
            return False
        step *= size
    return True


def is_packed(shape: Sequence[int], strides: Sequence[int], order: Sequence[int] | None = None) -> bool:
    """Return whether memory is dense with the axes in this order; strides of axes with one element do not matter."""
    return 0 in shape or all(n == 1 or s == p for n, s, p in zip(shape, strides, pack(shape, order), strict=True))


def is_channels_last(shape: Sequence[int], strides: Sequence[int], rank: int | None = None) -> bool:
    """Return whether memory is dense in the order of torch.channels_last, or channels_last_3d."""
    known = len(shape) in _LAST if rank is None else len(shape) == rank
    return known and is_packed(shape, strides, _LAST[len(shape)])


def channels_last(shape: Sequence[int]) -> Strides:
    """Return the strides of torch.channels_last, or channels_last_3d."""
    return pack(shape, _LAST[len(shape)])


def _suggests_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether strides are ordered as those of torch.channels_last (PyTorch's suggest_memory_format)."""
    if len(shape) not in _LAST or not strides[1]:
        return False
    least = 0
    for axis in reversed(_LAST[len(shape)]):
        if not shape[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis]
    return True


def _find_order(shape: Sequence[int], operands: Sequence[Strides]) -> list[int]:
    """Return the axes in the order of memory, the innermost last: the first operand whose strides differ decides."""

    def compare(inner: int, outer: int) -> int:
        for strides in operands:
            a, b = strides[inner], strides[outer]
            if a and b and (a != b or shape[inner] > shape[outer]):
                return 1 if a >= b else -1
        return 0

    found = [*reversed(range(len(shape)))]  # PyTorch sorts it by insertion, and the order is not transitive
    for at in range(1, len(shape)):
        for j in reversed(range(at)):
            order = compare(found[j], found[at])
            if order > 0:
                found[j], found[at] = found[at], found[j]
                at = j  # noqa: PLW2901 - where the axis is now
            elif order < 0:
                break
    return found[::-1]


def _broadcasts(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    pairs = zip(reversed(sizes), reversed(shape), strict=False)
    return len(sizes) <= len(shape) and all(n in (1, m) for n, m in pairs)


def _broadcast(shape: Sequence[int], operand: Strided) -> Strides:
    sizes, strides = operand
    added = len(shape) - len(sizes)
    return (0,) * added + tuple(0 if n == 1 != m else s for n, m, s in zip(sizes, shape[added:], strides, strict=True))


def _elementwise(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of an elementwise result, by the rules of PyTorch's TensorIterator."""
    if all(sizes == shape for sizes, _ in operands):
        if all(is_packed(*x) for x in operands):
            return None
        if all(is_channels_last(*x) for x in operands):
            return channels_last(shape)
        first = operands[0][1]
        if all(strides == first for _, strides in operands) and is_dense(shape, first):
            return first
    return pack(shape, _find_order(shape, [_broadcast(shape, x) for x in operands]))


def _like(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of torch.preserve_format, for a result of the first argument's shape."""
    sizes, strides = operands[0]
    if sizes != shape:
        return None
    return strides if is_dense(shape, strides) else pack(shape, _find_order(shape, [strides]))


def _in_format(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of channels_last if the first argument has that memory format, else None."""
    return channels_last(shape) if len(shape) in _LAST and _suggests_channels_last(*operands[0]) else None


def _convolution(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of channels_last if the input or the weight has that memory format, else None."""
    (sizes, strides), weight = operands[:2]
    if len(sizes) < len(weight[0]):  # without a batch
        found = _convolution((1, *shape), (((1, *sizes), (sizes[0] * strides[0], *strides)), weight))
        return None if found is None else found[1:]
    return channels_last(shape) if any(_suggests_channels_last(*x) for x in operands[:2]) else None


def _in_common_format(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of channels_last if all arguments have that memory format, else None."""
    found = len(shape) in _LAST and all(_suggests_channels_last(*x) for x in operands)
    return channels_last(shape) if found else None


def _stack(shape: tuple[int, ...], operands: tuple[Strided, ...], dim: int) -> Strides | None:
    """Return the strides of stacked tensors: those of their concatenation, with that axis split into two."""
    if dim == len(shape) - 1:
        return None
    strides = _in_common_format((*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]), operands)
    return None if strides is None else (*strides[:dim], shape[dim + 1] * strides[dim], *strides[dim:])


def _columns(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of column-major matrices, as LAPACK has them."""
    rank = len(shape)
    return pack(shape, (*range(rank - 2), rank - 1, rank - 2)) if rank >= max(len(operands[0][0]), 2) else None


def _transposed(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    return pack(shape, [*reversed(range(len(shape)))])


def _transform(shape: tuple[int, ...], strided: Strided, axes: tuple[int, ...], kind: str) -> Strides:
    """Return the strides of a Fourier transform's result: each step makes its axes the innermost ones.

    Args:
        shape: the result's shape.
        strided: the argument's shape and strides.
        axes: the transformed axes.
        kind: "fft"; "rfft", whose result has half of the last axis; "irfft"; or "ihfft", the conjugate of rfft.
    """
    sizes, strides = strided
    last = 2 * shape[axes[-1]] - 2 if kind in {"rfft", "ihfft"} else shape[axes[-1]]
    needed = {**{i: shape[i] for i in axes}, axes[-1]: last // 2 + 1 if kind == "irfft" else last}
    if any(n > sizes[i] for i, n in needed.items()):  # it is padded
        strides = pack(sizes)

    def sort(axes: Sequence[int]) -> list[int]:
        return sorted(axes, key=lambda i: -strides[i])

    first, final = axes[:-1], axes[-1:]
    steps = {"fft": [axes], "irfft": [first, final], "ihfft": [final, first]}.get(kind, [axes])
    for step in filter(None, steps):
        inner = [*sort(first), *final] if kind == "rfft" else sort(step)
        strides = pack(shape, [*sort([i for i in range(len(shape)) if i not in step]), *inner])
    return strides


def _solutions(shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    """Return the strides of LAPACK's least squares: of columns as long as those of the right side at least."""
    rows, count = operands[0][0][-2:]
    if len(shape) != len(operands[1][0]) or shape[-2] != count:
        return None
    return _columns((*shape[:-2], max(rows, count), shape[-1]), operands)


_RULES = {
    "each": _elementwise,
    "like": _like,
    "format": _in_format,
    "convolution": _convolution,
    "all": _in_common_format,
    "columns": _columns,
    "transposed": _transposed,
    "solutions": _solutions,
}


@functools.lru_cache(4096)
def _find(rule: str, shape: tuple[int, ...], operands: tuple[Strided, ...]) -> Strides | None:
    return _RULES[rule](shape, operands)


def find_strides(
    rule: str, shape: tuple[int, ...], tensors: Sequence[Any], values: Mapping[str, Any]
) -> Strides | None:
    """Return the strides of a result; None where it is contiguous.

    Args:
        rule: the column `strides` of the operation's line in the table; "each if real" where the first tensor is not
            complex, "each if bfloat16" where it has that dtype, "columns if left" where this argument is true.
        shape: the result's shape.
        tensors: the tensors among the arguments.
        values: the arguments by name.
    """
    if rule in {"", "contiguous"} or not tensors:
        return None
    rule, _, only = rule.partition(" if ")
    own = tensors[0].dtype
    if only and not values.get(only, only in {own.name, "complex" if own.is_complex else "real"}):
        return None
    layouts = [t.layout for t in tensors]
    operands = [(x.shape, x.strides) for x in layouts]
    if rule.endswith("fft"):
        return _transform(shape, operands[0], _read_axes(values, len(shape)), rule)
    if rule not in {"columns", "transposed", "solutions"} and all(strides_of(x) is None for x in layouts):
        return None
    if rule == "each":
        if not all(_broadcasts(sizes, shape) for sizes, _ in operands):
            return None
        if any(isinstance(values.get(n), (int, float, complex)) for n in ("input", "other")):
            operands.append(((), ()))  # PyTorch takes such a number for a tensor
    if rule == "stack":
        return _stack(shape, tuple(operands), int(values["dim"]) % len(shape))
    return _find(rule, shape, tuple(operands))


def find_index_strides(shape: tuple[int, ...], base: Strided, places: Sequence[Strided | None]) -> Strides | None:
    """Return the strides of `x[index]`; None where it is contiguous.

    Args:
        shape: the result's shape.
        base: x's shape and strides.
        places: for each axis of x the shape and strides of the tensor that indexes it, or None.
    """
    indices = [x for x in places if x is not None]
    kept = [s for s, x in zip(base[1], places, strict=True) if x is None]
    at = [i for i, x in enumerate(places) if x is not None]
    before = at[0] if at and at[-1] - at[0] < len(at) else 0  # where PyTorch puts the axes of the indices
    after = len(kept) - before
    source = (*kept[:before], *(0,) * (len(shape) - len(kept)), *kept[before:])
    operands = [(shape, source), *((n + (1,) * after, s + (0,) * after) for n, s in indices)]
    return _find("each", shape, tuple(operands))


def _read_axes(values: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """Return the axes of a Fourier transform."""
    dim, sizes = values.get("dim"), values.get("s")
    given = range(-rank if sizes is None else -len(sizes), 0) if dim is None else [dim] if isinstance(dim, int) else dim
    return tuple(int(i) % rank for i in given)


def strides_of(layout: Any) -> Strides | None:
    """Return the strides of a layout; None where they are those of a new contiguous tensor."""
    found: Strides = layout.strides
    return None if found == _pack(layout.shape) else found


def preserve(layout: Any) -> Strides | None:
    """Return the strides of torch.preserve_format for a new tensor of a layout's shape; None where it is contiguous."""
    strides = strides_of(layout)
    return None if strides is None else _find("like", layout.shape, ((layout.shape, strides),))


def in_format(memory_format: Any, layout: Any) -> Strides | None:
    """Return the strides of a new tensor of a layout's shape in a memory format; None where it is contiguous."""
    if memory_format in FORMATS:
        return channels_last(layout.shape)
    return None if memory_format == "contiguous_format" else preserve(layout)
