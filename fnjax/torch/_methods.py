"""The methods, attributes and operators of Tensor: views, the table's operations, and what stands in no table."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch import _layout, _views
from fnjax.torch._autograd import backward
from fnjax.torch._call import bind, run, run_call
from fnjax.torch._creation import TYPES, construct
from fnjax.torch._dtypes import DEFAULT, as_dtype, dtype
from fnjax.torch._errors import NotSupported
from fnjax.torch._indexing import cast_to, get_item, set_item
from fnjax.torch._launch import launch
from fnjax.torch._machine import Device
from fnjax.torch._namespace import find_function
from fnjax.torch._operations import masked_select
from fnjax.torch._table import TABLE, Operation, find_operation
from fnjax.torch._tensor import Tensor, is_known, make, number
from fnjax.torch._values import Value, compute

METHODS: dict[str, Any] = {"masked_select": masked_select}


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function as a method of Tensor."""
    METHODS[
        function.__name__.rstrip("_") if function.__name__ in {"int_", "float_", "bool_"} else function.__name__
    ] = function
    return function


def _numbers(x: Tensor, what: str) -> Any:
    if not is_known(x.array):
        raise NotSupported(
            f"{what} of a tensor that JAX traces: its numbers are not there yet",
            "keep it a tensor (torch.where in place of a branch), or call the function outside of jax.jit",
        )
    return np.asarray(x.array)


@method
def item(self: Tensor) -> Any:
    """Return the one entry as a Python number; of a traced tensor as a tensor that promotes as a number."""
    if self.layout.size != 1:
        raise RuntimeError(f"a Tensor with {self.layout.size} elements cannot be converted to Scalar")
    if is_known(self.array):
        return self.array.item()
    return number(self.array.reshape(()), self.dtype)


@method
def tolist(self: Tensor) -> Any:
    """Return the entries as nested lists; those of a traced tensor are traced numbers."""
    if is_known(self.array):
        return np.asarray(self.array).tolist()
    return [tolist(x) for x in _views.unbind(self)] if self.ndim else item(self)


@method
def numpy(self: Tensor, *, force: bool = False) -> Any:
    """Return the entries as a NumPy array."""
    return _numbers(self, "numpy()")


def _convert(kind: Any) -> Callable[[Tensor], Any]:
    def convert(self: Tensor) -> Any:
        return kind(_numbers(self, f"{kind.__name__}()").item() if self.layout.size == 1 else _ambiguous(self, kind))

    return convert


def _ambiguous(self: Tensor, kind: Any) -> Any:
    if kind is bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    raise RuntimeError(f"a Tensor with {self.layout.size} elements cannot be converted to Scalar")


@method
def size(self: Tensor, dim: int | None = None) -> Any:
    """Return the sizes of the axes, or of one."""
    return self.shape if dim is None else self.shape[dim]


@method
def stride(self: Tensor, dim: int | None = None) -> Any:
    """Return the strides, in entries."""
    found = _layout.strides_of(self.layout)
    return found if dim is None else found[dim]


@method
def storage_offset(self: Tensor) -> int:
    """Return where in its storage the tensor begins."""
    return _layout.offset_of(self.layout, self.memory.layout)


@method
def data_ptr(self: Tensor) -> int:
    """Return a number that is equal for tensors that begin at the same memory."""
    return id(self.memory) + self.storage_offset() * self.dtype.itemsize


@method
def is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """Return whether the entries are one after the other in memory."""
    return _layout.is_contiguous(self.layout)


@method
def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """Return the tensor itself, or a contiguous copy."""
    return self if _layout.is_contiguous(self.layout) else _views.copy(self)


@method
def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    """Return a copy."""
    return _views.copy(self)


@method
def numel(self: Tensor) -> int:
    """Return the number of entries."""
    return self.layout.size if self.mask is None else number((self.mask.array != 0).sum())  # type: ignore[return-value] # a traced one


METHODS["nelement"] = numel


@method
def dim(self: Tensor) -> int:
    """Return the number of axes."""
    return self.ndim


METHODS["ndimension"] = dim


@method
def element_size(self: Tensor) -> int:
    """Return the bytes of an entry."""
    return self.dtype.itemsize


@method
def to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False, **_: Any) -> Tensor:
    """Return the tensor in another dtype; itself where nothing changes."""
    for given in args:
        if isinstance(given, Tensor):
            dtype = given.dtype
        elif _is_dtype(given):
            dtype = given
    own = self.dtype if dtype is None else as_dtype(dtype)
    if own is self.dtype:
        return _views.copy(self) if copy else self
    return convert(self, own)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, dtype) or value in (bool, int, float, complex)


