"""Methods of Tensor that are neither views nor operations of the table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch._autograd.engine import backward
from fnjax.torch._autograd.hooks import register_hook, register_post_accumulate_grad_hook
from fnjax.torch.deferred.either import Either, distribute
from fnjax.torch.deferred.number import number
from fnjax.torch.deferred.selection import takes_selections
from fnjax.torch.dispatch.shape_checks import check_shapes
from fnjax.torch.errors import KEEP_STATIC, NotSupported
from fnjax.torch.functions.creation import TYPES, construct
from fnjax.torch.functions.storages import TensorStorage, extend_memory
from fnjax.torch.functions.to_arguments import read_conversion
from fnjax.torch.host.calls import numpy as to_host
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import cast_elements, dtype
from fnjax.torch.memory.numpy_sharing import to_numpy
from fnjax.torch.memory.strides import FORMATS, channels_last, in_format, is_channels_last, pack, preserve
from fnjax.torch.memory.tensor import Derived, Tensor, is_known, make
from fnjax.torch.names.registry import find_function
from fnjax.torch.recording.graph import Value, compute
from fnjax.torch.recording.journal import note_storage, refuse_in_branch
from fnjax.torch.views import strided
from fnjax.torch.views.indexing import write
from fnjax.torch.views.sections import unbind


def method(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Register a function as a method of Tensor, by default under its own name."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Either) for x in (*args, *kwargs.values())):
            return distribute(function, args, kwargs)
        return function(*args, **kwargs)

    KNOWN[f"torch.Tensor.{name or function.__name__}"] = call
    return function


def known_elements(x: Tensor, what: str) -> Any:
    """Return a tensor's elements as a NumPy array.

    Raises:
        NotSupported: JAX traces them.
    """
    if not is_known(x.array):
        raise NotSupported(
            f"{what} of a tensor that JAX traces: its numbers are not there yet",
            "keep it a tensor (torch.where in place of a branch), or call the function outside of jax.jit"
            + (f"; {KEEP_STATIC}" if x.array.weak_type else ""),
        ) from jax.errors.TracerArrayConversionError(x.array)  # type: ignore[arg-type] # it is a tracer
    return np.asarray(x.array)


@method
def item(self: Tensor) -> Any:
    """Return the one element as a Python number; of a traced tensor as a tensor that promotes as a number."""
    if self.layout.size != 1:
        raise RuntimeError(f"a Tensor with {self.layout.size} elements cannot be converted to Scalar")
    if is_known(self.array):
        return self.array.item()
    return number(self.array.reshape(()))


@method
def tolist(self: Tensor) -> Any:
    """Return the elements as nested lists; those of a traced tensor are traced numbers."""
    if is_known(self.array):
        return np.asarray(self.array).tolist()
    return [tolist(x) for x in unbind(self)] if self.ndim else item(self)


@method
def numpy(self: Tensor, *, force: bool = False) -> Any:
    """Return the elements as a NumPy array; those of a traced tensor as a HostValue."""
    return to_numpy(self) if is_known(self.array) else to_host(self)


@method
def size(self: Tensor, dim: int | None = None) -> Any:
    """Return the sizes of the axes, or of one."""
    return self.shape if dim is None else self.shape[dim]


@method
def stride(self: Tensor, dim: int | None = None) -> Any:
    """Return the strides, in elements."""
    return self._strides if dim is None else self._strides[dim]


@method
def storage_offset(self: Tensor) -> int:
    """Return the index of the tensor's first element in its storage."""
    found = layouts.offset_of(self.layout)
    return 2 * found + (self.part == "imag") if self.part else found


@method
def data_ptr(self: Tensor) -> int:
    """Return a number that is equal for tensors that begin at the same memory."""
    return id(self.memory) + self.storage_offset() * self.dtype.itemsize


@method
def is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """Return whether the elements are one after the other in memory, in the order of a memory format."""
    if memory_format in FORMATS:
        return is_channels_last(self.layout.shape, self._strides, FORMATS[memory_format])
    return layouts.is_contiguous(self.layout) and (not self.part or self.layout.size < 2)


@method
def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """Return the tensor itself, or a copy that is contiguous in the memory format."""
    if is_contiguous(self, memory_format):
        return self
    return strided.copy(self, in_format(memory_format or "contiguous_format", self.layout))


@method
def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    """Return a copy, in the order that the memory has."""
    return strided.copy(self, in_format(memory_format, self.layout))


@method
def numel(self: Tensor) -> int:
    """Return the number of elements."""
    return self.layout.size


KNOWN["torch.Tensor.nelement"] = numel


@method
def dim(self: Tensor) -> int:
    """Return the number of axes."""
    return self.ndim


KNOWN["torch.Tensor.ndimension"] = dim


@method
def element_size(self: Tensor) -> int:
    """Return the bytes of an element."""
    return self.dtype.itemsize


@method
def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
    """Return the tensor in another dtype or memory format; itself where nothing changes."""
    wanted, copy, memory_format = read_conversion(args, options)
    own = wanted or self.dtype
    if own is self.dtype:
        same = not copy and (memory_format not in FORMATS or is_contiguous(self, memory_format))
        return self if same else clone(self, memory_format=memory_format)
    return convert(self, own, memory_format)


