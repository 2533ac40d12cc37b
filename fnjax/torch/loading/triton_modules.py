"""The modules `triton` and `importlib` of loaded files: private, so that a file may change them."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import types
from collections.abc import Callable
from typing import Any

from fnjax.torch._missing import Missing, is_loading
from fnjax.torch.loading.errors import NotSupported
from fnjax.triton import driver
from fnjax.triton.driver import OutOfResources

VERSION = "3.5.0"  # of Triton's language, which fnjax.triton has


_ALIASES = {  # names in modules of Triton's → names of fnjax.triton
    "runtime.autotuner": ("Autotuner", "Config", "Heuristics", "autotune", "heuristics"),
    "runtime.jit": ("JITFunction", "jit"),
    "runtime": ("Autotuner", "Config", "Heuristics", "JITFunction", "autotune", "heuristics"),
}
_VALUES: dict[str, Any] = {
    "__version__": VERSION,
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


class TritonModule(types.ModuleType):
    """`triton`, and modules of it that fnjax.triton does not have as such."""

    def __getattr__(self, name: str) -> Any:
        rest = f"{self.__name__}.{name}".partition(".")[2]
        if rest in _VALUES:
            return _VALUES[rest]
        within, _, last = rest.rpartition(".")
        if last in _ALIASES.get(within, ()):
            home = "fnjax.triton.tuning" if last in {"Autotuner", "Heuristics"} else "fnjax.triton"
            return getattr(importlib.import_module(home), last)
        if name.startswith("__"):
            raise AttributeError(name)
        found = find_module(f"triton.{rest}", self)
        if found is None and not within:
            found = getattr(importlib.import_module("fnjax.triton"), name, None)
        if found is None:
            if is_loading():
                return Missing(f"triton.{rest}")
            raise NotSupported(f"triton.{rest} is not a name that fnjax.triton has")
        setattr(self, name, found)
        return found


def find_module(name: str, home: types.ModuleType) -> Any:
    """Return a module of Triton's by its full name, or None.

    Args:
        name: `triton.runtime.driver`.
        home: the module `triton` of those who ask, or one of its own.
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


def make_importlib(import_: Callable[[str], Any], find_file: Callable[[str], Any]) -> dict[str, Any]:
    """Return the modules `importlib`, `importlib.util` and `importlib.metadata` of a loaded module.

    Args:
        import_: imports a module privately, by its absolute name.
        find_file: returns a module's file, None where it is not private.
    """

    def import_module(name: str, package: str | None = None) -> Any:
        return import_(importlib.util.resolve_name(name, package) if name.startswith(".") else name)

    def find_spec(name: str, package: str | None = None) -> Any:
        name = importlib.util.resolve_name(name, package) if name.startswith(".") else name
        if name in {"torch", "triton"}:
            return importlib.util.spec_from_loader(name, None, origin="fnjax")
        file = find_file(name)
        return (
            importlib.util.find_spec(name)
            if file is None
            else importlib.util.spec_from_loader(name, None, origin=str(file))
        )

    def version(name: str) -> str:
        known = {"torch": "2.13.0", "triton": VERSION}
        return known.get(name) or importlib.metadata.version(name)

    made: dict[str, Any] = {}
    changed: dict[str, dict[str, Any]] = {
        "importlib.util": {"find_spec": find_spec},
        "importlib.metadata": {"version": version},
        "importlib": {"import_module": import_module},
    }
    for name, changes in changed.items():
        made[name] = types.ModuleType(name)
        vars(made[name]).update(vars(importlib.import_module(name)) | changes)
    made["importlib"].util, made["importlib"].metadata = made["importlib.util"], made["importlib.metadata"]
    return made
