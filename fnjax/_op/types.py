"""Types of a schema: checks of values, and their conversion for an operator's body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from fnjax._primitives.tree import is_array, is_tensor, is_tracer


class Refused(Exception):  # noqa: N818 - never seen by users: the caller raises the error
    """Signal that a value is not of a type; callers turn it into an error message."""


class Type(NamedTuple):
    """Type as written in a schema: `Tensor`, `float?`, `SymInt[]`, `Tensor?[]`, `SymInt[]?`.

    Attributes:
        base: `Tensor`, `SymInt`, `int`, `float`, `bool`, `str`, `Scalar`, `ScalarType`, `Device` or `Any`.
        listed: whether it is a list.
        optional: whether None is allowed.
        optional_items: whether None is allowed as an element of the list.
        size: the number in `int[2]`; a single value is repeated to that length.
    """

    base: str
    listed: bool = False
    optional: bool = False
    optional_items: bool = False
    size: str = ""

    def text(self, alias: str = "") -> str:
        """Return the type as written in a schema, with an alias after its base: `Tensor(a0!)[]`."""
        brackets = f"[{self.size}]" if self.listed else ""
        return f"{self.base}{alias}{'?' * self.optional_items}{brackets}{'?' * self.optional}"

    @property
    def is_tensor(self) -> bool:
        """True if its values are made of arrays."""
        return self.base == "Tensor"

    @property
    def name(self) -> str:
        """The name in PyTorch's errors: `int`, `List[Tensor]`, `Optional[float]`."""
        name = _NAMES.get(self.base, self.base)
        name = f"Optional[{name}]" if self.optional_items else name
        name = f"List[{name}]" if self.listed else name
        return f"Optional[{name}]" if self.optional else name

    def take(self, value: Any) -> Any:
        """Return the value as the body receives it: numbers converted as PyTorch converts them, lists as lists.

        Raises:
            Refused: if it is not a value of this type.
        """
        if value is None and self.optional:
            return None
        if not self.listed:
            return _TAKE[self.base](value)
        if self.size and isinstance(value, int | float):
            value = [value] * int(self.size)
        return [
            None if self.optional_items and v is None else self._take_element(v) for v in _elements(self.base, value)
        ]

    def _take_element(self, value: Any) -> Any:
        if value is None:
            raise Refused
        return _TAKE[self.base](value)


_NAMES = {"SymInt": "int", "Scalar": "number", "ScalarType": "int"}


def _elements(base: str, value: Any) -> list[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Refused
    if is_tensor(value) and (base not in ("SymInt", "int") or is_tracer(value)):
        if isinstance(value, np.ndarray) and base not in ("Tensor", "bool") and value.ndim == 1:
            return list(value.tolist())
        raise Refused
    return list(value)


def _take_tensor(value: Any) -> Any:
    if value is None or is_tensor(value):  # PyTorch also accepts None for a tensor
        return value
    raise Refused


def _number(value: Any, kind: type, *kinds: type) -> Any:
    """Return `kind(value)` of a number, or of an array with one element; a traced one stays an array."""
    if is_array(value) or isinstance(value, np.ndarray):
        if value.size != 1 or np.issubdtype(value.dtype, np.complexfloating):
            raise Refused
        value = value.reshape(())
        if not is_tracer(value):
            return kind(value.item())
        if kind is float:  # weakly typed, as a Python number
            return value if np.issubdtype(value.dtype, np.floating) else value * 1.0
        same = np.issubdtype(value.dtype, np.integer if kind is int else np.bool_)
        return value if same else lax.convert_element_type(value, kind)
    if not isinstance(value, kinds):
        raise Refused
    return kind(value)


def _take_int(value: Any) -> Any:
    taken = _number(value, int, int, np.integer)
    if not is_tracer(taken) and not -(2**63) <= taken < 2**63:
        raise Refused
    return taken


def _take_float(value: Any) -> Any:
    return _number(value, float, int, float, np.integer, np.floating)


def _take_bool(value: Any) -> Any:
    return False if value is None else _number(value, bool, bool, int, float, np.bool_, np.integer, np.floating)


def _take_scalar(value: Any) -> Any:
    if is_tracer(value) and value.ndim == 0:  # a number that a transformation has traced
        return value
    if isinstance(value, bool | int | float | complex):
        return value
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise Refused


def _take_str(value: Any) -> Any:
    if not isinstance(value, str):
        raise Refused
    return value


def _take_dtype(value: Any) -> Any:
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    # jnp.float32 is neither a dtype nor a NumPy class, but has a dtype.
    if is_dtype or (callable(value) and isinstance(getattr(value, "dtype", None), np.dtype)):
        return value
    raise Refused


def _take_device(value: Any) -> Any:
    if isinstance(value, str | jax.Device):
        return value
    raise Refused


def _take_any(value: Any) -> Any:
    return value


_TAKE = {
    "Tensor": _take_tensor,
    "SymInt": _take_int,
    "int": _take_int,
    "float": _take_float,
    "bool": _take_bool,
    "str": _take_str,
    "Scalar": _take_scalar,
    "ScalarType": _take_dtype,
    "Device": _take_device,
    "Any": _take_any,
}
