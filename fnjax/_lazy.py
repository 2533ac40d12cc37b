"""Names of a package that are imported when they are asked for: `fnjax --help` waits neither for JAX nor for libcst."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package (PEP 562).

    Args:
        package: its name.
        homes: the name of each thing and of the module where it lives.
    """
    namespace = vars(sys.modules[package])

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    return attribute, lambda: sorted({*namespace, *homes})
