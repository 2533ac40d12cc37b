"""triton.language for kernels that JAX runs: `import fnjax.triton.language as tl`."""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.absent import refuse
from fnjax.triton.interpreter.interpreter import BUILTINS
from fnjax.triton.interpreter.loops import Range
from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import atomics, memory, random, rounding
from fnjax.triton.values.affine import GRID, Affine, leading
from fnjax.triton.values.arithmetic import as_tensor as _as_tensor
from fnjax.triton.values.blocks import Descriptor as tensor_descriptor
from fnjax.triton.values.blocks import (
    advance,
    load_block,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store_block,
    store_tensor_descriptor,
)
from fnjax.triton.values.pointers import Pointer, SelectedPointer
from fnjax.triton.values.products import dot
from fnjax.triton.values.reductions import (
    argmax,
    argmin,
    associative_scan,
    cumprod,
    cumsum,
    max,
    min,
    reduce,
    reduce_or,
    sort,
    sum,
    topk,
    xor_sum,
)
from fnjax.triton.values.shapes import (
    broadcast,
    broadcast_to,
    cat,
    expand_dims,
    flip,
    gather,
    histogram,
    interleave,
    join,
    permute,
    ravel,
    reshape,
    split,
    trans,
    view,
)  # fmt: skip
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor as tensor
from fnjax.triton.values.types import as_type as _as_type
from fnjax.triton.values.types import (
    bfloat16,
    constexpr,
    dtype,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip

const = pointer_type


def program_id(axis: Any, _builder: Any = None) -> tensor:
    """Return the index of the program along an axis of the grid."""
    state, axis = current(), _axis(axis)
    if state.execution is not None:
        return _as_tensor(state.programs[axis], int32)
    return values.of_affine(state.program(axis), int32)


def num_programs(axis: Any) -> tensor:
    """Return the number of programs along an axis of the grid."""
    return _as_tensor(current().grid[_axis(axis)], int32)


def _axis(axis: Any) -> Any:
    axis = operator.index(getattr(axis, "value", axis))
    if not 0 <= axis < GRID:
        raise ValueError(f"a grid has the axes 0, 1 and 2, not {axis}")
    return axis


def arange(start: Any, end: Any) -> tensor:
    """Return the integers from `start` to `end` - 1 as a block; ValueError where their number is not a power of two."""
    start, end = operator.index(start), operator.index(end)
    if end <= start:
        raise ValueError(f"tl.arange({start}, {end}) is empty")
    size = end - start
    if size & (size - 1):
        raise ValueError(f"tl.arange({start}, {end}): the range of arange must be a power of 2, not {size}")
    base = np.full((1,) * leading(), start, np.int64)
    return values.of_affine(Affine(base, (size,), (1 if size > 1 else 0,)), int32)


def full(shape: Any, value: Any, dtype: Any) -> tensor:
    """Return a block filled with one value."""
    return values.broadcast(values.cast(_as_tensor(value), _as_type(dtype)), _shape(shape))


def zeros(shape: Any, dtype: Any) -> tensor:
    """Return a block of zeros."""
    return full(shape, 0, dtype)


def zeros_like(input: Any) -> tensor:
    """Return a block of zeros in the shape and type of another block."""
    return full(input.shape, 0, input.dtype)


def _shape(shape: Any) -> Any:
    shape = getattr(shape, "value", shape)
    shape = shape if isinstance(shape, list | tuple) else (shape,)
    return tuple(operator.index(getattr(n, "value", n)) for n in shape)


def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Any:
    """Return a value in another type; TypeError where there is no such conversion."""
    if isinstance(input, Pointer | SelectedPointer):
        return input.to(dtype)
    return values.cast(_as_tensor(input), _as_type(dtype), bitcast, fp_downcast_rounding)


def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: bool = False,
) -> Any:
    """Return the elements at the addresses of a pointer; where the mask does not hold, `other` or zero.

    Raises:
        TypeError: `pointer` is not a pointer.
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if hasattr(pointer, "block_shape"):
        return load_block(pointer, boundary_check, padding_option)
    return memory.load(_pointer(pointer, "tl.load"), mask, other, bool(volatile))


def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> Any:
    """Store a value at the addresses of a pointer, where the mask holds.

    Raises:
        TypeError: `pointer` is not a pointer, or the value's shape does not fit.
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if hasattr(pointer, "block_shape"):
        return store_block(pointer, value, boundary_check)
    return memory.store(_pointer(pointer, "tl.store"), value, mask)


