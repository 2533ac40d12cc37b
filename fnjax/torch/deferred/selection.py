"""`x[mask]` with a traced mask: a tensor whose size is not known while JAX traces."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import DTYPES
from fnjax.torch.memory.layout import Size
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value, are_same, compute

REMEDY = "use torch.where(mask, x, other) and a reduction, or call it outside of jax.jit"
# Methods and attributes that say or make the same of all elements as of those that are selected ...
_SAME = frozenset(
    [
        "dtype", "device", "is_cuda", "is_sparse", "is_quantized", "is_meta", "requires_grad", "element_size",
        "is_floating_point", "is_complex", "is_signed", "get_device", "check_writable", "new", "new_empty",
        "new_zeros", "new_ones", "new_full", "new_tensor",
    ]
)  # fmt: skip
# ... and those that do it to each element by itself.
_EACH = frozenset(
    [
        "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte",
        "bool", "cfloat", "cdouble", "clone", "contiguous", "cpu", "cuda", "detach", "data", "fill_", "zero_",
    ]
)  # fmt: skip

_INTERNAL = frozenset(["array", "value", "memory", "layout", "part", "assign", "show"])


class Selection(Deferred):
    """Elements that a traced mask selects along one axis of a tensor.

    For `isinstance` it is a tensor, as in PyTorch. It has neither an array nor a layout, so code without a rule for
    selections raises.

    Attributes:
        whole: the tensor of all elements; elements that are not selected may have any value.
        mask: a bool for each index of the axis, True where it is selected.
        at: the axis.
        fits: a traced bool, False where PyTorch would raise because numbers of elements differ; None if they cannot.
    """

    __slots__ = ("__weakref__", "at", "fits", "mask", "whole")
    number = False  # it does not promote as a Python number
    whole: Tensor
    mask: Value
    at: int
    fits: Value | None

    def __init__(self, whole: Tensor, mask: Value, at: int, fits: Value | None = None) -> None:
        for name, value in (("whole", whole), ("mask", mask), ("at", at), ("fits", fits)):
            object.__setattr__(self, name, value)

    __class__: Any = property(lambda self: Tensor)

    def of(self, whole: Tensor, at: int | None = None) -> Selection:
        """Return the selection of another tensor by the same mask.

        Args:
            whole: the tensor.
            at: the axis along which the mask selects; by default this selection's.
        """
        return Selection(whole, self.mask, self.at if at is None else at, self.fits)

    def is_like(self, other: Selection) -> bool:
        """Return whether another selection is along the same axis of a tensor of the same shape and dtype."""
        a, b = self.whole, other.whole
        return self.at == other.at and a.dtype is b.dtype and a.layout.shape == b.layout.shape

    def refuse(self, use: str = "") -> NotSupported:
        """Return the exception for a use that needs to know the number of elements."""
        what = (
            f"{use} of what a traced mask selects"
            if use
            else "what a traced mask selects, where a tensor of a known size is needed"
        )
        return NotSupported(f"{what}: the number of elements is not known under jit", REMEDY)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SAME:
            return getattr(self.whole, name)
        own = inspect.getattr_static(Tensor, name, None)
        if own is None:
            return getattr(self.whole, name)  # raises, or is what a loaded file has set
        if name in _EACH:
            return self._map(own.fget) if isinstance(own, property) else lambda *a, **k: self._map(own, *a, **k)
        if getattr(own, "takes_selections", False):
            return types.MethodType(own, self)
        raise self.refuse("" if name in _INTERNAL else f"torch.Tensor.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise self.refuse(f"torch.Tensor.{name} =")

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return "<what a traced mask selects>"

    def _map(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(self.whole, *args, **kwargs)
        return self if found is self.whole else self.of(found) if isinstance(found, Tensor) else found

    # ------------------------------------------------------------------ sizes and shapes

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.whole.ndim

    def dim(self) -> int:
        """Return the number of axes."""
        return self.whole.ndim

    ndimension = dim

    def count(self) -> Any:
        """Return the number of indices of the axis that are selected, a traced number."""
        if self.fits is not None:
            raise self.refuse("the size")
        return number(self.mask.array.sum())

    @property
    def shape(self) -> Size:
        """The sizes of the axes; one of them is a traced number."""
        sizes: list[Any] = [*self.whole.layout.shape]
        sizes[self.at] = self.count()
        return Size(sizes)

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes of the axes, or of one."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> Any:
        """Return the number of elements, a traced number."""
        sizes = self.whole.layout.shape
        return self.count() * layouts.size_of(sizes[: self.at] + sizes[self.at + 1 :])

    nelement = numel

    def reshape(self, *shape: Any) -> Selection:
        """Return the selected elements along one axis, for the shape -1; raise for all other shapes."""
        if shape not in ((-1,), ((-1,),), ([-1],)):
            raise self.refuse("torch.reshape")
        if self.ndim == 1:
            return self
        mask = compute(lambda m: (jnp.broadcast_to(self.along(m), self.whole.layout.shape).ravel(),), [self.mask], "")
        return Selection(self.whole.reshape(-1), mask[0], 0, self.fits)

    view = reshape

    def ravel(self) -> Selection:
        """Return the selected elements along one axis."""
        return self.reshape(-1)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Selection:
        """Return the selected elements along one axis."""
        return self.reshape(-1) if start_dim == 0 and end_dim in (-1, self.ndim - 1) else self.reshape()

    def squeeze(self, *dims: Any, dim: Any = None) -> Selection:
        """Return the selection without an axis of size 1; the selected one may have any size."""
        axis = dims[0] if len(dims) == 1 else dim
        if type(axis) is not int or axis % self.ndim == self.at:
            raise self.refuse("torch.squeeze")
        axis %= self.ndim
        found = self.whole.squeeze(axis)
        return self.of(found, self.at - (axis < self.at and found.ndim < self.ndim))

    def along(self, mask: Any) -> Any:
        """Return the array of a mask in a shape that broadcasts with `whole`."""
        return mask.reshape((1,) * self.at + mask.shape + (1,) * (self.ndim - self.at - 1))


def takes_selections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of tensors that takes selections, or passes them to the table."""
    function.takes_selections = True  # type: ignore[attr-defined]
    return function


