"""Modules of the standard library as loaded files see them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import types
from typing import Any

from fnjax._machine import TORCH, TRITON
from fnjax.torch.control.python_math import MATH
from fnjax.torch.errors import NotSupported
from fnjax.torch.loading.imports import import_module
from fnjax.torch.loading.roots import LIBRARIES, Root

_VERSIONS = {"torch": TORCH, "triton": TRITON}


class _Suppress(contextlib.suppress):
    """contextlib.suppress, which lets NotSupported pass."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: types.TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, value, traceback)) and not isinstance(value, NotSupported)


def _copy(module: types.ModuleType, **changes: Any) -> types.ModuleType:
    made = types.ModuleType(module.__name__)
    vars(made).update(vars(module) | changes)
    return made


def make_modules(root: Root) -> dict[str, types.ModuleType]:
    """Return modules of the standard library, by their names, as the files of a root import them."""

    def resolve(name: str, package: str | None) -> str:
        return importlib.util.resolve_name(name, package) if name.startswith(".") else name

    def find_spec(name: str, package: str | None = None) -> Any:
        name = resolve(name, package)
        top = name.partition(".")[0]
        if top in LIBRARIES:
            found = root.find_library(name) is not None
            return importlib.util.spec_from_loader(name, None, origin="fnjax") if found else None
        return importlib.util.find_spec(f"{root.name}.{name}" if root.holds(top) else name)

    def find_version(name: str) -> str:
        return _VERSIONS.get(name) or importlib.metadata.version(name)

    util = _copy(importlib.util, find_spec=find_spec)
    metadata = _copy(importlib.metadata, version=find_version)
    own = {"util": util, "metadata": metadata}
    top = _copy(importlib, import_module=lambda name, package=None: import_module(root, resolve(name, package)), **own)
    return {
        "math": MATH,
        "contextlib": _copy(contextlib, suppress=_Suppress),
        "importlib": top,
        "importlib.util": util,
        "importlib.metadata": metadata,
    }
