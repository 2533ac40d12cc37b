"""Loading PyTorch source: files and packages in which `torch` is fnjax.torch and `triton` is fnjax.triton.

What is loaded stays private: the interpreter's own modules are not touched, a PyTorch that is installed is neither used
nor disturbed. A top-level statement that fails binds its names to a value that raises when it is used, so that a file
of which one part cannot run serves with the others.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fnjax.torch._bridges import NAMES, bridge
from fnjax.torch._missing import Missing, loading
from fnjax.torch._namespace import Namespace, find, module
from fnjax.torch.control import runtime
from fnjax.torch.control.lowering import lower
from fnjax.torch.control.python_math import MATH
from fnjax.torch.control.syntax import RUNTIME
from fnjax.torch.loading.errors import NotSupported
from fnjax.torch.loading.triton_modules import TritonModule, find_module, make_importlib

_counter = itertools.count()
_ROOTS: dict[Path, Root] = {}


class Root:
    """A folder whose packages are loaded privately; each file once.

    Attributes:
        folder: it holds the top-level packages and modules.
        modules: by their names under the folder.
        triton: the module `triton` of what is loaded.
        importlib: its importlib, importlib.util and importlib.metadata.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.modules = folder, dict[str, types.ModuleType]()
        self._prefix = f"fnjax_loaded_{next(_counter)}"
        self.triton = TritonModule("triton")
        self.importlib = make_importlib(
            lambda name: _import(self, name, ("*",), private=False, guarded=True),
            lambda name: self.find_file(name) if self.holds(name.partition(".")[0]) else None,
        )

    def find_file(self, name: str) -> Path | None:
        """Return the file of a module under this folder, the folder of a package without `__init__.py`; or None."""
        path = self.folder.joinpath(*name.split("."))
        for found in (path / "__init__.py", path.with_suffix(".py")):
            if found.is_file():
                return found
        return path if path.is_dir() and any(path.rglob("*.py")) else None

    def holds(self, top: str) -> bool:
        """Return whether a top-level name is this folder's; an installed package precedes one without `__init__`."""
        found = None if top in sys.stdlib_module_names else self.find_file(top)
        if found is None or found.is_file() or top in self.modules:
            return found is not None
        spec = importlib.machinery.PathFinder.find_spec(top)
        return spec is None or spec.origin is None

    def load(self, name: str) -> types.ModuleType:
        """Return a module under this folder, executed the first time.

        A package's `__init__` runs when it is asked for a name that is none of its modules.

        Raises:
            ModuleNotFoundError: the file does not exist.
            SyntaxError: it is no Python.
        """
        if name in self.modules:
            return self.modules[name]
        file = self.find_file(name)
        if file is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        is_package = file.is_dir() or file.name == "__init__.py"
        made = _Package(self, name, file) if is_package else Loaded(self, name, file)
        self.modules[name] = sys.modules[made.__name__] = made
        parent, _, last = name.rpartition(".")
        if parent and (not isinstance(package := self.load(parent), _Package) or last not in package.shadowing):
            vars(self.load(parent))[last] = made
        if not is_package:
            made.execute()
        return made

    def private_name(self, name: str) -> str:
        """Return the name under which sys.modules has a module: dataclasses look there."""
        return f"{self._prefix}.{name}"


class Loaded(types.ModuleType):
    """A module that was loaded."""

    def __init__(self, root: Root, name: str, file: Path) -> None:
        super().__init__(root.private_name(name))
        package = name if isinstance(self, _Package) else name.rpartition(".")[0]
        vars(self).update({"__file__": str(file), "_fnjax_root": root, "_fnjax_package": package})
        vars(self)["_fnjax_awaited"] = []  # names that others import while this module is executed, and where

    def execute(self) -> None:
        """Run the file statement by statement."""
        file = Path(vars(self)["__file__"])
        if file.is_dir():
            return
        self.run(ast.parse(file.read_text(encoding="utf-8"), str(file)))

    def run(self, tree: ast.Module) -> None:
        """Run statements one by one; the names that one which fails would bind raise when they are used."""
        lower(tree)
        space = vars(self)
        file = space["__file__"]
        tries = [(n.lineno, n.end_lineno or 0) for n in ast.walk(tree) if isinstance(n, ast.Try) and _catches(n)]
        space["__builtins__"] = {**vars(builtins), "__import__": _make_import(self, tries), "hasattr": _hasattr}
        space[RUNTIME] = runtime
        future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        flags = __import__("__future__").annotations.compiler_flag if future else 0
        with loading():
            for statement in tree.body:
                if statement in future:
                    continue
                body = ast.Module([statement], [])
                try:
                    exec(compile(body, file, "exec", flags, dont_inherit=True), space)
                except Exception as e:  # noqa: BLE001 - whatever it is, its names raise it when they are used
                    for name in list_names(statement):
                        space.setdefault(name, Missing(name, e))
        awaited, space["_fnjax_awaited"] = space["_fnjax_awaited"], None
        for name, stand_in, importer in awaited:
            if name in space:
                importer.update({k: space[name] for k, v in importer.items() if v is stand_in})


