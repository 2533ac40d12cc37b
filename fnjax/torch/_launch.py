"""Launches of Triton kernels on tensors: what a kernel stores is written into the tensors that it was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.torch import _layout
from fnjax.torch._tensor import Tensor
from fnjax.torch._values import Storage, Value, compute
from fnjax.triton.containers import iter_members
from fnjax.triton.launch import viewing
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor


def launch(kernel: Any, grid: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Run `kernel[grid](*args, **named)` with tensors among the arguments.

    A kernel gets the entries of a contiguous tensor, and of another one its storage from the tensor's offset on, so
    that the strides that a launcher hands over are true.

    Args:
        kernel: of fnjax.triton.
        grid: as in Triton.
        args: tensors, numbers, tuples of these.
        named: likewise, and options of the compiler.
    """
    tensors = [t for x in iter_members((*args, *named.values())) if isinstance(t := _base(x), Tensor)]
    by_name = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    targets = [_base(x) for name in kernel.stores for x in iter_members(by_name.get(name))]

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        given = {id(t): _pointer(t, a) for t, a in zip(tensors, arrays, strict=True)}
        shown = {id(given[id(t)]): _show(t, given[id(t)]) for t in tensors}

        def enter(x: Any) -> Any:
            if isinstance(x, TensorDescriptor):
                return dataclasses.replace(x, base=enter(x.base))
            if isinstance(x, (tuple, list)):
                items = list(map(enter, x))
                return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
            return given[id(x)] if isinstance(x, Tensor) else x

        with viewing(lambda x: shown.get(id(x), x), _take):
            found = kernel[grid](*map(enter, args), **{k: enter(v) for k, v in named.items()})
        results = iter_members(found)
        return tuple(_leave(t, r) for t, r in zip(targets, results, strict=True) if isinstance(t, Tensor))

    values = compute(on_arrays, [_value_of(t) for t in tensors], kernel.__name__)
    for target, value in zip([t for t in targets if isinstance(t, Tensor)], values, strict=True):
        target.assign(value)


def _base(x: Any) -> Any:
    return x.base if isinstance(x, TensorDescriptor) else x


def _show(x: Tensor, array: jax.Array) -> Tensor:
    """Return a pointer's array as the tensor that hooks get; the kernel sees their writes to it."""
    whole = _layout.make_layout(array.shape)
    layout = whole if _is_plain(x) else np.lib.stride_tricks.as_strided(whole, x.layout.shape, x.layout.strides)
    return Tensor.over(Storage(Value(array), whole), layout, x.dtype)


def _take(x: Any) -> Any:
    return x.memory.value.array if isinstance(x, Tensor) else x


def _is_plain(x: Tensor) -> bool:
    return _layout.is_contiguous(x.layout) or bool(x.part)


def _value_of(x: Tensor) -> Value:
    return x.value if _is_plain(x) else x.memory.value


def _pointer(x: Tensor, array: jax.Array) -> jax.Array:
    """Return the array that a kernel's pointer to a tensor is."""
    if _is_plain(x):
        return array
    return array.reshape(-1)[_layout.offset_of(x.layout, x.memory.layout) :]


def _leave(x: Tensor, result: jax.Array) -> jax.Array:
    """Return the tensor's entries of a result of a kernel, which begins at its pointer."""
    if _is_plain(x):
        return result.reshape(x.layout.shape)
    offset = _layout.offset_of(x.layout, x.memory.layout)
    flat = _layout.write(
        x.memory.value.array.reshape(-1), x.memory.layout.reshape(-1)[offset:], x.memory.layout, result
    )
    return _layout.read(flat, x.layout, x.memory.layout)
