"""Calls of a class: the arguments, how their arrays are drawn, and their text, which can be pasted."""

from __future__ import annotations

import ast
import builtins
import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from fnjax._check.streams import make_stream
from fnjax._cli.call import arguments, make_names
from fnjax.port.compare.values import Inputs, Made

# How the entries of an array are drawn.
KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "positive": lambda rng, shape: rng.uniform(0.2, 2.0, shape),
    "negative": lambda rng, shape: -rng.uniform(0.2, 2.0, shape),
    "unit": lambda rng, shape: rng.uniform(0.02, 0.98, shape),
    "wide": lambda rng, shape: 4 * rng.normal(size=shape),
    "whole": lambda rng, shape: rng.integers(-2, 3, shape) * 1.0,
    "halves": lambda rng, shape: np.resize(rng.permutation(np.arange(-5, 6) / 2), shape),  # ties of rounding
    "marks": lambda rng, shape: rng.integers(0, 2, shape) * 1.0,
    "mask": lambda rng, shape: rng.random(shape) > 0.4,
    "definite": lambda rng, shape: _make_definite(rng.normal(size=shape)),
    "order": lambda rng, shape: rng.permuted(np.broadcast_to(np.arange((shape or (1,))[-1]), shape or (1,)), axis=-1),
    "complex": lambda rng, shape: rng.normal(size=shape) + 1j * rng.normal(size=shape),
}
REAL = {"normal", "positive", "negative", "unit", "wide", "whole", "marks", "definite"}


def _make_definite(drawn: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return symmetric and positive definite matrices, if these are square."""
    if drawn.ndim < 2 or drawn.shape[-1] != drawn.shape[-2]:
        return drawn
    return np.asarray(drawn @ drawn.swapaxes(-1, -2) + drawn.shape[-1] * np.eye(drawn.shape[-1]))


@dataclass(frozen=True, slots=True)
class Array:
    """An array to be drawn.

    Attributes:
        shape: its shape.
        kind: one of KINDS, `index` for integers from 0 on, `at` for members of `around`, or `near` for either side.
        high: where an index ends.
        around: numbers at which results may change.
    """

    shape: tuple[int, ...]
    kind: str = "normal"
    high: int = 0
    around: tuple[float, ...] = ()

    def draw_entries(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Draw the elements of the array."""
        if self.kind == "index":
            return np.asarray(rng.integers(0, max(self.high, 1), self.shape))
        if self.around:
            sides = (0,) if self.kind == "at" else (-1, 1)
            each = rng.permutation([(n, side * min(abs(n) or 1, 1)) for n in self.around for side in sides])
            values, steps = (np.resize(column, self.shape) for column in each.T)
            return np.asarray(values + steps * rng.uniform(0.05, 0.5, self.shape))
        return np.asarray(KINDS[self.kind](rng, self.shape))


class SimpleNamespace(types.SimpleNamespace):
    """An object with attributes, whose repr can be read by `--args`."""


# What `--args` knows next to NumPy's and torch, so that any call can be written down.
KNOWN = make_names(0).keys()
NAMES = {"SimpleNamespace": SimpleNamespace, "inf": np.inf, "nan": np.nan}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Arguments of original and port.

    Attributes:
        args: arrays as NumPy arrays, anything else as it is.
        argnums: which of them are differentiated; None for all that can be.
        seed: for the cotangents.
        recipe: what the arguments were drawn from, if they were.
    """

    args: tuple[Any, ...]
    argnums: tuple[int, ...] | None = None
    seed: int = 0
    recipe: tuple[Any, ...] = ()

    @property
    def static(self) -> str:
        """The arguments that are not arrays, and the shapes' ranks and axes of size 1."""
        return repr([(a.kind, *(n == 1 for n in a.shape)) if isinstance(a, Array) else a for a in self.recipe])

    def make_inputs(self, dtype: str) -> Inputs:
        """Return the inputs of original and port, in a precision."""
        return Inputs(self.args, argnums=self.argnums, seed=self.seed).cast(dtype)

    def write_arguments(self) -> str:
        """Return the arguments as `--args` takes them."""
        return ", ".join(_write_value(a) for a in self.args)


def draw_call(recipe: Sequence[Any], seed: int, argnums: tuple[int, ...] | None = None) -> Call:
    """Return a call whose arrays are drawn."""
    rng = make_stream("arguments", seed)
    return Call(tuple(_draw_part(r, rng) for r in recipe), argnums, seed, tuple(recipe))


def _draw_part(part: Any, rng: np.random.Generator) -> Any:
    if isinstance(part, Array):
        return part.draw_entries(rng)
    return type(part)(_draw_part(p, rng) for p in part) if type(part) in {list, tuple} else part


def read_arguments(
    text: str, kwargs: str, seed: int, more: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the values of `--args` and `--kwargs`; functions, and objects of torch or of the file, as `Made`.

    Args:
        text: the text of `--args`.
        kwargs: the text of `--kwargs`.
        seed: the seed of random arrays.
        more: further names that the texts may use.

    Raises:
        UsageError: if they cannot be evaluated.
    """
    names: dict[str, Any] = {**NAMES, **more}
    with contextlib.suppress(SyntaxError):  # which `arguments` reports
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        for i, arg in enumerate(call.args):
            if _is_made(arg, names.keys()) and not isinstance(arg, ast.Starred):
                names[f"made_{i}"], call.args[i] = Made(ast.unparse(arg)), ast.Name(f"made_{i}")
        text = ", ".join(map(ast.unparse, [*call.args, *call.keywords]))
    return arguments(text, kwargs, seed, names)


def _is_made(arg: ast.expr, names: AbstractSet[str]) -> bool:
    """Return whether an argument has functions, calls of torch, or names of the file."""
    nodes = [*ast.walk(arg)]
    called = any(isinstance(n, ast.Call) and ast.unparse(n.func).startswith("torch.") for n in nodes)
    read = {n.id for n in nodes if isinstance(n, ast.Name)}
    called |= "SimpleNamespace" in read and not read & KNOWN  # an object that one side may change
    return (
        called or any(isinstance(n, ast.Lambda) for n in nodes) or not read <= names | KNOWN | builtins.__dict__.keys()
    )


def make_recipe(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return a recipe from which arguments like these can be drawn."""
    return tuple(_make_part(a) for a in args)


def _make_part(value: Any) -> Any:
    if type(value) in {list, tuple}:
        return type(value)(_make_part(v) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "b":
        return Array(value.shape, "mask")
    if value.dtype.kind in "iu":
        return Array(value.shape, "index", int(value.max(initial=0)) + 1)
    if value.dtype.kind == "c":
        return Array(value.shape, "complex")
    small = value.size and value.min() >= 0
    return Array(value.shape, ("unit" if value.max() <= 1 else "positive") if small else "normal")


def _write_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":  # the shortest digits of float32, which both sides are given
            short = [float(str(np.float32(v))) for v in value.ravel()]
            value = np.array(short).reshape(value.shape)
        return f"array({value.tolist()})" if value.size else f"np.zeros({value.shape}, '{value.dtype}')"
    if type(value) is list:
        return f"[{', '.join(map(_write_value, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_write_value, value))}{',' * (len(value) == 1)})"
    return repr(value)
