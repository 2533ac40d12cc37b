"""Tensor: a view of a storage, with PyTorch's aliasing."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.jax_internals import find_program, is_transformed
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import as_dtype, dtype
from fnjax.torch.memory.root_settings import NAME, RootSettings, find_tensor_attribute
from fnjax.torch.memory.strides import Strides, preserve
from fnjax.torch.recording.gradient_mode import get_mode
from fnjax.torch.recording.graph import Kept, Value, compute, compute_view, find_kept, keep
from fnjax.torch.recording.journal import note_storage, refuse_in_branch
from fnjax.torch.recording.overwrite import overwrite
from fnjax.torch.recording.storage import Storage, check_gradient, replaced, substitutes


class Detached:
    """Mark of the tensors that one `detach()` or `.data` made, and of their views.

    Attributes:
        lost: whether a value that requires grad was written through one of them: PyTorch records the write for these
            tensors, and fnjax does not.
        by_no_grad: whether it is a view that was made under torch.no_grad.
    """

    def __init__(self, *, by_no_grad: bool = False) -> None:
        self.lost, self.by_no_grad = False, by_no_grad


class _TensorType(type):
    """Metaclass of Tensor: attributes that a loaded file sets in it are visible to the files of its root only."""

    def __setattr__(cls, name: str, value: Any) -> None:
        settings = sys._getframe(1).f_globals.get(NAME)
        if settings is None or cls is not Tensor:  # fnjax itself, or a subclass
            super().__setattr__(name, value)
        elif hasattr(Tensor, name) and name not in settings.tensor_attributes:
            error = NotSupported(f"another torch.Tensor.{name}, which all files would get,", "call a function instead")
            error.ends_loading = True
            raise error
        else:
            settings.tensor_attributes[name] = value
            RootSettings.any_is_set = True

    def __getattr__(cls, name: str) -> Any:
        try:
            return find_tensor_attribute(name)
        except KeyError:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}") from None


class Tensor(metaclass=_TensorType):
    """Tensor of torch whose elements are in a JAX array.

    A tensor is a view of a storage. Tensors on one storage share memory: a write to one is seen by the others.

    Attributes:
        memory: the storage.
        layout: the elements of the storage that belong to this tensor (memory.layout).
        dtype: torch's dtype; without 64 bits the array's dtype may have half the size.
        part: "real" or "imag" if the tensor is one component of complex elements, else "".
        sides: for a tensor that a traced test selected, the test and the tensors of both branches, or () if it is not
            known which objects they are. Other tensors do not have the attribute.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_cached",
        "_detached",
        "_grad",
        "_is_recorded",
        "_made_in",
        "dtype",
        "layout",
        "memory",
        "part",
        "sides",
    )

    memory: Storage
    layout: Any
    dtype: Any  # torch's dtype
    part: str
    sides: tuple[Any, ...]
    _grad: Tensor | None
    _detached: Detached | None
    _cached: tuple[int, Kept] | None
    _is_recorded: bool  # whether operations were recorded where a view was made
    _made_in: Any  # a weak reference to the trace in which a view was made, or None

    if TYPE_CHECKING:  # methods and operators are installed by functions.dunders

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __iter__(self) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...

    @staticmethod
    def over(storage: Storage, layout: Any, own: dtype, part: str = "", *, detached: Detached | None = None) -> Tensor:
        """Return a tensor with a layout on a storage."""
        made = object.__new__(Tensor)
        made.memory, made.layout, made.dtype, made.part = storage, layout, own, part
        made._detached, made._cached, made._grad = detached, None, None
        is_view = layout is not storage.layout or part or detached or isinstance(storage, Derived)
        made._made_in = weakref.ref(find_program()) if is_view and is_transformed() else None
        made._is_recorded = get_mode().enabled
        return made

    # ------------------------------------------------------------------ reading and writing

    @property
    def value(self) -> Value:
        """The present value; the same object until the tensor is written to."""
        storage = self.memory
        if replaced.get():
            _check_not_replaced(storage)
        if self.layout is storage.layout and not (self._detached or self.part or isinstance(storage, Derived)):
            return storage.value
        cached = self._cached  # once: another thread may set it
        if cached is not None and cached[0] == storage.version:
            kept = find_kept(cached[1])
            if kept is not None:
                return kept
        whole, layout, part = storage.layout, self.layout, self.part
        if self._detached:
            if self._detached.lost:
                raise NotSupported(
                    "a tensor that detach() or .data made, after something that requires grad was written into it",
                    "write it into x.clone(), or within torch.no_grad()",
                )
            found = Value(jax.lax.stop_gradient(_show(storage.value.array, layout, whole, part)))
        elif layout is whole and not part:  # of a function of another tensor's
            found = storage.value
        else:
            found = compute_view(lambda x: (_show(x, layout, whole, part),), [storage.value], self._is_recorded)
            found.origin = ("view", layouts.offset_of(layout), layout.shape, layout.strides, part, storage.value)
        made_in = None if self._made_in is None else self._made_in()
        self._cached = (storage.version, keep(found, storage.trace, made_in))
        return found

    @property
    def array(self) -> jax.Array:
        """The JAX array."""
        return self.value.array

    def assign(self, new: Value, *, may_be_leaf: bool = False) -> Tensor:
        """Write an array of this shape and dtype into the memory, which other tensors may share.

        Args:
            new: the value to write.
            may_be_leaf: whether a write to a leaf that requires grad is allowed: a traced condition may prevent it.
        """
        storage, layout, part = self.memory, self.layout, self.part
        self.check_writable(may_be_leaf=may_be_leaf)
        if not isinstance(storage, Derived):
            note_storage(storage)
        whole, old = storage.layout, storage.value
        version, shown = (-1, None) if self._cached is None else (self._cached[0], find_kept(self._cached[1]))
        if shown is not None and shown is not old and shown.hooks is not None and version == storage.version:
            raise NotSupported("a write to a view that has hooks", "register them on the tensor, or after the write")
        retained = {id(v): v for v in (old, shown) if v is not None and v.node is not None and v.leaf is not None}
        mode = get_mode()

        def put(x: Any, given: Any) -> tuple[Any, ...]:
            if part:
                shown = layouts.read(x, layout, whole)
                given = jax.lax.complex(given, shown.imag) if part == "real" else jax.lax.complex(shown.real, given)
            return (layouts.write(x, layout, whole, given),)

        if self._detached and mode.enabled and not mode.constant and new.requires_grad:
            self._detached.lost = True
        if self._detached or mode.constant or (not mode.enabled and old.requires_grad):
            storage.value = overwrite(old, put(old.array, new.array)[0])
        elif layout is whole and not part:
            storage.value = new if new.array.shape == old.array.shape else compute(put, [old, new], "CopyBackwards")[0]
        else:
            storage.value = compute(put, [old, new], "CopySlices")[0]
        storage.version += 1
        for value in retained.values():  # of retain_grad: `.grad` is that of the newest value
            tensor, value.leaf = value.leaf, None
            tensor.value.leaf = tensor
            tensor.replace_value(tensor.value)
        if not isinstance(storage, Derived):
            storage.end_loans()
        return self

    def replace_value(self, new: Value) -> None:
        """Replace the value by one with the same array, as register_hook does; a view replaces only its own."""
        self._cached = (self.memory.version, new)
        if self.layout is self.memory.layout and not self.part and not isinstance(self.memory, Derived):
            self.memory.value = new

    def check_writable(self, *, may_be_leaf: bool = False) -> None:
        """Raise PyTorch's error for a leaf that requires grad and is written to while gradients are recorded."""
        if self.memory.shared:
            raise NotSupported(self.memory.shared, "give it memory of its own, in a loop in that: x = x.clone()")
        if replaced.get():
            _check_not_replaced(self.memory)
        value = self.memory.value
        recorded = get_mode().enabled and not may_be_leaf and not self._detached
        if recorded and value.requires_grad and value.node is None:
            kind = "" if self.layout is self.memory.layout else "view of a "
            what = f"a {kind}leaf Variable that requires grad is being used in an in-place operation."
            raise RuntimeError(what)

    def show(self, layout: Any, *, detached: bool = False) -> Tensor:
        """Return a view of the same storage.

        Args:
            layout: the view's layout.
            detached: whether the view is detached from the graph, as by `detach()`; under torch.no_grad each view is.
        """
        mark = self._detached
        if mark is None and (detached or get_mode().constant):
            mark = Detached(by_no_grad=not detached)
        return Tensor.over(self.memory, layout, self.dtype, self.part, detached=mark)

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> layouts.Size:
        """The sizes of the axes."""
        return layouts.Size(self.layout.shape)

    @property
    def _strides(self) -> Strides:
        """PyTorch's strides: those of a component of complex elements are twice as large."""
        return tuple(2 * s for s in self.layout.strides) if self.part else tuple(self.layout.strides)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.layout.ndim

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `.backward()` has accumulated, or None."""
        if replaced.get():
            _check_not_replaced(self.memory)
        stand_in = substitutes.get().get(id(self.memory))
        found = self._grad
        if stand_in is not None and stand_in.gradients is not None:
            found = stand_in.gradients.get(id(self), found)
        return check_gradient(found) if issubclass(type(found), Tensor) else found  # a test may decide on it

    @grad.setter
    def grad(self, new: Tensor | None) -> None:
        stand_in = substitutes.get().get(id(self.memory))
        if stand_in is None or stand_in.gradients is None:
            self._grad = new
        else:
            stand_in.gradients[id(self)] = new

    @property
    def requires_grad(self) -> bool:
        """True if gradients are computed for the tensor."""
        value, base = self.value, self.memory.value
        if value.requires_grad or value is base:
            return value.requires_grad
        is_view = self._detached is None or self._detached.by_no_grad
        return is_view and base.requires_grad and self.dtype.kind in {"float", "complex"}

    @requires_grad.setter
    def requires_grad(self, flag: bool) -> None:
        self.requires_grad_(flag)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether gradients are computed for this leaf."""
        value = self.value
        if value.requires_grad == requires_grad:
            return self
        if requires_grad and self.dtype.kind not in {"float", "complex"}:
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        if value.node is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables."
                + (
                    ""
                    if requires_grad
                    else " If you want to use a computed variable in a subgraph that doesn't require "
                    "differentiation use var_no_grad = var.detach()."
                )
            )
        own = Value(value.array, requires_grad=requires_grad, leaf=self if requires_grad else None)
        if self.layout is not self.memory.layout or self._detached or self.part:  # a leaf has memory of its own
            layout = layouts.make_layout(value.array.shape, preserve(self.layout))
            own.source = _show(self.memory.value.array, self.layout, self.memory.layout, self.part)
            self.memory, self.layout, self.part, self._detached = Storage(own, layout), layout, "", None
        else:
            refuse_in_branch(self.memory.serial, "requires_grad_")
        self.memory.value = own
        self._cached = (self.memory.version, own)
        return self

    @property
    def is_leaf(self) -> bool:
        """True if the tensor is not the result of a recorded operation."""
        return self.value.node is None

    @property
    def grad_fn(self) -> Any:
        """The recorded operation that computed the tensor, or None."""
        return self.value.node

    def __repr__(self) -> str:
        return f"tensor({np.asarray(self.array) if is_known(self.array) else self.array}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        if type(self) is Tensor and not self.layout.ndim:  # as PyTorch does; a traced number cannot be formatted
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __hash__(self) -> int:
        if self.memory.is_chosen:
            raise NotSupported("the hash of a tensor of which JAX decides which it is", "decide outside of jax.jit")
        return id(self)


