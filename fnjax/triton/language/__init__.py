"""triton.language for kernels that JAX runs: `import fnjax.triton.language as tl`."""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any, SupportsIndex

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
from fnjax.triton.values.pointers import AnyPointer, BasePointer
from fnjax.triton.values.pointers import select as select_pointer
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
from fnjax.triton.values.shapes import Sizes as _Sizes
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
from fnjax.triton.values.shapes import shape_of as _shape_of
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Operand as _Operand
from fnjax.triton.values.tensor import Tensor as tensor
from fnjax.triton.values.types import TypeLike as _TypeLike
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


def program_id(axis: SupportsIndex, _builder: object = None) -> tensor:
    """Return the index of the program along an axis of the grid."""
    state, at = current(), _axis(axis)
    if state.execution is not None:
        return _as_tensor(state.programs[at], int32)
    return values.of_affine(state.program(at), int32)


def num_programs(axis: SupportsIndex) -> tensor:
    """Return the number of programs along an axis of the grid."""
    return _as_tensor(current().grid[_axis(axis)], int32)


def _axis(axis: SupportsIndex) -> int:
    axis = operator.index(axis)
    if not 0 <= axis < GRID:
        raise ValueError(f"a grid has the axes 0, 1 and 2, not {axis}")
    return axis


def arange(start: SupportsIndex, end: SupportsIndex) -> tensor:
    """Return the integers from `start` to `end` - 1 as a block; ValueError where their number is not a power of two."""
    start, end = operator.index(start), operator.index(end)
    if end <= start:
        raise ValueError(f"tl.arange({start}, {end}) is empty")
    size = end - start
    if size & (size - 1):
        raise ValueError(f"tl.arange({start}, {end}): the range of arange must be a power of 2, not {size}")
    base = np.full((1,) * leading(), start, np.int64)
    return values.of_affine(Affine(base, (size,), (1 if size > 1 else 0,)), int32)


def full(shape: _Sizes, value: _Operand, dtype: _TypeLike) -> tensor:
    """Return a block filled with one value."""
    return values.broadcast(values.cast(value, dtype), _shape_of([shape]))


def zeros(shape: _Sizes, dtype: _TypeLike) -> tensor:
    """Return a block of zeros."""
    return full(shape, 0, dtype)


def zeros_like(input: tensor) -> tensor:
    """Return a block of zeros in the shape and type of another block."""
    return full(input.shape, 0, input.dtype)


def cast(
    input: _Operand | AnyPointer, dtype: _TypeLike, fp_downcast_rounding: str | None = None, bitcast: bool = False
) -> tensor | AnyPointer:
    """Return a value in another type; TypeError where there is no such conversion."""
    if isinstance(input, AnyPointer):
        return input.to(dtype)
    return values.cast(input, dtype, bitcast, fp_downcast_rounding)


def load(
    pointer: Any,
    mask: _Operand | None = None,
    other: _Operand | None = None,
    boundary_check: Any = (),
    padding_option: object = "",
    cache_modifier: object = "",
    eviction_policy: object = "",
    volatile: bool = False,
) -> tensor:
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
    value: _Operand,
    mask: _Operand | None = None,
    boundary_check: Any = (),
    cache_modifier: object = "",
    eviction_policy: object = "",
) -> None:
    """Store a value at the addresses of a pointer, where the mask holds.

    Raises:
        TypeError: `pointer` is not a pointer, or the value's shape does not fit.
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if hasattr(pointer, "block_shape"):
        store_block(pointer, value, boundary_check)
    else:
        memory.store(_pointer(pointer, "tl.store"), value, mask)


def _pointer(given: object, what: str) -> Any:
    if not isinstance(given, AnyPointer):
        raise TypeError(f"{what} takes a pointer, not {given!r}: pass an array for the parameter")
    return given


def _atomic(name: str) -> Callable[..., tensor]:
    def operate(
        pointer: object, val: _Operand, mask: _Operand | None = None, sem: object = None, scope: object = None
    ) -> tensor:
        return atomics.update(name, _pointer(pointer, f"tl.atomic_{name}"), val, mask, sem)

    operate.__name__ = f"atomic_{name}"
    return operate


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg = map(
    _atomic, ("add", "max", "min", "and", "or", "xor", "xchg")
)


def atomic_cas(pointer: object, cmp: _Operand, val: _Operand, sem: object = None, scope: object = None) -> tensor:
    """Store `val` where memory equals `cmp`, and return the old values."""
    return atomics.compare_and_swap(_pointer(pointer, "tl.atomic_cas"), cmp, val, None, sem)


def where(condition: _Operand, x: Any, y: Any) -> tensor | AnyPointer:
    """Return elements of x where the condition holds, else of y; also of pointers."""
    if isinstance(x, AnyPointer) or isinstance(y, AnyPointer):
        return select_pointer(condition, x, y)
    return values.where(condition, x, y)


def _pairwise(name: str) -> Callable[..., tensor]:
    """Return `tl.maximum` or `tl.minimum`."""

    def operate(x: _Operand, y: _Operand, propagate_nan: object = None) -> tensor:
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


def clamp(x: _Operand, min: _Operand, max: _Operand, propagate_nan: object = PropagateNan.NONE) -> tensor:
    """Return x, limited to the range from `min` to `max`."""
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)


def abs(x: _Operand) -> tensor:
    """Return the absolute value."""
    x = _as_tensor(x)
    values.report_narrowed(x)
    return values.compute(lambda xp, a: xp.abs(a), x.dtype, x)


def fma(x: _Operand, y: _Operand, z: _Operand) -> tensor:
    """Return x * y + z."""
    x, y, _ = values.to_common_type(_as_tensor(x), _as_tensor(y))
    z, x, _ = values.to_common_type(_as_tensor(z), x)
    z, y, _ = values.to_common_type(z, y)
    return x * y + z


def _function(name: str, on_array: Callable[[jax.Array], jax.Array]) -> Callable[..., tensor]:
    def operate(x: _Operand, _builder: object = None) -> tensor:
        return values.unary(on_array, x)

    operate.__name__ = name
    return operate


exp, exp2 = _function("exp", jnp.exp), _function("exp2", rounding.exp2)
log, log2 = _function("log", jnp.log), _function("log2", rounding.log2)
sqrt, rsqrt, sqrt_rn = _function("sqrt", jnp.sqrt), _function("rsqrt", lax.rsqrt), _function("sqrt_rn", jnp.sqrt)
sin, cos, erf = _function("sin", jnp.sin), _function("cos", jnp.cos), _function("erf", jax.scipy.special.erf)
floor, ceil = _function("floor", jnp.floor), _function("ceil", jnp.ceil)


def sigmoid(x: _Operand) -> tensor:
    """Return 1 / (1 + exp(-x))."""
    return values.unary(jax.nn.sigmoid, x)


def fdiv(x: Any, y: Any, ieee_rounding: bool = False) -> tensor:
    """Return x / y, in the operands' type if they have the same."""
    found = values.true_divide(x, y)
    return values.cast(found, x.dtype) if getattr(x, "dtype", None) == getattr(y, "dtype", 0) else found


