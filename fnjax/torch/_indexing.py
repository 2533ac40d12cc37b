"""Indexing: `x[index]` and `x[index] = value`, with views where PyTorch has views."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._autograd.graph import Value, are_same, compute
from fnjax.torch._dtypes import cast_entries, dtype
from fnjax.torch._tensor import Tensor, derive, is_known, make
from fnjax.torch.deferred.affine import find_length
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import Number
from fnjax.torch.deferred.selection import Mask, find_mask, move_selected, select, spread_values
from fnjax.torch.host.recording import HostValue
from fnjax.torch.loading.errors import NotSupported


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
    if isinstance(part, (list, range)):
        return make(jnp.asarray(np.asarray(part)), dtype("bool" if part and isinstance(part[0], bool) else "int64"))
    if isinstance(part, slice):
        return slice(*(_bound(b) for b in (part.start, part.stop, part.step)))
    if isinstance(part, Deferred):  # NumPy would hide its reason
        raise part.refuse()
    return part


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
    taken = sum(
        p.ndim if isinstance(p, Tensor) and p.dtype.name in {"bool", "uint8"} else p is not None
        for p in parts
        if p is not Ellipsis
    )
    axis, rest = 0, list[Any]()
    for part in parts:
        if isinstance(part, slice) and (isinstance(part.start, Tensor) or isinstance(part.stop, Tensor)):
            start, stop = (b.value if isinstance(b, Tensor) else b for b in (part.start, part.stop))
            length = find_length(0 if start is None else start, stop)
            if length is None or part.step not in (None, 1):
                raise NotSupported(
                    "a slice whose length is not known under jit",
                    "write it as x[start : start + length] with a length that is known, or use torch.narrow",
                )
            x = _window(x, part.start, length, axis)
            rest.append(slice(None))
        else:
            rest.append(part)
        if part is Ellipsis:
            axis += x.ndim - taken
        elif isinstance(part, Tensor) and part.dtype.name in {"bool", "uint8"}:
            axis += part.ndim
        else:
            axis += part is not None
    return x, tuple(rest)


def _window(x: Tensor, start: Tensor, length: int, axis: int) -> Tensor:
    """Return the view `x[start : start + length]` along an axis; entries beyond the end are NaN.

    Writes beyond the end are dropped.
    """
    size, at = x.shape[axis], start.array
    first = jnp.where(at < 0, at + size, at) + jnp.arange(max(length, 0))

    def put(a: Any, v: Any) -> Any:
        return a.at[(slice(None),) * axis + (first,)].set(v, mode="drop")

    return derive(x, lambda a: jnp.take(a, first, axis=axis, mode="fill"), put)


def get_item(x: Tensor, index: Any) -> Tensor:
    """Return `x[index]`: a view for integers and slices, else a copy."""
    x, parts = _open_windows(x, _normalise(index))
    if _is_basic(parts):
        _check_steps(parts)
        found = x.layout[(*parts, ...)] if not any(p is Ellipsis for p in parts) else x.layout[parts]
        return x.show(np.asarray(found) if not isinstance(found, np.ndarray) else found)
    base, tensors, fill = _split_index(x, parts)
    if any(t.dtype.name in {"bool", "uint8"} and not is_known(t.array) for t in tensors):
        if len(tensors) > 1:
            raise NotSupported(
                "an index by a traced mask next to other indices: the size of the result depends on its values",
                "use torch.where(mask, x, other), or a reduction over x * mask",
            )
        return select(base, tensors[0], fill(["mask"]).index("mask"))
    mask = find_mask(tensors)
    if mask is not None:
        _check_selected(tensors, fill)
    if all(t.ndim == 0 and t.dtype.kind == "int" for t in tensors):  # a view whose place is traced
        at = fill([t.array for t in tensors])
        return derive(base, lambda a: a[at], lambda a, v: a.at[at].set(v))
    parents = [base.value, *(t.value for t in tensors)]
    value = compute(lambda a, *given: (a[fill(given)],), parents, "IndexBackward")[0]
    found = make(value.array, x.dtype, value=value)
    found.mask = mask
    return found


def _check_selected(tensors: list[Tensor], fill: Any) -> None:
    """Raise where indices that a traced mask selects stand next to others, or not at the first axis."""
    if any(t.mask is None and t.layout.size > 1 for t in tensors) or isinstance(fill([0] * len(tensors))[0], slice):
        raise NotSupported(
            "indices that a traced mask selects, next to others: the size of the result depends on its values",
            "use torch.where(mask, x, other), or call it outside of jax.jit",
        )


def set_item(x: Tensor, index: Any, new: Any) -> None:
    """Write `x[index] = new`."""
    x, parts = _open_windows(x, _normalise(index))
    if _is_basic(parts):
        target = get_item(x, parts)
        target.assign(_cast(new, target, target.shape))
        return
    base, tensors, fill = _split_index(x, parts)
    own = x.dtype.array
    given = new.value if isinstance(new, Tensor) else Value(jnp.asarray(new, own))
    masks = [t for t in tensors if t.dtype.name in {"bool", "uint8"} and not is_known(t.array)]
    if masks:
        _write_masked(base, tensors, fill, given, new)
        return

    mask = find_mask([*tensors, new])
    if mask is None:

        def write(a: Any, v: Any, *at: Any) -> tuple[Any, ...]:
            return (a.at[fill(at)].set(cast_entries(v, own)),)

        base.assign(compute(write, [base.value, given, *(t.value for t in tensors)], "IndexPutBackward")[0])
        return
    _check_selected(tensors, fill)
    if all(t.mask is None for t in tensors) or (getattr(new, "mask", None) is None and given.array.size > 1):
        raise NotSupported(
            "a write between a tensor and what a traced mask selects: its size is not known under jit",
            "use torch.where(mask, x, other)",
        )

    def write_selected(a: Any, v: Any, m: Any, *at: Any) -> tuple[Any, ...]:
        kept = [jnp.where(m != 0, i, max(a.shape)) for i in at]  # beyond the end: dropped
        return (a.at[fill(kept)].set(cast_entries(v.reshape(v.shape if v.size > 1 else ()), own), mode="drop"),)

    parents = [base.value, given, mask, *(t.value for t in tensors)]
    base.assign(compute(write_selected, parents, "IndexPutBackward")[0])


def _write_masked(base: Tensor, tensors: list[Tensor], fill: Any, given: Value, new: Any) -> None:
    """Write where a traced mask is true."""
    own = base.dtype.array
    mask = tensors[0]
    if len(tensors) > 1:
        raise NotSupported("a write by a traced mask next to other tensors as indices", "write with torch.where")
    at = fill(["mask"]).index("mask")
    if isinstance(new, Tensor) and new.mask is not None:
        if new.mask.at != at:
            raise NotSupported("a write between what traced masks select along different axes", "use torch.where")
        if not are_same(new.mask, mask.value):
            if at:
                raise NotSupported("a write between entries that two different traced masks select", "use torch.where")
            given = compute(move_selected, [given, new.mask, mask.value], "IndexPutBackward")[0]
    elif given.array.ndim == base.ndim - at - mask.ndim + 1 and given.array.size > 1 and at == 0:
        given = compute(spread_values, [given, mask.value], "IndexPutBackward")[0]
    elif given.array.ndim > base.ndim - at - mask.ndim and given.array.size > 1:
        raise NotSupported(
            "x[mask] = values with one value for each entry that a traced mask selects",
            "write x = torch.where(mask, new, x) with an array of x's shape",
        )

    def put(a: Any, v: Any, m: Any) -> tuple[Any, ...]:
        m = Mask(mask.value, at).fit(m, a.ndim)
        return (jnp.where(m, cast_entries(v.reshape(v.shape if v.size > 1 else ()), own), a),)

    base.assign(compute(put, [base.value, given, mask.value], "IndexPutBackward")[0])


def _cast(new: Any, target: Tensor, shape: Any) -> Value:
    own = target.dtype.array
    if isinstance(new, Tensor):
        extra = max(new.ndim - len(shape), 0)

        def fit(a: Any) -> tuple[Any, ...]:
            if a.dtype.kind == "c" and not np.issubdtype(own, np.complexfloating):
                a = a.real
            return (jnp.broadcast_to(cast_entries(a.reshape(a.shape[extra:]), own), shape),)

        if (new.mask is None) != (target.mask is None) and new.layout.size > 1:
            raise NotSupported(
                "a write between a tensor and what a traced mask selects: its size is not known under jit",
                "use torch.where(mask, x, other)",
            )
        if tuple(new.layout.shape) == tuple(shape) and new.array.dtype == own:
            return new.value
        return compute(fit, [new.value], "ExpandBackward")[0]
    return Value(jnp.full(shape, new, own))


cast_to = _cast


def _is_basic(parts: tuple[Any, ...]) -> bool:
    return not any(isinstance(p, (Tensor, bool)) for p in parts)


def _check_steps(parts: tuple[Any, ...]) -> None:
    if any(isinstance(p, slice) and p.step is not None and p.step <= 0 for p in parts):
        raise ValueError("step must be greater than zero")


def check_indices(index: Tensor, size: int, axis: int, *, lowest: int = 0) -> None:
    """Raise PyTorch's IndexError for an index out of range, where nobody traces the indices."""
    if is_known(index.array) and index.layout.size:
        entries = np.asarray(index.array)
        wrong = entries[(entries < lowest) | (entries >= size)]
        if wrong.size:
            raise IndexError(f"index {wrong[0]} is out of bounds for dimension {axis} with size {size}")