def _show(array: Any, layout: Any, whole: Any, part: str) -> Any:
    shown = layouts.read(array, layout, whole)
    return shown.real if part == "real" else shown.imag if part == "imag" else shown


class Derived(Storage):
    """Storage whose value is a function of another tensor's; a write to it writes to the other tensor.

    Examples are `x[k]` with a traced k, and the real pairs of complex numbers.
    """

    __slots__ = ("_cached", "_is_recorded", "_parent", "_put", "_show")

    def __init__(self, parent: Tensor, show: Any, put: Any, strides: Strides | None = None) -> None:
        self._parent, self._show, self._put, self._is_recorded = parent, show, put, get_mode().enabled
        self._cached: tuple[int, Kept | None] = (-1, None)
        self.serial, self.shared = parent.memory.serial, ""
        shape, shown = self.value.array.shape, parent.layout
        strides = shown.strides if strides is None and shape == shown.shape else strides
        self.layout = layouts.make_layout(shape, strides)

    @property
    def trace(self) -> Any:
        """The trace that the other tensor's memory belongs to, or None."""
        return self._parent.memory.trace

    @property
    def roots(self) -> list[Storage]:
        """The storages of the other tensor."""
        return self._parent.memory.roots

    @property
    def version(self) -> int:
        """The number of writes to the other tensor's storage."""
        return self._parent.memory.version

    @version.setter
    def version(self, _: int) -> None:
        pass

    @property
    def value(self) -> Value:
        """The value that the function computes from the other tensor's."""
        parent = self._parent
        version, kept = self._cached
        found = find_kept(kept) if kept is not None and version == parent.memory.version else None
        if found is None:
            found = compute_view(lambda *a: (self._show(*a),), [parent.value], self._is_recorded)
            self._cached = (parent.memory.version, keep(found, self.trace))
        return found

    @value.setter
    def value(self, new: Value) -> None:
        parent = self._parent
        parent.assign(compute(lambda a, v: (self._put(a, v),), [parent.value, new], "CopySlices")[0])


