"""`torch` and its modules as the files of one root see them: names that a file sets are visible to the root only."""

from __future__ import annotations

import importlib
import types
from typing import Any

from fnjax.torch.deferred.missing import Missing, is_feature_test, is_loading
from fnjax.torch.errors import NoSuchNameError, NotSupported
from fnjax.torch.names.registry import Namespace, find, list_names, module


class LibraryModule(types.ModuleType):
    """A module of torch or Triton as loaded files see it: at their top level, missing names are stand-ins."""

    def look_up(self, name: str) -> Any:
        """Return fnjax's object for a name of the module.

        Raises:
            NoSuchNameError: fnjax does not have the name.
        """
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Return whether fnjax has a name of the module."""
        if name in vars(self):
            return True
        try:
            self.look_up(name)
        except NoSuchNameError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            found = self.look_up(name)
        except NoSuchNameError as e:
            if is_loading():
                return Missing(f"{self.__name__}.{name}")
            if is_feature_test():
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
            raise NotSupported(e.what, e.remedy) from None
        vars(self)[name] = found
        return found


class TorchModule(LibraryModule):
    """A module of torch in one root.

    Args:
        name: `torch.nn.functional`.
        modules: all of the root's, by name.
    """

    def __init__(self, name: str, modules: dict[str, TorchModule]) -> None:
        super().__init__(name)
        vars(self)["_fnjax_modules"] = modules
        modules[name] = self

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # from torch import *
            return list_names(self.__name__)
        return super().__getattr__(name)

    def look_up(self, name: str) -> Any:
        """Return fnjax.torch's object for a name; for a module, the root's own module."""
        found = getattr(self._own(), name)
        return self._enter(found) if isinstance(found, Namespace) else found

    def find(self, name: str) -> Any:
        """Return the module of a full name, or None."""
        found = self if name == "torch" else find(name)
        return self._enter(found) if isinstance(found, Namespace) else found

    def _own(self) -> types.ModuleType:
        return importlib.import_module("fnjax.torch") if self.__name__ == "torch" else module(self.__name__)

    def _enter(self, namespace: Namespace) -> TorchModule:
        modules = vars(self)["_fnjax_modules"]
        return modules.get(namespace.__name__) or TorchModule(namespace.__name__, modules)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(self._own())})
