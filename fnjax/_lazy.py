"""Lazy import of a package's names: `fnjax --help` imports neither JAX nor libcst."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package (PEP 562).

    Args:
        package: its name.
        homes: for each public name the module that defines it.
        modules: the package's public modules.
    """
    namespace = vars(sys.modules[package])
    public = frozenset(modules)

    def attribute(name: str) -> Any:
        if name in public:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    return attribute, lambda: sorted({*homes, *public, *(name for name in namespace if name.startswith("__"))})