def derive(parent: Tensor, show: Any, put: Any, own: dtype | None = None, strides: Strides | None = None) -> Tensor:
    """Return a view of a tensor through a function of its array (`Derived`).

    Args:
        parent: the tensor.
        show: the parent's array → the view's array.
        put: the parent's array, and a new array of the view → the parent's new array.
        own: torch's dtype of the view; by default the parent's.
        strides: the view's strides; by default the parent's if the shapes are equal.
    """
    storage = Derived(parent, show, put, strides)
    detached = Detached(by_no_grad=True) if get_mode().constant else None
    return Tensor.over(storage, storage.layout, parent.dtype if own is None else own, detached=detached)


def _check_not_replaced(storage: Storage) -> None:
    """Raise if a storage belongs to a module of which a copy is running with other values."""
    for root in storage.roots:
        name = (replaced.get() or {}).get(id(root))
        if name is not None:
            raise NotSupported(
                f"{name}.forward reads a tensor of shape {root.layout.shape} of the module itself, and not of the copy "
                "with other parameters that is called in its place",
                "read it through self or a hook's first argument, and not through a global variable or an iterator",
            )


def is_known(array: Any) -> bool:
    """Return whether an array has concrete values: it is not a tracer."""
    return not isinstance(array, jax.core.Tracer)


