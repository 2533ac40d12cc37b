"""Extraction of a class from its file: only the statements that it needs are executed, and nothing else of its package.

Names of other files of the same package are extracted from these in the same way, when they are read. The
statements keep their lines, so that tracebacks and tracing refer to the file itself.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fnjax._cli.call import import_below
from fnjax.port.source.top_level import collect_bound
from fnjax.port.verify.names import list_operator_names


class Missing:
    """Stand-in for a library that is not installed, or for what needs one; using it raises."""

    def __init__(self, name: str, why: BaseException) -> None:
        self.__dict__["message"] = f"{name} is not available: {type(why).__name__}: {why}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, as it is missing."""
        raise ImportError(self.__dict__["message"])

    __getattr__ = __getitem__ = __call__  # the grid of a launch is an item


class Part(types.ModuleType):
    """A file whose statements are executed when a name that they bind is read.

    Args:
        path: the file.
        text: its content; read by default.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.__dict__["executed"] = set()
        super().__init__(f"extracted_from_{path.stem}")
        tree = ast.parse(path.read_text() if text is None else text, str(path))
        self.__file__ = str(path)
        self.path = path.absolute()
        self.statements = list(open_blocks(tree.body))
        self.names = [collect_bound(s) for s in self.statements]
        annotations = any(
            "annotations" in names and "__future__" in ast.unparse(s) for s, names in self._iter_statements()
        )
        self.flags = __future__.annotations.compiler_flag if annotations else 0
        sys.modules[self.__name__] = self

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.execute_names([name])
            if name not in self.__dict__ and (inner := self._find_inner_file(name)):
                self.__dict__[name] = open_part(inner)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"{self.path.name} has no {name!r}") from None

    def _find_inner_file(self, name: str) -> Path | None:
        """Return the file of a module in the package that this is."""
        candidates = _list_candidates(self.path.parent / name) if self.path.name == "__init__.py" else ()
        return next((p for p in candidates if p.is_file()), None)

    def _iter_statements(self) -> Iterator[tuple[ast.stmt, set[str]]]:
        return zip(self.statements, self.names, strict=True)

    def execute_names(self, names: Iterable[str]) -> None:
        """Execute the statements that bind these names, after those that they need, in the order of the file."""
        wanted: set[int] = set()
        pending = list(names)
        asked: set[str] = set()
        while pending:
            name = pending.pop()
            if name in asked:
                continue
            asked.add(name)
            found = [
                i for i, (s, names) in enumerate(self._iter_statements()) if name in names or name in _list_changed(s)
            ]
            if not any(name in self.names[i] for i in found) and not hasattr(builtins, name):
                found += [i for i, names in enumerate(self.names) if "*" in names]
            for i in found:
                wanted.add(i)
                if not isinstance(self.statements[i], (ast.Import, ast.ImportFrom)):
                    pending += list_read(self.statements[i])
        for i in sorted(wanted):
            self._execute_statement(i, asked)

    def run_all(self) -> None:
        """Execute all statements in the order of the file, those that only call something among them.

        Statements under a condition such as `is_torch_available()` are executed, whatever its value.
        """
        asking = [isinstance(s, ast.If) and "available" in ast.unparse(s.test) for s in self.statements]
        inner = [s.body if a else [s] for s, a in zip(self.statements, asking, strict=True)]  # type: ignore[attr-defined] # an If
        self.statements = [s for part in inner for s in part]
        self.names = [collect_bound(s) for s in self.statements]
        self.execute_names(name for names in self.names for name in names if name != "*")
        for i, names in enumerate(self.names):
            if not names:
                self._execute_statement(i, set())

    def _execute_statement(self, index: int, asked: set[str]) -> None:
        statement = self.statements[index]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                name = alias.asname or alias.name.split(".")[0]
                if (name in asked or name == "*") and name not in self.__dict__:
                    self._import_name(statement, alias, asked)
        elif index not in self.executed:
            self.executed.add(index)
            code = compile(ast.Module([statement], []), str(self.path), "exec", self.flags, dont_inherit=True)
            try:
                exec(code, self.__dict__)
            except Exception as e:  # noqa: BLE001 - names that nobody uses may be missing
                self.__dict__.update({name: Missing(name, e) for name in self.names[index]})

    def _import_name(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias, asked: set[str]) -> None:
        name = alias.asname or alias.name.split(".")[0]
        whole = isinstance(statement, ast.Import)
        module, level = (
            (alias.name, 0) if isinstance(statement, ast.Import) else (statement.module or "", statement.level)
        )
        try:
            found: Any = self._find_own_part(module, level) or importlib.import_module(module)
            if alias.name == "*":
                names = (n for n in asked - self.__dict__.keys() if not hasattr(builtins, n) and hasattr(found, n))
                self.__dict__.update({n: getattr(found, n) for n in names})
                return
            if whole and not alias.asname:
                found = self._find_own_part(name, 0) or sys.modules[name]
            elif found is self and (inner := self._find_inner_file(alias.name)):
                found = open_part(inner)
            elif not whole:
                if not isinstance(found, Part) and not hasattr(found, alias.name):
                    importlib.import_module(f"{module}.{alias.name}")
                found = getattr(found, alias.name)
            self.__dict__[name] = found
        except Exception as e:  # noqa: BLE001 - names that nobody uses may be missing
            self.__dict__[name] = Missing(module if whole else f"{module}.{alias.name}", e)

    def _find_own_part(self, module: str, level: int) -> Part | None:
        """Return the part for a module of the same package; None for another library's."""
        first = module.split(".", maxsplit=1)[0]
        package = find_package(self.path)
        if level > len(self.path.parents):
            raise ImportError(f"{self.path.name} is not below {level} folders")
        if level:
            place = self.path.parents[level - 1]
        elif package is not None and first == package.name:
            place = package.parent
        elif any(p.is_file() for p in _list_candidates(self.path.parent / first)) and (
            package is None or importlib.util.find_spec(first) is None  # in a package Python does not look there
        ):
            place = self.path.parent
        else:
            return None
        place = place.joinpath(*module.split(".")) if module else place
        file = next((p for p in _list_candidates(place) if p.is_file()), None)
        if file is None:
            raise ModuleNotFoundError(f"there is no {module!r} next to {self.path.name}")
        return open_part(file)


