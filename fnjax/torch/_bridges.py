"""Libraries that take tensors of several frameworks: they get the arrays."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

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

        def on_arrays(*arrays: Any) -> tuple[Any, ...]:
            given = iter(arrays)

            def enter(x: Any) -> Any:
                return next(given) if isinstance(x, Tensor) else [*map(enter, x)] if isinstance(x, (list, tuple)) else x

            found = function(*map(enter, args), **named)
            return (found,) if not isinstance(found, tuple) else found

        if function.__name__ == "parse_shape":  # numbers, no tensor
            return function(*(a.array if isinstance(a, Tensor) else a for a in args), **named)
        results = [
            make(v.array, tensors[0].dtype, value=v)
            for v in compute(on_arrays, [t.value for t in tensors], function.__name__)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return call
