"""Loading PyTorch source: files and packages in which `torch` is fnjax.torch and `triton` is fnjax.triton.

Loaded modules are private: the interpreter's own modules are not changed, and an installed PyTorch is neither used nor
affected. If a top-level statement fails, the names that it binds and the objects that it changes raise when they are
used, so that the other parts of the file can be used.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

from fnjax.torch.errors import NotSupported
from fnjax.torch.loading.library_modules import make_modules
from fnjax.torch.loading.roots import Loader, Root, list_roots
from fnjax.torch.loading.statements import run
from fnjax.torch.loading.sys_modules import Modules

_LOCK = threading.Lock()


def find_root(folder: Path, kind: type[Root] = Root) -> Root:
    """Return the Root that loads a folder's files; it forgets modules whose files have changed since."""
    with _LOCK:
        found = next((r for r in list_roots() if r.folder == folder and type(r) is kind), None)
        if found is None:
            found = kind(folder, run)
            found.modules, found.sys_modules = make_modules(found), Modules(found)
    found.forget_changed()
    return found


def load(path: str | Path, *, root: str | Path | None = None, **options: Any) -> types.ModuleType:
    """Execute a file of PyTorch source, in which torch is fnjax.torch and triton is fnjax.triton.

    Python imports the file as a module of a private package: the packages that contain it are executed first, and the
    files under `root` that it imports are loaded in the same way, also by imports within functions. A name of torch
    that fnjax does not have, and a module that cannot be found, raise when they are used. A file is executed once;
    if it, or another one under `root`, has changed since, all are executed again.

    Args:
        path: the file.
        root: the folder that holds the file's top-level package; by default the first folder upwards without
            `__init__.py`.
        options: the options of torch.load, which reads tensors: with any of them, or for a file of tensors, an error
            says how to convert the file.

    Returns:
        The module; `module.Name.apply` of each torch.autograd.Function is a JAX function.

    Raises:
        FileNotFoundError: the file does not exist.
        NotSupported: the file has tensors instead of source, or replaces a method of torch.Tensor.
        ValueError: the file is not under `root`.
        SyntaxError: the file, or a file that it imports, is not Python source.
        ImportError: the file imports a name from a file that imports it.
    """
    if options or Path(path).suffix in {".pt", ".pth", ".bin", ".ckpt"}:
        raise NotSupported(
            f"{str(path)!r} is read by PyTorch only",
            "where PyTorch is installed, safetensors.torch.save_file(torch.load(path, weights_only=True), "
            "'net.safetensors'); then model.load_state_dict(safetensors.numpy.load_file('net.safetensors'))",
        )
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"fnjax.torch.load: there is no file {str(path)!r}{_suggest(file, str(path))}")
    folder = file.parent if root is None else Path(root).resolve()
    while root is None and (folder / "__init__.py").is_file():
        folder = folder.parent
    if not file.is_relative_to(folder):
        raise ValueError(f"fnjax.torch.load: {str(path)!r} is not under root={str(root)!r}")
    own = find_root(folder)
    parts = file.relative_to(folder).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if file.suffix == ".py" and all(p.isidentifier() for p in parts):
        return own.load(".".join(parts))
    return _load_alone(own, file, re.sub(r"\W", "_", "_".join(parts)))


def _suggest(file: Path, name: str) -> str:
    """Return what to load in the place of something that is not a file."""
    if file.is_dir():
        names = sorted(p.name for p in file.glob("*.py"))
        return f", it is a folder: load one of its files{f', such as {names[0]}' if names else ''}"
    if not all(part.isidentifier() for part in name.split(".")) or file.suffix == ".py":
        return ""
    if name.partition(".")[0] == "torch":
        return "; files that are loaded import it themselves, and get fnjax.torch"
    return f"; fnjax.torch.import_module({name!r}) loads a module of an installed package"


def _load_alone(root: Root, file: Path, name: str) -> types.ModuleType:
    """Load a file whose name is not an identifier, so that it cannot be imported."""
    full = f"{root.name}.{name}"
    with root.lock:
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, file, loader=Loader(root, full, str(file)))
            assert spec is not None
            module = sys.modules[full] = importlib.util.module_from_spec(spec)
            try:
                Loader.exec_module(spec.loader, module)  # type: ignore[arg-type] # the Loader of above
            except BaseException:
                del sys.modules[full]
                raise
        return sys.modules[full]


def import_module(name: str) -> types.ModuleType:
    """Load a module of an installed package, as `load` does, independently of modules that Python has imported.

    Args:
        name: `package.module`.

    Raises:
        ModuleNotFoundError: Python does not find the package, or the package has no such module.
    """
    top = name.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)
    file = Path(spec.origin or next(iter(spec.submodule_search_locations or ())))
    root = find_root((file.parent.parent if file.name == "__init__.py" else file.parent).resolve())
    root.asked.add(top)
    return root.load(name)


def list_files() -> list[str]:
    """Return the files that were loaded."""
    return [file for root in list_roots() for file in root.files]