def make(x: Any, own: dtype | None = None, *, strides: Strides | None = None) -> Tensor:
    """Return a tensor with memory of its own.

    Args:
        x: a JAX array, or the `Value` of one, which has its history.
        own: torch's dtype; by default that of the array.
        strides: the tensor's strides; by default it is contiguous.
    """
    value = x if isinstance(x, Value) else Value(x)
    shape = value.array.shape
    layout = layouts.make_contiguous(shape) if strides is None else layouts.make_layout(shape, strides)
    return Tensor.over(Storage(value, layout), layout, as_dtype(value.array.dtype) if own is None else own)


def _flatten(tensor: Tensor) -> tuple[tuple[Any, ...], Any]:
    return (tensor.array,), (tensor.dtype, tensor.requires_grad)


def _unflatten(data: Any, children: Any) -> Any:
    own, requires_grad = data
    (array,) = children
    if not isinstance(array, (jax.Array, np.ndarray)):  # JAX puts other things there while it looks at structures
        return Tensor.over(Storage(Value(array), None), None, own)
    made = make(jnp.asarray(array), own if array.dtype == own.array else None)
    return made.requires_grad_(requires_grad) if requires_grad and made.dtype.kind in {"float", "complex"} else made


jax.tree_util.register_pytree_node(Tensor, _flatten, _unflatten)
