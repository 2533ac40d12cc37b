"""Errors of the operators and functions of a kernel, in words."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from fnjax.triton.values.pointers import AnyPointer
from fnjax.triton.values.tensor import Tensor


def name_kind(value: object) -> str:
    """Return what a value of a kernel is called in a message."""
    return "value" if isinstance(value, Tensor) else type(value).__name__


def operand_error(op: ast.operator | ast.cmpop | ast.unaryop, a: object, b: object, error: Exception) -> Exception:
    """Return the error for two operands that an operator does not take."""
    for x in (a, b):
        if not isinstance(x, Tensor | AnyPointer | bool | int | float | np.number):
            what = "None" if x is None else f"a {type(x).__name__}"
            return TypeError(f"{what} is used as a pointer or a number: pass an array, or a number")
    if isinstance(b, AnyPointer) or (isinstance(a, AnyPointer) and not isinstance(op, ast.Add | ast.Sub)):
        return TypeError("an array is used as a number: pass a number or an array without axes, or load from it")
    return TypeError(f"{error} ({a!r} {type(op).__name__} {b!r})")


def argument_error(node: ast.Call, function: Any, args: Sequence[object], error: Exception) -> Exception:
    """Return the error for a function of the language whose arguments do not fit: it fails on its way, or in JAX."""
    inside = list(traceback.walk_tb(error.__traceback__))[-1][0].f_globals.get("__name__", "").startswith("fnjax.")
    is_named = inside and getattr(error, "name", None) is None  # that of an attribute which an argument lacks
    if is_named or not str(getattr(function, "__module__", "")).startswith("fnjax.triton."):
        return error
    given = ", ".join(repr(arg)[:40] for arg in args)
    return TypeError(f"{ast.unparse(node.func)} does not take ({given}){'' if inside else f': {error}'}")
