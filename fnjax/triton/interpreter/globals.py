"""Objects outside of a kernel: which of them it may read, by Triton's rules, and which a cached program depends on."""

from __future__ import annotations

import enum
import os
import types as python
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from fnjax.triton.interpreter.source import Source
from fnjax.triton.values import types

FLAG = "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS"
MODULES = ("math", "copy")  # modules whose functions kernels may call, besides Triton's own
LIBRARIES = ("builtins", "numpy", "jax", "ml_dtypes", "fnjax")  # packages whose classes do not change
GLOBAL = (
    "Cannot access global variable {} from within @jit'ed function. Triton kernels can only access global variables "
    "that are instanstiated as constexpr (`x = triton.language.constexpr(42)`). Note that this is different from "
    "annotating a variable as constexpr (`x: triton.language.constexpr = 42`), which is not supported.  Alternatively, "
    f"set the envvar {FLAG}=1, but we do not promise to support this forever."
)  # verbatim from code_generator.py of Triton 3.5
_PLAIN = (bool, int, float, complex, str, bytes)


class Uncacheable(Exception):  # noqa: N818  a signal, never seen by users
    """Signal that a kernel depends on an object that can change without notice: its program must not be cached."""


def is_allowed() -> bool:
    """Return True where the environment lets kernels read any global."""
    return os.environ.get(FLAG, "").lower() in ("1", "true", "on", "yes", "y")


def read_name(source: Source, name: str) -> Any:
    """Return the value of a name outside of a function.

    Raises:
        NameError: Triton does not let kernels read it, or it does not exist.
        RuntimeError: it is a function of plain Python.
    """
    value = source.lookup(name)
    if source.is_global(name):
        _refuse_function(value)
        if not (_may_be_read(value) or is_allowed()):
            raise NameError(GLOBAL.format(name))
    return value


def read_attribute(owner: object, name: str) -> Any:
    """Return an attribute of an object outside of a kernel.

    Raises:
        AttributeError: there is none.
        RuntimeError: it is a function of plain Python in a module.
    """
    value = getattr(owner, name)
    if isinstance(owner, python.ModuleType) and owner.__name__ not in MODULES:
        _refuse_function(value)
    return value


def _may_be_read(value: object) -> bool:
    """Return True for a global that Triton lets kernels read: a module, constexpr, type, kernel, class of tuples."""
    if value is None or isinstance(value, python.ModuleType | types.constexpr | types.dtype) or _is_ours(value):
        return True
    named = isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    return named or getattr(value, "__triton_aggregate__", False)


def _is_ours(value: object) -> bool:
    """Return True for kernels, and for objects that fnjax.triton defines."""
    home = getattr(value, "__module__", None) or ""
    return isinstance(getattr(value, "source", None), Source) or home.split(".")[:2] == ["fnjax", "triton"]


def _refuse_function(value: object) -> None:
    """Raise RuntimeError for a function of plain Python."""
    is_class = isinstance(value, type | types.constexpr) or getattr(value, "__name__", "") in ("finfo", "iinfo")
    if callable(value) and not is_class and not _is_ours(value):  # torch.finfo is a class of PyTorch's
        raise RuntimeError(
            f"Unsupported function referenced: {value}: kernels call functions under @triton.jit, of triton.language "
            "and of math; compute what a function of plain Python returns before the launch, and pass it"
        )


def dependencies(source: Source) -> Hashable:
    """Return the objects outside of a kernel that its program depends on, as a hashable object.

    Raises:
        Uncacheable: some of them can change without being replaced.
    """
    return is_allowed(), _of_source(source, set())


def _of_source(source: Source, seen: set[Source]) -> Hashable:
    """Return a kernel with the objects that it and its helpers depend on, as a hashable object."""
    if source in seen:
        return source
    seen.add(source)
    found = [frozen(p.default, seen) for p in source.signature.parameters.values() if p.default is not p.empty]
    for name, chains in source.outside.items():
        try:
            value = source.lookup(name)
        except (NameError, ValueError):
            value = None  # in a branch that is not taken
        found += [value] if _is_fixed(value) else [_at_the_end(value, chain, seen) for chain in chains]
    return source, *found


def _at_the_end(value: Any, attributes: Iterable[str], seen: set[Source]) -> Hashable:
    """Return the value after a chain of attributes, followed through modules and classes only.

    An attribute of any other object is determined by that object, which then is the dependency.
    """
    for attribute in attributes:
        if _is_fixed(value) or not isinstance(value, python.ModuleType | type):
            break
        try:
            value = getattr(value, attribute)
        except AttributeError:
            return None  # in a branch that is not taken
    return value if _is_fixed(value) else frozen(value, seen)


def _is_fixed(value: object) -> bool:
    """Return True for modules whose content does not change."""
    return isinstance(value, python.ModuleType) and (
        value.__name__ in MODULES or value.__name__.split(".")[:2] == ["fnjax", "triton"]
    )


def frozen(value: Any, seen: set[Source] | None = None) -> Hashable:
    """Return a hashable object that is equal for values that a kernel cannot tell apart.

    Args:
        value: a value that a kernel reads, or that is given as a constexpr.
        seen: kernels that have been looked at.

    Raises:
        Uncacheable: the value can change without being replaced.
    """
    if isinstance(value, python.ModuleType):
        raise Uncacheable
    if isinstance(value, types.constexpr):
        return types.constexpr, frozen(value.value, seen)
    if type(value) in _PLAIN:
        return type(value), repr(value)  # -0.0 is not 0.0, and 1 is not True
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    if isinstance(value, tuple):
        return type(value), *(frozen(item, seen) for item in value)
    if isinstance(getattr(value, "source", None), Source):
        return value, _of_source(value.source, set() if seen is None else seen)
    immutable = types.dtype | types.pointer_type | np.dtype | enum.Enum | python.BuiltinFunctionType
    if value is None or isinstance(value, immutable) or (isinstance(value, python.FunctionType) and _is_ours(value)):
        return value
    if isinstance(value, type) and value.__module__.split(".")[0] in LIBRARIES:
        return value
    raise Uncacheable
