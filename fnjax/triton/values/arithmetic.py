"""Triton's arithmetic, comparisons and conversions on the values of a kernel (`tensor.Tensor`).

Affine expressions stay affine and known values stay NumPy's where the result allows it; all else becomes JAX
operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._primitives.division import quotient
from fnjax.triton.values import types
from fnjax.triton.values.affine import MANY, Affine, Array, Shape, constant, leading, recognise
from fnjax.triton.values.rounding import rounded
from fnjax.triton.values.state import current_execution
from fnjax.triton.values.tensor import (
    KNOWN_LIMIT,
    Concatenated,
    Operand,
    Tensor,
    aligned,
    as_block,
    by_parts,
    canonical,
    for_jax,
    is_narrowed,
    is_small,
    needs_64_bits,
    row_of,
)


def of_affine(affine: Affine, kind: types.dtype) -> Tensor:
    """Return a tensor of integers from an affine expression; values that do not fit the type wrap."""
    low, high = affine.limits()
    limits = np.iinfo(kind.array) if kind.kind in "iu" else None
    unbounded = any(variable.high == MANY for variable, _ in affine.terms)  # it is not assumed to wrap
    if limits is None or (not unbounded and (low < limits.min or high > limits.max)):
        return Tensor(affine.array(np if is_small(affine) else jnp).astype(kind.array), kind, affine.shape)
    return Tensor(None, kind, affine.shape, affine=affine)


def of_data(data: Array, kind: types.dtype, shape: Shape) -> Tensor:
    """Return a tensor from an array (leading axes before the block's); known affine integers get their expression."""
    if isinstance(data, np.ndarray) and kind.kind in "iu" and data.size:
        if data.dtype != kind.array:
            data = data.astype(kind.array)
        affine = recognise(aligned(data, len(shape)), shape)
        if affine is not None:
            return Tensor(data, kind, shape, affine=affine)
    return Tensor(data, kind, shape)


def as_tensor(value: Operand, kind: types.dtype | None = None) -> Tensor:
    """Return a number or tensor as a tensor, in the type `kind` if given; TypeError for anything else."""
    value = getattr(value, "value", value) if not isinstance(value, Tensor) else value
    if isinstance(value, Tensor):
        return value if kind is None else cast(value, kind)
    if types.is_number(value):
        own = types.type_of_number(value)
        if kind is None or (kind.kind in "iu" and own.kind in "iu"):
            kind = kind or own
            if kind.kind in "iu" and value < 2**63:
                return of_affine(constant(int(value)), kind)
        with np.errstate(over="ignore"):  # -1e9 becomes -inf in float16
            return Tensor(np.full((1,) * leading(), value).astype(kind.array), kind, ())
    raise TypeError(f"a {type(value).__name__} is not a value of a kernel")


def to_common_type(
    a: Operand, b: Operand, division: bool = False, weak: bool = True
) -> tuple[Tensor, Tensor, types.dtype]:
    """Return both operands in their common type, and that type; TypeError where there is none.

    A Python number takes the type of the tensor (ValueError: it is out of its range), unless `weak` is False:
    comparisons, `minimum` and `maximum` make it a tensor of int32 or float32 first (core.py of Triton 3.5).
    """
    numbers = [not isinstance(x, Tensor) for x in (a, b)]
    kinds = [_type_of(x) for x in (a, b)]
    kind = types.promote(kinds[0], kinds[1], numbers[0] and weak, numbers[1] and weak, division)
    if weak and kind.kind in "iu" and kind is not types.int1:
        limits = np.iinfo(kind.array)
        for x, n in zip((a, b), numbers, strict=True):
            if n and not limits.min <= _plain(x) <= limits.max:
                raise ValueError(f"the number {_plain(x)} is out of the range of {kind}: convert the tensor with .to()")
    return as_tensor(a, kind), as_tensor(b, kind), kind


def _type_of(value: Operand) -> types.dtype:
    return value.dtype if isinstance(value, Tensor) else types.type_of_number(_plain(value))


def _plain(value: Operand) -> types.Number:
    value = getattr(value, "value", value)
    if not types.is_number(value):
        raise TypeError(f"a {type(value).__name__} is not an operand for a tensor")
    return value


def compute(
    function: Callable[..., Array], kind: types.dtype, *tensors: Tensor, result: types.dtype | None = None
) -> Tensor:
    """Return `function(xp, *arrays)` of tensors of one type, elementwise, as a tensor.

    `xp` is `numpy` where all operands are known, so that the result stays known, up to `KNOWN_LIMIT` elements; else it
    is `jax.numpy`. `kind` is the type of the operands, and of the result unless `result` is given.
    """
    if (parts := by_parts(lambda *parts: compute(function, kind, *parts, result=result), *tensors)) is not None:
        return parts
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    known = all(t.known for t in tensors)
    arrays = [aligned(t.data if known else t.array(), len(shape)) for t in tensors]
    if known and int(np.prod(np.broadcast_shapes(*(a.shape for a in arrays)), dtype=int)) > KNOWN_LIMIT:
        known = False
        arrays = [for_jax(a, t.dtype) for a, t in zip(arrays, tensors, strict=True)]
    out = result or kind
    with np.errstate(all="ignore"):
        data = function(np if known else jnp, *arrays)
    known = known and not isinstance(data, jax.core.Tracer)  # there are functions that only JAX has
    return of_data(np.asarray(data).astype(out.array) if known else data.astype(canonical(out)), out, shape)


def report_narrowed(*tensors: Tensor) -> None:
    """Report to `kernel.check` known 64-bit integers that do not fit into the 32 bits that JAX has.

    Operations that depend on the upper bits call this: division, comparison, right shift, conversion to a float.
    """
    execution = current_execution()
    for tensor in () if execution is None else tensors:
        if is_narrowed(tensor.dtype) and tensor.known:
            data, limits = tensor.data, np.iinfo(canonical(tensor.dtype))
            outside = (data < limits.min) | (data > limits.max)
            if outside.any():
                execution.narrowed(tensor.dtype, data[outside])


def _arithmetic(name: str) -> Callable[[Operand, Operand], Tensor]:
    """Return an operator, by NumPy's name, that keeps affine operands affine where the result is."""

    def operate(a: Operand, b: Operand) -> Tensor:
        a, b, kind = to_common_type(a, b)
        if kind.kind in "iu" and a.affine is not None and b.affine is not None:
            x, y = a.affine, b.affine
            affine = x.times(y) if name == "multiply" else x.plus(y if name == "add" else y.negated())
            if affine is not None:
                return of_affine(affine, kind)
        found = compute(lambda xp, x, y: getattr(xp, name)(x, y), kind, a, b)
        found.row = row_of(name, a, b) if kind.is_int() and kind.itemsize >= 4 else None  # narrower ones wrap
        return found

    return operate


add, subtract, multiply = _arithmetic("add"), _arithmetic("subtract"), _arithmetic("multiply")


def without_bfloat16(x: Operand) -> Tensor:
    """Return bfloat16 as float32, since Triton neither compares nor scans bfloat16; other values as they are."""
    return cast(x, types.float32) if getattr(x, "dtype", None) == types.bfloat16 else as_tensor(x)


def true_divide(a: Operand, b: Operand) -> Tensor:
    """Return `a / b`: of two integers in float32, else in the type of the float operand."""
    if _type_of(a).is_int() and _type_of(b).is_int():
        to_common_type(a, b, division=True)
        a, b, kind = as_tensor(a, types.float32), as_tensor(b, types.float32), types.float32
    else:
        a, b, kind = to_common_type(a, b, division=True)
    return compute(lambda xp, x, y: x / y if xp is np else quotient(x, y, plain_derivative=True), kind, a, b)


def _truncated(xp: ModuleType, x: Array, y: Array) -> Array:
    if xp is not np:
        return lax.div(*jnp.broadcast_arrays(x, y))
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    found: Array = (x - np.fmod(x, safe)) // safe
    return found


def _remainder(xp: ModuleType, x: Array, y: Array) -> Array:
    if xp is not np:
        return lax.rem(*jnp.broadcast_arrays(x, y))
    return np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype) if x.dtype.kind in "iu" else y)


