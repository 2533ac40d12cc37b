"""Classes of public packages as files of their own: downloaded, never run, never committed.

The wheels come from the package index by `pip download`, which runs nothing of them. A class is extracted from its
wheel with the statements that bind the names which it reads, and those that these read, also from other files of the
package.
"""

from __future__ import annotations

import ast
import builtins
import pathlib
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterable, Iterator

# Wheels of one platform, so that every machine reads the same files.
PLATFORM = ["--python-version=3.11", *(f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 28, 34))]


def wheel(name: str, version: str, cache: pathlib.Path) -> pathlib.Path:
    """Return the wheel of a package, downloaded if it is not in the cache."""
    folder = cache / f"{name}-{version}"
    if not list(folder.glob("*.whl")):
        print(f"downloading {name} {version}", file=sys.stderr, flush=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        command = [*pip, "--only-binary=:all:", *PLATFORM, "--dest", str(folder), f"{name}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"cannot download {name} {version} (offline?); pip says:\n{done.stderr.strip()}")
    return next(folder.glob("*.whl"))


class Package:
    """The files of a wheel, parsed when they are needed."""

    def __init__(self, path: pathlib.Path) -> None:
        self.archive = zipfile.ZipFile(path)
        self.files = set(self.archive.namelist())
        self.parsed: dict[str, tuple[list[str], ast.Module]] = {}

    def read(self, file: str) -> tuple[list[str], ast.Module]:
        """Return the lines and the statements of a file."""
        if file not in self.parsed:
            text = self.archive.read(file).decode()
            self.parsed[file] = text.splitlines(), ast.parse(text)
        return self.parsed[file]

    def file(self, module: str) -> str | None:
        """Return the file of a module, or None if it is not of this package."""
        path = module.replace(".", "/")
        return next((f for f in (f"{path}.py", f"{path}/__init__.py") if f in self.files), None)

    def functions(self) -> Iterator[tuple[str, str]]:
        """Yield files and classes that derive from torch.autograd.Function, or from a class of the file that does."""
        for file in sorted(f for f in self.files if f.endswith(".py") and "test" not in f):
            try:
                _, tree = self.read(file)
            except (SyntaxError, UnicodeDecodeError):
                continue
            known = {"Function", "autograd.Function", "torch.autograd.Function"}
            if "Function" not in {n for s in tree.body for n in bound(s)}:
                known.discard("Function")
            for statement in tree.body:
                if isinstance(statement, ast.ClassDef) and any(ast.unparse(b) in known for b in statement.bases):
                    known.add(statement.name)
                    if any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in statement.body):
                        yield file, statement.name

    def source(self, file: str, qualname: str) -> str:
        """Return a class and all that it needs, as one text."""
        extract = Extract(self)
        _, node = self.read(file)
        for part in qualname.split("."):
            if isinstance(node, ast.FunctionDef):
                break  # a class inside a function stays there
            node = next(n for n in ast.walk(node) if getattr(n, "name", "") == part)
        extract.statement(file, node)
        return (
            "\n\n\n".join(["\n".join(["from __future__ import annotations", *extract.imports]), *extract.texts]) + "\n"
        )


class Extract:
    """Collects statements, each after those that bind what it reads."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.imports: dict[str, None] = {}
        self.texts: list[str] = []
        self.seen: set[object] = set()
        self.owners: dict[str, str] = {}  # which file a name comes from

    def name(self, file: str, name: str) -> None:
        """Add the statements that bind a name at the top level of a file."""
        if (file, name) in self.seen:
            return
        self.seen.add((file, name))
        body = list(opened(self.package.read(file)[1].body))
        found = [s for s in body if name in bound(s)]
        if not found and not hasattr(builtins, name):
            found = [s for s in body if isinstance(s, ast.ImportFrom) and s.names[0].name == "*"]
        for statement in found:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imported(file, name, statement)
            else:
                self.statement(file, statement)

    def statement(self, file: str, statement: ast.stmt) -> None:
        """Add a statement, after the statements that it needs."""
        if statement in self.seen:
            return
        self.seen.add(statement)
        lines, _ = self.package.read(file)
        decorators = getattr(statement, "decorator_list", ()) if statement.col_offset == 0 else ()
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        text = textwrap.dedent("\n".join(lines[first - 1 : statement.end_lineno]))
        for dotted in sorted({ast.unparse(n) for n in ast.walk(statement) if isinstance(n, ast.Attribute)}):
            full = self.full_name(file, dotted)
            module, _, last = full.rpartition(".")
            if not self.package.file(full) and (other := self.package.file(module)):  # `ops.scale`
                self.name(other, last)
                text = re.sub(rf"(?<![\w.]){re.escape(dotted)}\b", last, text)
        for name in sorted({n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}):
            self.name(file, name)
        if text in self.texts:
            return
        for name in bound(statement):
            if self.owners.setdefault(name, file) != file:
                raise ValueError(f"{name} of {self.owners[name]} is another in {file}")
        self.texts.append(text)

    def full_name(self, file: str, dotted: str) -> str:
        """`torch.nn.relu` for `nn.relu`, where the file's imports say so."""
        root, _, rest = dotted.partition(".")
        for statement in opened(self.package.read(file)[1].body):
            for alias in statement.names if isinstance(statement, (ast.Import, ast.ImportFrom)) else ():
                if (alias.asname or alias.name.split(".")[0]) == root:
                    full = alias.name if alias.asname else root
                    module = self.module(file, statement)
                    return f"{module}.{full}.{rest}" if module else f"{full}.{rest}"
        return ""

    @staticmethod
    def module(file: str, statement: ast.stmt) -> str:
        """Return the absolute name of the module that an import reads."""
        if not isinstance(statement, ast.ImportFrom):
            return ""
        parts = file.split("/")[: -statement.level] if statement.level else []
        return ".".join([*parts, *([statement.module] if statement.module else [])])

    def imported(self, file: str, name: str, statement: ast.Import | ast.ImportFrom) -> None:
        """Add the import of a name: a line at the top, or the statements of another file of the package."""
        module = self.module(file, statement)
        for alias in statement.names:
            if alias.name != "*" and (alias.asname or alias.name.split(".")[0]) != name:
                continue
            other = self.package.file(module) if module else self.package.file(alias.name)
            if other is None or self.package.file(f"{module}.{alias.name}"):
                line = (
                    f"import {alias.name}"
                    if isinstance(statement, ast.Import)
                    else f"from {module} import {alias.name}"
                )
                self.imports[f"{line} as {alias.asname}" if alias.asname else line] = None
            else:
                self.name(other, name if alias.name == "*" else alias.name)
                if alias.asname not in {None, alias.name}:
                    self.texts.append(f"{name} = {alias.name}")


def opened(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements; those of an `if` that contains imports only one by one."""
    for statement in body:
        inner = list(opened(statement.body)) if isinstance(statement, ast.If) and not statement.orelse else []
        yield from inner if inner and all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in inner) else [statement]


def bound(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its scope."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (a.asname or a.name.split(".")[0] for a in statement.names)
    elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    else:
        for child in ast.iter_child_nodes(statement):
            yield from bound(child)