def _pointer(given: Any, what: Any) -> Any:
    if not isinstance(given, Pointer | SelectedPointer):
        raise TypeError(f"{what} takes a pointer, not {given!r}: pass an array for the parameter")
    return given


def _atomic(name: str) -> Any:
    def operate(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
        return atomics.update(name, _pointer(pointer, f"tl.atomic_{name}"), val, mask, sem)

    operate.__name__ = f"atomic_{name}"
    return operate


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg = map(
    _atomic, ("add", "max", "min", "and", "or", "xor", "xchg")
)


def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Any:
    """Store `val` where memory equals `cmp`, and return the old values."""
    return atomics.compare_and_swap(_pointer(pointer, "tl.atomic_cas"), cmp, val, sem)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return elements of x where the condition holds, else of y; also of pointers."""
    if isinstance(x, Pointer) or isinstance(y, Pointer):
        return SelectedPointer(values.as_mask(condition), x, y)
    return values.where(condition, x, y)


def _pairwise(name: str) -> Callable[..., Any]:
    """Return `tl.maximum` or `tl.minimum`."""

    def operate(x: Any, y: Any, propagate_nan: Any = None) -> Any:
        x, y, kind = values.to_common_type(values.without_bfloat16(x), values.without_bfloat16(y), weak=False)
        if kind.is_floating():
            ignoring = "fmax" if name == "maximum" else "fmin"
            use = name if getattr(propagate_nan, "name", None) == "ALL" else ignoring
            return values.compute(lambda xp, a, b: getattr(xp, use)(a, b), kind, x, y)
        values.report_narrowed(x, y)
        return values.compute(lambda xp, a, b: getattr(xp, name)(a, b), kind, x, y)

    return operate


maximum, minimum = _pairwise("maximum"), _pairwise("minimum")


PropagateNan = enum.Enum("PropagateNan", ["ALL", "NONE"])  # NaN in, NaN out (ALL), or the other operand (NONE)


def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """Return x, limited to the range from `min` to `max`."""
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)


def abs(x: Any) -> tensor:
    """Return the absolute value."""
    x = _as_tensor(x)
    values.report_narrowed(x)
    return values.compute(lambda xp, a: xp.abs(a), x.dtype, x)


def fma(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z."""
    x, y, _ = values.to_common_type(_as_tensor(x), _as_tensor(y))
    z, x, _ = values.to_common_type(_as_tensor(z), x)
    z, y, _ = values.to_common_type(z, y)
    return x * y + z


def _function(name: str, on_array: Any, kinds: Any = "f") -> Any:
    def operate(x: Any, _builder: Any = None) -> Any:
        return values.unary(on_array, x, kinds)

    operate.__name__ = name
    return operate


exp, exp2 = _function("exp", jnp.exp), _function("exp2", rounding.exp2)
log, log2 = _function("log", jnp.log), _function("log2", rounding.log2)
sqrt, rsqrt, sqrt_rn = _function("sqrt", jnp.sqrt), _function("rsqrt", lax.rsqrt), _function("sqrt_rn", jnp.sqrt)
sin, cos, erf = _function("sin", jnp.sin), _function("cos", jnp.cos), _function("erf", jax.scipy.special.erf)
floor, ceil = _function("floor", jnp.floor), _function("ceil", jnp.ceil)


def sigmoid(x: Any) -> tensor:
    """Return 1 / (1 + exp(-x))."""
    return values.unary(jax.nn.sigmoid, x)


def fdiv(x: Any, y: Any, ieee_rounding: bool = False) -> Any:
    """Return x / y, in the operands' type if they have the same."""
    found = values.true_divide(x, y)
    return values.cast(found, x.dtype) if getattr(x, "dtype", None) == getattr(y, "dtype", 0) else found


div_rn = fdiv


def umulhi(x: Any, y: Any) -> tensor:
    """Return the upper 32 bits of the product of two 32-bit integers."""
    return random.high_product(_as_tensor(x), _as_tensor(y))


def cdiv(x: Any, div: Any) -> tensor:
    """Return x / div, rounded up to an integer."""
    return _as_tensor((x + div - 1) // div)


def softmax(x: tensor, dim: Any = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Any:
    """Return exp(x) divided by its sum along an axis, the first one by default."""
    axis = 0 if dim is None else dim
    shifted = exp(x - max(x, axis, keep_dims=True))
    return shifted / sum(shifted, axis, keep_dims=True)


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> Any:
    """Return row-major indices of a matrix reordered so that groups of `size_g` rows are traversed column by column."""
    ij = i * size_j + j
    size_gj = size_g * size_j
    group = ij // size_gj
    first = group * size_g
    height = minimum(size_i - first, size_g)
    ij = ij % size_gj
    return first + ij % height, ij // height


bitonic_merge = sort  # of what ascends and then descends
philox, randint4x, randint, rand, randn, rand4x, randn4x = (
    random.philox, random.randint4x, random.randint, random.rand, random.randn, random.rand4x, random.randn4x,
)  # fmt: skip


def multiple_of(input: Any, values: Any) -> Any:
    """Return `input`: a hint to the compiler, without effect here."""
    return input


max_contiguous = max_constancy = multiple_of


def assume(cond: Any) -> None:
    """Ignore a hint to the compiler."""


def condition(arg1: Any, disable_licm: bool = False) -> Any:
    """Return the condition of a `while`; the hint to the compiler is ignored."""
    return arg1


def debug_barrier() -> None:
    """Ignore a barrier between threads: a program runs as a whole here."""


def static_assert(cond: Any, msg: Any = "") -> None:
    """Raise an AssertionError while tracing if a constexpr is false."""
    if not cond:
        raise AssertionError(f"static_assert: {getattr(msg, 'value', msg)}")


def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """Report a finding in `kernel.check` where the condition is false; ignored elsewhere, as by Triton by default."""
    if current().execution is not None:
        current().execution.asserted(values.as_mask(cond), None if mask is None else values.as_mask(mask), msg)


def device_print(prefix: Any, *args: Any, hex: bool = False) -> None:
    """Print in `kernel.check`, which executes programs one by one; ignored elsewhere."""
    if current().execution is not None:
        current().execution.printed([prefix, *args])


def static_print(*args: Any, **named: Any) -> None:
    """Ignore what should be printed while tracing."""


class range(Range):
    """Range of a `for`; hints to the compiler are ignored."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None, **hints: Any) -> None:
        bounds = [b for b in (arg1, arg2, step) if b is not None]
        if arg2 is None and step is not None:
            bounds = [0, arg1, step]
        super().__init__(*bounds)


class static_range(Range):
    """Range of a `for` that is unrolled."""

    def __init__(self, *bounds: Any) -> None:
        super().__init__(*bounds, unrolled=True)


def _least(*given: Any) -> Any:
    return functools.reduce(minimum, given[0] if len(given) == 1 else given)


def _largest(*given: Any) -> Any:
    return functools.reduce(maximum, given[0] if len(given) == 1 else given)


def _number(kind: dtype, python: Any) -> Callable[[Any], Any]:
    return lambda x: values.cast(x, kind) if isinstance(x, tensor) and x.uniform() is None else python(x)


# The functions that replace Python's builtins in a kernel.
BUILTINS |= {
    builtins.range: Range,
    builtins.min: _least,
    builtins.max: _largest,
    builtins.abs: abs,
    builtins.float: _number(float32, float),
    builtins.int: _number(int32, int),
    builtins.print: device_print,
}


def _convert(self: tensor, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Any:
    return values.cast(self, _as_type(dtype), bitcast, fp_downcast_rounding)


for _function_ in (
    sum, max, min, argmax, argmin, cumsum, cumprod, reduce, associative_scan, reshape, permute, trans, split, view,
    ravel, expand_dims, broadcast_to, exp, exp2, log, log2, sqrt, rsqrt, sin, cos, erf, floor, ceil, sigmoid, abs,
    gather, flip, histogram, sort, xor_sum, reduce_or, softmax, sqrt_rn, cdiv,
):  # fmt: skip
    setattr(tensor, _function_.__name__, _function_)
for _function_ in (
    store, atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg, atomic_cas, reshape,
    permute, trans, expand_dims, broadcast_to,
):  # fmt: skip
    setattr(Pointer, _function_.__name__, _function_)
_MORE = {"to": _convert, "cast": _convert, "T": property(trans), "view": view}
_MORE |= {"logical_and": values.logical_and, "logical_or": values.logical_or}
for _name, _function_ in _MORE.items():
    setattr(tensor, _name, _function_)
Pointer.T, Pointer.view = property(trans), view  # type: ignore[attr-defined]
setattr(dtype, "__call__", lambda self, value: cast(value, self))  # noqa: B010 - tl.float32(x)


def __getattr__(name: str) -> Any:
    if name in ("math", "extra", "core", "standard", "target_info"):  # they are made of this module
        return importlib.import_module(f"fnjax.triton.language.{name}")
    core = importlib.import_module("fnjax.triton.language._core")
    if name in core.NAMES:
        return getattr(core, name)
    return refuse(name, "triton.language")
