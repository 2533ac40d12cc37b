"""Registry of operators by name, and `fnjax.ops`, which looks them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fnjax.errors import UnknownOperatorError, error

OPERATORS: dict[str, Any] = {}  # name → CustomOpDef, which imports this module
WAITING: dict[str, list[Any]] = {}  # name → functions that register bodies that came before the definition


def _unknown_operator(namespace: str, name: str, known: Sequence[str]) -> UnknownOperatorError:
    """Build the error for the lookup of an undefined operator."""
    return error(
        UnknownOperatorError,
        f"'_OpNamespace' '{namespace}' object has no attribute '{name}'",
        "operator-name",
        expected=", ".join(known) or f"an operator: none of the namespace {namespace} is defined",
        fix="import the module that defines it before you look it up",
    )


class _Namespace:
    """Operators of one namespace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = OPERATORS.get(f"{self._name}::{name}")
        if found is None and any(n.startswith(f"{name}.") for n in self.__dir__()):
            return _Overloads(f"{self._name}::{name}")
        if found is None:
            raise _unknown_operator(self._name, name, self.__dir__())
        return found

    def __dir__(self) -> list[str]:
        return sorted(q.partition("::")[2] for q in OPERATORS if q.partition("::")[0] == self._name)

    def __repr__(self) -> str:
        return f"<fnjax.ops.{self._name}: {', '.join(self.__dir__())}>"


class _Overloads:
    """Name without an operator of its own, only overloads, such as `slice` of `tfl::slice.tensor`."""

    def __init__(self, qualname: str) -> None:
        self._qualname = qualname

    def __getattr__(self, name: str) -> Any:
        found = OPERATORS.get(f"{self._qualname}.{name}")
        if found is None:
            raise AttributeError(f"'{self._qualname.replace('::', '.')}' has no overload name '{name}'")
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = [op for n, op in OPERATORS.items() if n.startswith(f"{self._qualname}.")]
        if len(found) > 1:
            namespace, _, own = self._qualname.partition("::")
            raise _unknown_operator(namespace, own, sorted(n for n in OPERATORS if n.startswith(f"{self._qualname}.")))
        return found[0](*args, **kwargs)


class _Ops:
    """Lookup of namespaces by attribute."""

    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("__"):  # Python and its tools look these up on any object
            raise AttributeError(name)
        return _Namespace(name)

    def __dir__(self) -> list[str]:
        return sorted({q.partition("::")[0] for q in OPERATORS})

    def __repr__(self) -> str:
        return f"<fnjax.ops: {', '.join(self.__dir__())}>"


ops = _Ops()
"""`fnjax.ops.<namespace>.<name>`: the operators that were defined, as `torch.ops` has them."""