def _split_index(x: Tensor, parts: tuple[Any, ...]) -> tuple[Tensor, list[Tensor], Any]:
    """Return the view by integers, slices and None, the index tensors, and the index of their arrays into that view.

    Unlike NumPy, PyTorch applies integers before it looks at the positions of the tensors.
    """
    taken = sum(
        p.ndim if isinstance(p, Tensor) and p.dtype.name in {"bool", "uint8"} else p is not None
        for p in parts
        if p is not Ellipsis
    )
    if not any(p is Ellipsis for p in parts):
        parts = (*parts, Ellipsis)
    basic: list[Any] = []
    places: list[Any] = []  # of the axes of the view: slice(None), or a tensor
    tensors: list[Tensor] = []
    for part in parts:
        if isinstance(part, bool):
            raise NotSupported("a Python bool as an index", "use x[None] or x[:0]")
        if isinstance(part, Tensor):
            axes = part.ndim if part.dtype.name in {"bool", "uint8"} else 1
            basic += [slice(None)] * axes
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
        is_mask = isinstance(place, Tensor) and place.dtype.name in {"bool", "uint8"}
        if isinstance(place, Tensor) and not is_mask:
            check_indices(place, base.layout.shape[axis], axis, lowest=-base.layout.shape[axis])
        axis += place.ndim if is_mask else 1
    known = [
        np.asarray(np.asarray(t.array) != 0) if t.dtype.name in {"bool", "uint8"} and is_known(t.array) else None
        for t in tensors
    ]

    def fill(arrays: Any) -> tuple[Any, ...]:
        source = iter([k if k is not None else a for k, a in zip(known, arrays, strict=True)])
        return tuple(next(source) if isinstance(p, Tensor) else p for p in places)

    return base, tensors, fill
