"""Views: operations whose result shares the memory of their argument, as NumPy's views of the layout."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import on_operands
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import dtype, name_scalar_type
from fnjax.torch.memory.strides import Strides, preserve
from fnjax.torch.memory.tensor import Tensor, derive, make
from fnjax.torch.recording.graph import compute


def view(names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a view under names: `+t` is torch.t and Tensor.t; the first parameter is input or tensor."""
    first = names.split(maxsplit=1)[0].lstrip("+").rpartition(".")[2]

    def enter(given: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(given).parameters.values()
        sizes = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL and p.name != "tensors"), None)

        @functools.wraps(given)
        def function(*args: Any, **named: Any) -> Any:
            for name in ("input", "tensor", sizes) if named else ():  # by position
                if name in named:
                    args = (*args, named.pop(name))
            if args and type(args[0]) is Selection:
                if not hasattr(Tensor, first):
                    raise args[0].refuse(f"torch.{first}")
                return getattr(args[0], first)(*args[1:], **named)
            if any(isinstance(x, Deferred) for x in (*args, *named.values())):
                return on_operands(given, args, named)
            return given(*args, **named)

        for name in names.split():
            if name.startswith("+"):
                KNOWN[f"torch.{name[1:]}"] = KNOWN[f"torch.Tensor.{name[1:]}"] = function
            else:
                KNOWN[f"torch.Tensor{name}" if name.startswith(".") else name] = function
        return function

    return enter


def _sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes that are given one by one, or as one sequence, as integers."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    return tuple(int(s) for s in sizes)


def _axis(dim: int, ndim: int) -> int:
    """Return an axis that may count from the end.

    Raises:
        IndexError: with PyTorch's message.
    """
    dim, low = int(dim), max(ndim, 1)
    if not -low <= dim < low:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-low}, {low - 1}], but got {dim})")
    return dim % low


