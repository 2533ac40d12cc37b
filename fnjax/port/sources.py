"""The sources of `fnjax port`: files, folders, notebooks and standard input."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import tokenize
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fnjax._cli.call import UsageError

_RUNS_CODE = ("%%time", "%%timeit", "%%capture", "%%prun")  # cell magics whose cell is Python
_PYTHON = ("", ".py", ".pyi", ".pyw", ".ipynb")  # suffixes
_MAGIC = re.compile(r"(\s*)((?:[\w, ]+=\s*)?[%!?].*|\S*\w\?{1,2}\s*)")


@dataclass(frozen=True, slots=True)
class Text:
    """A source.

    Attributes:
        name: its path as given, or `<stdin>`.
        explicit: True if the user named it, not a folder with it.
        root: the folder that its modules are named from.
        text: the content; of a notebook that of its cells of code.
        encoding: the encoding that it declares.
        problem: why it cannot be read; empty if it can.
        cells: of a notebook, the number and the first line of each cell in `text`.
    """

    name: str
    explicit: bool
    root: str
    text: str = ""
    encoding: str = "utf-8"
    problem: str = ""
    cells: tuple[tuple[int, int], ...] = ()

    def describe_line(self, line: int) -> str:
        """Return the file and the line, with the cell of a notebook."""
        if not self.cells:
            return f"{self.name}:{line}"
        number, first = self.cells[max(0, bisect([start for _, start in self.cells], line) - 1)]
        return f"{self.name}:cell {number}:{line - first + 1}"


def resolve_path(path: str | Path) -> Path:
    """Return a path without links; `Path.resolve` raises for a link to itself."""
    return Path(os.path.realpath(path))


def iter_sources(names: list[str], output: str | None) -> Iterator[Text]:
    """Yield the sources that the names stand for, without the files of the output folder.

    Raises:
        UsageError: for a named file that cannot be read.
    """
    for name in dict.fromkeys(names):
        path = Path(name)
        if name != "-" and path.is_dir():
            out = resolve_path(output) if output is not None else resolve_path(path)
            for inner in sorted(path.rglob("*.py")):
                if not inner.is_dir() and (out == resolve_path(path) or not resolve_path(inner).is_relative_to(out)):
                    yield _read_source(str(inner), inner, False, name)
            continue
        if path.suffix not in _PYTHON and path.is_file():
            raise UsageError(f"{name!r} is not a Python file")
        found = (
            _read_source("<stdin>", None, True, ".")
            if name == "-"
            else _read_source(name, path, True, str(path.parent))
        )
        if found.problem:
            raise UsageError(found.problem)
        yield found


def _read_source(name: str, path: Path | None, explicit: bool, root: str) -> Text:
    """Read a file, or standard input, in the encoding that it declares; line ends stay."""
    try:
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        if path is not None and path.suffix == ".ipynb":
            text, cells = read_notebook(content)
            return Text(name, explicit, root, text, cells=cells)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Text(name, explicit, root, content.decode(encoding), encoding)
    except OSError as e:
        why = e.strerror
    except (SyntaxError, UnicodeDecodeError):
        why = "it is not text in UTF-8 or in an encoding that it declares"
    except ValueError as e:
        why = str(e)
    return Text(name, explicit, root, problem=f"cannot read {name!r}: {why}")


def read_notebook(content: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the code of a Jupyter notebook, and the number and first line of each cell with code.

    Magics and shell commands become comments, as does a cell that is not Python.

    Raises:
        ValueError: if it is not a notebook of Python.
    """
    try:
        notebook = json.loads(content)
        cells: list[Any] = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ValueError("it is not a Jupyter notebook") from None
    if language != "python":
        raise ValueError(f"it is a notebook of {language}")
    lines: list[str] = []
    places = []
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") != "code":
            continue
        text = cell.get("source", cell.get("input", ""))
        text = _read_cell(text if isinstance(text, str) else "".join(text)).strip("\n")
        if text.strip():
            places.append((number, len(lines) + 1))
            lines += [*text.split("\n"), "", ""]
    return "\n".join(lines).rstrip("\n") + "\n", tuple(places)


def _read_cell(text: str) -> str:
    """Return a cell as Python."""
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("%%"):
        text = f"# {first}\n{rest}" if first.startswith(_RUNS_CODE) else _comment_out(text)
    lines = text.split("\n")
    for _ in lines:
        wrong = _find_wrong_line("\n".join(lines))
        if wrong is None:
            return "\n".join(lines)
        magic = _MAGIC.fullmatch(lines[wrong - 1]) if 0 < wrong <= len(lines) else None
        if magic is None:
            break
        lines[wrong - 1] = f"{magic[1]}{'pass  ' if magic[1] else ''}# {magic[2]}"
    return _comment_out(text)


def _comment_out(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))


def _find_wrong_line(text: str) -> int | None:
    """Return the line at which Python refuses a text, 0 if it does not say which, or None if the text is Python."""
    try:
        compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as e:
        return e.lineno or 0
    except ValueError:
        return 0
    return None