class _Package(Loaded):
    """A package: its modules are loaded when they are asked for, and its `__init__` when a name is none of them."""

    def __init__(self, root: Root, name: str, file: Path) -> None:
        super().__init__(root, name, file)
        vars(self).update({"__path__": [str(file if file.is_dir() else file.parent)], "_fnjax_executed": False})

    @functools.cached_property
    def shadowing(self) -> dict[str, tuple[str, str]]:
        """Names that `__init__` takes from a module and that a module has, too: `from .dispatch import dispatch`."""
        space, found = vars(self), {}
        file, package = Path(space["__file__"]), space["_fnjax_package"].split(".")
        for statement in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
            if not isinstance(statement, ast.ImportFrom) or not statement.module:
                continue
            home = ".".join([*package[: len(package) - statement.level + 1], statement.module])
            home = home if statement.level else statement.module
            for alias in statement.names:
                name = alias.asname or alias.name
                if space["_fnjax_root"].find_file(".".join([*package, name])) and home != ".".join(package):
                    found[name] = home, alias.name
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        space = vars(self)
        full = f"{space['_fnjax_package']}.{name}"
        if name in self.shadowing:
            home, attribute = self.shadowing[name]
            space[name] = getattr(space["_fnjax_root"].load(home), attribute)
            return space[name]
        if space["_fnjax_root"].find_file(full) is not None:
            return space["_fnjax_root"].load(full)
        if not space["_fnjax_executed"]:
            space["_fnjax_executed"] = True
            self.execute()
            if name in space:
                return space[name]
        raise AttributeError(f"module {space['_fnjax_package']!r} has no attribute {name!r}")


