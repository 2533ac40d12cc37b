"""Types of triton.language and their promotion by Triton's rules, which differ from NumPy's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

Number = bool | int | float | np.number | np.bool_  # of Python and NumPy


class dtype:
    """Type of triton.language, such as `tl.float32`. Called on a value, it converts: `tl.float32(x)`."""

    def __new__(cls, name: str = "", *own: object) -> Any:
        """Return a new type, or the one of this name: `tl.dtype("uint32")`."""
        return as_type(name) if name and not own else object.__new__(cls)

    def __init__(self, name: str, kind: str = "", bits: int = 0, array: DTypeLike | None = None) -> None:
        if not kind:  # it is there
            return
        self.name, self.kind, self.primitive_bitwidth, self.array = name, kind, bits, np.dtype(array)

    scalar = property(lambda self: self)
    itemsize = property(lambda self: max(self.primitive_bitwidth, 8) // 8)

    def is_floating(self) -> bool:
        """Return True for floats."""
        return self.kind == "f"

    def is_int(self) -> bool:
        """Return True for integers, booleans among them."""
        return self.kind in "iub"

    def is_int_signed(self) -> bool:
        """Return True for signed integers."""
        return self.kind == "i"

    def is_int_unsigned(self) -> bool:
        """Return True for unsigned integers."""
        return self.kind == "u"

    def is_bool(self) -> bool:
        """Return True for booleans."""
        return self.kind == "b"

    def is_ptr(self) -> bool:
        """Return False: it is not a pointer's type."""
        return False

    def is_bf16(self) -> bool:
        """Return True for bfloat16."""
        return self.name == "bfloat16"

    def is_block(self) -> bool:
        """Return False: it is the type of an element."""
        return False

    def is_fp8(self) -> bool:
        """Return True for floats of 8 bits."""
        return self.kind == "f" and self.primitive_bitwidth == 8

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


for _bits in (16, 32, 64):
    setattr(dtype, f"is_fp{_bits}", lambda self, bits=_bits: self.kind == "f" and self.name == f"float{bits}")
for _bits in (1, 8, 16, 32, 64):
    setattr(dtype, f"is_int{_bits}", lambda self, bits=_bits: self.name == f"int{bits}")
    setattr(dtype, f"is_uint{_bits}", lambda self, bits=_bits: self.name == f"uint{bits}")

