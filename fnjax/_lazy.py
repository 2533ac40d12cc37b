"""Import of a package's names when they are asked for: `fnjax --help` imports neither JAX nor libcst."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = (), absent: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package (PEP 562).

    Args:
        package: its name.
        homes: for each public name the module that defines it.
        modules: the package's public modules.
        absent: names that are looked for there, and what to write instead.
    """
    namespace = vars(sys.modules[package])
    public = frozenset(modules)

    def attribute(name: str) -> Any:
        if name in public:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            hint = f": write {absent[name]}" if name in absent else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        value = namespace[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    return attribute, lambda: sorted({*homes, *public, *(name for name in namespace if name.startswith("__"))})


def import_after(awaited: str, module: str) -> None:
    """Import a module right after another one has been imported: now if it has been, else when somebody imports it."""
    if sys.modules.get(awaited):
        importlib.import_module(module)
    else:
        sys.meta_path.insert(0, _Follower(awaited, module))


class _Follower:
    """Finder that leaves the search to the others, and lets the import of one module be followed by another's."""

    def __init__(self, awaited: str, module: str) -> None:
        self._awaited, self._module = awaited, module

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the awaited module, which the other finders find, with the import that follows it."""
        if name != self._awaited:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                importlib.import_module(self._module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