def _fill(sizes: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Return the sizes with the one that is -1 filled in."""
    if -1 in sizes:
        rest = layouts.size_of([s for s in sizes if s != -1])
        if rest and total % rest == 0:
            sizes = tuple(total // rest if s == -1 else s for s in sizes)
    if layouts.size_of(sizes) != total or min(sizes, default=0) < 0:
        raise RuntimeError(f"shape '{list(sizes)}' is invalid for input of size {total}")
    return sizes


def copy(x: Tensor, strides: Strides | None = None) -> Tensor:
    """Return a copy, by default a contiguous one."""
    value = x.value
    return make(compute(lambda a: (a,), [value], "CloneBackward")[0], x.dtype, strides=strides)


@view(".view")
def view_as_shape(x: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Return a view of another shape, or raise; or a copy of the bits as another dtype."""
    given = size[0] if len(size) == 1 else dtype
    if given is not None and not isinstance(given, (int, tuple, list)) and not hasattr(given, "__index__"):
        return _reinterpret(x, given)
    sizes = _fill(_sizes(size), x.layout.size)
    found = layouts.reshape(x.layout, sizes)
    if found is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return x.show(found)


def _reinterpret(x: Tensor, own: dtype) -> Tensor:
    if own is x.dtype:
        return x.show(x.layout)
    if own.array.itemsize != own.itemsize or x.dtype.array.itemsize != x.dtype.itemsize:
        raise NotSupported(f"view({own}) of {x.dtype} without 64-bit numbers", "switch them on: JAX_ENABLE_X64=1")
    strides = None if own.itemsize == x.dtype.itemsize else _rescale(x, own)
    return derive(x, lambda a: a.view(own.array), lambda a, v: v.view(a.dtype), own, strides)


def _rescale(x: Tensor, own: dtype) -> Strides:
    """Return the strides of a view as a dtype of another size, or raise PyTorch's error."""
    old, new, strides = x.dtype.itemsize, own.itemsize, x._strides
    to = f"to view {name_scalar_type(x.dtype)} as {name_scalar_type(own)} (different element sizes)"
    if not strides:
        raise RuntimeError(f"self.dim() cannot be 0 {to}")
    sizes = {"size(-1)": x.layout.shape[-1], "storage_offset()": layouts.offset_of(x.layout)}
    sizes |= {f"stride({i})": s for i, s in enumerate(strides[:-1])}
    for name, n in sizes.items() if new > old else ():
        if n * old % new:
            raise RuntimeError(f"self.{name} must be divisible by {new // old} {to}, but got {n}")
    if strides[-1] != 1:
        raise RuntimeError(f"self.stride(-1) must be 1 {to}, but got {strides[-1]}")
    return (*(s * old // new for s in strides[:-1]), 1)


@view("torch.view_as_real")
def view_as_real(input: Tensor) -> Tensor:
    """Return the real and imaginary parts along a last axis."""
    return derive(
        input,
        lambda a: jnp.stack([a.real, a.imag], -1),
        lambda a, v: jax.lax.complex(v[..., 0], v[..., 1]),
        input.dtype.to_real(),
        (*(2 * s for s in input._strides), 1),
    )


@view("torch.view_as_complex")
def view_as_complex(input: Tensor) -> Tensor:
    """Return complex numbers of the pairs along the last axis."""
    return derive(
        input,
        lambda a: jax.lax.complex(a[..., 0], a[..., 1]),
        lambda a, v: jnp.stack([v.real, v.imag], -1),
        input.dtype.to_complex(),
        tuple(s // 2 for s in input._strides[:-1]),
    )


@view("+reshape")
def reshape(x: Tensor, *shape: Any) -> Tensor:
    """Return a view of another shape if there is one, else a copy."""
    sizes = _fill(_sizes(shape), x.layout.size)
    found = layouts.reshape(x.layout, sizes)
    return x.show(found) if found is not None else reshape(copy(x), *sizes)


@view(".view_as")
def view_as(x: Tensor, other: Tensor) -> Tensor:
    """Return a view of the shape of another tensor."""
    return view_as_shape(x, *other.shape)


@view(".reshape_as")
def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """Return the tensor reshaped to another's shape."""
    return reshape(x, *other.shape)


@view("+ravel")
def ravel(x: Tensor) -> Tensor:
    """Return the tensor flattened to one axis."""
    return view_as_shape(x if x.is_contiguous() else copy(x), -1)


@view("+flatten")
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge some axes into one."""
    if not x.ndim:
        return reshape(x, 1)
    start, end = _axis(start_dim, x.ndim), _axis(end_dim, x.ndim)
    shape = x.layout.shape
    return reshape(x, *shape[:start], layouts.size_of(shape[start : end + 1]), *shape[end + 1 :])


@view("+unflatten")
def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Split one axis into several."""
    dim = _axis(dim, x.ndim)
    shape = x.layout.shape
    return view_as_shape(x, *shape[:dim], *_fill(_sizes([sizes]), shape[dim]), *shape[dim + 1 :])


@view("+t")
def t(x: Tensor) -> Tensor:
    """Return the transpose of a matrix."""
    if x.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.ndim}D")
    return x.show(x.layout.T)


@view("+transpose +swapdims")
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two axes."""
    return x.show(np.swapaxes(x.layout, _axis(dim0, x.ndim), _axis(dim1, x.ndim)) if x.ndim else x.layout)


@view("+swapaxes")
def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """Exchange two axes."""
    return transpose(x, axis0, axis1)


@view("+permute")
def permute(x: Tensor, *dims: Any) -> Tensor:
    """Reorder the axes."""
    axes = [_axis(d, x.ndim) for d in _sizes(dims)]
    if len(axes) != x.ndim:
        raise RuntimeError(f"permute(): {len(axes)} dims are given for a tensor with {x.ndim} dimensions")
    if len({*axes}) != len(axes):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return x.show(np.transpose(x.layout, axes))


@view("+movedim +moveaxis")
def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Move axes to other positions."""
    return x.show(np.moveaxis(x.layout, source, destination) if x.ndim else x.layout)


@view("+unsqueeze")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Insert an axis of size 1."""
    return x.show(layouts.insert_axis(x.layout, _axis(dim, x.layout.ndim + 1)))


@view("+squeeze")
def squeeze(x: Tensor, *dims: Any, dim: Any = None) -> Tensor:
    """Remove axes of size 1."""
    if not dims and dim is None:
        return x.show(np.squeeze(x.layout))
    wanted = {_axis(d, x.ndim) for d in _sizes(dims or [dim])}
    return x.show(np.squeeze(x.layout, tuple(d for d in wanted if x.layout.shape[d : d + 1] == (1,))))


@view("+select")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    """Select one element of an axis, and remove the axis."""
    dim = _axis(dim, x.ndim)
    n = x.layout.shape[dim]
    if not -n <= index < n:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    return x.show(x.layout[(slice(None),) * dim + (index, ...)])


@view("+narrow")
def narrow(x: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """Return a range of an axis by its start and length."""
    dim = _axis(dim, x.ndim)
    start = int(start)
    start += x.layout.shape[dim] if start < 0 else 0
    if start + length > x.layout.shape[dim]:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({x.layout.shape[dim]}).")
    return x.show(x.layout[(slice(None),) * dim + (slice(start, start + length),)])


@view("torch.slice")
def slice_axis(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """Slice an axis, as torch.ops.aten.slice does."""
    return x.show(x.layout[(slice(None),) * _axis(dim, x.ndim) + (slice(start, end, step),)])


@view("+diagonal")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements on a diagonal."""
    return x.show(np.diagonal(x.layout, offset, _axis(dim1, x.ndim), _axis(dim2, x.ndim)))


@view("torch.linalg.diagonal")
def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: N803 - PyTorch's
    """Return the elements on a diagonal of the last two axes."""
    return diagonal(A, offset, dim1, dim2)


@view(".expand .broadcast_to torch.broadcast_to")
def expand(x: Tensor, *size: Any) -> Tensor:
    """Repeat axes of size 1; -1 leaves an axis unchanged."""
    sizes = _sizes(size)
    added = len(sizes) - x.ndim
    layouts.check_expandable(x.layout.shape, sizes)
    own = (None,) * added + x.layout.shape
    found = np.broadcast_to(x.layout, [o if s == -1 else s for s, o in zip(sizes, own, strict=True)])
    if 1 in found.shape and x.ndim:  # NumPy's stride is 0 there
        strides = [*found.strides]
        for i in reversed(range(found.ndim)):
            if found.shape[i] == 1:
                strides[i] = x.layout.strides[i - added] if i >= added else found.shape[i + 1] * strides[i + 1]
        found = np.lib.stride_tricks.as_strided(found, found.shape, strides)
    return x.show(found)


@view(".expand_as")
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """Expand to another's shape."""
    return expand(x, *other.shape)


@view("torch.broadcast_tensors")
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Expand all tensors to one shape."""
    if wrong := layouts.describe_mismatch(*(t.layout.shape for t in tensors)):
        raise RuntimeError(wrong)
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    return tuple(expand(t, *shape) for t in tensors)


def _at_least(rank: int) -> Callable[..., Any]:
    def with_axes(*tensors: Any) -> Any:
        given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
        found = tuple(_add_axes(x, rank) for x in given)
        return found[0] if isinstance(tensors[0], Tensor) and len(tensors) == 1 else found

    return with_axes


def _add_axes(x: Tensor, rank: int) -> Tensor:
    while x.ndim < rank:
        x = unsqueeze(x, x.ndim if x.ndim == 2 else 0)
    return x


for _rank in (1, 2, 3):
    KNOWN[f"torch.atleast_{_rank}d"] = _at_least(_rank)


@view("torch.meshgrid torch.functional.meshgrid")
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Return coordinates along one axis each, repeated along the others."""
    given = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else list(tensors)
    swapped = indexing == "xy" and len(given) > 1
    if swapped:
        given[:2] = given[1::-1]
    if len({x.dtype for x in given}) > 1:
        raise RuntimeError("meshgrid expects all tensors to have the same dtype")
    shape = [x.layout.size for x in given]
    made = [
        expand(view_as_shape(x, *(-1 if i == j else 1 for j in range(len(given)))), *shape) for i, x in enumerate(given)
    ]
    if swapped:
        made = [transpose(x, 0, 1) for x in made]
        made[:2] = made[1::-1]
    return tuple(made)


@view(".unfold")
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return windows of an axis, which may overlap."""
    if not x.ndim:
        return x.show(np.reshape(x.layout, 1)[:size])
    dim = _axis(dimension, x.ndim)
    if size > x.layout.shape[dim]:
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is {x.layout.shape[dim]} but size is {size}")
    windows = np.lib.stride_tricks.sliding_window_view(x.layout, size, dim, writeable=True)
    return x.show(windows[(slice(None),) * dim + (slice(None, None, step),)])


@view("+as_strided")
def as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Return a view of any elements of the storage, by size, strides and offset."""
    whole = x.memory.layout
    offset = layouts.offset_of(x.layout) if storage_offset is None else storage_offset
    flat = layouts.show_flat(whole)
    if offset + layouts.extent_of(size, stride) > flat.size and layouts.size_of(size):
        raise RuntimeError(f"setStorage: sizes {list(size)}, strides {list(stride)} are out of bounds for storage")
    if flat.size > whole.size:
        raise NotSupported("as_strided of an argument of a Function that is not dense", "pass x.contiguous()")
    return x.show(np.lib.stride_tricks.as_strided(flat[offset:], tuple(size), tuple(stride)))


@view("+detach")
def detach(x: Tensor) -> Tensor:
    """Return a tensor of the same memory, without history."""
    return x.show(x.layout, detached=True)


@view("torch.positive .positive .as_subclass torch.alias")
def alias(x: Tensor, cls: Any = None) -> Tensor:
    """Return a view of the whole tensor."""
    return x.show(x.layout)


@view("+conj")
def conj(x: Tensor) -> Tensor:
    """Return the conjugates, as a view of the same memory."""
    return derive(x, jnp.conj, lambda a, v: jnp.conj(v)) if x.dtype.is_complex else x.show(x.layout)


def _transpose_matrices(x: Tensor, what: str) -> Tensor:
    """Return the transposes of matrices; a 0-d tensor is returned unchanged."""
    if x.ndim == 1:
        raise RuntimeError(f"{what} is only supported on matrices or batches of matrices. Got 1-D tensor.")
    return x.show(np.swapaxes(x.layout, -1, -2) if x.ndim else x.layout)


def _conjugate_transpose(x: Tensor) -> Tensor:
    if x.ndim not in {0, 2}:
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {x.ndim}-D tensor.")
    return conj(x.show(x.layout.T))


@view("+adjoint")
def adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transposes of matrices."""
    return conj(_transpose_matrices(x, "adjoint()"))


@view("+conj_physical")
def conj_physical(x: Tensor) -> Tensor:
    """Return the conjugates: in new memory for a complex tensor, else as a view."""
    return copy(conj(x), preserve(x.layout)) if x.dtype.is_complex else x.show(x.layout)


def _component(part: str) -> Callable[[Tensor], Tensor]:
    @view(f"torch.{part}")
    def component(x: Tensor) -> Tensor:
        if x.dtype.kind != "complex":
            if part == "imag":
                raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
            return x.show(x.layout)
        return Tensor.over(x.memory, x.layout, x.dtype.to_real(), part, detached=x._detached)

    return component


real, imag = _component("real"), _component("imag")
KNOWN |= {
    "torch.Tensor.T": property(lambda x: x.show(x.layout.T)),
    "torch.Tensor.H": property(_conjugate_transpose),
    "torch.Tensor.mH": property(adjoint),
    "torch.Tensor.mT": property(lambda x: _transpose_matrices(x, "tensor.mT")),
}
IN_PLACE = ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze", "as_strided")  # methods with `_`
