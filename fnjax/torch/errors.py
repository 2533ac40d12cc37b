"""Exceptions for unsupported operations; they name the operation and the line of the user's source."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_HERE = str(Path(__file__).parent.parent)
KEEP_STATIC = "keep a Python number static (jax.jit(..., static_argnums=...)), or close over it"
_FIX_SIZE = "take a size that is known and choose with a mask (torch.where), or call the function outside of jax.jit"


class NotSupported(NotImplementedError):  # noqa: N818 - a public name, as PyTorch's users know it
    """Exception for an operation of PyTorch that fnjax.torch does not support; the message has the line and a remedy.

    Attributes:
        what: the operation that is not supported.
        remedy: what to write instead.
        ends_loading: whether a file that raises it at its top level is not loaded at all.
    """

    __module__ = "fnjax.torch"
    ends_loading = False

    def __init__(self, what: str, remedy: str = "", where: str = "") -> None:
        self.what, self.remedy, where = what, remedy, where or find_line()
        lines = [what, *([f"  fix: {remedy}"] if remedy else []), *([f"  at: {where}"] if where else [])]
        super().__init__("\n".join(lines))


def list_remedies(*numbers: Any) -> str:
    """Return what to write in place of traced numbers: one that jax.jit has made of Python's is weakly typed."""
    weak = [number.weak_type for number in numbers]
    return "; ".join([KEEP_STATIC] * any(weak) + [_FIX_SIZE] * (not all(weak)))


class NoSuchNameError(NotSupported, AttributeError):
    """Exception for a name that a module of fnjax.torch does not have; loaded files see a NotSupported only."""

    __module__ = "fnjax.torch"


def find_definition(functions: Sequence[Any]) -> str:
    """Return file and line of the first function's definition, as far as they are known."""
    code = next((c for f in functions if (c := getattr(inspect.unwrap(f), "__code__", None)) is not None), None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def find_line() -> str:
    """Return file and line of the innermost frame outside of fnjax and JAX: the user's source."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_ours(file: str) -> bool:
    """Return whether a file is of fnjax, JAX or the standard library's contextlib: not the user's source."""
    inside = file.startswith((_HERE, "<")) or file == contextlib.__file__
    return inside or "/site-packages/jax" in file or "/fnjax/_" in file