def holds_selection(values: Iterable[Any]) -> bool:
    """Return whether there is a selection among values, or in lists among them."""
    return any(
        type(v) is Selection or (isinstance(v, (list, tuple)) and any(type(x) is Selection for x in v)) for v in values
    )


def flatten_masked(x: Tensor, mask: Tensor, at: int = 0) -> Selection:
    """Return the selection by a mask over some axes of a tensor, the first of which is `at`; without `protect`.

    Raises:
        IndexError: the mask has another shape than these axes.
    """
    shape, axes = x.layout.shape, mask.layout.shape
    for i, (n, m) in enumerate(zip((*shape[at:], *(None,) * len(axes)), axes, strict=False)):
        if n != m:
            raise IndexError(
                f"The shape of the mask {list(axes)} at index {i} does not match the shape of the indexed tensor "
                f"{list(shape)} at index {at + i}"
            )
    size = layouts.size_of(axes)
    value = mask.value
    flags = Value((value.array != 0).reshape(size))
    flags.origin = ("mask", value)
    new = (*shape[:at], size, *shape[at + len(axes) :])
    whole = compute(lambda a: (a.reshape(new),), [x.value], "IndexBackward")[0]
    return Selection(make(whole, x.dtype), flags, at)


def protect(x: Selection) -> Selection:
    """Return a selection in which a selected element replaces those that are not selected, which get no gradient.

    So functions and derivatives that are finite for the selected elements are finite for all.
    """
    if not x.whole.layout.size:
        return x

    def fill(a: Any, m: Any) -> tuple[Any, ...]:
        first = jax.lax.dynamic_index_in_dim(jax.lax.stop_gradient(a), jnp.argmax(m), x.at, keepdims=True)
        return (jnp.where(x.along(m), a, jnp.where(m.any(), first, jnp.ones_like(first))),)

    return x.of(make(compute(fill, [x.whole.value, x.mask], "IndexBackward")[0], x.dtype))


def select(x: Tensor, mask: Tensor, at: int = 0) -> Selection:
    """Return `x[mask]` for a traced mask over some axes, the first of which is `at`."""
    return protect(flatten_masked(x, mask, at))


def find_indices(mask: Tensor) -> tuple[Selection, ...]:
    """Return for each axis the indices where a traced mask is not zero."""
    shape = mask.layout.shape
    grids = (
        make(jax.lax.broadcasted_iota(DTYPES["int64"].array, shape, d), DTYPES["int64"]) for d in range(len(shape))
    )
    return tuple(select(g, mask) for g in grids)


