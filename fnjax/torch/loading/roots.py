"""Roots: folders whose files Python's own import machinery loads under private names, with fnjax.torch as torch."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fnjax._torch_ops.syntax.trees import list_written
from fnjax.torch.loading.torch_modules import TorchModule
from fnjax.torch.loading.triton_modules import TritonModule, find_module
from fnjax.torch.memory.root_settings import RootSettings

LIBRARIES = frozenset({"torch", "triton"})
_OWN = LIBRARIES | {"fnjax", "jax", "jaxlib", "numpy", "scipy"}  # never loaded as source
_IMPORTS_TORCH = re.compile(r"^[ \t]*(?:import|from) (?:torch|triton)\b", re.MULTILINE)
_ASIDE = frozenset({"test", "tests", "testing", "benchmarks", "array_api_compat"})  # no module of a package needs them


class Root:
    """A folder whose packages are loaded privately, each file once.

    Python's import system loads them, as modules of a package with a private name, so that locks, circular imports,
    `__spec__`, relative imports, pickles and `sys.modules[__name__]` work as for other packages.

    Attributes:
        folder: it holds the top-level packages and modules.
        name: the name of the private package; `pkg.part` is `{name}.pkg.part` in sys.modules.
        lock: held while a file is executed, so that no other thread sees a partly executed module.
        asked: the top-level names that were loaded by name.
        executing: for each module that is being executed, the names that its file binds.
        files: the files that were loaded, with their times and sizes then.
        torch: the module `torch` that its files see.
        triton: the module `triton` that its files see.
        settings: the settings of torch that its files make.
        modules: the modules of the standard library that its files see.
        sys_modules: the `sys.modules` that its files see.
        run: runs the statements of a file: (tree, the module's names, the root).
    """

    kind = "loaded"

    def __init__(self, folder: Path, run: Callable[[ast.Module, dict[str, Any], Root], None]) -> None:
        self.folder, self.run, self.lock = folder, run, threading.RLock()
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()
        self.name = f"fnjax_{self.kind}_{digest[:8]}"
        self.asked, self.executing, self.files = set[str](), dict[str, set[str]](), dict[str, Any]()
        self.torch = TorchModule("torch", {})
        self.triton = TritonModule("triton")
        self.settings = RootSettings()
        self.modules = dict[str, types.ModuleType]()
        self.sys_modules: Any = sys.modules
        package = types.ModuleType(self.name, f"Files of {folder}, loaded by fnjax.torch.")
        package.__path__ = [str(folder)]
        sys.modules[self.name] = package
        _FINDER.roots[self.name] = self

    def load(self, name: str) -> types.ModuleType:
        """Return a module by its name under the folder.

        Raises:
            ImportError: as Python's import.
        """
        with self.lock:
            try:
                return importlib.import_module(f"{self.name}.{name}")
            except ImportError as e:
                raise self.rename(e) from e.__cause__

    def forget_changed(self) -> None:
        """Forget the modules if one of their files has changed since it was loaded: they are executed anew."""
        with self.lock:
            changed = [f for f, before in self.files.items() if _read_stamp(f) not in {before, None}]
            if changed and not self.executing:
                for name in [n for n in sys.modules if n.startswith(f"{self.name}.")]:
                    del sys.modules[name]
                self.files.clear()

    def list_modules(self) -> list[types.ModuleType]:
        """Return the modules that were loaded."""
        return [
            m for n, m in list(sys.modules.items()) if n.startswith(f"{self.name}.") and isinstance(m, types.ModuleType)
        ]

    def find_library(self, name: str) -> Any:
        """Return the module of torch or Triton that this root's files see under a full name, or None."""
        return self.torch.find(name) if name.startswith("torch") else find_module(name, self.triton)

    def is_faulty(self, error: Exception) -> bool:
        """Return whether an error ends loading: a file that is not Python, circular imports, a refused patch."""
        if isinstance(error, SyntaxError):
            return error.filename in self.files
        if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
            return error.name in self.executing.get(error.obj.__name__, ())
        return bool(getattr(error, "ends_loading", False))

    def rename(self, error: ImportError) -> ImportError:
        """Return an error of Python's import without the private package's name."""
        prefix = f"{self.name}."
        error.name = error.name and error.name.removeprefix(prefix)
        error.msg = error.msg and error.msg.replace(prefix, "")
        error.args = tuple(a.replace(prefix, "") if isinstance(a, str) else a for a in error.args)
        return error

    def public_name(self, name: str) -> str:
        """Return the name of a module without the private package's."""
        return name.removeprefix(f"{self.name}.")

    def holds(self, top: str) -> bool:
        """Return whether a top-level module is loaded privately.

        Modules of the folder are loaded privately, and of the installed packages those that `import_module` named, and
        those in pure Python that import torch. An installed package precedes a folder without `__init__`.
        """
        if f"{self.name}.{top}" in sys.modules:
            return True
        if top in _OWN or top in sys.stdlib_module_names:
            return False
        found = self._find(f"{self.name}.{top}", [str(self.folder)])
        if found is None or found.origin is None:
            installed = importlib.machinery.PathFinder.find_spec(top)
            if installed is not None and installed.origin is not None:
                return _needs_torch(installed.origin)
            return found is not None
        is_site = self.folder.name in {"site-packages", "dist-packages"}
        return not is_site or top in self.asked or _needs_torch(found.origin)

    def find_spec(self, name: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module by its private name, or None."""
        found = self._find(name, path)
        top = self.public_name(name)
        if found is None and "." not in top:
            installed = importlib.machinery.PathFinder.find_spec(top)
            places = installed.submodule_search_locations if installed is not None else None
            found = self._find(name, [str(Path(p).parent) for p in places or ()])
        return found

    def _find(self, name: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
        places: list[str] = []
        for entry in path:  # a new finder each time: Python's own remember what a folder held
            finder = importlib.machinery.FileFinder(entry, (functools.partial(Loader, self), [".py"]))  # type: ignore[arg-type] # a function of name and path
            spec = finder.find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
            places += (spec and spec.submodule_search_locations) or ()
        if not any(any(Path(place).rglob("*.py")) for place in places):
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = places
        return spec


def _read_stamp(file: str) -> tuple[int, int] | None:
    """Return when a file was changed last, and its size; None if there is no such file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a hundred files of a package in a millisecond
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@functools.cache
def _needs_torch(origin: str) -> bool:
    """Return whether an installed package is in pure Python, and imports torch or Triton wherever it is imported."""
    file = Path(origin)
    if file.name != "__init__.py":
        return file.suffix == ".py" and bool(_IMPORTS_TORCH.search(file.read_text("utf-8", "replace")))
    if any(any(file.parent.rglob(f"*{s}")) for s in (".so", ".pyd")):
        return False
    files = (f for f in file.parent.rglob("*.py") if _ASIDE.isdisjoint(f.relative_to(file.parent).parts))
    return any(_IMPORTS_TORCH.search(f.read_text("utf-8", "replace")) for f in files)


class Loader(importlib.machinery.SourceFileLoader):
    """Loader of a file of PyTorch source: its statements run one by one (statements)."""

    def __init__(self, root: Root, name: str, path: str) -> None:
        super().__init__(name, path)
        self.root = root

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute the file.

        Raises:
            SyntaxError: the file is not Python source.
            ImportError: the file imports a name from a module that is not executed completely yet.
        """
        self.root.files[self.path] = _read_stamp(self.path)
        tree = ast.parse(self.get_data(self.path), self.path)
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # the compiled statements show them
            compile(tree, self.path, "exec", dont_inherit=True)  # some errors are those of a whole file
        name = module.__name__  # which the file may change
        submodules = (None, self.root.public_name(name))  # `from . import part` waits for no statement
        own = [s for s in tree.body if not (isinstance(s, ast.ImportFrom) and s.module in submodules)]
        self.root.executing[name] = list_written(own)
        try:
            self.root.run(tree, vars(module), self.root)
        finally:
            del self.root.executing[name]


class _Finder:
    """Finder of the modules of all roots, in sys.meta_path."""

    def __init__(self) -> None:
        self.roots: dict[str, Root] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module of a root, None for all others."""
        root = self.roots.get(name.partition(".")[0])
        return root.find_spec(name, path or ()) if root is not None else None


_FINDER = _Finder()
sys.meta_path.insert(0, _FINDER)


def list_roots() -> list[Root]:
    """Return all roots."""
    return list(_FINDER.roots.values())
