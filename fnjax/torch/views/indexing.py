"""Indexing: `x[index]` and `x[index] = value`, with views where PyTorch has views."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import Number
from fnjax.torch.deferred.origins import find_length
from fnjax.torch.deferred.selection import (
    Selection,
    both_fit,
    fit,
    flatten_masked,
    have_same_mask,
    move,
    protect,
    select,
    settle,
)
from fnjax.torch.errors import NotSupported, list_remedies
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import cast_elements, dtype, name_scalar_type
from fnjax.torch.memory.layout import check_expandable, insert_axis
from fnjax.torch.memory.strides import Strides, find_index_strides
from fnjax.torch.memory.tensor import Tensor, derive, is_known, make
from fnjax.torch.recording.graph import Value, are_same, compute
from fnjax.torch.recording.journal import is_in_branch


def _normalise(index: Any) -> tuple[Any, ...]:
    """Return an index as a tuple of integers, slices, None, Ellipsis, and tensors or arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    if isinstance(index, list) and any(isinstance(i, (Tensor, slice, type(None), list, tuple)) for i in index):
        parts = tuple(index)
    return tuple(map(_part, parts))


def _part(part: Any) -> Any:
    if isinstance(part, HostValue):
        part = part.to_tensor()
    if type(part) is Number:
        if part.kind is not int:
            raise part.refuse("an index")
        part = part.to_operand()
    if isinstance(part, Tensor):
        if not part.ndim and part.dtype.kind == "int" and is_known(part.array):
            return int(part.array)
        return part
    if isinstance(part, (jax.Array, np.ndarray)):
        return make(jnp.asarray(part))
    if isinstance(part, (list, tuple, range)):
        own = dtype("bool" if part and isinstance(part[0], bool) else "int64")
        return make(jnp.asarray(np.asarray(part, None if part else own.numpy)), own)
    if isinstance(part, slice):
        return slice(*(_bound(b) for b in (part.start, part.stop, part.step)))
    if isinstance(part, Deferred):  # NumPy would hide its reason
        raise part.refuse()
    return part


def _is_mask(part: Any) -> bool:
    """Return whether a part of an index is a mask, which may stand for several axes."""
    return isinstance(part, Tensor) and part.dtype.name in {"bool", "uint8"}


def _count_axes(parts: tuple[Any, ...]) -> int:
    """Return the number of axes that an index selects from, without those of its Ellipsis."""
    return sum(p.ndim if _is_mask(p) else p is not None for p in parts if p is not Ellipsis)


def _bound(bound: Any) -> Any:
    if type(bound) is Number and bound.kind is int:
        return bound.to_operand()
    if isinstance(bound, Tensor):
        if not is_known(bound.array):
            return bound
        return int(bound.array)
    return bound


