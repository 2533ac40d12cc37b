"""Imports of loaded files: torch, Triton and the root's own modules are private, all others Python's."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fnjax.torch.deferred.missing import Missing, is_feature_test, is_loading
from fnjax.torch.host.modules import HOSTS, HostModule
from fnjax.torch.loading.roots import LIBRARIES, Root
from fnjax.torch.loading.torch_modules import LibraryModule
from fnjax.triton.absent import Absent


def make_import(root: Root, file: str, tries: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """Return the `__import__` function for the code of a file.

    An import of a missing module or name returns a stand-in at the top level of the file, and for torch and Triton in
    functions as well. A `try` that catches a failed import gets Python's ImportError.

    Args:
        root: the root of the file.
        file: the file's path.
        tries: first and last lines of the `try` statements that catch a failed import.
    """

    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - __import__'s own
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        frame = sys._getframe(1)
        tried = is_feature_test() or (
            frame.f_code.co_filename == file and any(a <= frame.f_lineno <= b for a, b in tries)
        )
        names, top = tuple(fromlist or ()), name.partition(".")[0]
        is_library = not level and top in LIBRARIES
        in_function = not is_loading() or frame.f_code.co_flags & inspect.CO_OPTIMIZED
        lenient = not tried and (is_library or not in_function)

        def stand_in(missing: str, error: ImportError) -> Missing:
            if not lenient or root.is_faulty(error):
                raise root.rename(error)
            return Missing(missing, root.rename(error))

        try:
            if level:
                with root.lock:
                    found = importlib.__import__(name, globals, None, names, level)
            else:
                found = import_module(root, name, names)
        except ImportError as e:
            return stand_in(name if names else top, e)
        if not names or "*" in names:
            return found
        values = {}
        for each in names:
            try:
                values[each] = _import_name(root, found, each, tried=tried)
            except ImportError as e:
                values[each] = stand_in(f"{name}.{each}", e)
        return types.SimpleNamespace(**values)

    return import_


def import_module(root: Root, name: str, names: Sequence[str] | None = None) -> Any:
    """Return a module by its absolute name as a file of a root sees it; its top-level package if `names` is empty.

    Args:
        root: the root.
        name: the module's name.
        names: the names that the file imports from the module, which may be submodules; None if it is not known.
    """
    top, is_top = name.partition(".")[0], names is not None and not names
    if top in LIBRARIES:
        found = root.find_library(name)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return root.find_library(top) if is_top else found
    if name in root.modules:
        return root.modules[top if is_top else name]
    if top != root.name and not root.holds(top):
        found = importlib.import_module(name) if names is None else importlib.__import__(name, None, None, names)
        return HostModule(found) if top in HOSTS else found
    full = name if top == root.name else f"{root.name}.{name}"
    with root.lock:
        if names:
            return importlib.__import__(full, None, None, names)
        found = importlib.import_module(full)
        return sys.modules[".".join(full.split(".")[:2])] if is_top else found


def _import_name(root: Root, module: Any, name: str, *, tried: bool) -> Any:
    """Return the object that `from module import name` binds.

    Raises:
        ImportError: the module has no such name.
    """
    if module is sys and name == "modules":
        return root.sys_modules
    if not isinstance(module, LibraryModule) or module.has(name):
        try:
            return getattr(module, name)
        except AttributeError:
            found = sys.modules.get(f"{module.__name__}.{name}")
            if found is not None and not (tried and isinstance(found, Absent)):
                return found
    home, file = module.__name__, getattr(module, "__file__", None) or "unknown location"
    is_circular = name in root.executing.get(home, ())
    started = "partially initialized module " if is_circular else ""
    reason = " (most likely due to a circular import)" if is_circular else ""
    error = ImportError(f"cannot import name {name!r} from {started}{home!r}{reason} ({file})", name=home, path=file)
    error.ends_loading = is_circular  # type: ignore[attr-defined] # as of NotSupported
    raise error
