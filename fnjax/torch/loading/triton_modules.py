"""The module `triton` of loaded files: private, so that a file may change it."""

from __future__ import annotations

import importlib
import types
from typing import Any

from fnjax._machine import TRITON
from fnjax.torch.errors import NoSuchNameError
from fnjax.torch.loading.torch_modules import LibraryModule
from fnjax.triton import driver
from fnjax.triton.driver import OutOfResources

_ALIASES = {  # names in modules of Triton's → names of fnjax.triton
    "runtime.autotuner": ("Autotuner", "Config", "Heuristics", "autotune", "heuristics"),
    "runtime.jit": ("JITFunction", "jit"),
    "runtime": ("Autotuner", "Config", "Heuristics", "JITFunction", "autotune", "heuristics"),
}
_VALUES: dict[str, Any] = {
    "__version__": TRITON,
    "set_allocator": driver.set_allocator,
    "runtime.driver": driver,
    "runtime.driver.active": driver.active,
    "runtime.errors.OutOfResources": OutOfResources,
    "runtime.autotuner.OutOfResources": OutOfResources,
    "runtime.OutOfResources": OutOfResources,
    "runtime.errors.PTXASError": OutOfResources,
    "compiler.errors.CompilationError": OutOfResources,
    "compiler.compiler.CompilationError": OutOfResources,
    "compiler.CompilationError": OutOfResources,
    "CompilationError": OutOfResources,
    "OutOfResources": OutOfResources,
    "backends.backends": {"nvidia": types.SimpleNamespace(driver=driver.active, compiler=None)},
}
_MODULES = {name.rpartition(".")[0] for name in (*_VALUES, *(f"{m}.x" for m in _ALIASES))} - {"", "runtime.driver"}
_MODULES |= {name.partition(".")[0] for name in _MODULES}


class TritonModule(LibraryModule):
    """The module `triton`, or one of its submodules that fnjax.triton lacks; its names give objects of fnjax.triton."""

    def look_up(self, name: str) -> Any:
        """Return fnjax.triton's object for a name."""
        rest = f"{self.__name__}.{name}".partition(".")[2]
        if rest in _VALUES:
            return _VALUES[rest]
        within, _, last = rest.rpartition(".")
        if last in _ALIASES.get(within, ()):
            home = "fnjax.triton.tuning" if last in {"Autotuner", "Heuristics"} else "fnjax.triton"
            return getattr(importlib.import_module(home), last)
        found = find_module(f"triton.{rest}", self)
        if found is None and not within:
            found = getattr(importlib.import_module("fnjax.triton"), name, None)
        if found is None:
            raise NoSuchNameError(f"triton.{rest} is not a name that fnjax.triton has")
        return found


def find_module(name: str, home: types.ModuleType) -> Any:
    """Return a module of Triton's by its full name, or None.

    Args:
        name: `triton.runtime.driver`.
        home: the module `triton` of the root that imports it, or a new one.
    """
    rest = name.partition(".")[2]
    if not rest:
        return home
    if rest in _MODULES:
        return TritonModule(name)
    if rest in _VALUES:
        return _VALUES[rest]
    try:
        return importlib.import_module(f"fnjax.{name}")
    except ImportError:
        return None
