"""What a call means beyond its arrays, as a key: two calls with equal facts do the same.

Only values that cannot change have facts: numbers, strings, dtypes, enum members, tuples, and functions that capture
nothing else. Numbers are told apart as Python tells their types and signs apart: 1, True and 1.0 differ, and so do 0.0
and -0.0. Whatever can change (lists, dicts, NumPy arrays, objects) has none, and neither have classes: a key from which
its own class can be reached would keep it alive. JAX's own functions and the modules of libraries stand for themselves.
What a function reads from the globals of its module has no part in this: it counts as fixed once it is traced.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from fnjax._tree import is_tracer

_BY_VALUE = (bool, int, str, bytes, type(None), type(Ellipsis), range)
_BY_IDENTITY = (np.ufunc, np.dtype)
_WRAPPERS = (type(jax.jit(lambda: None)), jax.custom_jvp, jax.custom_vjp)
_FIXED = {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "fnjax", *sys.stdlib_module_names}  # nobody sets their names


class NoFactsError(Exception):
    """A value that can change."""


class _Identity:
    """An object as a key by itself; the key keeps it alive, so that no other object takes its place."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def facts(value: Any) -> Hashable:
    """The key of a value.

    Raises:
        NoFactsError: for one that can change.
    """
    kind = type(value)
    if kind is staticmethod:
        return facts(value.__func__)
    if kind is types.FunctionType:
        return _function_facts(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields") and not hasattr(value, "__dict__")):
        return kind, *map(facts, value)
    if kind is slice:
        return kind, facts(value.start), facts(value.stop), facts(value.step)
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmMSU":
        return kind, value.dtype, value.tobytes()
    if isinstance(value, enum.Enum):
        own = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        return _Identity(value), facts(value.value), facts(tuple(own.items()))
    if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _FIXED:
        return _Identity(value)
    if kind is types.BuiltinFunctionType and isinstance(value.__self__, types.ModuleType):
        return _Identity(value)
    if isinstance(value, _BY_IDENTITY) or _is_dtype(value) or (isinstance(value, jax.Array) and not is_tracer(value)):
        return _Identity(value)
    if isinstance(value, _WRAPPERS) and str(value.__module__).partition(".")[0] == "jax":  # jnp.sin, jax.nn.relu
        return _Identity(value)
    raise NoFactsError


def _is_dtype(value: Any) -> bool:
    if not isinstance(value, type) or value.__module__.partition(".")[0] not in {*_FIXED, "builtins"}:
        return False
    return issubclass(value, np.generic | int | float | complex) or isinstance(getattr(value, "dtype", None), np.dtype)


def _function_facts(function: types.FunctionType) -> Hashable:
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError as e:  # a cell that is not filled yet
        raise NoFactsError from e
    inside = function.__defaults__, tuple((function.__kwdefaults__ or {}).items()), tuple(vars(function).items())
    return (
        function,
        _Identity(function.__code__),  # which tools that reload modules replace
        tuple(facts(cell) for cell in cells if cell is not function),
        facts(inside) if inside != (None, (), ()) else None,
    )
