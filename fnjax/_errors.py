"""Exceptions, and the one builder that makes their messages.

    FnjaxError
    ├── ArgumentError        (TypeError)            what `apply` or a ctx method was given
    ├── OutputError          (TypeError)            what `forward` returned
    ├── GradientError        (RuntimeError)         what `backward` returned
    ├── ContextError         (RuntimeError)         how ctx was used
    ├── DefinitionError      (RuntimeError)         how the class is written
    ├── MissingMethodError   (NotImplementedError)  a method that the call needs is not there
    ├── BatchingError        (RuntimeError)         what a `vmap` method returned
    ├── OnceDifferentiableError (RuntimeError)      a second derivative that was ruled out
    ├── ClosureError         (RuntimeError)         a captured array is being differentiated
    ├── IntermediateError    (RuntimeError)         a saved value without a second derivative
    ├── SchemaError          (ValueError)           how a custom operator is declared
    ├── OperatorError        (RuntimeError)         how a custom operator was called, or what it returned
    └── UnknownOperatorError (AttributeError)       a custom operator that was not defined

Each is also an instance of the exception that PyTorch raises in its place, so `except RuntimeError` written for
PyTorch goes on working.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

ERRORS_PAGE = "docs/errors.md"


class FnjaxError(Exception):
    """Base of all exceptions that fnjax raises on its own account."""


class ArgumentError(FnjaxError, TypeError):
    """`apply`, or a method of ctx, was called with something it cannot take."""


class OutputError(FnjaxError, TypeError):
    """`forward` returned something that cannot be an output."""


class GradientError(FnjaxError, RuntimeError):
    """`backward` returned gradients that do not fit the arguments of `forward`."""


class ContextError(FnjaxError, RuntimeError):
    """ctx was used in a way that has no meaning."""


class DefinitionError(FnjaxError, RuntimeError):
    """The class cannot work as it is written."""


class MissingMethodError(FnjaxError, NotImplementedError):
    """A method that the call needs was not written."""


class BatchingError(FnjaxError, RuntimeError):
    """A `vmap` static method cannot be used as it is."""


class OnceDifferentiableError(FnjaxError, RuntimeError):
    """A `backward` marked with `once_differentiable` was differentiated."""


class ClosureError(FnjaxError, RuntimeError):
    """An array that `forward` or `backward` captured from outside is being differentiated."""


class IntermediateError(FnjaxError, RuntimeError):
    """A saved intermediate has no derivative of its own, and a second derivative needs it."""


class SchemaError(FnjaxError, ValueError):
    """A custom operator cannot be declared so."""


class OperatorError(FnjaxError, RuntimeError):
    """A custom operator was called with what its schema refuses, returned so, or lacks a registration."""


class AxisError(FnjaxError, ValueError):
    """A ported Function asks for a mesh axis that is not there, or for parts that the axis size does not divide."""

    method = ""  # the one that it came from, such as "Copy.backward"


class UnknownOperatorError(FnjaxError, AttributeError):
    """`fnjax.ops` has no such operator."""


for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, FnjaxError):
        _error.__module__ = "fnjax"  # tracebacks show the public name

ErrorT = TypeVar("ErrorT", bound=Exception)


def message(head: str, see: str, *, expected: str = "", got: str = "", fix: str = "") -> str:
    """The text of an error: what is wrong, what was due, what came, the way out, where to read more."""
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
    """Build (not raise) the exception `kind`, with a note that says where the user's `method` stands."""
    exception = kind(message(head, f"{ERRORS_PAGE}#{anchor}", expected=expected, got=got, fix=fix))
    if method is not None:
        exception.add_note(location(method))
    return exception


def warn(text: str) -> None:
    """Warn, at the line of whoever called into fnjax and JAX."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


_LIBRARIES = {"fnjax", "jax", "jaxlib", "contextlib", "functools"}


def location(method: Callable[..., Any]) -> str:
    """File and line of a user's method: `Square.backward is defined in square.py, line 12`."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    if code is None:
        return f"{name} is defined in an unknown file"
    return f"{name} is defined in {code.co_filename}, line {code.co_firstlineno}"


def type_name(value: object) -> str:
    """The name of a value's type as PyTorch's messages write it: `int`, `list`, `array` for JAX's own kinds."""
    return "array" if hasattr(value, "aval") else type(value).__name__


def describe(value: object) -> str:
    """What came, in a few words: an array by shape and dtype, anything else by type and the start of its repr."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type_name(value)} of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"{type_name(value)} of {len(value)}"
    return f"{type_name(value)} {value!r:.80}"