def _catches(node: ast.Try) -> bool:
    """Return whether a try catches a failed import."""
    names = [n.id for h in node.handlers if h.type is not None for n in ast.walk(h.type) if isinstance(n, ast.Name)]
    return any(h.type is None for h in node.handlers) or bool(
        {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"} & {*names}
    )


def list_names(node: ast.AST) -> Iterator[str]:
    """Return the names that a top-level statement binds, without local names of functions and classes."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        yield node.name
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name).partition(".")[0] for a in node.names)
    elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            yield from list_names(child)


def _hasattr(value: Any, name: str) -> bool:
    """Return `hasattr(value, name)`; for a module of torch, whether fnjax.torch has the name."""
    if isinstance(value, Namespace):
        return name in vars(value) or find(f"{value.__name__}.{name}") is not None
    if getattr(value, "__name__", "") == "fnjax.torch":
        return find(f"torch.{name}") is not None
    return hasattr(value, name)


def _make_import(importer: Loaded, tries: Sequence[tuple[int, int]]) -> Any:
    """Return the `__import__` function for a module's code: names of torch are fnjax.torch's."""
    space = vars(importer)
    root: Root = space["_fnjax_root"]

    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - __import__'s own
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        line = sys._getframe(1).f_lineno
        guarded = any(first <= line <= last for first, last in tries)
        if level:
            package = space["_fnjax_package"].split(".")
            name = ".".join([*package[: len(package) - level + 1], *([name] if name else [])])
        try:
            return _import(root, name, tuple(fromlist or ()), private=bool(level), guarded=guarded, importer=space)
        except ImportError as e:
            if guarded:
                raise
            return Missing(name if fromlist else name.partition(".")[0], e)

    return import_


def _import(
    root: Root,
    name: str,
    fromlist: tuple[str, ...],
    *,
    private: bool,
    guarded: bool,
    importer: dict[str, Any] | None = None,
) -> Any:
    top = name.partition(".")[0]
    if top in {"torch", "triton"}:
        return _import_stand_in(root, name, fromlist, guarded)
    if name == "math":
        return MATH
    if name in {"importlib", "importlib.util", "importlib.metadata"}:
        return root.importlib[name if fromlist else "importlib"]
    if not private and not root.holds(top):
        try:
            found = importlib.__import__(name, None, None, fromlist)
            return bridge(found) if top in NAMES else found
        except ImportError:
            raise
        except Exception as e:
            raise ImportError(f"{name}: {type(e).__name__}: {e}", name=name) from e
    found = root.load(name)
    if not fromlist:
        return root.load(top)
    for each in fromlist:
        if each == "*":
            continue
        try:
            getattr(found, each)
        except AttributeError as e:
            if guarded:
                raise ImportError(f"cannot import name {each!r} from {name!r}", name=name) from e
            stand_in = vars(found).setdefault(each, Missing(f"{name}.{each}", e))
            if vars(found)["_fnjax_awaited"] is not None and importer is not None:
                vars(found)["_fnjax_awaited"].append((each, stand_in, importer))
    return found


def _import_stand_in(root: Root, name: str, fromlist: tuple[str, ...], guarded: bool) -> Any:
    """Return the module for torch's or Triton's."""
    top, _, rest = name.partition(".")
    home = root.triton if top == "triton" else importlib.import_module("fnjax.torch")
    found: Any = find_module(name, home) if top == "triton" else home if not rest else find(name)
    if found is None:
        if guarded:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        found = Missing(name, ImportError(f"fnjax has no {name}")) if top == "triton" else module(name)
    if guarded and top == "torch":
        for each in fromlist:
            if each != "*" and not _hasattr(found, each):
                raise ImportError(f"cannot import name {each!r} from {name!r}", name=name)
    return found if fromlist else home


def load(path: str | Path, *, root: str | Path | None = None, **options: Any) -> types.ModuleType:
    """Execute a file of PyTorch source, in which torch is fnjax.torch and triton is fnjax.triton.

    Imports of packages under `root`, absolute or relative, also within functions, are loaded in the same way,
    privately. A name of torch that fnjax does not have, and a module that cannot be found, raise when they are used.

    Args:
        path: the file.
        root: the folder that holds the file's top-level package; by default the first folder upwards without
            `__init__.py`.
        options: those of PyTorch's function of this name, which reads tensors: with them, or without a file of Python
            source, an error says how to convert a file of tensors.

    Returns:
        The module; `module.Name.apply` of each torch.autograd.Function is a JAX function.

    Raises:
        FileNotFoundError: the file does not exist.
        NotSupported: it is a file of tensors.
        ValueError: the file is not under `root`.
        SyntaxError: it is no Python.
    """
    if options or Path(path).suffix in {".pt", ".pth", ".bin", ".ckpt"}:
        raise NotSupported(
            f"{str(path)!r} is read by PyTorch only",
            "where PyTorch is installed, safetensors.torch.save_file(torch.load(path, weights_only=True), "
            "'net.safetensors'); then model.load_state_dict(safetensors.numpy.load_file('net.safetensors'))",
        )
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"fnjax.torch.load: there is no file {str(path)!r}")
    folder = file.parent if root is None else Path(root).resolve()
    while root is None and (folder / "__init__.py").is_file():
        folder = folder.parent
    if not file.is_relative_to(folder):
        raise ValueError(f"fnjax.torch.load: {str(path)!r} is not under root={str(root)!r}")
    parts = file.relative_to(folder).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    made = _ROOTS.setdefault(folder, Root(folder)).load(name)
    if isinstance(made, _Package) and not vars(made)["_fnjax_executed"]:
        vars(made)["_fnjax_executed"] = True
        made.execute()
    return made


def import_module(name: str) -> types.ModuleType:
    """Load a module of a package that Python finds, as `load` does; the package itself is not imported.

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
    folder = (file.parent.parent if file.name == "__init__.py" else file.parent).resolve()
    return _ROOTS.setdefault(folder, Root(folder)).load(name)


def list_files() -> list[str]:
    """Return the files that were loaded."""
    return [str(vars(m)["__file__"]) for root in _ROOTS.values() for m in root.modules.values()]
