"""Parameters and buffers: tensors that a module registers where they are assigned to it."""

from __future__ import annotations

import weakref
from typing import Any, Self

import jax

from fnjax._primitives.jax_internals import is_in_scope
from fnjax._torch_ops.registry import known
from fnjax.torch._autograd.arrays import dtype_of
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions.creation import TYPES, construct
from fnjax.torch.memory.dtypes import default_dtype
from fnjax.torch.memory.layout import make_layout
from fnjax.torch.memory.strides import preserve
from fnjax.torch.memory.tensor import Derived, Detached, Tensor, _flatten, _unflatten, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.storage import Storage


def name_type(value: Any) -> str:
    """Return the name of a value's type, as PyTorch's messages have it (torch.typename)."""
    if isinstance(value, Tensor) and not isinstance(value, (Parameter, Buffer)):
        return next(f"torch.cuda.{name}" for name, own in TYPES.items() if own is value.dtype)
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _take(cls: type, data: Any) -> Any:
    """Return a tensor of a subclass on the memory of another; on a copy if that is a view or has a history."""
    source: Any = construct(default_dtype()) if data is None else data
    if not isinstance(source, Tensor):
        source = make(jax.numpy.asarray(source))
    made: Any = object.__new__(cls)
    whole = source.layout is source.memory.layout and not source.part and not isinstance(source.memory, Derived)
    if not whole or source._detached or source.value.node is not None or source.value.requires_grad:
        source = make(jax.lax.stop_gradient(source.array), source.dtype, strides=preserve(source.layout))
    made.memory, made.layout, made.dtype, made.part = source.memory, source.layout, source.dtype, ""
    made._detached, made._cached, made._grad = None, None, None
    made._made_in, made._is_recorded = None, True
    source._detached, source._cached = Detached(), None  # it still shares this memory, without gradient
    return made


@known("torch.nn.Parameter", "torch.nn.parameter.Parameter")
class Parameter(Tensor):
    """A tensor that is trained.

    Args:
        data: its elements.
        requires_grad: whether it has a gradient.
    """

    __module__ = "torch.nn.parameter"

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Self:
        made = _take(cls, data)
        own = Value(made.memory.value.array, requires_grad=requires_grad, leaf=made if requires_grad else None)
        made.memory.value = own
        return made

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        pass

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


@known("torch.nn.Buffer", "torch.nn.parameter.Buffer")
class Buffer(Tensor):
    """A tensor that belongs to a module's state and is not trained.

    Args:
        data: its elements.
        persistent: whether it is part of the state dict.
    """

    __module__ = "torch.nn.parameter"
    persistent: bool

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Self:
        made = _take(cls, data)
        made.persistent = persistent
        return made

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        pass


class _Source(int):
    """Id of the parameter that a copy was made from, in a treedef. All ids are equal, so that treedefs are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "its source"


_TRACED: weakref.WeakValueDictionary[int, Parameter] = weakref.WeakValueDictionary()  # by the ids of their sources


def has_traced_copy(parameter: Tensor) -> bool:
    """Return whether JAX has been given the parameter as an argument, and traces a copy of it."""
    copy = _TRACED.get(id(parameter))
    return copy is not None and is_in_scope(copy.array)


def _flatten_parameter(parameter: Parameter) -> tuple[tuple[Any, ...], Any]:
    arrays, data = _flatten(parameter)
    return arrays, (*data, _Source(id(parameter)))


def _unflatten_parameter(data: Any, children: Any) -> Any:
    own, requires_grad, source = data
    tensor = _unflatten((own, False), children)
    if tensor.layout is None:
        return tensor
    made = Parameter(tensor, requires_grad=requires_grad)
    if isinstance(children[0], jax.core.Tracer):
        _TRACED[int(source)] = made
    return made


jax.tree_util.register_pytree_node(Parameter, _flatten_parameter, _unflatten_parameter)
jax.tree_util.register_pytree_node(Buffer, _flatten, _unflatten)


def copy_leaf(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy of a leaf; views of one memory stay views of one (copy.deepcopy)."""
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment. "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
            "see https://github.com/pytorch/pytorch/pull/103001"
        )
    import copy

    made = object.__new__(type(self))
    memo[id(self)] = made
    old = self.memory
    storage = memo.get(id(old))
    if storage is None:
        value = old.value
        constant = jax.lax.stop_gradient(value.array)  # the copy is a leaf of its own
        storage = Storage(Value(constant, requires_grad=value.requires_grad), old.layout)
        storage.value.leaf = made if value.leaf is self else None
        memo[id(old)] = storage
    for name in ("layout", "dtype", "part", "_detached", "_is_recorded"):
        setattr(made, name, getattr(self, name))
    made.memory, made._cached, made._made_in = storage, None, None
    made.grad = copy.deepcopy(self.grad, memo)
    vars(made).update(copy.deepcopy(vars(self), memo))
    return made


Tensor.__deepcopy__ = copy_leaf  # installed here, as functions.dunders installs the others


def set_value(tensor: Tensor, given: Any) -> None:
    """Set the value of a parameter or buffer of a copy of a module; views of its memory change with it."""
    flag = tensor.requires_grad and tensor.is_leaf  # a buffer may have a history by now
    if tensor.value.hooks:
        raise NotSupported(
            "a hook that was registered on a parameter before the call, which gives the parameter another value",
            "register it in forward",
        )
    if isinstance(given, Tensor) and not isinstance(given, Parameter):
        value, own = given.value, given.dtype
    else:
        array = given.array if isinstance(given, Tensor) else given
        array = array if isinstance(array, jax.Array) else jax.numpy.asarray(array)
        own = tensor.dtype if array.dtype == tensor.dtype.array else dtype_of(array)
        if isinstance(tensor, Parameter) and not flag:
            array = jax.lax.stop_gradient(array)
        value = Value(array, requires_grad=flag, leaf=tensor if flag else None)
    storage = tensor.memory
    if tensor.layout is storage.layout and storage.layout.shape == value.array.shape:
        storage.value = value
    else:
        layout = make_layout(value.array.shape)
        tensor.memory, tensor.layout = Storage(value, layout), layout
    tensor.dtype, tensor._cached = own, None
