"""Whether two programs are the same: shown equation by equation, by JAX's own `==` of their parameters."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fnjax._jax.jax_internals import open_jaxpr
from fnjax._jax.trees import is_tracer


def is_same_program(one: Any, other: Any) -> bool:
    """Return whether two jaxprs surely compute the same and have the same derivatives.

    Functions among the parameters, such as host callbacks, are the same if their code is, and what they close over.
    Where it cannot be shown, the programs count as different.

    Args:
        one: a jaxpr, closed or open.
        other: likewise.
    """
    one_body, other_body = open_jaxpr(one), open_jaxpr(other)
    numbers: list[dict[Any, int]] = [{}, {}]  # of the variables, in the order in which they appear

    def bind(variables: Iterable[Any], others: Iterable[Any]) -> bool:
        pairs = list(zip(variables, others, strict=True))
        for pair in pairs:
            for known, variable in zip(numbers, pair, strict=True):
                known[variable] = len(known)
        return all(v.aval == w.aval for v, w in pairs)

    def same_atom(atom: Any, another: Any) -> bool:
        if isinstance(atom, Literal) or isinstance(another, Literal):
            same_kind = type(atom) is type(another) and atom.aval == another.aval
            return same_kind and _is_same_constant(atom.val, another.val)
        return numbers[0][atom] == numbers[1][another]

    def same_equation(eqn: Any, another: Any) -> bool:
        return (
            eqn.primitive is another.primitive
            and _fit(eqn, another)
            and all(map(same_atom, eqn.invars, another.invars))
            and _is_same(tuple(sorted(eqn.params.items())), tuple(sorted(another.params.items())))
            and _is_same(eqn.ctx, another.ctx)
            and bind(eqn.outvars, another.outvars)
        )

    return (
        _fit(one_body, other_body)
        and len(one_body.constvars) == len(other_body.constvars)
        and len(one_body.eqns) == len(other_body.eqns)
        and all(map(_is_same_constant, getattr(one, "consts", ()), getattr(other, "consts", ())))
        and bind([*one_body.constvars, *one_body.invars], [*other_body.constvars, *other_body.invars])
        and all(map(same_equation, one_body.eqns, other_body.eqns))
        and all(map(same_atom, one_body.outvars, other_body.outvars))
    )


def _fit(one: Any, other: Any) -> bool:
    """Return whether two jaxprs or equations have as many inputs and outputs as each other."""
    return len(one.invars) == len(other.invars) and len(one.outvars) == len(other.outvars)


def _is_same_constant(one: Any, other: Any) -> bool:
    """Compare arrays and numbers bit for bit, so that 0.0 is not -0.0 and NaN is NaN."""
    if one is other:
        return True
    if type(one) is not type(other) or is_tracer(one):
        return False
    if not hasattr(one, "dtype") and not isinstance(one, int | float | complex):
        return _is_same(one, other)
    if not getattr(one, "is_fully_addressable", True) or not getattr(other, "is_fully_addressable", True):
        return False
    if hasattr(one, "dtype") and jnp.issubdtype(one.dtype, jax.dtypes.extended):
        return one.dtype == other.dtype and _is_same_constant(jax.random.key_data(one), jax.random.key_data(other))
    a, b = np.asarray(one), np.asarray(other)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _is_same(one: Any, other: Any) -> bool:
    """Compare two parameters, or parts of such."""
    if one is other:
        return True
    if type(one) is not type(other) or is_tracer(one):
        return False
    if hasattr(open_jaxpr(one), "eqns"):
        return is_same_program(one, other)
    if isinstance(one, float | complex | np.generic):
        return _is_same_constant(one, other)
    if parts := _find_parts(one):
        first, second = list(parts(one)), list(parts(other))
        return len(first) == len(second) and all(map(_is_same, first, second))
    try:
        hash(one)  # what can be written to may be another by the time that it is read: see above for the same object
        return bool(one == other)
    except Exception:  # noqa: BLE001 - whatever the == of somebody's object raises, it does not show that they are equal
        return False


def _find_parts(value: Any) -> Callable[[Any], Iterable[Any]] | None:
    """Return what lists the parts that make a value what it is, or None where `==` has to say it."""
    if isinstance(value, tuple):
        return lambda v: v
    if isinstance(value, types.FunctionType):
        return _iter_function
    if isinstance(value, types.MethodType):
        return lambda v: (v.__func__, v.__self__)
    if isinstance(value, functools.partial):
        return lambda v: (v.func, v.args, *sorted(v.keywords.items()))
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if type(value).__module__.partition(".")[0] == "fnjax" or frozen:
        return _iter_attributes
    return None


def _iter_function(function: types.FunctionType) -> Iterator[Any]:
    """Yield a function's code, and all that it has besides its arguments; globals are read when it is called."""
    yield from (function.__code__, id(function.__globals__), function.__defaults__)
    yield from sorted((function.__kwdefaults__ or {}).items())
    for cell in function.__closure__ or ():
        yield (cell.cell_contents,) if cell != types.CellType() else ()


def _iter_attributes(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object of fnjax or of a frozen dataclass; nobody writes to their lists and dicts."""
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    for name in sorted({*slots, *getattr(value, "__dict__", ())} - {"__weakref__"}):
        attribute = getattr(value, name, None)
        if type(attribute) is dict:
            attribute = tuple(attribute.items())
        yield name, tuple(attribute) if type(attribute) is list else attribute