def floor_divide(a: Operand, b: Operand) -> Tensor:
    """Return `a // b` of integers, rounded toward zero as in C; TypeError for other types."""
    a, b, kind = to_common_type(a, b, division=True)
    if not kind.is_int():
        raise TypeError("// takes integers in Triton (use tl.floor(a / b))")
    report_narrowed(a, b)
    divisor = b.uniform()
    if a.affine is not None and divisor and divisor > 0 and _divides(a.affine, divisor):
        affine = a.affine
        strides, terms = tuple(s // divisor for s in affine.strides), tuple((v, c // divisor) for v, c in affine.terms)
        return of_affine(Affine(affine.base // divisor, affine.shape, strides, terms), kind)
    return compute(_truncated, kind, a, b)


def _divides(affine: Affine, divisor: int) -> bool:
    """Return True where an integer divides every stride, coefficient and constant of an affine expression."""
    parts = [*affine.strides, *(c for _, c in affine.terms)]
    return not any(p % divisor for p in parts) and not (affine.base % divisor).any()


def remainder(a: Operand, b: Operand) -> Tensor:
    """Return `a % b`, with the sign of `a` as in C."""
    a, b, kind = to_common_type(a, b, division=True)
    report_narrowed(a, b)
    divisor = b.uniform() if kind.is_int() else None
    if a.affine is not None and divisor and divisor > 0:
        low, high = a.affine.limits()
        if low >= 0 and high < divisor:
            return of_affine(a.affine, kind)
    return compute(_remainder, kind, a, b)


def _bitwise(name: str) -> Callable[[Operand, Operand], Tensor]:
    """Return a bitwise operator, by NumPy's name; of two masks, an and keeps conditions."""

    def operate(a: Operand, b: Operand) -> Tensor:
        a, b, kind = to_common_type(a, b)
        if not kind.is_int():
            raise TypeError(f"{name} takes integers or booleans, not {kind}")
        if kind.is_bool() and name == "bitwise_and":
            return logical_and(a, b)
        return compute(lambda xp, x, y: getattr(xp, name)(x, y), kind, a, b)

    return operate


bitwise_and, bitwise_or, bitwise_xor = map(_bitwise, ("bitwise_and", "bitwise_or", "bitwise_xor"))


def shift(a: Operand, b: Operand, left: bool) -> Tensor:
    """Return `a << b` or `a >> b` (signed: keeping the sign); TypeError where it needs 64 bits that JAX lacks."""
    a, b, kind = to_common_type(a, b)
    if left and a.affine is not None and (places := b.uniform()) is not None and 0 <= places < 63:
        affine = a.affine.times(constant(1 << places))
        if affine is not None:
            return of_affine(affine, kind)
    if b.known and not a.known and canonical(kind).itemsize < kind.array.itemsize and (b.data >= 32).any():
        raise needs_64_bits(f"a shift of {kind} by {int(b.data.max())}")
    report_narrowed(*(b,) if left else (a, b))
    return compute(lambda xp, x, y: xp.left_shift(x, y) if left else xp.right_shift(x, y), kind, a, b)


def logical_and(a: Operand, b: Operand) -> Tensor:
    """Return the logical and of two masks; conditions are kept as affine expressions."""
    a, b = as_mask(a), as_mask(b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    if is_all_true(a) or is_all_true(b):
        return broadcast(b if is_all_true(a) else a, shape)
    if a.conditions is not None or b.conditions is not None:
        conditions = (*(a.conditions or ()), *(b.conditions or ()))
        rests = [rest for t in (a, b) if (rest := t if t.conditions is None else t.rest) is not None]
        rest = rests[0] if len(rests) == 1 else None
        if len(rests) == 2:
            rest = compute(lambda xp, x, y: xp.logical_and(x, y), types.int1, *rests)
        return Tensor(None, types.int1, shape, conditions=conditions, rest=rest)
    return compute(lambda xp, x, y: xp.logical_and(x, y), types.int1, a, b)


def is_all_true(value: Tensor) -> bool:
    """Return True where a mask is known to hold for all lanes."""
    if value.conditions is not None:
        return value.rest is None and all(affine.limits()[0] >= 0 for affine in value.conditions)
    return isinstance(value._data, np.ndarray) and bool(value._data.all())


def is_all_false(value: Tensor) -> bool:
    """Return True for conditions of which one holds for no lane."""
    return value.conditions is not None and any(affine.limits()[1] < 0 for affine in value.conditions)


def logical_or(a: Operand, b: Operand) -> Tensor:
    """Return the logical or of two masks."""
    return compute(lambda xp, x, y: xp.logical_or(x, y), types.int1, as_mask(a), as_mask(b))


def as_mask(value: Operand) -> Tensor:
    """Return the mask of the values that are not zero; masks as they are."""
    mask = as_tensor(value)
    return mask if mask.dtype.is_bool() else compare("not_equal", mask, as_tensor(0, mask.dtype))


def logical_not(value: Operand) -> Tensor:
    """Return the logical not of a mask; the logical not of a single condition is again a condition."""
    value = as_mask(value)
    if value.conditions is not None and value.rest is None and len(value.conditions) == 1:
        affine = value.conditions[0].negated().plus(constant(-1))
        return Tensor(None, types.int1, value.shape, conditions=(affine,))
    return compute(lambda xp, x: xp.logical_not(x), types.int1, value)


def compare(name: str, a: Operand, b: Operand) -> Tensor:
    """Return the mask of a comparison (NumPy's name of it); between affine expressions it is a list of conditions."""
    a, b, kind = to_common_type(a, b, weak=False)
    report_narrowed(a, b)
    if (
        kind.kind in "iu"
        and a.affine is not None
        and b.affine is not None
        and name in ("less", "less_equal", "greater", "greater_equal", "equal")
    ):
        difference = a.affine.plus(b.affine.negated())
        found: tuple[Affine, ...] = {
            "greater_equal": (difference,),
            "greater": (difference.plus(constant(-1)),),
            "less_equal": (difference.negated(),),
            "less": (difference.negated().plus(constant(-1)),),
            "equal": (difference, difference.negated()),
        }[name]
        doubtful = tuple(affine for affine in found if affine.limits()[0] < 0)
        return Tensor(None, types.int1, difference.shape, conditions=doubtful)
    return compute(lambda xp, x, y: getattr(xp, name)(x, y), kind, a, b, result=types.int1)


def cast(value: Operand, kind: types.TypeLike, bitcast: bool = False, rounding: str | None = None) -> Tensor:
    """Return a value in another type, rounded or wrapped as Triton does; with `bitcast`, reinterpret its bits.

    `rounding` "rtz" rounds to 16-bit floats toward zero. Pointers, and a bitcast to another width, are a TypeError.
    """
    value = tensor = as_tensor(value)
    kind = types.as_type(kind)
    if tensor.dtype == kind:
        return tensor
    if isinstance(kind, types.pointer_type):
        raise TypeError(
            f"{value!r} is to become a pointer, but JAX's arrays have no addresses: pass the arrays themselves, or one "
            "array and offsets into it"
        )
    if (parts := by_parts(lambda part: cast(part, kind, bitcast, rounding), value)) is not None:
        return parts
    if bitcast:
        if value.dtype.primitive_bitwidth != kind.primitive_bitwidth:
            raise TypeError(f"a bitcast needs types of one width, not {value.dtype} and {kind}")
        return Tensor(lax.bitcast_convert_type(value.array(), canonical(kind)), kind, value.shape)
    if kind.is_bool():
        return as_mask(value)
    if value.affine is not None and kind.kind in "iu":
        return of_affine(value.affine, kind)
    if not kind.is_int():
        report_narrowed(value)
    if value.known and rounding != "rtz":
        with np.errstate(all="ignore"):
            found = of_data(value.data.astype(kind.array), kind, value.shape)
        if value.dtype.is_floating():
            report_narrowed(found)
        return found
    data = value.array()
    if kind in (types.float16, types.bfloat16) and value.dtype.kind == "f" and value.dtype.primitive_bitwidth > 16:
        return Tensor(rounded(data, kind, rounding == "rtz"), kind, value.shape)
    found = Tensor(data.astype(canonical(kind)), kind, value.shape)
    found.row = value.row if kind.is_int() and kind.itemsize >= value.dtype.itemsize else None
    return found


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Return elements of `a` where the mask holds, else of `b`; a Python number takes the type of the other operand."""
    condition = as_mask(condition)
    a, b, kind = to_common_type(a, b)
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    if is_all_true(condition) or is_all_false(condition):
        return broadcast(a if is_all_true(condition) else b, shape)
    if (parts := by_parts(where, condition, broadcast(a, shape), b)) is not None:
        return parts
    return compute(lambda xp, c, x, y: xp.where(c, x, y), kind, condition, broadcast(a, shape), b)


def broadcast(value: Operand, shape: Sequence[int]) -> Tensor:
    """Return a tensor broadcast to a block's shape; TypeError where the shapes do not fit."""
    value, shape = as_tensor(value), tuple(int(n) for n in shape)
    sizes_of_axes = zip(value.shape[::-1], shape[::-1], strict=False)
    if len(value.shape) > len(shape) or any(n not in (1, m) for n, m in sizes_of_axes):
        raise TypeError(f"a block of shape {value.shape} does not broadcast to {shape}")
    if isinstance(value, Concatenated):
        at = len(shape) + value.axis
        sizes = [(*shape[:at], part.shape[value.axis], *shape[at + 1 :]) for part in value.parts]
        return Concatenated([broadcast(part, size) for part, size in zip(value.parts, sizes, strict=True)], value.axis)
    if value.affine is not None:
        return Tensor(None, value.dtype, shape, affine=as_block(value.affine, shape))
    if value.conditions is not None:
        return Tensor(None, value.dtype, shape, conditions=value.conditions, rest=value.rest)
    return Tensor(aligned(value.data, len(shape)), value.dtype, shape)


def unary(function: Callable[[jax.Array], jax.Array], value: Operand, kinds: str = "f") -> Tensor:
    """Return `function` of a tensor, elementwise; TypeError where the tensor's kind is not one of `kinds`."""
    value = as_tensor(value)
    if value.dtype.kind not in kinds:
        raise TypeError(f"this function takes floats, not {value.dtype}: convert with .to(tl.float32)")
    if (parts := by_parts(lambda part: unary(function, part, kinds), value)) is not None:
        return parts
    return Tensor(function(value.array()).astype(canonical(value.dtype)), value.dtype, value.shape)


def _negative(value: Tensor) -> Tensor:
    if value.affine is not None:
        return of_affine(value.affine.negated(), value.dtype)
    return compute(lambda xp, x: xp.negative(x), value.dtype, value)


def _invert(value: Tensor) -> Tensor:
    return logical_not(value) if value.dtype.is_bool() else compute(lambda xp, x: xp.invert(x), value.dtype, value)


def _operator(function: Callable[[Operand, Operand], Tensor]) -> Callable[[Tensor, Operand], Any]:
    return lambda self, other: function(self, other) if _operand(other) else NotImplemented


def _reflected(function: Callable[[Operand, Operand], Tensor]) -> Callable[[Tensor, Operand], Tensor]:
    return lambda self, other: function(other, self)


for _name, _function in {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": true_divide,
    "floordiv": floor_divide,
    "mod": remainder,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": lambda a, b: shift(a, b, True),
    "rshift": lambda a, b: shift(a, b, False),
}.items():
    setattr(Tensor, f"__{_name}__", _operator(_function))
    setattr(Tensor, f"__r{_name}__", _reflected(_function))
_FULL = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
for _name, _full in _FULL.items():
    setattr(Tensor, f"__{_name}__", _operator(functools.partial(compare, _full)))
for _name, _unary in (("neg", _negative), ("invert", _invert), ("pos", as_tensor)):
    setattr(Tensor, f"__{_name}__", _unary)


def _operand(value: object) -> bool:
    value = getattr(value, "value", value)
    return isinstance(value, Tensor) or types.is_number(value)
