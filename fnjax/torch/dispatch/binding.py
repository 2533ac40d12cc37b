"""Binding the arguments of a call to a line of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fnjax._torch_ops import MISSING, Operation, Overload
from fnjax._torch_ops.signature import bind_arguments, read_literal_text
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.errors import NotSupported, list_remedies
from fnjax.torch.memory.dtypes import as_number, dtype, type_of_number
from fnjax.torch.memory.layout import Size
from fnjax.torch.memory.tensor import Tensor, is_known


def list_members(values: Iterable[Any]) -> list[Any]:
    """Return arguments, with lists and tuples replaced by their members."""
    return [x for v in values for x in (v if isinstance(v, (list, tuple)) else (v,))]


class BoundCall:
    """Call with its arguments bound to parameters; implements `_torch_ops.record.Call` for the table's functions."""

    differentiated, rounding, unpacked = True, True, None

    def __init__(self, operation: Operation, overload: Overload, values: Mapping[str, Any]) -> None:
        self.operation, self.overload, self.values = operation, overload, values

    def _get(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        default = next((p.default for p in self.overload.parameters if p.name == name), None)
        return None if default is None else read_literal_text(default)

    def is_passed(self, name: str) -> bool:
        """Return whether the call passes a parameter."""
        return name in self.values

    def is_given(self, name: str) -> bool:
        """Return whether the call passes another value for a parameter than its default."""
        if name not in self.values:
            return False
        default = next(p.default for p in self.overload.parameters if p.name == name)
        value = self.values[name]
        if default is None or isinstance(value, Tensor):
            return True
        known = read_literal_text(default)
        return type(value) is not type(known) or value != known

    def read_literal(self, name: str) -> Any:
        """Return the value of a parameter; MISSING for a tensor."""
        value = self._get(name)
        return MISSING if isinstance(value, Tensor) or callable(value) else value

    def find_kind(self, name: str) -> str:
        """Return `tensor` or `static`."""
        return "tensor" if _is_tensor(self._get(name)) else "static"

    def is_surely_tensor(self, name: str) -> bool:
        """Return whether an argument is a tensor."""
        return isinstance(self._get(name), Tensor)

    def may_be_none(self, name: str) -> bool:
        """Return whether an argument is None."""
        return self._get(name) is None

    def find_dtype(self, name: str) -> str:
        """Return the class of an argument's dtype."""
        value = self._get(name)
        if isinstance(value, Tensor):
            return value.dtype.kind
        return type_of_number(value).__name__ if isinstance(value, (bool, int, float, complex)) else "unknown"

    def find_rank(self, name: str) -> int | None:
        """Return the number of dimensions of an argument."""
        value = self._get(name)
        return value.ndim if isinstance(value, Tensor) else None

    def find_role(self, name: str) -> str:
        """Return the kind of a Python value passed for a parameter: `dtype`, `size`, `int`, ...; "" for others."""
        value = self._get(name)
        if isinstance(value, dtype) or (isinstance(value, type) and value in {bool, int, float, complex}):
            return "dtype"
        kinds: tuple[tuple[Any, str], ...] = ((str, "device"), (Size, "size"), (tuple, "tuple"), (list, "list"))
        found = next((role for kind, role in kinds if isinstance(value, kind)), "")
        return found or ("int" if type(value) is int else "device" if type(value).__name__ == "device" else "")

    def find_named_dtype(self, name: str) -> str:
        """Return torch's name of a dtype."""
        value = self._get(name)
        return value.name if isinstance(value, dtype) else ""

    def is_variable(self, name: str) -> bool:
        """Return True: arguments are evaluated once."""
        return True

    def have_same_shape(self, name: str, other: str) -> bool:
        """Return whether two tensors have the same shape."""
        a, b = self._get(name), self._get(other)
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape

    def list_section_starts(self, name: str) -> list[str]:
        """Return []: the support function computes the starts."""
        return []

    def is_positive(self, name: str) -> bool:
        """Return whether no size in an argument is negative, as expand's -1 is."""
        sizes = self._get(name)
        return all(s >= 0 for s in (sizes if isinstance(sizes, (tuple, list)) else [sizes]))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(isinstance(x, Tensor) for x in value))


def bind(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Return the arguments bound to the first signature that accepts them.

    Raises:
        TypeError: no signature accepts them.
    """
    wrong = ""
    args, kwargs = [as_number(a) for a in args], {k: as_number(v) for k, v in kwargs.items()}
    for overload in operation.overloads:
        found = bind_arguments(overload.parameters, args, kwargs.items(), _gather, _find_kind, _as_sizes)
        if not isinstance(found, str):
            return BoundCall(operation, overload, found)
        wrong = found
    raise TypeError(f"{spell(operation.names[0])}() {wrong}")


def _gather(name: str, values: list[Any]) -> Any:
    """Return the value of a variadic parameter: the one sequence, or a tuple of all arguments."""
    one = len(values) == 1 and (name == "data" or not isinstance(values[0], Tensor))
    return values[0] if one else tuple(values)


def _find_kind(value: Any) -> str:
    return "tensor" if isinstance(value, Tensor) else "static"


def _as_sizes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_as_sizes(v) for v in value)
    if isinstance(value, Deferred):
        raise value.refuse("a size, or an axis, by it")
    if isinstance(value, Tensor) and value.dtype.kind == "int" and not value.ndim:
        if not is_known(value.array):
            raise NotSupported("a size, or an axis, that is a traced number", list_remedies(value.array))
        return int(value.array)
    return int(value) if isinstance(value, np.integer) else value


def spell(name: str) -> str:
    """Return the last part of a qualified name."""
    return name.rpartition(".")[2]
