"""Tensor's methods, attributes and operators, from the views, the table and `methods`."""

from __future__ import annotations

import contextlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops import TABLE, Absent, Operation, find_operation
from fnjax._torch_ops.registry import KNOWN
from fnjax._torch_ops.syntax.trees import ARRAYS
from fnjax.torch.deferred.base import COMPARISONS, UNARY, Deferred
from fnjax.torch.deferred.number import Number
from fnjax.torch.deferred.selection import Selection, takes_selections
from fnjax.torch.dispatch.run import run
from fnjax.torch.dispatch.triton_launch import launch
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions.creation import construct
from fnjax.torch.functions.methods import copy_, known_elements
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import check_castable, default_dtype
from fnjax.torch.memory.root_settings import find_tensor_attribute
from fnjax.torch.memory.strides import preserve
from fnjax.torch.memory.tensor import Derived, Detached, Tensor, is_known, make
from fnjax.torch.names.machine import Device
from fnjax.torch.names.registry import find_function
from fnjax.torch.recording.overwrite import overwrite
from fnjax.torch.views import strided
from fnjax.torch.views.indexing import get_item, set_item, write
from fnjax.torch.views.sections import unbind


def _convert(kind: Any) -> Callable[[Tensor], Any]:
    def convert(self: Tensor) -> Any:
        if self.layout.size == 1:
            return kind(known_elements(self, f"{kind.__name__}()").item())
        if kind is bool:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        raise RuntimeError(f"a Tensor with {self.layout.size} elements cannot be converted to Scalar")

    return convert


