"""Keys for programs and functions: equal keys imply equal behaviour."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.tree import is_tracer


def identify(value: Any, inside: tuple[Any, ...] = ()) -> Hashable:
    """Return a key that equals that of another value only if JAX may use what it compiled for one for the other.

    Programs are compared equation by equation, functions by their code and by what they close over now, and other
    values by their own `==`. Mutable values, such as a list or a NumPy array, equal only themselves.

    Args:
        value: a jaxpr, a function, or anything. The key keeps alive what it compares.
        inside: the functions in whose closures the value is.
    """
    if hasattr(open_jaxpr(value), "eqns"):
        return _identify_program(value)
    if isinstance(value, float | complex | np.generic):
        return _identify_constant(value)
    if isinstance(value, tuple):
        return type(value), *(identify(x, inside) for x in value)
    if isinstance(value, types.MethodType):
        return identify((value.__func__, value.__self__), inside)
    if isinstance(value, functools.partial):
        return functools.partial, identify((value.func, value.args, *value.keywords.items()), inside)
    if isinstance(value, types.FunctionType):
        return _identify_function(value, inside)
    if type(value).__module__.partition(".")[0] == "fnjax" or _is_frozen(value):
        return type(value), *(identify(x, inside) for x in _list_attributes(value))
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return type(value), value


class _Itself:
    """Key of an object that equals no other."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _identify_program(program: Any) -> Hashable:
    """Return a key from the equations of a program, with its variables numbered."""
    jaxpr = open_jaxpr(program)
    numbers: dict[Any, int] = {}  # of the variables, in the order in which they appear

    def bind(variables: Iterable[Any]) -> Hashable:
        variables = list(variables)
        for variable in variables:
            numbers[variable] = len(numbers)
        return tuple(v.aval for v in variables)

    def read(atoms: Iterable[Any]) -> Hashable:
        return tuple((a.aval, _identify_constant(a.val)) if isinstance(a, Literal) else numbers[a] for a in atoms)

    constants = tuple(map(_identify_constant, getattr(program, "consts", ())))
    inputs = bind([*jaxpr.constvars, *jaxpr.invars])
    equations = [
        (eqn.primitive, read(eqn.invars), identify(tuple(sorted(eqn.params.items()))), eqn.ctx, bind(eqn.outvars))
        for eqn in jaxpr.eqns
    ]
    return constants, len(jaxpr.constvars), inputs, *equations, read(jaxpr.outvars)


def _identify_constant(value: Any) -> Hashable:
    """Return a key for a constant of a program, compared bit for bit: 0.0 is not -0.0, and NaN is NaN."""
    if is_tracer(value) or not getattr(value, "is_fully_addressable", True):
        return _Itself(value)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended):
        return dtype, _identify_constant(jax.random.key_data(value))
    array = np.asarray(value)
    return type(value), array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()


def _identify_function(function: types.FunctionType, inside: tuple[Any, ...]) -> Hashable:
    """Return a key from the code, defaults and closure of a function; its globals are compared by identity."""
    if function in inside:
        return inside.index(function)
    inside = (*inside, function)
    cells = function.__closure__ or ()
    closed_over = tuple(() if cell == types.CellType() else (cell.cell_contents,) for cell in cells)
    defaults = function.__defaults__, *(function.__kwdefaults__ or {}).items()
    return function.__code__, _Itself(function.__globals__), identify((defaults, closed_over), inside)


def _is_frozen(value: Any) -> bool:
    """Return whether a value is a frozen dataclass."""
    return bool(getattr(getattr(value, "__dataclass_params__", None), "frozen", False))


def _list_attributes(value: Any) -> list[Any]:
    """Return the attributes of an object of fnjax or a frozen dataclass; lists and dicts in it never change."""
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    attributes = []
    for name in sorted({*slots, *getattr(value, "__dict__", ())} - {"__weakref__"}):
        attribute = getattr(value, name, None)
        if type(attribute) is dict:
            attribute = tuple(attribute.items())
        attributes.append((name, tuple(attribute) if type(attribute) is list else attribute))
    return attributes
