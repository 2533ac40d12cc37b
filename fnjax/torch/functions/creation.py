"""Making tensors: `torch.tensor`, `torch.zeros`, `torch.arange` and their like."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.jax_internals import is_transformed
from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch.deferred.number import Number
from fnjax.torch.dispatch.run import run
from fnjax.torch.errors import NoSuchNameError, NotSupported, list_remedies
from fnjax.torch.host.calls import enter_host
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.dtypes import DTYPES, as_dtype, as_number, default_dtype, dtype, result_type, type_of_number
from fnjax.torch.memory.layout import Size, extent_of
from fnjax.torch.memory.numpy_sharing import share
from fnjax.torch.memory.strides import Strides, in_format, pack
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.names.registry import write_out
from fnjax.torch.recording.graph import SMALL
from fnjax.torch.views import strided

_IGNORED = {"device", "layout", "pin_memory", "memory_format", "generator", "requires_grad", "names", "dtype", "size"}


def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a tensor, with `out=` added; unknown options raise."""

    @functools.wraps(function)
    def call(*args: Any, out: Any = None, **named: Any) -> Any:
        own = inspect.signature(function).parameters
        unknown = [n for n in named if n not in own and n not in _IGNORED]
        if unknown:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{unknown[0]}'")
        found = function(*args, **named)
        return found if out is None else write_out(out, found)

    return call


def _convert(array: Any, own: dtype) -> jax.Array:
    try:
        return jnp.asarray(array, own.array)
    except OverflowError:
        raise NotSupported(
            f"a number of {own} that does not fit into 32 bits", "switch 64-bit numbers on: JAX_ENABLE_X64=1"
        ) from None


def _options(own: Any, requires_grad: bool, array: Any, default: dtype, strides: Strides | None = None) -> Tensor:
    found = default if own is None else as_dtype(own)
    if is_transformed() and not isinstance(array, jax.Array) and np.size(array) <= SMALL:
        with jax.ensure_compile_time_eval():  # a concrete number
            made = make(_convert(array, found), found, strides=strides)
    else:
        made = make(_convert(array, found), found, strides=strides)
    return made.requires_grad_() if requires_grad else made


@known("torch.tensor")
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """Return a tensor of data: numbers, nested lists, NumPy and JAX arrays, tensors among them."""
    data = enter_host(data)
    if isinstance(data, Tensor):
        own = data.dtype if dtype is None else as_dtype(dtype)
        return _options(own, requires_grad, jax.lax.stop_gradient(data.array), own)
    if isinstance(data, (np.ndarray, np.generic, jax.Array)):
        own = as_dtype(data.dtype)
        if not isinstance(data, jax.Array):
            data = np.array(data)  # a copy: JAX may go on using NumPy's memory, which its owner changes
        return _options(dtype, requires_grad, data, own)
    leaves = _list_leaves(data)
    own = _guess(leaves)
    if any(isinstance(x, (Tensor, Number)) for x in leaves):
        raw = jax.tree.map(
            lambda x: x.array if isinstance(x, (Tensor, Number)) else x,
            data,
            is_leaf=lambda x: isinstance(x, (Tensor, Number)),
        )
        return _options(dtype, requires_grad, jnp.asarray(raw), own)
    return _options(dtype, requires_grad, np.asarray(data, own.numpy if dtype is None else None), own)


def _list_leaves(data: Any) -> list[Any]:
    if isinstance(data, (list, tuple)):
        return [leaf for part in data for leaf in _list_leaves(part)]
    return [data]


def _guess(leaves: list[Any]) -> dtype:
    tensors = [x for x in leaves if isinstance(x, (Tensor, np.ndarray, np.generic, jax.Array))]
    numbers = [type_of_number(x) for x in leaves if not isinstance(x, (Tensor, np.ndarray, np.generic, jax.Array))]
    if not leaves:
        return default_dtype()
    return result_type([(as_dtype(t.dtype), 1) for t in tensors], numbers)


