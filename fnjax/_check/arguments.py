"""Arguments of a function under test: the arrays to differentiate, and their names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr

from fnjax._primitives.tree import Split, is_inexact, is_tensor, leaves_with_path, split, to_tensor


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Array among the inputs or outputs.

    Attributes:
        position: the index of the input or output.
        name: its name in messages: `input 0 ('x')`.
        shape: its shape.
        dtype: its dtype.
        parts: the indices of its parts: one, or the real and the imaginary one.
    """

    position: int
    name: str
    shape: tuple[int, ...]
    dtype: Any
    parts: tuple[int, ...]

    @property
    def is_complex(self) -> bool:
        """True if its numbers are complex: it then has a real and an imaginary part."""
        return len(self.parts) == 2


class Selection:
    """Arrays to be differentiated among the arguments of a function.

    Attributes:
        args: the arguments, tensors as JAX arrays.
        arrays: the arrays.
    """

    def __init__(self, args: Sequence[Any], selected: Sequence[int]) -> None:
        self.args = [to_tensor(x) if is_tensor(x) else x for x in args]
        self.arrays: list[Any] = []
        self._leaves: list[tuple[int, str]] = []
        self._splits: list[tuple[int, int, Split | None]] = []  # argument, index of its first array, its structure
        for i in selected:
            arg, start = self.args[i], len(self.arrays)
            if is_tensor(arg):
                self.arrays.append(arg)
                self._leaves.append((i, ""))
                self._splits.append((i, start, None))
            else:
                arrays, rest = split(arg, is_differentiable)
                self.arrays += map(to_tensor, arrays)
                self._leaves += [(i, keystr(path)) for path, leaf in leaves_with_path(arg) if is_differentiable(leaf)]
                self._splits.append((i, start, rest))

    def leaves(self) -> Iterator[tuple[Any, int, str]]:
        """Yield for each array the array, its argument, and its path in that."""
        return ((array, *leaf) for array, leaf in zip(self.arrays, self._leaves, strict=True))

    def fill(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arguments with other arrays."""
        args = list(self.args)
        for i, start, rest in self._splits:
            args[i] = arrays[start] if rest is None else rest.fill(arrays[start:])
        return args


def transfer(args: Sequence[Any]) -> list[Any]:
    """Return arguments with NumPy arrays on the device; `jnp.asarray` would compile a program for each type."""
    return [jax.device_put(x) if type(x) is np.ndarray and is_inexact(x) else x for x in args]


def is_differentiable(x: Any) -> bool:
    """Return whether a value is an array of floating point or complex numbers."""
    return is_tensor(x) and is_inexact(x if hasattr(x, "dtype") else to_tensor(x))


def name_arguments(func: Callable[..., Any], count: int) -> list[str | None]:
    """Return the names of the positional parameters; None for those without one."""
    known = getattr(func, "argument_names", None)
    if isinstance(known, list) and len(known) >= count:
        return known[:count]
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return [None] * count
    names: list[str | None] = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None)
    while len(names) < count:
        names.append(f"{rest}[{len(names) - sum(n is not None and '[' not in n for n in names)}]" if rest else None)
    return names[:count]