def convert(x: Tensor, own: dtype, memory_format: Any = None) -> Tensor:
    """Return a tensor in another dtype."""

    def cast(a: Any) -> tuple[Any, ...]:
        if a.dtype.kind == "c" and own.kind != "complex":
            a = a.real
        return (cast_elements(a, own.array),)

    value = compute(cast, [x.value], "ToCopyBackward", differentiable=own.kind in {"float", "complex"})[0]
    return make(value, own, strides=in_format(memory_format, x.layout))


@method
def type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return the name of the tensor's type, or the tensor in another dtype."""
    if dtype is None:
        return next(f"torch.{name}" for name, own in TYPES.items() if own is self.dtype)
    own = TYPES[dtype.removeprefix("torch.")] if isinstance(dtype, str) else getattr(dtype, "own", dtype)
    return to(self, own)  # `own` of torch.FloatTensor


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor in another's dtype."""
    return to(self, other.dtype)


def _to(own: dtype) -> Callable[..., Tensor]:
    return lambda self, memory_format=None: to(self, own, memory_format=memory_format)


_CASTS = {name.removesuffix("Tensor").lower(): own for name, own in TYPES.items()}
for _name, _own in (_CASTS | {"cfloat": dtype("complex64"), "cdouble": dtype("complex128")}).items():
    KNOWN[f"torch.Tensor.{_name}"] = _to(_own)
for _name in ("cpu", "cuda", "pin_memory", "share_memory_", "xpu", "record_stream"):
    KNOWN[f"torch.Tensor.{_name}"] = lambda self, *_, **__: self
for _name in ("resolve_conj", "resolve_neg"):  # a copy of a view that is computed
    KNOWN[f"torch.Tensor.{_name}"] = KNOWN[f"torch.{_name}"] = lambda input: (
        strided.copy(input, preserve(input.layout)) if isinstance(input.memory, Derived) else input
    )


@method
@takes_selections
def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write the elements of another tensor into this one."""
    return write(self, src)


@method
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write one number into all elements."""
    check_shapes("fill", {"value": value})
    return copy_(self, value)


@method
def zero_(self: Tensor) -> Tensor:
    """Write zeros into all elements."""
    return copy_(self, 0)


@method
def set_(
    self: Tensor,
    source: Tensor | TensorStorage | None = None,
    storage_offset: int = 0,
    size: Any = None,
    stride: Any = None,
) -> Tensor:
    """Make this tensor a view of another's memory, with its layout or this one; without a source, an empty tensor."""
    source = make(jnp.zeros(0, self.array.dtype), self.dtype) if source is None else source
    source = source.to_tensor() if isinstance(source, TensorStorage) else source
    if size is not None:
        sizes = strided._sizes([size])
        source = strided.as_strided(source, sizes, pack(sizes) if stride is None else stride, storage_offset)
    self.memory, self.layout, self.dtype, self._cached = source.memory, source.layout, source.dtype, None
    return self


@method
def resize_(self: Tensor, *shape: Any, size: Any = None, memory_format: Any = None) -> Tensor:
    """Change the shape in place; the memory is extended if it is too small."""
    sizes = strided._sizes(shape if size is None else [size])
    if sizes == self.layout.shape and memory_format is None:
        return self
    if self.requires_grad and is_known(self.array):  # what is traced requires grad in any case
        raise RuntimeError("cannot resize variables that require grad")
    strides = channels_last(sizes) if memory_format in FORMATS else pack(sizes)
    offset = layouts.offset_of(self.layout)
    extend_memory(self, offset + layouts.extent_of(sizes, strides))
    self.layout, self._cached = strided.as_strided(self, sizes, strides, offset).layout, None
    return self


KNOWN["torch.Tensor.resize_as_"] = KNOWN["torch.resize_as_"] = lambda input, the_template, *, memory_format=None: (
    resize_(input, *the_template.shape, memory_format=memory_format)
)


def backward_(
    self: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Add gradients to leaves."""
    backward([self], None if gradient is None else [gradient], retain_graph, create_graph, inputs)


method(backward_, "backward")
method(register_hook)
method(register_post_accumulate_grad_hook)


@method
def detach_(self: Tensor) -> Tensor:
    """Detach this tensor from the graph in place; other views of its memory that were read keep their history.

    Raises:
        RuntimeError: the tensor is a view.
    """
    if self.layout is not self.memory.layout or self.part:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    if self.requires_grad:
        note_storage(self.memory)
        self.memory.value = Value(jax.lax.stop_gradient(self.array))
        self._cached = None
    return self


@method
def retain_grad(self: Tensor) -> None:
    """Make autograd accumulate the gradient in `.grad`, although the tensor is not a leaf."""
    value = self.value
    if value.leaf is None:
        refuse_in_branch(self.memory.serial, "retain_grad")
        value.leaf = self
        self._cached = (self.memory.version, value)


@method
def new(self: Tensor, *data: Any, **_: Any) -> Tensor:
    """Return a tensor of this dtype: of these sizes, or of data."""
    return construct(self.dtype, *data)


def _make_new(name: str) -> Callable[..., Tensor]:
    """Return the method that makes a tensor as a function of torch does, by default of this tensor's dtype."""

    def make_new(self: Tensor, *args: Any, dtype: Any = None, layout: Any = None, **named: Any) -> Tensor:
        found: Tensor = find_function(f"torch.{name}")(*args, dtype=self.dtype if dtype is None else dtype, **named)
        return found

    return make_new


for _name in ("empty", "empty_strided", "zeros", "ones", "full", "tensor"):
    method(_make_new(_name), f"new_{_name}")