int1 = dtype("int1", "b", 1, bool)
int8, int16, int32, int64 = (dtype(f"int{b}", "i", b, f"int{b}") for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (dtype(f"uint{b}", "u", b, f"uint{b}") for b in (8, 16, 32, 64))
float16, float32, float64 = (dtype(f"float{b}", "f", b, f"float{b}") for b in (16, 32, 64))
bfloat16 = dtype("bfloat16", "f", 16, jnp.bfloat16)
float8e4nv = dtype("float8e4nv", "f", 8, jnp.float8_e4m3fn)
float8e5 = dtype("float8e5", "f", 8, jnp.float8_e5m2)
float8e4b8 = dtype("float8e4b8", "f", 8, jnp.float8_e4m3fnuz)
float8e5b16 = dtype("float8e5b16", "f", 8, jnp.float8_e5m2fnuz)
float8e4b15 = dtype("float8e4b15", "f", 8, jnp.float8_e4m3b11fnuz)

ALL = [int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, bfloat16]
ALL += [float8e4nv, float8e5, float8e4b8, float8e5b16, float8e4b15]
_BY_ARRAY = {kind.array: kind for kind in ALL}


class pointer_type:
    """Type of a pointer, such as `pointer_type(tl.float32)`."""

    def __init__(self, element_ty: Any, address_space: int = 1) -> None:
        self.element_ty = element_ty

    scalar = property(lambda self: self)

    def is_ptr(self) -> bool:
        """Return True."""
        return True

    def is_floating(self) -> bool:
        """Return False: a pointer is not a number."""
        return False

    is_int = is_block = is_floating

    def __eq__(self, other: object) -> bool:
        return isinstance(other, pointer_type) and self.element_ty == other.element_ty

    def __hash__(self) -> int:
        return hash(("pointer", self.element_ty))

    def __repr__(self) -> str:
        return f"pointer<{self.element_ty}>"


def type_of_array(given: DTypeLike) -> dtype:
    """Return the triton.language type for an array's dtype.

    Raises:
        TypeError: Triton has no such type.
    """
    found = _BY_ARRAY.get(np.dtype(given))
    if found is None:
        raise TypeError(f"Triton has no type for arrays of {np.dtype(given).name}")
    return found


def as_type(given: TypeLike) -> dtype | pointer_type:
    """Return a triton.language type from one of its own types, a JAX or NumPy dtype, or a name such as "fp32".

    Raises:
        TypeError: there is no such type.
    """
    found: Any = getattr(given, "value", given)
    if isinstance(found, dtype | pointer_type):
        return found
    if isinstance(found, str):
        named = {"fp16": float16, "fp32": float32, "fp64": float64, "bf16": bfloat16}
        named |= {f"{k}{b}": d for d in ALL if d.kind in "iu" for k, b in ((d.kind, d.primitive_bitwidth),)}
        named |= {d.name: d for d in ALL}
        if found in named:
            return named[found]
    try:
        return type_of_array(found)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{found!r} is not a type of triton.language: {error}") from None


def is_number(value: object) -> TypeGuard[Number]:
    """Return True for a number or boolean of Python or NumPy."""
    return isinstance(value, bool | int | float | np.number | np.bool_)


def type_of_number(value: Number) -> dtype:
    """Return the type that a Python number has where it meets tensors.

    It is int1, int32 or float32, or a wider type where the value needs one.
    """
    if isinstance(value, bool | np.bool_):
        return int1
    if isinstance(value, int | np.integer):
        if -(2**31) <= value < 2**31:
            return int32
        if 2**31 <= value < 2**32:
            return uint32
        return int64 if -(2**63) <= value < 2**63 else uint64
    size = abs(float(value))
    return float64 if 0 < size < 2**-126 or (2 - 2**-23) * 2.0**127 < size < float("inf") else float32


def _rank(kind: dtype) -> int:
    """Return the order of kinds, by which a Python number yields to a tensor: booleans, integers, floats."""
    return "biuf".index(kind.kind) and (2 if kind.kind == "f" else 1)


def promote(a: dtype, b: dtype, a_is_number: bool = False, b_is_number: bool = False, division: bool = False) -> dtype:
    """Return the common type of two operands (semantic.py, `computation_type_impl`, of Triton 3.5).

    Args:
        a: the type of the left operand.
        b: the type of the right operand.
        a_is_number: the left operand is a Python number, whose type yields to a tensor's of the same kind.
        b_is_number: as `a_is_number`, for the right operand.
        division: 16-bit floats are divided in float32; signed and unsigned integers are not divided.

    Raises:
        TypeError: there is no common type.
    """
    if a_is_number != b_is_number:
        number, tensor = (a, b) if a_is_number else (b, a)
        if _rank(number) <= _rank(tensor):
            return float32 if division and tensor in (float16, bfloat16) else tensor
    for kind in (float64, float32):
        if kind in (a, b):
            return kind
    if float16 in (a, b):
        return float32 if division else float16
    if a == b == bfloat16:
        return float32 if division else bfloat16
    if bfloat16 in (a, b):
        return float32
    if a.is_fp8() and b.is_fp8():
        return a if a == b else float16
    if not (a.is_int() and b.is_int()):
        raise TypeError(f"{a} and {b} have no common type in Triton: convert one of them with .to()")
    if division and "b" not in (a.kind, b.kind) and a.kind != b.kind:
        raise TypeError(
            f"Cannot use /, //, or % with {a} and {b} because they have different signedness; this is unlikely to "
            "result in a useful answer. Cast them to the same signedness."
        )
    if a.is_int_unsigned() == b.is_int_unsigned():
        return a if a.primitive_bitwidth > b.primitive_bitwidth else b
    unsigned, signed = (a, b) if a.is_int_unsigned() else (b, a)
    return unsigned if unsigned.primitive_bitwidth >= signed.primitive_bitwidth else signed


class constexpr:
    """Value that is known before the kernel runs: a number, type or string. As an annotation, it marks a parameter."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the wrapped type or function."""
        return self.value(*args, **named)


TypeLike = dtype | pointer_type | constexpr | DTypeLike  # what `as_type` takes


def _lifted(op: Callable[..., Any], swapped: bool) -> Callable[[constexpr, Any], constexpr]:
    """Return a binary operator on constexprs, whose result is one."""

    def operate(self: constexpr, other: Any) -> constexpr:
        pair = (self.value, getattr(other, "value", other))
        return constexpr(op(*(pair[::-1] if swapped else pair)))

    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(constexpr, f"__{_name.strip('_')}__", _lifted(getattr(operator, _name), False))
    setattr(constexpr, f"__r{_name.strip('_')}__", _lifted(getattr(operator, _name), True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(constexpr, f"__{_name}__", _lifted(getattr(operator, _name), False))
for _name, _op in (("neg", operator.neg), ("invert", operator.invert)):
    setattr(constexpr, f"__{_name}__", lambda self, op=_op: constexpr(op(self.value)))