@known("torch.as_tensor", "torch.asarray", "torch.from_numpy")
def as_tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return a tensor of data; the same one where nothing changes."""
    if isinstance(data, HostValue):
        data = data.to_tensor(shared=True)
    elif isinstance(data, np.ndarray):
        data = share(tensor(data), data)
    if isinstance(data, Tensor):
        made = data if dtype is None else data.to(dtype)
        return made.requires_grad_() if requires_grad else made
    return tensor(data, dtype=dtype, requires_grad=requires_grad)


uninitialised: ContextVar[int] = ContextVar("uninitialised", default=0)  # the value of uninitialised elements


def _filled(number: Any) -> Callable[..., Tensor]:
    """Return torch.zeros, or for None torch.empty."""

    def fill(*size: Any, dtype: Any = None, requires_grad: bool = False, out: Any = None, **named: Any) -> Tensor:
        sizes = strided._sizes(size or [named.get("size", named.get("shape", ()))])
        own = default_dtype() if dtype is None else as_dtype(dtype)
        library = np if math.prod(sizes) <= SMALL else jnp  # small arrays stay concrete under jit
        value = uninitialised.get() if number is None else number
        return _options(own, requires_grad, library.full(sizes, value, own.array), own)

    return fill


KNOWN["torch.zeros"] = _filled(0)
KNOWN["torch.ones"] = _filled(1)
KNOWN["torch.empty"] = _filled(None)


@known("torch.empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, **named: Any) -> Tensor:
    """Return a tensor of these sizes, whose axes are in this order in memory."""
    return empty_strided(size, pack(size, physical_layout), **named)


@known("torch.empty_strided")
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return a tensor of these sizes and strides."""
    base = KNOWN["torch.empty"](extent_of(size, stride), dtype=dtype)
    made = strided.as_strided(base, tuple(size), tuple(stride), 0)
    return made.requires_grad_() if requires_grad else made


@known("torch.full")
def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return a tensor of one number."""
    fill_value = as_number(fill_value)
    of = {"bool": False, "int": 0, "float": 0.0, "complex": 0j}  # a tensor counts as the number that it holds
    leaf = of[fill_value.dtype.kind] if isinstance(fill_value, Tensor) else fill_value
    own = as_dtype(dtype) if dtype is not None else _guess([leaf])
    raw = fill_value.array if isinstance(fill_value, (Tensor, Number)) else fill_value
    return _options(own, requires_grad, jnp.full(strided._sizes([size]), raw, own.array), own)


def _like(number: Any) -> Callable[..., Tensor]:
    def fill(
        input: Any,
        fill_value: Any = number,
        *,
        dtype: Any = None,
        requires_grad: bool = False,
        memory_format: Any = None,
        **_: Any,
    ) -> Tensor:
        input = input if isinstance(input, Tensor) else make(input)
        own = input.dtype if dtype is None else as_dtype(dtype)
        raw = fill_value.array if isinstance(fill_value, (Tensor, Number)) else fill_value
        raw = uninitialised.get() if raw is None else raw
        array = jnp.broadcast_to(jnp.asarray(raw, own.array), input.shape)
        return _options(own, requires_grad, array, own, in_format(memory_format, input.layout))

    return fill


KNOWN |= {
    "torch.zeros_like": _like(0),
    "torch.empty_like": _like(None),
    "torch.ones_like": _like(1),
    "torch.full_like": _like(0),
}


@known("torch.arange")
def arange(
    *bounds: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    **_: Any,
) -> Tensor:
    """Return equally spaced numbers."""
    if len(bounds) == 1:
        end = bounds[0]
    elif bounds:
        start, end, step = (*bounds, step)[:3]
    given = [b.item() if isinstance(b, Tensor) else as_number(b) for b in (start, end, step)]
    own = (
        as_dtype(dtype)
        if dtype is not None
        else default_dtype()
        if any(isinstance(b, float) for b in given)
        else DTYPES["int64"]
    )
    if traced := [b.array for b in given if isinstance(b, (Tensor, Number))]:
        raise NotSupported("torch.arange of a traced number: its length is not known", list_remedies(*traced))
    count = max(int(np.ceil((given[1] - given[0]) / given[2])), 0)
    return _options(own, requires_grad, given[0] + np.arange(count) * given[2], own)


@known("torch.range")
def range_with_end(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, **named: Any) -> Tensor:
    """Return equally spaced numbers, the last of them included."""
    own = default_dtype() if dtype is None else dtype
    if any(isinstance(b, (Tensor, Number)) for b in (start, end, step)):
        raise NotSupported("torch.range of tensors", "pass Python numbers")
    return arange(start, start + (int((end - start) / step) + 0.5) * step, step, dtype=own, **named)


@known("torch.scalar_tensor")
def scalar_tensor(s: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return a tensor without axes."""
    return tensor(s, dtype=default_dtype() if dtype is None else dtype, requires_grad=requires_grad)