def _open_windows(x: Tensor, parts: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the view of slices `start : start + length` whose start is traced, and the index without these slices."""
    if not any(isinstance(p, slice) and (isinstance(p.start, Tensor) or isinstance(p.stop, Tensor)) for p in parts):
        return x, parts
    taken = _count_axes(parts)
    axis, rest = 0, list[Any]()
    for part in parts:
        if isinstance(part, slice) and (isinstance(part.start, Tensor) or isinstance(part.stop, Tensor)):
            start, stop = (b.value if isinstance(b, Tensor) else b for b in (part.start, part.stop))
            length = find_length(0 if start is None else start, stop)
            if length is None or part.step not in (None, 1):
                traced = [b.array for b in (part.start, part.stop) if isinstance(b, Tensor)]
                raise NotSupported(
                    "a slice whose length is not known under jit",
                    "write it as x[start : start + length] with a length that is known, or use torch.narrow; "
                    + list_remedies(*traced),
                )
            x = _window(x, part.start, length, axis)
            rest.append(slice(None))
        else:
            rest.append(part)
        axis += x.ndim - taken if part is Ellipsis else part.ndim if _is_mask(part) else part is not None
    return x, tuple(rest)


def _window(x: Tensor, start: Tensor, length: int, axis: int) -> Tensor:
    """Return the view `x[start : start + length]` along an axis; elements beyond the end are NaN.

    Writes beyond the end are dropped.
    """
    size, at = x.shape[axis], start.array
    first = jnp.where(at < 0, at + size, at) + jnp.arange(max(length, 0))

    def put(a: Any, v: Any) -> Any:
        return a.at[(slice(None),) * axis + (first,)].set(v, mode="drop")

    return derive(x, lambda a: jnp.take(a, first, axis=axis, mode="fill"), put)


def _index_layout(layout: Any, parts: tuple[Any, ...]) -> Any:
    """Return a layout at an index of integers, slices, None and an Ellipsis; None inserts an axis as unsqueeze does."""
    parts = parts if any(p is Ellipsis for p in parts) else (*parts, ...)
    axis, rest = 0, layout.ndim - sum(p is not None and p is not Ellipsis for p in parts)
    for part in parts:
        if part is None:
            layout = insert_axis(layout, axis)
        axis += rest if part is Ellipsis else 1
    return np.asarray(layout[tuple(slice(None) if p is None else p for p in parts)])


def get_item(x: Any, index: Any) -> Any:
    """Return `x[index]`: a view for integers and slices, else a copy."""
    parts = _normalise(index)
    if type(x) is Selection:
        return _get_selected(x, parts)
    if any(type(p) is Selection for p in parts):
        return _take_selected(x, parts)[0]
    x, parts = _open_windows(x, parts)
    if _is_basic(parts):
        _check_steps(parts)
        return x.show(_index_layout(x.layout, parts))
    base, tensors, fill = _split_index(x, parts)
    if any(is_traced_mask(t) for t in tensors):
        return select(base, *_find_mask(tensors, fill))
    if all(t.ndim == 0 and t.dtype.kind == "int" for t in tensors):  # a view whose place is traced
        at = fill([t.array for t in tensors])
        return derive(base, lambda a: a[at], lambda a, v: a.at[at].set(v))
    parents = [base.value, *(t.value for t in tensors)]
    value = compute(lambda a, *given: (a[fill(given)],), parents, "IndexBackward")[0]
    strides = _find_strides(value.array.shape, base, fill(tensors))
    return make(value, x.dtype, strides=strides)


def _find_strides(shape: tuple[int, ...], base: Tensor, index: tuple[Any, ...]) -> Strides | None:
    """Return the strides of `x[index]`."""
    places: list[Any] = []
    for part in index:
        if isinstance(part, Tensor):
            places.append((part.layout.shape, part.layout.strides))
        elif isinstance(part, slice):
            places.append(None)
        else:  # a mask: PyTorch's index for each of its axes
            places += [((np.count_nonzero(part),), (1,))] * part.ndim
    return find_index_strides(shape, (base.layout.shape, base.layout.strides), places)


def set_item(x: Any, index: Any, new: Any) -> None:
    """Write `x[index] = new`."""
    parts = _normalise(index)
    if any(type(p) is Selection for p in parts):
        _write_selected(x, parts, new)
        return
    if type(x) is Selection:
        write(_get_selected(x, parts), new)
        return
    x, parts = _open_windows(x, parts)
    if _is_basic(parts):
        write(get_item(x, parts), new)
        return
    base, tensors, fill = _split_index(x, parts)
    if any(is_traced_mask(t) for t in tensors):
        write_masked(base, *_find_mask(tensors, fill), new)
        return
    own = x.dtype.array
    is_fill = isinstance(new, Tensor) and new.layout.size == 1 and all(t.dtype.kind == "bool" for t in tensors)
    if isinstance(new, Tensor) and new.array.dtype != own and not is_fill:
        raise RuntimeError(OTHER_DTYPE.format(name_scalar_type(x.dtype), name_scalar_type(new.dtype)))
    given = new.value if isinstance(new, Tensor) else Value(jnp.asarray(new, own))

    def put(a: Any, v: Any, *at: Any) -> tuple[Any, ...]:
        return (a.at[fill(at)].set(cast_elements(v, own)),)

    base.assign(compute(put, [base.value, given, *(t.value for t in tensors)], "IndexPutBackward")[0])


def write(target: Any, new: Any) -> Any:
    """Write a number or a tensor to all elements of a tensor."""
    if type(target) is not Selection:
        return target.assign(_cast(new, target, target.layout.shape))
    operand, fits = fit(new, target)
    joined = both_fit(fits, target.fits)
    if joined is not target.fits and is_in_branch():  # which would not take it back
        raise target.refuse("a write of a known number of values to all, in a branch or loop that is traced,")
    write(target.whole, operand)
    object.__setattr__(target, "fits", joined)
    return target


# ---------------------------------------------------------------------------------- traced masks


def is_traced_mask(t: Any) -> bool:
    """Return whether an index is a mask that JAX traces."""
    return type(t) is not Selection and _is_mask(t) and not is_known(t.array)


def _find_mask(tensors: list[Tensor], fill: Any) -> tuple[Tensor, int]:
    """Return the one mask of an index of slices and a mask, and the mask's first axis."""
    if len(tensors) > 1:
        raise NotSupported(
            "an index by a traced mask next to other indices: the size of the result depends on its values",
            "use torch.where(mask, x, other), or a reduction over x * mask",
        )
    return tensors[0], fill(["mask"]).index("mask")


def write_masked(base: Tensor, mask: Tensor, at: int, new: Any, *, may_be_longer: bool = False) -> None:
    """Write to the elements of a tensor where a traced mask is true.

    Args:
        base: the tensor.
        mask: the mask, over one or more axes of the tensor.
        at: the first of these axes.
        new: a number, a tensor, or a selection.
        may_be_longer: whether `new` may have more elements than are written.
    """
    like, own, shape = flatten_masked(base, mask, at), base.dtype.array, base.layout.shape
    if type(new) is Selection and (may_be_longer or not have_same_mask(new, like)):
        new = move(new, like, may_be_longer=may_be_longer)
    elif type(new) is not Selection and isinstance(new, Tensor) and new.layout.size == 1:
        new = new.reshape(())
    operand, fits = fit(new, like)
    given = operand.value if isinstance(operand, Tensor) else Value(jnp.asarray(operand, own))

    def put(a: Any, v: Any, m: Any) -> tuple[Any, ...]:
        flat = a.reshape(like.whole.layout.shape)
        return (jnp.where(like.along(m), cast_elements(v, own), flat).reshape(shape),)

    made = compute(put, [base.value, given, like.mask], "IndexPutBackward")[0]
    base.assign(settle(make(made, base.dtype), fits).value)


def _get_selected(x: Selection, parts: tuple[Any, ...]) -> Selection:
    """Return `x[index]` of a selection: by a mask of its elements, or along other axes than the selected one."""
    if len(parts) == 1 and type(parts[0]) is Selection:
        mask, fits = _refine(x, parts[0])
        found = select(x.whole, mask)
        return Selection(found.whole, found.mask, 0, fits)
    if not _is_basic(parts):
        raise x.refuse("an index by a tensor")
    free = (slice(None),) * (x.ndim - sum(p is not None and p is not Ellipsis for p in parts))
    if not any(p is Ellipsis for p in parts):
        parts = (*parts, Ellipsis)
    parts = tuple(p for part in parts for p in (free if part is Ellipsis else (part,)))
    axis = at = 0
    for part in parts:
        if axis == x.at and part is not None:
            if part != slice(None):
                raise x.refuse("an index")
            break
        axis += part is not None
        at += part is None or isinstance(part, slice)
    return x.of(get_item(x.whole, parts), at)


def _refine(x: Selection, mask: Selection) -> tuple[Tensor, Value | None]:
    """Return a mask of a selection's elements as one of its whole tensor, and whether sizes fit."""
    if not _is_mask(mask) or mask.at != x.at or x.whole.layout.shape[: mask.ndim] != mask.whole.layout.shape:
        raise x.refuse("an index")
    if not are_same(x.mask, mask.mask):
        raise NotSupported("an index by elements that another traced mask selects", "use torch.where")
    both = compute(lambda m, n: ((m != 0) & mask.along(n),), [mask.whole.value, mask.mask], "")[0]
    both.origin = ("both", mask.whole.value, mask.mask)
    return make(both), both_fit(x.fits, mask.fits)


def _take_selected(x: Tensor, parts: tuple[Any, ...]) -> tuple[Selection, Any]:
    """Return `x[index]` for indices that are a selection, and the index with all elements of the selection."""
    count = next((i for i, p in enumerate(parts) if type(p) is not Selection), len(parts))
    first = parts[0]
    if not count or not all(p is Ellipsis or p == slice(None) for p in parts[count:]) or first.at:
        raise NotSupported(
            "indices that a traced mask selects, next to others: the size of the result depends on its values",
            "use torch.where(mask, x, other), or call it outside of jax.jit",
        )
    if any(map(_is_mask, parts[:count])):
        raise first.refuse("a mask")
    fits = first.fits
    for part in parts[1:count]:
        fits = both_fit(fits, fit(part, first)[1])
    index = (*(p.whole for p in parts[:count]), *parts[count:])
    return protect(Selection(get_item(x, index), first.mask, 0, fits)), index


def _write_selected(x: Any, parts: tuple[Any, ...], new: Any) -> None:
    """Write `x[index] = new` for indices, or a mask of a selection's elements, that a traced mask selects."""
    if type(x) is Selection:
        if len(parts) > 1:
            raise x.refuse("an index")
        mask, fits = _refine(x, parts[0])
        if fits is not None:
            raise x.refuse("a write to a known number")
        write_masked(x.whole, mask, 0, new)
        return
    like, index = _take_selected(x, parts)
    operand, fits = fit(new, like)
    own = x.dtype.array
    given = operand.value if isinstance(operand, Tensor) else Value(jnp.asarray(operand, own))
    indices = [p for p in index if isinstance(p, Tensor)]
    rest, shape = tuple(index[len(indices) :]), like.whole.layout.shape

    def put(a: Any, v: Any, m: Any, *at: Any) -> tuple[Any, ...]:
        kept = (jnp.where(m.reshape(m.shape + (1,) * (i.ndim - 1)), i, max(a.shape)) for i in at)  # beyond: dropped
        return (a.at[(*kept, *rest)].set(jnp.broadcast_to(cast_elements(v, own), shape), mode="drop"),)

    parents = [x.value, given, like.mask, *(i.value for i in indices)]
    made = compute(put, parents, "IndexPutBackward")[0]
    x.assign(settle(make(made, x.dtype), fits, like.fits).value)


def _cast(new: Any, target: Tensor, shape: Any) -> Value:
    own = target.dtype.array
    if isinstance(new, Tensor):
        extra = max(new.ndim - len(shape), 0)
        check_expandable(new.layout.shape[extra if {*new.layout.shape[:extra]} <= {1} else 0 :], shape)

        def fit(a: Any) -> tuple[Any, ...]:
            if a.dtype.kind == "c" and not np.issubdtype(own, np.complexfloating):
                a = a.real
            return (jnp.broadcast_to(cast_elements(a.reshape(a.shape[extra:]), own), shape),)

        if tuple(new.layout.shape) == tuple(shape) and new.array.dtype == own:
            return new.value
        return compute(fit, [new.value], "ExpandBackward")[0]
    return Value(jnp.full(shape, new, own))


def _is_basic(parts: tuple[Any, ...]) -> bool:
    return not any(isinstance(p, (Tensor, bool)) for p in parts)


def _check_steps(parts: tuple[Any, ...]) -> None:
    if any(isinstance(p, slice) and p.step is not None and p.step <= 0 for p in parts):
        raise ValueError("step must be greater than zero")


OUT_OF_RANGE = "index {index} is out of bounds for dimension {axis} with size {size}"
OTHER_DTYPE = "Index put requires the source and destination dtypes match, got {0} for the destination and {1} for the "
OTHER_DTYPE += "source."


def check_indices(
    index: Tensor,
    size: int,
    lowest: int = 0,
    error: type[Exception] = IndexError,
    text: str = OUT_OF_RANGE,
    axis: int | None = None,
    ignored: int | None = None,
) -> None:
    """Raise PyTorch's exception for an index out of range, if the indices are concrete.

    Args:
        index: the indices.
        size: the largest index that is allowed, plus 1.
        lowest: the smallest index that is allowed.
        error: the exception's class.
        text: its text, into which the index, the axis and the size are inserted.
        axis: the axis that the indices select from.
        ignored: an index that may be out of range.
    """
    if is_known(index.array) and index.layout.size:
        entries = np.asarray(index.array)
        wrong = entries[((entries < lowest) | (entries >= size)) & (entries != ignored)]
        if wrong.size:
            raise error(text.format(index=wrong[0], axis=axis, size=size))


def _split_index(x: Tensor, parts: tuple[Any, ...]) -> tuple[Tensor, list[Tensor], Any]:
    """Return the view by integers, slices and None, the index tensors, and the index of the view with their arrays.

    Unlike NumPy, PyTorch applies integers before it looks at the positions of the tensors.
    """
    taken = _count_axes(parts)
    if not any(p is Ellipsis for p in parts):
        parts = (*parts, Ellipsis)
    basic: list[Any] = []
    places: list[Any] = []  # of the axes of the view: slice(None), or a tensor
    tensors: list[Tensor] = []
    for part in parts:
        if isinstance(part, bool):
            raise NotSupported("a Python bool as an index", "use x[None] or x[:0]")
        if isinstance(part, Tensor):
            basic += [slice(None)] * (part.ndim if _is_mask(part) else 1)
            places.append(part)
            tensors.append(part)
        elif part is Ellipsis:
            count = x.ndim - taken
            basic += [slice(None)] * count
            places += [slice(None)] * count
        else:
            basic.append(part)
            places += [] if isinstance(part, int) else [slice(None)]
    base = x.show(x.layout[tuple(basic)]) if any(b != slice(None) for b in basic) else x
    axis = 0
    for place in places:
        is_mask = _is_mask(place)
        if isinstance(place, Tensor) and not is_mask:
            size = base.layout.shape[axis]
            check_indices(place, size, -size, axis=axis)
        axis += place.ndim if is_mask else 1
    known = [np.asarray(np.asarray(t.array) != 0) if _is_mask(t) and is_known(t.array) else None for t in tensors]

    def fill(arrays: Any) -> tuple[Any, ...]:
        source = iter([k if k is not None else a for k, a in zip(known, arrays, strict=True)])
        return tuple(next(source) if isinstance(p, Tensor) else p for p in places)

    return base, tensors, fill