div_rn = fdiv


def umulhi(x: _Operand, y: _Operand) -> tensor:
    """Return the upper 32 bits of the product of two 32-bit integers."""
    return random.high_product(_as_tensor(x), _as_tensor(y))


def cdiv(x: Any, div: Any) -> tensor:
    """Return x / div, rounded up to an integer."""
    return values.floor_divide(_as_tensor(x) + div - 1, div)


def softmax(
    x: tensor, dim: SupportsIndex | None = None, keep_dims: bool = False, ieee_rounding: bool = False
) -> tensor:
    """Return exp(x) divided by its sum along an axis, the first one by default."""
    axis = 0 if dim is None else dim
    shifted = exp(x - max(x, axis, keep_dims=True))
    return shifted / sum(shifted, axis, keep_dims=True)


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> Any:
    """Return row-major indices of a matrix reordered so that groups of `size_g` rows are traversed column by column."""
    ij = _as_tensor(i) * size_j + j
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


def multiple_of(input: Any, values: object) -> Any:
    """Return `input`: a hint to the compiler, without effect here."""
    return input


max_contiguous = max_constancy = multiple_of


def assume(cond: object) -> None:
    """Ignore a hint to the compiler."""


def condition(arg1: Any, disable_licm: bool = False) -> Any:
    """Return the condition of a `while`; the hint to the compiler is ignored."""
    return arg1


def debug_barrier() -> None:
    """Ignore a barrier between threads: a program runs as a whole here."""


def static_assert(cond: object, msg: object = "") -> None:
    """Raise an AssertionError while tracing if a constexpr is false."""
    if not cond:
        raise AssertionError(f"static_assert: {getattr(msg, 'value', msg)}")


def device_assert(cond: _Operand, msg: object = "", mask: _Operand | None = None) -> None:
    """Report a finding in `kernel.check` where the condition is false; ignored elsewhere, as by Triton by default."""
    if (execution := current().execution) is not None:
        execution.asserted(values.as_mask(cond), None if mask is None else values.as_mask(mask), msg)


def device_print(prefix: object, *args: object, hex: bool = False) -> None:
    """Print in `kernel.check`, which executes programs one by one; ignored elsewhere."""
    if (execution := current().execution) is not None:
        execution.printed([prefix, *args])


def static_print(*args: object, **named: object) -> None:
    """Ignore what should be printed while tracing."""


class range(Range):
    """Range of a `for`; hints to the compiler are ignored."""

    def __init__(
        self, arg1: _Operand, arg2: _Operand | None = None, step: _Operand | None = None, **hints: object
    ) -> None:
        bounds = [b for b in (arg1, arg2, step) if b is not None]
        if arg2 is None and step is not None:
            bounds = [0, arg1, step]
        super().__init__(*bounds)


class static_range(Range):
    """Range of a `for` that is unrolled."""

    def __init__(self, *bounds: _Operand) -> None:
        super().__init__(*bounds, unrolled=True)


def _least(*given: Any) -> Any:
    return functools.reduce(minimum, given[0] if len(given) == 1 else given)


def _largest(*given: Any) -> Any:
    return functools.reduce(maximum, given[0] if len(given) == 1 else given)


def _number(kind: dtype, python: Callable[[Any], int | float]) -> Callable[[_Operand], tensor | int | float]:
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
    setattr(BasePointer, _function_.__name__, _function_)
_MORE: dict[str, Any] = {"to": cast, "cast": cast, "T": property(trans), "view": view}
_MORE |= {"logical_and": values.logical_and, "logical_or": values.logical_or}
for _name, _function_ in _MORE.items():
    setattr(tensor, _name, _function_)
BasePointer.T, BasePointer.view = property(trans), view  # type: ignore[attr-defined]
setattr(dtype, "__call__", lambda self, value: cast(value, self))  # noqa: B010 - tl.float32(x)


def __getattr__(name: str) -> Any:
    if name in ("math", "extra", "core", "standard", "target_info"):  # they are made of this module
        return importlib.import_module(f"fnjax.triton.language.{name}")
    core = importlib.import_module("fnjax.triton.language._core")
    if name in core.NAMES:
        return getattr(core, name)
    return refuse(name, "triton.language")
