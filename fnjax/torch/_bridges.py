"""Libraries in loaded files: those of several frameworks get arrays, calls of NumPy and SciPy are recorded (_host)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch._host import is_traced, record
from fnjax.torch._recording import HostValue
from fnjax.torch._samples import list_leaves, map_leaves
from fnjax.torch._tensor import Tensor, make
from fnjax.torch._values import compute

HOSTS = frozenset({"numpy", "scipy"})
NAMES = frozenset({"einops", *HOSTS})
# Arrays that what is traced may be written into.
_FRESH = frozenset({"zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like"})


def bridge(module: types.ModuleType) -> types.ModuleType:
    """Return a module whose functions take and return tensors.

    Args:
        module: of one of NAMES; its functions know JAX's arrays.
    """
    if module.__name__.partition(".")[0] in HOSTS:
        return HostModule(module)
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


class HostFunction:
    """Function of NumPy or SciPy that records its calls with traced values."""

    def __init__(self, function: Any, name: str) -> None:
        vars(self).update(_function=function, _name=name, __wrapped__=function, __doc__=function.__doc__)
        self.__name__ = name.rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = vars(self)["_function"]
        given = list_leaves((args, kwargs))
        if not any(map(is_traced, given)):
            if not (self.__name__ in _FRESH and is_transformed()):
                return function(*args, **kwargs)
            return record(function, args, kwargs, vars(self)["_name"])  # what is traced may be written into it
        found = record(function, args, kwargs, vars(self)["_name"])
        if isinstance(function, np.ufunc) and any(isinstance(x, Tensor) for x in given):
            return map_leaves(lambda x: x.to_tensor() if isinstance(x, HostValue) else x, found)
        return found

    def __getattr__(self, name: str) -> Any:
        return _on_host(getattr(vars(self)["_function"], name), f"{vars(self)['_name']}.{name}")

    def __repr__(self) -> str:
        return repr(vars(self)["_function"])


def _on_host(value: Any, name: str) -> Any:
    if isinstance(value, types.ModuleType):
        return HostModule(value) if value.__name__.partition(".")[0] in HOSTS else value
    return HostFunction(value, name) if callable(value) and not isinstance(value, type) else value


class HostModule(types.ModuleType):
    """NumPy or SciPy in a loaded file: their functions record calls with traced values."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self)["_module"] = module
        if hasattr(module, "__all__"):
            vars(self)["__all__"] = module.__all__

    def __getattr__(self, name: str) -> Any:
        found = _on_host(getattr(vars(self)["_module"], name), f"{self.__name__}.{name}")
        vars(self)[name] = found
        return found
