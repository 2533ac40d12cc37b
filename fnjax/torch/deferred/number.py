"""Traced Python numbers: `x.sum().item()`, `int(t)`, a variable that a traced branch or loop assigned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.deferred.base import COMPARISONS, Deferred, is_own
from fnjax.torch.deferred.either import Either, distribute
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import DTYPES, dtype
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.raises import refuse_caught

NUMBERS = (bool, int, float, complex)  # each a special case of the next
_WIDE = dict(zip(NUMBERS, ("bool", "int64", "float64", "complex128"), strict=True))


class Operand(Tensor):
    """Traced number as an operand of an operation: a tensor that promotes as a Python number.

    Attributes:
        kinds: the Python types that the number may have.
    """

    __slots__ = ()
    kinds: frozenset[type]


class Number(Deferred):
    """Traced Python number: a constant for derivatives.

    Args:
        value: the value, an array without axes.
        kinds: the Python types that it may have: several after a branch that assigns an int or a float.

    Attributes:
        record: records a call of NumPy (host.calls.record).
    """

    __slots__ = ("kinds", "value")
    __array_priority__ = 1000
    record: ClassVar[Callable[..., Any]]

    def __init__(self, value: Value, kinds: Iterable[type]) -> None:
        self.value, self.kinds = value, frozenset(kinds)

    __class__: Any = property(lambda self: Number if is_own(sys._getframe(1).f_globals) else self.kind)

    @property
    def array(self) -> jax.Array:
        """The JAX array."""
        array: jax.Array = self.value.array
        return array

    @property
    def dtype(self) -> dtype:
        """Torch's dtype of the array."""
        return find_dtype(self.kinds)

    @property
    def kind(self) -> type:
        """The Python type.

        Raises:
            NotSupported: the number may have several types.
        """
        if len(self.kinds) > 1:
            raise self.refuse("the type")
        (kind,) = self.kinds
        return kind

    def refuse(self, use: str = "") -> NotSupported:
        """Return the exception for a use that needs a concrete value."""
        names = " or ".join(k.__name__ for k in NUMBERS if k in self.kinds)
        if use == "the type":
            return NotSupported(
                f"the type of a number that is {names}, and JAX decides which",
                "make it of one type in all branches and iterations, as float(n)",
            )
        return NotSupported(
            f"{use or 'a use'} of a traced number ({names}): its value is not there while JAX traces",
            "compute with it (+, <, math, torch.where), print it by jax.debug.print, or call the function outside of "
            "jax.jit",
        )

    def to_array(self) -> jax.Array:
        """Return the array, as the result of a function of arrays.

        Raises:
            NotSupported: the number may have several types.
        """
        if len(self.kinds) > 1:
            raise self.refuse("the type")
        return self.array

    def to_operand(self) -> Operand:
        """Return the number as an operand of an operation."""
        made: Any = make(self.value, self.dtype)
        made.__class__ = Operand
        made.kinds = self.kinds
        found: Operand = made
        return found

    def ask(self, function: Callable[[type], Any]) -> Any:
        """Return the result of a function that must be equal for all types that the number may have.

        Raises:
            NotSupported: the results differ between the types that the number may have.
        """
        found = {function(kind) for kind in self.kinds}
        if len(found) > 1:
            raise self.refuse("the type")
        return found.pop()

    def cast(self, kind: type) -> Any:
        """Return `kind(number)`."""
        own = _find_widest(self.kinds)
        if {own, kind} == {complex, float} or (own is complex and kind is int):
            raise TypeError(f"{kind.__name__}() argument must be a string or a real number, not 'complex'")
        if self.kinds == {kind}:
            return self
        if kind is bool:
            return number(self.array != 0)
        array = jnp.trunc(self.array) if kind is int and own is float else self.array
        return number(array.astype(find_dtype([kind]).array))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not all(hasattr(k, name) for k in self.kinds):
            raise AttributeError(f"'{_find_widest(self.kinds).__name__}' object has no attribute '{name}'")
        if name in {"real", "conjugate"} and complex not in self.kinds:
            return self._apply(jnp.positive) if name == "real" else self.__pos__
        if name == "imag" and complex not in self.kinds:
            return self._apply(jnp.zeros_like)
        if name == "is_integer":
            return lambda: self == self.__floor__()
        raise self.refuse(f"{name}()")

    __hash__ = Deferred.__hash__

    def __eq__(self, other: object) -> Any:
        return _run("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _run("ne", self, other)

    def __neg__(self) -> Any:
        return self._apply(jnp.negative)

    def __pos__(self) -> Any:
        return self._apply(jnp.positive)

    def __abs__(self) -> Any:
        return self._apply(jnp.abs, float if self.kinds == {complex} else None)

    def __invert__(self) -> Any:
        return _run("xor", self, -1)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __round__(self, ndigits: Any = None) -> Any:
        if ndigits is not None and not isinstance(ndigits, int):
            raise self.refuse("round() to a traced number of digits")
        if float not in self.kinds and (ndigits is None or ndigits >= 0):
            return self._apply(jnp.positive)
        if ndigits is None:
            return self._apply(jnp.round, int)
        scale = 10.0 ** abs(ndigits)
        return self._apply(lambda x: jnp.round(x, ndigits) if ndigits >= 0 else jnp.round(x / scale) * scale)

    def __floor__(self) -> Any:
        return self._apply(jnp.floor, int)

    def __ceil__(self) -> Any:
        return self._apply(jnp.ceil, int)

    def __trunc__(self) -> Any:
        return self.cast(int)

    def _apply(self, function: Callable[[Any], Any], kind: type | None = None) -> Any:
        """Return a function of the number, of another type or of its own; for a bool, int."""
        kinds = {int if k is bool else k for k in self.kinds} if kind is None else {kind}
        array = self.array.astype(find_dtype(kinds | self.kinds).array)
        return make_number(Value(function(array)), kinds)

    def __jax_array__(self) -> jax.Array:
        return self.array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return Number.record(getattr(ufunc, method), inputs, kwargs, f"np.{ufunc.__name__}")

    def __array_function__(self, func: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return Number.record(func, args, kwargs, f"np.{func.__name__}")

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: Any) -> Number:
        return self

    def __repr__(self) -> str:
        return f"<a traced {' or '.join(k.__name__ for k in NUMBERS if k in self.kinds)}>"


def make_number(value: Value, kinds: Iterable[type]) -> Any:
    """Return the number of a value, cast to the widest of its types; a Python number if the value is concrete."""
    kinds = frozenset(kinds)
    own = find_dtype(kinds).array
    if value.array.dtype != own:
        value = Value(value.array.astype(own))
    if is_known(value.array) and len(kinds) == 1:
        return value.array.item()
    return Number(value, kinds)


def number(array: Any, *, value: Value | None = None) -> Any:
    """Return the Python number of an array without axes, of the type that `.item()` gives."""
    array = jax.lax.stop_gradient(jnp.asarray(array))
    kind = {"b": bool, "i": int, "u": int, "c": complex}.get(np.dtype(array.dtype).kind, float)
    return make_number(value or Value(array), [kind])


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced tensor or number."""
    return type(value) is Number or (issubclass(type(value), Tensor) and not is_known(value.array))


def cast(value: Any, kind: type) -> Any:
    """Return `kind(value)` of a number."""
    return value.cast(kind) if type(value) is Number else kind(value)


def on_operands(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation with operands in place of traced numbers, merged over the values of each Either."""
    if any(type(x) is Either for x in (*args, *kwargs.values())):
        return distribute(lambda *args, **kwargs: on_operands(function, args, kwargs), args, kwargs)
    found = [x.to_operand() if type(x) is Number else x for x in (*args, *kwargs.values())]
    return function(*found[: len(args)], **dict(zip(kwargs, found[len(args) :], strict=True)))


def kinds_of(value: Any) -> frozenset[type]:
    """Return the types that a Python number, traced or concrete, may have."""
    return value.kinds if type(value) is Number else frozenset({type_of(value)})


def type_of(value: Any) -> type:
    """Return the type of a concrete number; subclasses of int count as int."""
    return next(k for k in NUMBERS if isinstance(value, k))


def _find_widest(kinds: Iterable[type]) -> type:
    return max(kinds, key=NUMBERS.index)


def find_dtype(kinds: Iterable[type]) -> dtype:
    """Return the dtype of an array that can hold numbers of all these Python types."""
    return DTYPES[_WIDE[_find_widest(kinds)]]


# ---------------------------------------------------------------------------------- operators


def _join(a: type, b: type) -> type:
    return _find_widest((a, b, int))


def _divide_whole(a: type, b: type) -> type | None:
    return None if complex in (a, b) else _join(a, b)


def _combine_bits(a: type, b: type) -> type | None:
    return _find_widest((a, b)) if {a, b} <= {bool, int} else None


def _shift(a: type, b: type) -> type | None:
    return int if {a, b} <= {bool, int} else None


def _order(a: type, b: type) -> type | None:
    return None if complex in (a, b) else bool


# Of each operator its function of arrays, and its result's type by those of its operands; None where Python raises.
_OPERATORS: dict[str, tuple[Callable[..., Any], Callable[[type, type], type | None]]] = {
    "add": (jnp.add, _join),
    "sub": (jnp.subtract, _join),
    "mul": (jnp.multiply, _join),
    "truediv": (jnp.true_divide, lambda a, b: _find_widest((a, b, float))),
    "floordiv": (jnp.floor_divide, _divide_whole),
    "mod": (jnp.mod, _divide_whole),
    "pow": (jnp.power, _join),
    "and": (jnp.bitwise_and, _combine_bits),
    "or": (jnp.bitwise_or, _combine_bits),
    "xor": (jnp.bitwise_xor, _combine_bits),
    "lshift": (jnp.left_shift, _shift),
    "rshift": (jnp.right_shift, _shift),
    "lt": (jnp.less, _order),
    "le": (jnp.less_equal, _order),
    "gt": (jnp.greater, _order),
    "ge": (jnp.greater_equal, _order),
    "eq": (jnp.equal, lambda a, b: bool),
    "ne": (jnp.not_equal, lambda a, b: bool),
}


_DIVISIONS = {"truediv", "floordiv", "mod"}


def _find_power(kinds: set[type], exponent: Any) -> set[type]:
    """Return the types of a power; an integer to a negative exponent is a float."""
    if int not in kinds:
        return kinds
    if kinds_of(exponent) <= {int} and type(exponent) is not Number:
        return kinds if exponent >= 0 else {float if k is int else k for k in kinds}
    return kinds if kinds_of(exponent) == {bool} else kinds | {float}


def _run(name: str, a: Any, b: Any) -> Any:
    """Return the result of an operator of two numbers, one of which is traced."""
    sides = (a, b)
    if any(isinstance(x, np.generic) or not isinstance(x, (Number, *NUMBERS)) for x in sides):
        return NotImplemented
    if type(b) is Number and name in _DIVISIONS:
        refuse_caught(ZeroDivisionError())
    function, find_type = _OPERATORS[name]
    found = {find_type(p, q) for p, q in product(kinds_of(a), kinds_of(b))}
    kinds = {k for k in found if k is not None}
    if len(kinds) < len(found):
        if kinds:
            raise next(x for x in sides if type(x) is Number).refuse("the type")
        return NotImplemented
    if name == "pow":
        kinds = _find_power(kinds, b)
    types = kinds if bool not in kinds else kinds_of(a) | kinds_of(b)
    own = find_dtype(types).array
    try:
        arrays = [x.array.astype(own) if type(x) is Number else jnp.asarray(x, own) for x in sides]
    except OverflowError:
        raise NotSupported(
            "a traced number and one that does not fit into 32 bits", "switch 64-bit numbers on: JAX_ENABLE_X64=1"
        ) from None
    value = Value(function(*arrays))
    value.origin = (name, *(x.value if type(x) is Number else x for x in sides))
    return make_number(value, kinds)


def _install(name: str) -> None:
    setattr(Number, f"__{name}__", lambda self, other: _run(name, self, other))
    if name not in COMPARISONS:
        setattr(Number, f"__r{name}__", lambda self, other: _run(name, other, self))
        setattr(Number, f"__i{name}__", lambda self, other: _run(name, self, other))


for _name in _OPERATORS:
    _install(_name)

jax.tree_util.register_pytree_node(
    Number, lambda x: ((x.array,), x.kinds), lambda kinds, arrays: Number(Value(arrays[0]), kinds)
)