def convert(x: Tensor, own: dtype) -> Tensor:
    """Return a tensor in another dtype."""

    def cast(a: Any) -> tuple[Any, ...]:
        if a.dtype.kind == "c" and own.kind != "complex":
            a = a.real
        return (a.astype(own.array),)

    value = compute(cast, [x.value], "ToCopyBackward", differentiable=own.kind in {"float", "complex"})[0]
    return make(value.array, own, value=value)


@method
def type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:  # noqa: A001 - PyTorch's name
    """Return the name of the tensor's type, or the tensor in another dtype."""
    if dtype is None:
        return next(f"torch.{name}" for name, own in TYPES.items() if own is self.dtype)
    return to(self, TYPES[dtype.removeprefix("torch.")] if isinstance(dtype, str) else dtype)


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor in another's dtype."""
    return to(self, other.dtype)


def _to(own: dtype) -> Callable[..., Tensor]:
    return lambda self, memory_format=None: to(self, own)


for _name, _own in {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "cfloat": "complex64",
    "cdouble": "complex128",
}.items():
    METHODS[_name] = _to(dtype(_own))
for _name in ("cpu", "cuda", "pin_memory", "share_memory_", "xpu", "record_stream", "resolve_conj", "resolve_neg"):
    METHODS[_name] = lambda self, *_, **__: self


@method
def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write another's entries."""
    return self.assign(cast_to(src, self, self.shape))


@method
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write one number everywhere."""
    return copy_(self, value)


@method
def zero_(self: Tensor) -> Tensor:
    """Write zeros."""
    return copy_(self, 0)


@method
def set_(self: Tensor, source: Tensor) -> Tensor:
    """Show another's memory from now on."""
    self.memory, self.layout, self.dtype, self._cached = source.memory, source.layout, source.dtype, None
    return self


@method
def resize_(self: Tensor, *shape: Any, memory_format: Any = None) -> Tensor:
    """Take another shape; new memory where the entries do not suffice."""
    sizes = _views._sizes(shape)
    flat = (
        jnp.resize(self.array.reshape(-1), (_layout.size_of(sizes),))
        if self.layout.size
        else jnp.zeros(sizes, self.array.dtype)
    )
    return set_(self, make(flat.reshape(sizes), self.dtype))


