"""Names of `tl.core` and `tl.standard`, functions of functions, assembly by a substitute, and aggregates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.triton.interpreter.interpreter import to_tensors
from fnjax.triton.interpreter.source import Source
from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import types
from fnjax.triton.values.arithmetic import as_tensor
from fnjax.triton.values.blocks import Descriptor, Offsets
from fnjax.triton.values.products import dot_scaled
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Operand, Tensor
from fnjax.triton.values.types import constexpr

CONSTEXPR_0 = constexpr(0)
NAMES = ["CONSTEXPR_0", "add", "sub", "mul", "get_int_dtype", "constexpr_function", "map_elementwise", "dot_scaled"]
NAMES += ["inline_asm_elementwise", "_aggregate", "_log2", "_unwrap_if_constexpr", "_constexpr_to_value"]
NAMES += ["_experimental_descriptor_load", "_experimental_descriptor_store"]


def add(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Tensor:
    """Return x + y."""
    return as_tensor(x) + y


def sub(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Tensor:
    """Return x - y."""
    return as_tensor(x) - y


def mul(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Tensor:
    """Return x * y."""
    return as_tensor(x) * y


def get_int_dtype(bitwidth: int, signed: bool) -> Any:
    """Return the type of integers with this many bits."""
    return getattr(types, f"{'int' if signed or bitwidth == 1 else 'uint'}{bitwidth}")


def _unwrap_if_constexpr(value: object) -> Any:
    """Return the value that a constexpr wraps; other values as they are."""
    return value.value if isinstance(value, constexpr) else value


_constexpr_to_value = _unwrap_if_constexpr


def _log2(i: int | constexpr) -> int:
    """Return the binary logarithm of a power of two."""
    return int(math.log2(_unwrap_if_constexpr(i)))


class constexpr_function:
    """Function of plain Python that kernels may call with constexprs: `@triton.constexpr_function`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)
        self.__module__ = __name__  # kernels may read it

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function with plain values.

        Raises:
            TypeError: an argument is a value of the kernel.
        """
        plain = [[_unwrap_if_constexpr(x) for x in given] for given in (args, named.values())]
        if any(isinstance(x, Tensor) and x.uniform() is None for part in plain for x in part):
            raise TypeError(f"{self.fn.__name__} is a constexpr_function, and takes constexprs, no values of a kernel")
        known = [[x.uniform() if isinstance(x, Tensor) else x for x in part] for part in plain]
        return self.fn(*known[0], **dict(zip(named, known[1], strict=True)))


def map_elementwise(scalar_fn: Callable[..., Any], *args: Operand, pack: int | constexpr = 1) -> Any:
    """Return what a function of scalars returns for each element; its `if` and `return` are taken element by element.

    Args:
        scalar_fn: a function under `@triton.jit`, without loops on values, loads and stores.
        args: blocks that broadcast together.
        pack: the number of elements that one call gets, each as an argument of its own; 1 is supported.

    Raises:
        NotImplementedError: `pack` is not 1.
    """
    if getattr(pack, "value", pack) != 1:
        raise NotImplementedError("tl.map_elementwise(pack=...) gives a function neighbouring elements: use pack=1")
    tensors = [as_tensor(x) for x in args]
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    with current().by_element():
        return scalar_fn(*(values.broadcast(t, shape) for t in tensors))


def inline_asm_elementwise(
    asm: object,
    constraints: object,
    args: Sequence[Operand],
    dtype: Any,
    is_pure: object,
    pack: object,
    substitute: Any = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return what `substitute` returns for the arguments: the text of the assembly is for one kind of GPU.

    Args:
        asm: the text.
        constraints: of its registers.
        args: the operands.
        dtype: the type of the result, or a tuple of types.
        is_pure: whether it has no other effect.
        pack: the number of elements that one run of the text takes.
        substitute: a function under `@triton.jit` that computes the same from `args`.

    Raises:
        NotImplementedError: there is no substitute.
    """
    if substitute is None:
        raise NotImplementedError(
            "inline assembly is for one kind of GPU: give a function under @triton.jit that computes the same, "
            "tl.inline_asm_elementwise(..., substitute=function)"
        )
    found = to_tensors(substitute(*args))
    kinds = dtype if isinstance(dtype, tuple | list) else [dtype]
    items = found if isinstance(found, tuple | list) else (found,)
    if len(items) != len(kinds):
        raise TypeError(f"the substitute of inline assembly returned {len(items)} values, not {len(kinds)}")
    cast = tuple(values.cast(x, types.as_type(kind)) for x, kind in zip(items, kinds, strict=True))
    return cast if isinstance(dtype, tuple | list) else cast[0]


def _experimental_descriptor_load(
    desc_pointer: object, offsets: Offsets, shape: object, dtype: types.TypeLike
) -> Tensor:
    """Return the block of a descriptor at these offsets: Triton's older name of `desc.load`."""
    return values.cast(_descriptor(desc_pointer).load(offsets), types.as_type(dtype))


def _experimental_descriptor_store(desc_pointer: object, value: Operand, offsets: Offsets) -> None:
    """Store a block through a descriptor at these offsets: Triton's older name of `desc.store`."""
    _descriptor(desc_pointer).store(offsets, value)


def _descriptor(given: object) -> Descriptor:
    if not isinstance(given, Descriptor):
        raise TypeError(
            f"a descriptor is needed, not {given!r}: pass fnjax.triton.tools.tensor_descriptor.TensorDescriptor"
        )
    return given


class _Aggregate:
    """Base of aggregates: values of a kernel with fields, which branches select and loops carry field by field."""

    __triton_aggregate__ = True
    _fields_read: tuple[str, ...] = ()

    def parts(self) -> list[Any]:
        """Return the fields in their order."""
        return [getattr(self, name) for name in self._fields_read]

    @classmethod
    def made_of(cls, parts: Iterable[Any]) -> _Aggregate:
        """Return an aggregate with these fields."""
        made = object.__new__(cls)
        vars(made).update(zip(cls._fields_read, parts, strict=True))
        return made

    def select(self, other: _Aggregate, choose: Callable[[Any, Any], Any]) -> _Aggregate:
        """Return an aggregate whose fields `choose` selects from those of two."""
        return self.made_of(map(choose, self.parts(), other.parts()))


def _bind(kernel: Any, value: Any) -> Any:
    return functools.partial(kernel, value)


def _aggregate(cls: Any) -> Any:
    """Return a class as an aggregate of its annotated fields: `@tl.core._aggregate`.

    Raises:
        AttributeError: when it is called, if its constructor leaves a field out.
    """

    def construct(self: Any, *args: Any, **named: Any) -> None:
        cls.__init__(self, *args, **named)
        for name in cls.__annotations__:
            if name not in vars(self):
                raise AttributeError(f"constructor for {cls.__name__} did not initialize attribute {name!r}")
            setattr(self, name, to_tensors(getattr(self, name)))

    kernels = {k: v for k, v in vars(cls).items() if isinstance(getattr(v, "source", None), Source)}
    bound = {k: property(functools.partial(_bind, v)) for k, v in kernels.items()}
    space = {"__init__": construct, "_fields_read": tuple(cls.__annotations__), "__doc__": cls.__doc__, **bound}
    made: Any = type(cls.__name__, (_Aggregate, cls), {**space, "__module__": cls.__module__})
    jax.tree_util.register_pytree_node(made, lambda value: (value.parts(), None), lambda _, parts: made.made_of(parts))
    return made