_PARTS: dict[Path, Part] = {}


def open_part(path: Path, text: str | None = None) -> Part:
    """Return the part for a file, the same at each call."""
    path = path.absolute()
    if path not in _PARTS:
        _PARTS[path] = Part(path, text)
    return _PARTS[path]


def list_files() -> list[Path]:
    """Return the files from which names were extracted."""
    return list(_PARTS)


def import_whole(path: Path) -> Any:
    """Return the file's module, imported with its package as Python does."""
    path = path.absolute()
    return import_below(path, (find_package(path) or path).parent)


def extract_name(path: Path, text: str, name: str) -> Any:
    """Return what a name of a file means; only what it needs is executed, or else the whole file with its package.

    Raises:
        Exception: neither can be done.
    """
    _PARTS.clear()  # the files may have changed
    try:
        part = open_part(path, text)
        if "torch.ops." in text and list_operator_names(ast.parse(text)):
            part.run_all()  # a class that calls an operator does not name what registers it
        return getattr(part, name)
    except Exception as e:  # noqa: BLE001 - whatever is in the file
        try:
            return getattr(import_whole(path), name)
        except (Exception, SystemExit):  # noqa: BLE001 - the first reason is the better one
            raise e from None


def _list_candidates(place: Path) -> tuple[Path, Path]:
    return place.with_name(f"{place.name}.py"), place / "__init__.py"


def find_package(path: Path) -> Path | None:
    """Return the outermost folder of the package that the file is in, if it is in one."""
    found, folder = None, path.parent
    while (folder / "__init__.py").is_file():
        found, folder = folder, folder.parent
    return found


def open_blocks(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, with those of an `if` one by one where it contains imports only."""
    for statement in body:
        inner = list(open_blocks(statement.body)) if isinstance(statement, ast.If) and not statement.orelse else []
        yield from inner if inner and all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in inner) else [statement]


def _list_changed(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose elements or attributes an assignment changes."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    for target in targets if isinstance(statement, (ast.Assign, ast.AugAssign)) else ():
        inner = target
        while isinstance(inner, (ast.Attribute, ast.Subscript)):
            inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id


def list_read(statement: ast.AST) -> set[str]:
    """Return the names that a statement reads, without those of `symbolic`, which is for export."""
    if isinstance(statement, ast.FunctionDef) and statement.name == "symbolic":
        return set()
    inner = set().union(*map(list_read, ast.iter_child_nodes(statement)))
    return inner | ({statement.id} if isinstance(statement, ast.Name) else set())