@method
def backward_(
    self: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Add gradients to leaves."""
    backward([self], None if gradient is None else [gradient], retain_graph, create_graph, inputs)


METHODS["backward"] = METHODS.pop("backward_")


@method
def register_hook(self: Tensor, hook: Any) -> None:
    """Call a function with the gradient of this tensor."""
    self.value.hooks = (*self.value.hooks, hook)


@method
def retain_grad(self: Tensor) -> None:
    """Collect the gradient in `.grad`, though it is no leaf."""
    if self.value.leaf is None:
        self.value.leaf = self


@method
def new_empty(self: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor of zeros of this dtype."""
    own = self.dtype if dtype is None else as_dtype(dtype)
    return make(jnp.zeros(_views._sizes(size), own.array), own)


METHODS["new_zeros"] = new_empty


@method
def new_ones(self: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor of ones of this dtype."""
    own = self.dtype if dtype is None else as_dtype(dtype)
    return make(jnp.ones(_views._sizes(size), own.array), own)


@method
def new_full(self: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor of one number, of this dtype."""
    own = self.dtype if dtype is None else as_dtype(dtype)
    return make(jnp.full(_views._sizes([size]), _raw(fill_value), own.array), own)


@method
def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor of data, of this dtype."""
    return find_function("torch.tensor")(data, dtype=self.dtype if dtype is None else dtype)


def _raw(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


# ---------------------------------------------------------------------------------- installing them


def _in_place(name: str) -> Callable[..., Any]:
    """Return a method that writes what an operation computes into its tensor."""
    operation = find_operation(f"torch.Tensor.{name}")
    assert isinstance(operation, Operation)
    view = _views.VIEWS.get(f"torch.Tensor.{name.rstrip('_')}")

    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if view is not None:
            self.layout, self._cached = view(self, *args, **kwargs).layout, None
            return self
        self.check_writable()
        found = run_call(bind(operation, (self, *args), kwargs))
        if found.dtype.kind != self.dtype.kind and _promotes_above(found.dtype, self.dtype):
            raise RuntimeError(
                f"result type {_type_name(found.dtype)} can't be cast to the desired output type "
                f"{_type_name(self.dtype)}"
            )
        return self.assign(cast_to(found, self, self.shape))

    write.__name__ = name
    return write


def _promotes_above(found: dtype, own: dtype) -> bool:
    order = ("bool", "int", "float", "complex")
    return order.index(found.kind) > order.index(own.kind)


def _type_name(own: dtype) -> str:
    names = {
        "float32": "Float",
        "float64": "Double",
        "float16": "Half",
        "int64": "Long",
        "int32": "Int",
        "bool": "Bool",
    }
    return names.get(own.name, own.name)


def _operation(name: str) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(f"torch.Tensor.{name}", (self, *args), kwargs)

    call.__name__ = name
    return call


def _attribute(name: str) -> property:
    return property(lambda self: run(f"torch.Tensor.{name}", (self,), {}))


def _set_component(part: Any) -> Callable[[Tensor, Any], None]:
    def write(self: Tensor, new: Any) -> None:
        copy_(part(self), new)

    return write


def _set_data(self: Tensor, new: Tensor) -> None:
    own = self.value
    if not own.requires_grad:
        shared = _views.detach(new)
        self.memory, self.layout, self.dtype, self._cached = shared.memory, shared.layout, shared.dtype, None
        return
    value = Value(jax.lax.stop_gradient(new.array), requires_grad=own.requires_grad, leaf=own.leaf)
    made = make(new.array, new.dtype, value=value)
    self.memory, self.layout, self.dtype, self._cached = made.memory, made.layout, made.dtype, None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, Tensor) and value.number and value.dtype.kind == "int")


def _binary(name: str, function: str, *, reflected: bool = False) -> Callable[..., Any]:
    def call(self: Tensor, other: Any) -> Any:
        if isinstance(other, (jax.Array, np.ndarray)):
            other = make(jnp.asarray(other))
        if not isinstance(other, (Tensor, bool, int, float, complex, np.generic)):
            return NotImplemented
        other = other.item() if isinstance(other, np.generic) else other
        if name == "pow" and _is_integer(self) and _is_integer(other):
            self = to(self, dtype("float64"))  # Python's 2 ** -1 is 0.5
            self.number = True
        found = run(function, (other, self) if reflected else (self, other), {})
        if self.number and (not isinstance(other, Tensor) or other.number):
            return number(found.array)  # Python numbers in, a Python number out
        return found

    call.__name__ = name
    return call


def _unary(function: str) -> Callable[..., Any]:
    def call(self: Tensor) -> Any:
        found = find_function(f"torch.{function}")(self)
        return number(found.array) if self.number else found

    return call


_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def install() -> None:
    """Give Tensor its methods."""
    for name, operation in TABLE.items():
        space, _, last = name.rpartition(".")
        if space != "torch.Tensor" or not isinstance(operation, Operation):
            continue
        if operation.inplace is not None or (last.endswith("_") and not last.endswith("__")):
            own: Any = _in_place(last)
        else:
            own = _operation(last) if operation.called else _attribute(last)
        if last not in vars(Tensor):
            setattr(Tensor, last, own)
    for name, function in _views.VIEWS.items():
        space, _, last = name.rpartition(".")
        if space == "torch.Tensor":
            setattr(Tensor, last, function)
    for name, part in _views.ATTRIBUTES.items():
        setter = {"real": _set_component(part), "imag": _set_component(part), "data": _set_data}.get(name)
        setattr(Tensor, name, property(part, setter))
    for name, function in METHODS.items():
        setattr(Tensor, name, function)
    for name, text in _OPERATORS.items():
        setattr(Tensor, f"__{name}__", _binary(name, f"torch.{text}"))
        setattr(Tensor, f"__r{name}__", _binary(name, f"torch.{text}", reflected=True))
        in_place = "div_" if name == "truediv" else f"{text}_"
        if hasattr(Tensor, in_place):
            setattr(Tensor, f"__i{name}__", lambda self, other, own=in_place: getattr(self, own)(other))
    for name in _COMPARISONS:
        setattr(Tensor, f"__{name}__", _binary(name, f"torch.{name}"))
    for name, text in {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}.items():
        setattr(Tensor, f"__{name}__", _unary(text))
    for kind in (bool, int, float, complex):
        setattr(Tensor, f"__{kind.__name__}__", _convert(kind))
    for name, value in _PROTOCOLS.items():
        setattr(Tensor, name, value)


_PROTOCOLS: dict[str, Any] = {
    "__new__": lambda cls, *data, **_: construct(DEFAULT, *data),
    "__init__": lambda self, *_, **__: None,
    "__index__": _convert(operator.index),
    "__getitem__": get_item,
    "__setitem__": set_item,
    "__triton_launch__": staticmethod(launch),
    "__len__": lambda self: self.layout.shape[0] if self.mask is None else self.shape,
    "__iter__": lambda self: iter(_views.unbind(self)),
    "__jax_array__": lambda self: self.array,
    "__array__": lambda self, *args, **kwargs: np.asarray(_numbers(self, "NumPy"), *args),
    "__array_wrap__": lambda self, array, *_: make(jnp.asarray(array)),
    "__array_priority__": 1000,
    "__contains__": lambda self, x: bool((self == x).any()),
    "is_cuda": True,
    "is_sparse": False,
    "is_quantized": False,
    "is_meta": False,
    "device": property(lambda self: Device("cuda", 0)),
    "names": property(lambda self: (None,) * self.ndim),
}
