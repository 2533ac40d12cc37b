"""torch's dtypes, and PyTorch's type promotion.

A tensor has torch's dtype next to the array's own: without 64 bits JAX keeps an int64 tensor as an int32 array, while
the dtype that the source sees, and its promotion, are those of int64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.memory.root_settings import RootSettings, find_settings

_BITS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")


class dtype:  # noqa: N801 - PyTorch's name
    """Dtype of torch, one object for each name; it is equal to the NumPy and JAX dtypes of the same name.

    Attributes:
        name: `float32`, as NumPy writes it (`bool` for booleans).
        kind: `bool`, `int`, `float` or `complex`.
    """

    _all: ClassVar[dict[str, Any]] = {}

    def __new__(cls, name: str) -> Self:
        """Return the one object of a name."""
        if name not in cls._all:
            made = super().__new__(cls)
            made.name = name
            made.kind = next((kind for kind in ("bool", "int", "complex") if kind in name), "float")
            made.numpy = np.dtype(getattr(jnp, "bool_" if name == "bool" else name))
            cls._all[name] = made
        return cls._all[name]

    name: str
    kind: str
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    def __hash__(self) -> int:
        return hash(self.numpy)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dtype):
            return self is other
        try:
            return self.numpy == np.dtype(other)  # type: ignore[call-overload] # anything that may be a dtype
        except TypeError:
            return NotImplemented

    @property
    def array(self) -> Any:
        """The dtype of the array: without 64 bits that of half the size."""
        return jax.dtypes.canonicalize_dtype(self.numpy)

    @property
    def number(self) -> type:
        """The Python type of its numbers."""
        return _NUMBERS[self.kind]

    @property
    def is_floating_point(self) -> bool:
        """Return whether it is a real floating-point dtype."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        """Return whether it is a complex dtype."""
        return self.kind == "complex"

    @property
    def is_signed(self) -> bool:
        """Return whether it has negative numbers."""
        return self.kind != "bool" and not self.name.startswith("uint")

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.numpy.itemsize

    def to_real(self) -> dtype:
        """Return the dtype of the real part."""
        return dtype({"complex64": "float32", "complex128": "float64"}.get(self.name, self.name))

    def to_complex(self) -> dtype:
        """Return the complex dtype of this precision."""
        return dtype({"float64": "complex128", "complex128": "complex128"}.get(self.name, "complex64"))


_NAMES = {
    **{name: name for name in _BITS},
    **{name: name for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool")},
    **{f"float8_{kind}": f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
DTYPES = {name: dtype(full) for name, full in _NAMES.items()}
FLOAT32 = dtype("float32")
_NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}
_PYTHON = {bool: dtype("bool"), int: dtype("int64"), float: dtype("float64"), complex: dtype("complex128")}
_ORDER = ("bool", "int", "float", "complex")


def default_dtype() -> dtype:
    """Return the default dtype of floats: that of torch.set_default_dtype in the loaded file that runs."""
    found = find_settings() if RootSettings.any_is_set else None
    own: dtype | None = found.default_dtype if found is not None else None
    return FLOAT32 if own is None else own


@functools.cache
def as_dtype(given: Any) -> dtype:
    """Return the dtype of torch for one of torch's, NumPy's, JAX's or Python's.

    Raises:
        TypeError: the value is not a dtype.
    """
    if isinstance(given, dtype):
        return given
    if isinstance(given, type) and given in _PYTHON:
        return _PYTHON[given]
    return dtype(np.dtype(given).name)


for _own in DTYPES.values():  # as keys of the cache NumPy's own are compared without a call of dtype.__eq__
    as_dtype(_own.numpy)


def promote(a: dtype, b: dtype) -> dtype:
    """Return the dtype that torch.promote_types returns."""
    if a is b:
        return a
    kinds = _ORDER.index(a.kind), _ORDER.index(b.kind)
    if kinds[0] != kinds[1]:
        low, high = (a, b) if kinds[0] < kinds[1] else (b, a)
        if high.is_complex and low.is_floating_point:
            return high if low.name != "float64" else dtype("complex128")
        return high
    if a.is_floating_point and a.itemsize == b.itemsize:  # float16 and bfloat16
        return dtype("float32")
    if a.kind == "int" and a.is_signed != b.is_signed:
        signed, unsigned = (a, b) if a.is_signed else (b, a)
        if unsigned.itemsize >= signed.itemsize:
            return dtype(f"int{min(unsigned.itemsize * 16, 64)}")
        return signed
    return a if a.itemsize >= b.itemsize else b


def result_type(tensors: Iterable[tuple[dtype, int]], numbers: Iterable[type] = ()) -> dtype:
    """Return the dtype in which an operation computes.

    Tensors with axes decide; a tensor without axes, and after it a number, counts only where its kind is a higher one
    (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).

    Args:
        tensors: the dtype and the number of axes of each tensor.
        numbers: the types of the Python numbers.
    """
    groups: list[dtype | None] = [None, None, None]
    for own, rank in tensors:
        at = 0 if rank else 1
        found = groups[at]
        groups[at] = own if found is None else promote(found, own)
    for kind in numbers:
        own = {float: default_dtype(), complex: default_dtype().to_complex()}.get(kind, _PYTHON[kind])
        groups[2] = own if groups[2] is None else promote(groups[2], own)
    result: dtype | None = None
    for low in (groups[2], groups[1], groups[0]):
        result = _combine(low, result)
    return default_dtype() if result is None else result


def _combine(higher: dtype | None, lower: dtype | None) -> dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return higher.to_complex()
    return promote(higher, lower) if higher.kind == "bool" or lower.kind in {"float", "complex"} else higher


def as_number(value: Any) -> Any:
    """Return a NumPy scalar as the Python number that PyTorch treats it as; other values unchanged."""
    if isinstance(value, np.floating):
        return float(value)
    return int(value) if isinstance(value, np.integer) else value


def type_of_number(value: Any) -> type:
    """Return the type by which a Python number promotes; subclasses of int count as int."""
    value = as_number(value)
    found: type | None = getattr(value, "kind", None)  # of a traced one
    found = found or next((kind for kind in (bool, int, float, complex) if isinstance(value, kind)), None)
    if found is None:
        raise TypeError(f"expected a number, got {value}")  # a stand-in raises its reason here
    return found


_SCALAR_TYPES = {"bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"}
_SCALAR_TYPES |= {"float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double"}
_SCALAR_TYPES |= {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}


def name_scalar_type(own: dtype) -> str:
    """Return the name of a dtype in PyTorch's messages."""
    return _SCALAR_TYPES.get(own.name, own.name)


def check_castable(found: dtype, own: dtype) -> None:
    """Check that a result can be written into a tensor: its dtype's kind is not higher (bool < int < float < complex).

    Args:
        found: the result's dtype.
        own: the tensor's dtype.

    Raises:
        RuntimeError: the kind is higher (PyTorch's message).
    """
    if _ORDER.index(found.kind) > _ORDER.index(own.kind):
        names = name_scalar_type(found), name_scalar_type(own)
        raise RuntimeError("result type {} can't be cast to the desired output type {}".format(*names))


def cast_elements(array: Any, own: Any) -> Any:
    """Return a JAX array cast to a dtype.

    Floats outside of a small integer's range wrap around, as in PyTorch on CPUs; JAX takes the nearest integer.
    """
    wanted = np.dtype(own)
    if wanted.kind in "iu" and wanted.itemsize < 4 and jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.int32)
    return array.astype(own)


def float_of(value: Any, own: Any) -> Any:
    """Return a Python integer outside of the int32 range as a float if the dtype is float or complex.

    Other values are returned unchanged. JAX without 64 bits would raise OverflowError for such an integer.
    """
    large = type(value) is int and own.kind in {"float", "complex"} and not -(2**31) <= value < 2**31
    return float(value) if large else value
