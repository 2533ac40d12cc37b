"""NumPy and SciPy in loaded files: their calls are recorded (calls)."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch.host.calls import is_host_or_traced, record
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.memory.trees import list_leaves, map_leaves

HOSTS = frozenset({"numpy", "scipy"})
# Arrays that what is traced may be written into.
_FRESH = frozenset({"zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like"})


class HostFunction:
    """Function of NumPy or SciPy that records its calls with traced values."""

    def __init__(self, function: Any, name: str) -> None:
        vars(self).update(_function=function, _name=name, __wrapped__=function, __doc__=function.__doc__)
        self.__name__ = name.rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or record its call."""
        function = vars(self)["_function"]
        given = list_leaves((args, kwargs))
        if not any(map(is_host_or_traced, given)):
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
