"""libdevice's functions of integers and bits, its conversions, and its operations in other rounding modes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import random
from fnjax.triton.values.affine import Array
from fnjax.triton.values.arithmetic import as_tensor, cast
from fnjax.triton.values.tensor import Operand, Tensor, canonical, needs_64_bits
from fnjax.triton.values.types import dtype, float32, float64, int32, int64, uint32, uint64

Operation = Callable[..., Tensor]
_KINDS = {
    "int": int32,
    "uint": uint32,
    "ll": int64,
    "ull": uint64,
    "longlong": int64,
    "float": float32,
    "double": float64,
}
_ROUNDED = {"rn": jnp.rint, "rz": jnp.trunc, "rd": jnp.floor, "ru": jnp.ceil}
_WORDS = {"rz": "toward zero", "rd": "down", "ru": "up"}
_CONVERSION = re.compile(r"(int|uint|ll|ull|float|double)2(int|uint|ll|ull|float|double)_(rn|rz|rd|ru)")
_BITCAST = re.compile(r"(int|uint|float|longlong|double)_as_(int|uint|float|longlong|double)")
_ROUNDING = re.compile(r"(add|sub|mul|div|fma|rcp|sqrt)_(rz|rd|ru)")


def find(name: str) -> Operation | str | None:
    """Return an operation by its name, or the name of one that is computed in its place; None if it is neither."""
    if name in _OPERATIONS:
        return _OPERATIONS[name]
    if found := _CONVERSION.fullmatch(name):
        return _convert(name, _KINDS[found[1]], _KINDS[found[2]], found[3])
    if found := _BITCAST.fullmatch(name):
        source, target = _KINDS[found[1]], _KINDS[found[2]]
        return lambda x: _signed(cast(_wide(cast(x, source), name), target, bitcast=True))
    if found := _ROUNDING.fullmatch(name):
        _warn(name, found[2])
        return f"{found[1]}_rn"
    return None


def _warn(name: str, mode: str) -> None:
    text = f"libdevice.{name}: fnjax.triton rounds to the nearest number, not {_WORDS[mode]}"
    warnings.warn(text, UserWarning, stacklevel=2)


def _convert(name: str, source: dtype, target: dtype, mode: str) -> Operation:
    if target.is_floating():
        exact = target is float64 and source in (int32, uint32, float32)
        if mode != "rn" and not exact:
            _warn(name, mode)
        return lambda x: cast(cast(x, source), target)
    return lambda x: _signed(cast(values.unary(_ROUNDED[mode], cast(x, source)), target))


def _signed(x: Tensor) -> Tensor:
    """Return unsigned integers as signed ones with the same bits: Triton declares libdevice's results so."""
    return cast(x, {uint32: int32, uint64: int64}.get(x.dtype, x.dtype))


def _wide(x: Tensor, name: str) -> Tensor:
    """Return a value whose bits are read; those of 64 bits need JAX's 64-bit numbers.

    Raises:
        TypeError: JAX has 32 bits only.
    """
    if x.dtype.primitive_bitwidth == 64 and canonical(x.dtype).itemsize < 8:
        raise needs_64_bits(f"libdevice.{name}")
    return x


def _integers(*given: Operand) -> list[Tensor]:
    """Return integers in their common type, with at least 32 bits."""
    tensors = [as_tensor(x) for x in given]
    kind = uint32 if all(t.dtype == uint32 for t in tensors) else int32
    if any(t.dtype.primitive_bitwidth == 64 for t in tensors):
        kind = uint64 if all(t.dtype == uint64 for t in tensors) else int64
    return [cast(t, kind) for t in tensors]


def _mulhi(x: Operand, y: Operand) -> Tensor:
    x, y = (_wide(v, "mulhi") for v in _integers(x, y))
    if x.dtype.primitive_bitwidth == 64:
        raise TypeError("libdevice.mulhi of 64-bit integers is not available: multiply by halves")
    high = random.high_product(cast(x, uint32), cast(y, uint32))
    if x.dtype == uint32:
        return high
    correction = values.where(x < 0, cast(y, uint32), as_tensor(0, uint32))
    return cast(high - correction - values.where(y < 0, cast(x, uint32), as_tensor(0, uint32)), int32)


def _mul24(x: Operand, y: Operand) -> Tensor:
    x, y = _integers(x, y)
    return ((x << 8) >> 8) * ((y << 8) >> 8)


def _hadd(x: Operand, y: Operand) -> Tensor:
    x, y = _integers(x, y)
    return (x & y) + ((x ^ y) >> 1)


def _rhadd(x: Operand, y: Operand) -> Tensor:
    x, y = _integers(x, y)
    return (x | y) - ((x ^ y) >> 1)


def _sad(x: Operand, y: Operand, z: Operand) -> Tensor:
    x, y = _integers(x, y)
    return _signed(cast(values.where(x > y, x - y, y - x), uint32) + cast(z, uint32))


def _brev(x: Operand) -> Tensor:
    (x,) = _integers(x)
    _wide(x, "brev")
    bits = x.dtype.primitive_bitwidth

    def reverse(xp: ModuleType, a: Array) -> Array:
        unsigned = a.astype(np.uint64 if bits == 64 else np.uint32)
        found: Array = xp.zeros_like(unsigned)
        for i in range(bits):
            one = (unsigned >> np.asarray(i, unsigned.dtype)) & np.asarray(1, unsigned.dtype)
            found = found | (one << np.asarray(bits - 1 - i, unsigned.dtype))
        return found.astype(a.dtype)

    return values.compute(reverse, x.dtype, x)


def _byte_perm(x: Operand, y: Operand, selector: Operand) -> Tensor:
    def choose(xp: ModuleType, x: Array, y: Array, selector: Array) -> Array:
        found: Array = xp.zeros_like(x)
        for i in range(4):
            at = (selector >> np.uint32(4 * i)) & np.uint32(7)
            word = xp.where(at < 4, x, y)
            found = found | (((word >> (np.uint32(8) * (at & np.uint32(3)))) & np.uint32(255)) << np.uint32(8 * i))
        return found

    return _signed(values.compute(choose, uint32, *(cast(v, uint32) for v in (x, y, selector))))


def _hiloint2double(high: Operand, low: Operand) -> Tensor:
    high, low = (_wide(cast(x, kind), "hiloint2double") for x, kind in ((high, int64), (cast(low, uint32), int64)))
    return cast((high << 32) | low, float64, bitcast=True)


def _half_of_double(name: str, shift: int) -> Operation:
    return lambda x: cast(cast(_wide(cast(x, float64), name), int64, bitcast=True) >> shift, int32)


_OPERATIONS: dict[str, Operation] = {
    "mulhi": _mulhi, "mul24": _mul24, "hadd": _hadd, "rhadd": _rhadd, "sad": _sad, "brev": _brev,
    "byte_perm": _byte_perm, "hiloint2double": _hiloint2double,
    "double2loint": _half_of_double("double2loint", 0), "double2hiint": _half_of_double("double2hiint", 32),
}  # fmt: skip
