"""Inputs and results of original and port, as NumPy arrays."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Values = list[Any]  # NumPy arrays, and None for what has no cotangent


@dataclass(frozen=True, slots=True)
class Results:
    """Results of original or port.

    Attributes:
        outputs: the arrays that it returns.
        gradients: those of the differentiated arguments.
        seconds: their second derivatives.
        error: the exception that was raised at the first step that is missing.
        constant: what of these PyTorch does not differentiate, by name.
    """

    outputs: Values
    gradients: Values
    seconds: Values
    error: Exception | None = None
    constant: tuple[str, ...] = ()

    def label_steps(self, selected: Sequence[int]) -> list[tuple[Values, list[str]]]:
        """Return outputs, gradients and second derivatives, with a label for each array.

        Args:
            selected: the indices of the differentiated arguments.
        """
        names = [f"argument {i}" for i in selected]
        vectors = [f"the cotangent of output {i}" for i, o in enumerate(self.outputs) if o.dtype.kind in "fcV"]
        return [
            (self.outputs, [f"output {i}" for i in range(len(self.outputs))]),
            (self.gradients, [f"gradient of {n}" for n in names]),
            (self.seconds, [f"second derivative of {n}" for n in names + vectors]),
        ]


class Made:
    """Argument that either side makes of its own torch, such as a function, a module or an object of the file.

    Args:
        text: an expression, with the names of the file, `torch` and `SimpleNamespace`.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def make_value(self, torch: Any, owner: Any) -> Any:
        """Return the value; parameters of modules are drawn, the same with each torch.

        Args:
            torch: PyTorch or fnjax.torch.
            owner: a class or function of the file, as that was executed with this torch.
        """
        module = sys.modules.get(getattr(owner, "__module__", ""))
        names = {n.id for n in ast.walk(ast.parse(self.text)) if isinstance(n, ast.Name)}
        own = {name: getattr(module, name) for name in names if hasattr(module, name)}
        value = eval(self.text, {"torch": torch, "SimpleNamespace": types.SimpleNamespace, **own})
        draw = np.random.default_rng(7)
        for part in flatten(value):
            for parameter in part.parameters() if isinstance(part, torch.nn.Module) else ():
                drawn = draw.uniform(-0.5, 0.5, tuple(parameter.shape))
                with torch.no_grad():
                    parameter.copy_(torch.tensor(drawn, dtype=parameter.dtype))
        return value


def make_values(function: Callable[..., Any], torch: Any, owner: Any) -> Callable[..., Any]:
    """Return a function whose arguments are made of a torch and the file of a class, where they are `Made`."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return function(*(a.make_value(torch, owner) if isinstance(a, Made) else a for a in args), **kwargs)

    with contextlib.suppress(AttributeError):
        apply.__self__ = function.__self__  # type: ignore[attr-defined] # of apply: the class
    return apply


def cast_arrays(value: Any, dtype: str) -> Any:
    """Return an array in a precision; lists and tuples by their members, anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(cast_arrays(v, dtype) for v in value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.asarray(value, dtype)
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return value.astype("complex64" if dtype == "float32" else "complex128")
    return value


def flatten(value: Any) -> list[Any]:
    """Return the members of tuples and lists, however deep."""
    return [v for part in value for v in flatten(part)] if isinstance(value, (tuple, list)) else [value]


def add_written(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """Return a function whose results are followed by the arguments at these indices, which it writes to."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return (*flatten(found), *(args[i].detach() if hasattr(args[i], "detach") else None for i in places))

    return apply


def is_inexact(value: Any) -> bool:
    """Return whether this is an array that can be differentiated."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


@dataclass(frozen=True)
class Inputs:
    """Inputs of original and port.

    Attributes:
        args: the arguments, arrays as NumPy arrays.
        kwargs: keyword arguments.
        argnums: which arguments are differentiated; None for all that can be.
        seed: for the cotangents and other random numbers.
        dtype: of floating point numbers, and PyTorch's default.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    argnums: Sequence[int] | None = None
    seed: int = 0
    dtype: str = "float32"

    @property
    def selected(self) -> list[int]:
        """The indices of the arguments that are differentiated."""
        return [i for i, a in enumerate(self.args) if is_inexact(a) and (self.argnums is None or i in self.argnums)]

    def cast(self, dtype: str) -> Inputs:
        """Return the inputs in a precision."""
        return replace(self, args=[cast_arrays(a, dtype) for a in self.args], dtype=dtype)


def draw_like(like: np.ndarray[Any, Any], draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw random numbers of the same shape and dtype."""
    values = draw.normal(size=like.shape)
    if like.dtype.kind == "c":
        values = values + 1j * draw.normal(size=like.shape)
    narrow = like.dtype.kind == "V" or like.dtype.itemsize < 4  # both sides round these by themselves
    return np.asarray(values, np.float32 if narrow else like.dtype)
