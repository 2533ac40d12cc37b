"""Libraries that take tensors of several frameworks: they get the arrays."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from fnjax.torch._tensor import Tensor, make
from fnjax.torch._values import compute

NAMES = frozenset({"einops"})


def bridge(module: types.ModuleType) -> types.ModuleType:
    """Return a module whose functions take and return tensors.

    Args:
        module: of one of NAMES; its functions know JAX's arrays.
    """
    made = types.ModuleType(module.__name__)
    for name, value in vars(module).items():
        is_function = isinstance(value, types.FunctionType) and not name.startswith("_")
        setattr(made, name, _on_tensors(value) if is_function else value)
    return made


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        first = [args[0]] if isinstance(args[0], Tensor) else args[0]
        tensors = [x for x in (*first, *args[1:]) if isinstance(x, Tensor)] if args else []
        if not tensors:
            return function(*args, **named)

        made: list[Any] = []

        def on_arrays(*arrays: Any) -> tuple[Any, ...]:
            given = iter(arrays)

            def enter(x: Any) -> Any:
                return next(given) if isinstance(x, Tensor) else [*map(enter, x)] if isinstance(x, (list, tuple)) else x

            found, structure = jax.tree.flatten(function(*map(enter, args), **named))
            made[:] = [structure, [None if isinstance(x, jax.Array) else x for x in found]]
            return tuple(x for x in found if isinstance(x, jax.Array))

        values = iter(compute(on_arrays, [t.value for t in tensors], function.__name__))
        structure, others = made  # shapes of einops.pack and parse_shape are no arrays

        def leave(x: Any) -> Any:
            if x is not None:
                return x
            value = next(values)
            return make(value.array, tensors[0].dtype, value=value)

        return structure.unflatten(map(leave, others))

    return call