# ---------------------------------------------------------------------------------- with other tensors


def have_same_mask(a: Selection, b: Selection) -> bool:
    """Return whether two selections are known to have the same mask, on axes that broadcasting aligns."""
    return are_same(a.mask, b.mask) and a.ndim - a.at == b.ndim - b.at


def both_fit(a: Value | None, b: Value | None) -> Value | None:
    """Return the conjunction of two conditions; None is a condition that always holds."""
    if a is None or b is None or a is b:
        return a if b is None else b
    return compute(lambda x, y: (x & y,), [a, b], "")[0]


def fit(x: Any, like: Selection) -> tuple[Any, Value | None]:
    """Return an operand in a form that broadcasts with the whole tensor of a selection, and whether its size fits.

    Raises:
        NotSupported: the operand is selected by another mask, or has more axes.
    """
    if type(x) is Selection:
        if not have_same_mask(x, like):
            raise NotSupported("an operation on elements that two different traced masks select", "use torch.where")
        return x.whole, x.fits
    if not isinstance(x, Tensor):
        return x, None
    axis = x.ndim - like.ndim + like.at  # that meets the selected one
    if x.ndim > like.ndim:
        raise like.refuse("an operation on a tensor of more axes and")
    if axis < 0 or x.layout.shape[axis] == 1:
        return x, None
    n = x.layout.shape[axis]

    def spread(a: Any, m: Any) -> tuple[Any, ...]:
        order = jnp.where(m, jnp.cumsum(m) - 1, 0)
        return (
            jnp.take(a, jnp.minimum(order, n - 1), axis=axis) if n else jnp.zeros(_sizes(a, m), a.dtype),
            m.sum() == n,
        )

    def _sizes(a: Any, m: Any) -> tuple[int, ...]:
        return (*a.shape[:axis], m.size, *a.shape[axis + 1 :])

    value, fits = compute(spread, [x.value, like.mask], "IndexPutBackward")
    return make(value, x.dtype), fits


def move(x: Selection, like: Selection, *, may_be_longer: bool = False) -> Selection:
    """Return the elements of a selection, in their order, at the selected positions of another one.

    Args:
        x: the elements.
        like: the selection with the positions.
        may_be_longer: whether extra elements are dropped, instead of an error.
    """
    if x.ndim - x.at != like.ndim - like.at:
        raise NotSupported("a write between what traced masks select along different axes", "use torch.where")

    def reorder(a: Any, m: Any, wanted: Any) -> tuple[Any, ...]:
        chosen = jnp.argsort(~m, stable=True)
        order = jnp.where(wanted, jnp.minimum(jnp.cumsum(wanted) - 1, m.size - 1), 0)
        have, need = m.sum(), wanted.sum()
        return jnp.take(a, chosen[order], axis=x.at), have >= need if may_be_longer else have == need

    value, fits = compute(reorder, [x.whole.value, x.mask, like.mask], "IndexPutBackward")
    return Selection(make(value, x.dtype), like.mask, x.at, both_fit(x.fits, fits))


def settle(x: Tensor, *conditions: Value | None) -> Tensor:
    """Return a result that becomes NaN if a condition does not hold, where PyTorch would raise.

    Raises:
        NotSupported: the result's dtype does not have NaN.
    """
    given = [c for c in conditions if c is not None]
    if not given:
        return x
    if x.dtype.kind not in {"float", "complex"}:
        raise NotSupported(
            f"{x.dtype} of what a traced mask selects, where PyTorch may raise: no element, or another number of them "
            "than a tensor next to it",
            "use torch.where(mask, x, other)",
        )
    value = compute(lambda a, *c: (jnp.where(jnp.stack(c).all(), a, jnp.nan),), [x.value, *given], "WhereBackward")[0]
    return make(value, x.dtype)


def _flatten(x: Selection) -> tuple[Any, Any]:
    return (x.whole, x.mask.array, None if x.fits is None else x.fits.array), x.at


def _unflatten(at: int, children: Any) -> Selection:
    whole, mask, fits = children
    return Selection(whole, Value(mask), at, None if fits is None else Value(fits))


jax.tree_util.register_pytree_node(Selection, _flatten, _unflatten)
