"""Modules of the standard library as loaded files see them: they know torch, Triton and the root's own modules."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

from fnjax.torch.control.python_math import MATH
from fnjax.torch.loading.errors import NotSupported
from fnjax.torch.loading.imports import LIBRARIES, import_module
from fnjax.torch.loading.roots import Root
from fnjax.torch.loading.triton_modules import VERSION

_VERSIONS = {"torch": "2.13.0", "triton": VERSION}


class _Suppress(contextlib.suppress):
    """contextlib.suppress, which lets NotSupported pass."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: types.TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, value, traceback)) and not isinstance(value, NotSupported)


class _Modules(MutableMapping[str, types.ModuleType]):
    """`sys.modules` of a root: torch, Triton and its own modules, by the names that its files give them."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def _find(self, name: str) -> types.ModuleType | None:
        if name.partition(".")[0] in LIBRARIES:
            return self._root.find_library(name)
        return sys.modules.get(self._private_name(name))

    def _private_name(self, name: str) -> str:
        private = f"{self._root.name}.{name}"
        return private if private in sys.modules or name not in sys.modules else name

    def __getitem__(self, name: str) -> types.ModuleType:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: types.ModuleType) -> None:
        sys.modules[self._private_name(name)] = value

    def __delitem__(self, name: str) -> None:
        del sys.modules[self._private_name(name)]

    def __iter__(self) -> Iterator[str]:
        return iter({*LIBRARIES, *map(self._root.public_name, list(sys.modules))})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, types.ModuleType]:
        """Return a dictionary of the modules."""
        return dict(self)


class _Sys(types.ModuleType):
    """`sys` with the root's modules."""

    modules: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys, name)

    def __dir__(self) -> list[str]:
        return dir(sys)


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

    system = _Sys("sys")
    vars(system)["modules"] = _Modules(root)
    util = _copy(importlib.util, find_spec=find_spec)
    metadata = _copy(importlib.metadata, version=find_version)
    own = {"util": util, "metadata": metadata}
    top = _copy(importlib, import_module=lambda name, package=None: import_module(root, resolve(name, package)), **own)
    return {
        "math": MATH,
        "sys": system,
        "contextlib": _copy(contextlib, suppress=_Suppress),
        "importlib": top,
        "importlib.util": util,
        "importlib.metadata": metadata,
    }