def _spaced(name: str, bounds: tuple[Any, Any], *args: Any, dtype: Any, requires_grad: bool) -> Tensor:
    """Return equally spaced numbers; without `dtype`, of the default dtype, not of the bounds'."""
    if dtype is None:
        kinds = [x.dtype.kind if isinstance(x, Tensor) else type_of_number(x).__name__ for x in bounds]
        dtype = default_dtype().to_complex() if "complex" in kinds else default_dtype()
    made: Tensor = run(f"torch.{name}", (*bounds, *args), {"dtype": dtype})
    return made.requires_grad_() if requires_grad else made


@known("torch.linspace")
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return equally spaced numbers."""
    return _spaced("linspace", (start, end), steps, dtype=dtype, requires_grad=requires_grad)


@known("torch.logspace")
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """Return powers of a base with equally spaced exponents."""
    return _spaced("logspace", (start, end), steps, base, dtype=dtype, requires_grad=requires_grad)


for _name in [
    "zeros",
    "ones",
    "empty",
    "full",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "arange",
    "range",
    "linspace",
    "logspace",
]:
    KNOWN[f"torch.{_name}"] = with_out(KNOWN[f"torch.{_name}"])


TYPES = {
    f"{name}Tensor": dtype(own)
    for name, own in {
        "Float": "float32",
        "Double": "float64",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Bool": "bool",
    }.items()
}


def construct(own: dtype, *data: Any) -> Tensor:
    """Return the tensor of `torch.FloatTensor(2, 3)` or `torch.FloatTensor([1., 2.])`."""
    if len(data) == 1 and isinstance(data[0], HostValue):
        return tensor(data[0], dtype=own)
    if len(data) == 1 and isinstance(data[0], Tensor) and data[0].dtype is own:
        return strided.alias(data[0])
    if len(data) == 1 and isinstance(data[0], (list, tuple, Tensor, np.ndarray)) and not isinstance(data[0], Size):
        return tensor(data[0], dtype=own)
    return make(jnp.zeros(strided._sizes(data or (0,)), own.array), own)


class _TypeOfTensors(type):
    """The type of `torch.FloatTensor`, of which the float32 tensors are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.own  # type: ignore[attr-defined] # set below

    def __call__(cls, *data: Any, **_: Any) -> Tensor:
        return construct(cls.own, *data)  # type: ignore[attr-defined] # set below


class _TypeOfVariables(type):
    """The type of `torch.autograd.Variable`, of which all tensors are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __call__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:
        return data.detach().requires_grad_(requires_grad)

    def __getattr__(cls, name: str) -> Any:
        what = f"torch.autograd.Variable.{name} belongs to PyTorch's engine"
        raise NoSuchNameError(what, "run what it queues after backward")


for _space in ("torch.autograd", "torch.autograd.variable"):
    KNOWN[f"{_space}.Variable"] = _TypeOfVariables("Variable", (), {})
for _name, _own in TYPES.items():
    for _space in ("torch", "torch.cuda"):
        KNOWN[f"{_space}.{_name}"] = _TypeOfTensors(_name, (), {"own": _own})