def _in_place(name: str) -> Callable[..., Any]:
    """Return a method that writes the result of an operation into its tensor."""

    def change(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.check_writable()
        found = run(f"torch.Tensor.{name}", (self, *args), kwargs)
        check_castable(found.dtype, self.dtype)
        is_selected = Selection in {type(found), type(self)}
        if isinstance(found, Tensor) and not is_selected and found.layout.shape != self.layout.shape:
            what = f"{[*self.layout.shape]} doesn't match the broadcast shape {[*found.layout.shape]}"
            raise RuntimeError(f"output with shape {what}")
        return write(self, found)

    change.__name__ = name
    return takes_selections(change)


def _in_place_view(name: str) -> Callable[..., Tensor]:
    """Return an in-place method that changes the layout of a tensor, from a view: `t_`, `squeeze_`."""

    def show(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.layout, self._cached = KNOWN[f"torch.Tensor.{name}"](self, *args, **kwargs).layout, None
        return self

    return show


def _operation(name: str) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(f"torch.Tensor.{name}", (self, *args), kwargs)

    call.__name__ = name
    return takes_selections(call)


def _attribute(name: str) -> property:
    return property(lambda self: run(f"torch.Tensor.{name}", (self,), {}))


def _set_component(part: Any) -> Callable[[Tensor, Any], None]:
    def write(self: Tensor, new: Any) -> None:
        copy_(part(self), new)

    return write


def _set_data(self: Tensor, new: Tensor) -> None:
    if not isinstance(new, (Tensor, Deferred)):
        raise TypeError(f"Variable data has to be a tensor, but got {type(new).__name__}")
    memory = new.memory
    if memory is self.memory and new.layout is self.layout and new.part == self.part:  # `x.data -= 1`
        return
    own, read = self.value, new.value
    if own.requires_grad and new.dtype.kind not in {"float", "complex"}:
        raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
    for root in self.memory.roots:  # what forward saved is the tensor itself
        root.lose_guard(has_memory=False)
    shown = new
    if own.requires_grad:  # with its own history, and so memory of its own
        shown = make(overwrite(own, read.array), new.dtype, strides=preserve(new.layout))
        for root in memory.roots:
            root.part_from(shown.memory)
        if new.layout is memory.layout and not (new.part or read.requires_grad or isinstance(memory, Derived)):
            new.memory, new.layout, new._detached, new._cached = shown.memory, shown.layout, Detached(), None
    self.memory, self.layout, self.dtype, self.part, self._cached = (
        shown.memory, shown.layout, shown.dtype, shown.part, None,
    )  # fmt: skip
    self._detached = shown._detached or (Detached() if read.requires_grad and shown is new else None)


def _binary(name: str, function: str, *, reflected: bool = False) -> Callable[..., Any]:
    def call(self: Tensor, other: Any) -> Any:
        if isinstance(other, HostValue):
            other = other.to_tensor()
        elif isinstance(other, (jax.Array, np.ndarray)):
            other = make(jnp.asarray(other))
        if not isinstance(other, (Tensor, Number, bool, int, float, complex, np.generic)):
            return NotImplemented
        other = other.item() if isinstance(other, np.generic) else other
        if name == "truediv" and reflected:
            return run("torch.mul", (run("torch.reciprocal", (self,), {}), other), {})  # as PyTorch rounds it
        sides = (other, self) if reflected else (self, other)
        found = run(function, sides, {})
        if found.dtype.kind == "int" and not found.layout.ndim and not is_known(found.array):
            found.value.origin = (name, *(getattr(x, "value", x) for x in sides))  # for the lengths of slices
        return found

    call.__name__ = name
    return call


def _unary(function: str) -> Callable[..., Any]:
    def call(self: Tensor) -> Any:
        return find_function(f"torch.{function}")(self)

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


def install() -> None:
    """Install the methods of Tensor."""
    for name, operation in TABLE.items():
        space, _, last = name.rpartition(".")
        if space == "torch.Tensor" and isinstance(operation, Operation) and last not in vars(Tensor):
            if operation.inplace is not None or (last.endswith("_") and not last.endswith("__")):
                setattr(Tensor, last, _in_place(last))
            else:
                setattr(Tensor, last, _operation(last) if operation.called else _attribute(last))
    for name in strided.IN_PLACE:
        KNOWN[f"torch.Tensor.{name}_"] = _in_place_view(name)
    for name, get in {"real": strided.real, "imag": strided.imag, "data": strided.detach}.items():
        KNOWN[f"torch.Tensor.{name}"] = property(get, _set_data if name == "data" else _set_component(get))
    for name, value in KNOWN.items():
        if name.startswith("torch.Tensor."):
            setattr(Tensor, name.removeprefix("torch.Tensor."), value)
    for name, text in _OPERATORS.items():
        setattr(Tensor, f"__{name}__", _binary(name, f"torch.{text}"))
        setattr(Tensor, f"__r{name}__", _binary(name, f"torch.{text}", reflected=True))
        if name == "truediv":
            Tensor.__rdiv__ = Tensor.__rtruediv__  # PyTorch still has it
        in_place = "div_" if name == "truediv" else f"{text}_"
        if hasattr(Tensor, in_place):
            setattr(Tensor, f"__i{name}__", lambda self, other, own=in_place: getattr(self, own)(other))
    for name in COMPARISONS:
        setattr(Tensor, f"__{name}__", _binary(name, f"torch.{name}"))
    for name, text in {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}.items():
        setattr(Tensor, f"__{name}__", _unary(text))
    for kind in (bool, int, float, complex):
        setattr(Tensor, f"__{kind.__name__}__", _convert(kind))
    for name, value in _PROTOCOLS.items():
        setattr(Tensor, name, value)
    names = {*_OPERATORS, *COMPARISONS, *UNARY, "contains", "getitem", "setitem"}
    for name in (f"__{prefix}{n}__" for n in names for prefix in ("", "r", "i")):
        if name in vars(Tensor):
            setattr(Selection, name, vars(Tensor)[name])


def _get_attribute(self: Tensor, name: str) -> Any:
    with contextlib.suppress(KeyError):
        own = find_tensor_attribute(name)
        return own.__get__(self, type(self)) if hasattr(own, "__get__") else own
    known = find_operation(f"torch.Tensor.{name}")
    if isinstance(known, Absent):
        raise NotSupported(f"torch.Tensor.{name} {known.reason}", known.remedy)
    raise AttributeError(f"'Tensor' object has no attribute '{name}'")


def _find_length(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("len() of a 0-d tensor")
    return self.layout.shape[0]


def _iterate(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(unbind(self))


_OTHER_KINDS = (
    "cpu", "sparse", "sparse_csr", "quantized", "meta", "mps", "xpu", "xla", "ipu", "maia", "mtia", "vulkan", "nested",
    "mkldnn",
)  # fmt: skip


def _to_jax_array(self: Tensor) -> jax.Array:
    """Return the array, for a function of JAX that is called with a tensor.

    Raises:
        NotSupported: a loaded file is running: it would get an array, whose methods mean something else.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if ARRAYS in frame.f_builtins:
            raise NotSupported(
                "a function of JAX on a tensor, which would give a loaded file an array",
                "pass a function of tensors, fnjax.torch.torch_view(f), or get the array by fnjax.torch.jax_view(x)",
            )
        frame = frame.f_back
    return self.array


_PROTOCOLS: dict[str, Any] = {
    "__getattr__": _get_attribute,
    "__new__": lambda cls, *data, **_: construct(default_dtype(), *data),
    "__init__": lambda self, *_, **__: None,
    "__index__": _convert(operator.index),
    "__getitem__": get_item,
    "__setitem__": set_item,
    "__triton_launch__": staticmethod(launch),
    "__len__": _find_length,
    "__iter__": _iterate,
    "__jax_array__": _to_jax_array,
    "__array__": lambda self, *args, **kwargs: np.asarray(known_elements(self, "NumPy"), *args),
    "__array_wrap__": lambda self, array, *_: make(jnp.asarray(array)),
    "__array_priority__": 1000,
    "__contains__": lambda self, x: bool((self == x).any()),
    "is_cuda": True,
    **{f"is_{kind}": False for kind in _OTHER_KINDS},
    "device": property(lambda self: Device("cuda", 0)),
    "names": property(lambda self: (None,) * self.ndim),
}
