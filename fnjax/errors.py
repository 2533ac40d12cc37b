"""Exceptions of fnjax, and the builder of their messages.

    FnjaxError
    ├── ArgumentError        (TypeError)            an argument of `apply` or of a method of ctx
    ├── OutputError          (TypeError)            an output of `forward`
    ├── GradientError        (RuntimeError)         gradients of `backward`, tangents of `jvp`
    ├── ContextError         (RuntimeError)         the use of ctx
    ├── DefinitionError      (RuntimeError)         the definition of the class
    ├── MissingMethodError   (NotImplementedError)  a missing method that the call needs
    ├── BatchingError        (RuntimeError)         a `vmap` method, or its result
    ├── OnceDifferentiableError (RuntimeError)      a second derivative that is excluded
    ├── ClosureError         (RuntimeError)         a closed-over array that is being differentiated
    ├── IntermediateError    (RuntimeError)         a saved value without a second derivative
    ├── SchemaError          (ValueError)           the declaration of a custom operator
    ├── OperatorError        (RuntimeError)         the call of a custom operator, or its result
    ├── AxisError            (ValueError)           a mesh axis of a ported Function
    └── UnknownOperatorError (AttributeError)       a custom operator that is not defined

Each is also an instance of the exception that PyTorch raises in that case, so `except RuntimeError` written for
PyTorch still works.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = [
    "ArgumentError",
    "AxisError",
    "BatchingError",
    "ClosureError",
    "ContextError",
    "DefinitionError",
    "FnjaxError",
    "GradientError",
    "IntermediateError",
    "MissingMethodError",
    "OnceDifferentiableError",
    "OperatorError",
    "OutputError",
    "SchemaError",
    "UnknownOperatorError",
]

EXPLAIN = "fnjax explain"  # the command that prints the entry of an error on docs/errors.md and the pages below


class FnjaxError(Exception):
    """Base class of all exceptions that fnjax raises itself."""


class ArgumentError(FnjaxError, TypeError):
    """Error in an argument of `apply` or of a method of ctx."""


class OutputError(FnjaxError, TypeError):
    """Error in an output of `forward`."""


class GradientError(FnjaxError, RuntimeError):
    """Error in the gradients of `backward` or the tangents of `jvp`."""


class ContextError(FnjaxError, RuntimeError):
    """Error in the use of ctx."""


class DefinitionError(FnjaxError, RuntimeError):
    """Error in the definition of a class."""


class MissingMethodError(FnjaxError, NotImplementedError):
    """Error for a missing method that a call needs."""


class BatchingError(FnjaxError, RuntimeError):
    """Error in a `vmap` static method, or in its result."""


class OnceDifferentiableError(FnjaxError, RuntimeError):
    """Error for the derivative of a `backward` that is marked with `once_differentiable`."""


class ClosureError(FnjaxError, RuntimeError):
    """Error for the derivative of an array over which `forward` or `backward` closes."""


class IntermediateError(FnjaxError, RuntimeError):
    """Error for the second derivative of a saved intermediate that JAX cannot differentiate."""


class SchemaError(FnjaxError, ValueError):
    """Error in the declaration of a custom operator."""


class OperatorError(FnjaxError, RuntimeError):
    """Error in a call or a result of a custom operator, by its schema, or a missing registration."""


class AxisError(FnjaxError, ValueError):
    """Error for a mesh axis that is missing, or whose size does not divide an array."""

    method = ""  # the user's method that raised it, such as "Copy.backward"


class UnknownOperatorError(FnjaxError, AttributeError):
    """Error for the lookup of an undefined operator in `fnjax.ops`."""


ErrorT = TypeVar("ErrorT", bound=Exception)


def message(head: str, see: str, *, expected: str = "", got: str = "", fix: str = "") -> str:
    """Return the text of an error: the fault, the expected and the received value, the fix, and where to read more."""
    lines = [head]
    lines += [f"  {label}: {text}" for label, text in (("expected", expected), ("got", got), ("fix", fix)) if text]
    lines.append(f"  see: {see}")
    return "\n".join(lines)


def error(
    kind: type[ErrorT],
    head: str,
    anchor: str,
    *,
    method: Callable[..., Any] | None = None,
    expected: str = "",
    got: str = "",
    fix: str = "",
) -> ErrorT:
    """Build (not raise) the exception `kind`, with a note on where the user's `method` is defined."""
    exception = kind(message(head, f"{EXPLAIN} {anchor}", expected=expected, got=got, fix=fix))
    if method is not None:
        exception.add_note(location(method))
    return exception


def warn(text: str) -> None:
    """Warn, at the line that called into fnjax and JAX."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


_LIBRARIES = {"fnjax", "jax", "jaxlib", "contextlib", "functools"}


def location(method: Callable[..., Any]) -> str:
    """Return file and line of a user's method: `Square.backward is defined in square.py, line 12`."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    if code is None:
        return f"{name} is defined in an unknown file"
    return f"{name} is defined in {code.co_filename}, line {code.co_firstlineno}"


def type_name(value: object) -> str:
    """Return the name of a value's type as in PyTorch's messages: `int`, `list`, `array` for JAX's own kinds."""
    return "array" if hasattr(value, "aval") else type(value).__name__


def describe(value: object) -> str:
    """Return a short description of a value: an array by shape and dtype, else the type and the start of its repr."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type_name(value)} of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"{type_name(value)} of {len(value)}"
    return f"{type_name(value)} {value!r:.80}"
