"""The files that `fnjax port` writes: where they go, their header, and what is not overwritten."""

from __future__ import annotations

import argparse
import ast
import codecs
import difflib
import hashlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import fnjax
from fnjax._cli.call import UsageError
from fnjax.port.result import Ported
from fnjax.port.source.top_level import collect_bound
from fnjax.port.sources import Text, resolve_path

_HEADER = re.compile(rb"^# Port by fnjax \S+ of .* \(source [0-9a-f]{12}, port ([0-9a-f]{12})\)\n", re.MULTILINE)
_FIRST = re.compile(r"(?:#!.*\n)?(?:#.*coding[:=].*\n)?")  # lines that must stay in front of a header


def are_many(options: argparse.Namespace, sources: Sequence[Text]) -> bool:
    """Return whether there are several sources, so that an output is a folder."""
    return len(sources) > 1 or any(Path(s).is_dir() for s in options.source)


def check_outputs(options: argparse.Namespace, sources: Sequence[Text]) -> None:
    """Refuse an output, or a report, that is one of the inputs or a file that is not a port as it was written.

    Raises:
        UsageError: if one is.
    """
    many = are_many(options, sources)
    names = [s.name for s in sources]
    targets = {}
    if options.output is not None:
        out = Path(options.output)
        if out.suffix == ".ipynb" and not out.is_dir():
            raise UsageError(f"a port is a Python file, not a notebook: -o {str(out.with_suffix('.py'))!r}")
        if many and (out.is_file() or (out.suffix == ".py" and not out.is_dir())):
            raise UsageError(f"{options.output!r} names a file, and there are several sources; -o needs a folder")
        targets = {name: choose_target(options, name, many) for name in names}
    for name, target in targets.items():
        if name != "<stdin>" and target.exists() and resolve_path(target) == resolve_path(name):
            raise UsageError(f"{str(target)!r} is the source itself; fnjax port does not write over its input")
    for target in targets.values():
        both = [n for n, t in targets.items() if t == target]
        if len(both) > 1:
            raise UsageError(
                f"{both[0]!r} and {both[1]!r} would both be written to {str(target)!r}; port them one by one"
            )
    used = {resolve_path(n) for n in names} | {resolve_path(t) for t in targets.values()}
    if options.report and options.report != "-" and resolve_path(options.report) in used:
        raise UsageError(f"--report {options.report!r} is a source or the output itself")


def choose_target(options: argparse.Namespace, name: str, many: bool) -> Path:
    """Return the path that the port of a source is written to."""
    out = Path(options.output)
    if not many and not out.is_dir() and not str(options.output).endswith(os.sep):
        return out
    roots = [Path(s) for s in options.source if Path(s).is_dir() and Path(name).is_relative_to(s)]
    target = out / (Path(name).relative_to(roots[0]) if roots else Path(name).name)
    return target.with_suffix(".py") if target.suffix == ".ipynb" else target


def check_replaced(options: argparse.Namespace, names: Sequence[str], many: bool) -> None:
    """Refuse to replace a file that is not a port as `fnjax port` wrote it, unless `--force` is given.

    Raises:
        UsageError: if one would be replaced.
    """
    if options.output is None or options.force or options.check:
        return
    for name in names:
        target = choose_target(options, name, many)
        if not target.is_file():
            continue
        content = _read_target(target)
        if options.diff and content.startswith(b"--- "):
            continue
        if content and (why := _describe_edit(content)):
            raise UsageError(f"{str(target)!r} {why}; --force replaces it")


def _read_target(target: Path) -> bytes:
    """Return the content of a file, with plain line ends and without its byte order mark."""
    return target.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def _describe_edit(content: bytes) -> str:
    """Return how a file is not a port as it was written; empty if it is."""
    header = _HEADER.search(content)
    if header is None:
        return "is not a port that fnjax has written"
    return "" if _hash(content) == header[1].decode() else "has been edited since it was written"


def hash_sources(options: argparse.Namespace, sources: Sequence[Text], ported: Iterable[str]) -> str:
    """Return the hash of all that ports are made of: fnjax's version, options, texts, and which of them have a port.

    Of the folders around the sources those count that an import may name before what is in them.
    """
    text = "\n".join(s.text for s in sources)
    folders = {root: Path(root).resolve() for root in {s.root for s in sources}}
    named = {root: (f.name, *itertools.takewhile(text.__contains__, reversed(f.parts))) for root, f in folders.items()}
    made_of = [(name_source(s), named[s.root], s.text.replace("\r\n", "\n")) for s in sources]
    return _hash(repr((fnjax.__version__, options.strict, options.classes, made_of, sorted(ported))).encode())


def are_current(options: argparse.Namespace, sources: Sequence[Text]) -> bool:
    """Return whether the hashes in their headers alone say that all outputs are the ports of these sources."""
    many = are_many(options, sources)
    targets = {s: choose_target(options, s.name, many) for s in sources}
    found = {s: _read_target(t) for s, t in targets.items() if t.is_file()}
    now = hash_sources(options, sources, [name_source(s) for s in found])
    headers = [_HEADER.search(content) for content in found.values()]
    expected = [_write_header(s, now, content).encode() for s, content in found.items()]
    return any(headers) and [h and h[0] for h in headers] == expected


def _write_header(source: Text, made_of: str, content: bytes) -> str:
    """Return the line that says what a port is of, with the hashes of all sources and of the port itself."""
    name = ascii(name_source(source))[1:-1]
    return f"# Port by fnjax {fnjax.__version__} of {name} (source {made_of}, port {_hash(content)})\n"


def name_source(source: Text) -> str:
    """Return the name of a source in the folder that its modules are named from."""
    return "standard input" if source.name == "<stdin>" else Path(os.path.relpath(source.name, source.root)).as_posix()


def add_header(source: Text, code: str, made_of: str) -> str:
    """Return the code with its header."""
    plain = code.replace("\r\n", "\n")
    first = _FIRST.match(plain)
    at = first.end() if first else 0
    line = _write_header(source, made_of, plain.encode(source.encoding))
    return f"{plain[:at]}{line}{plain[at:]}".replace("\n", "\r\n" if "\r\n" in code else "\n")


def _hash(content: bytes) -> str:
    """Return the hash of a text without its byte order mark and header."""
    content = _HEADER.sub(b"", content.removeprefix(codecs.BOM_UTF8), count=1)
    return hashlib.sha256(content).hexdigest()[:12]


def emit_port(options: argparse.Namespace, source: Text, ported: Ported, many: bool, made_of: str) -> None:
    """Write a port, or its diff, to its file or to standard output."""
    if options.diff:
        before = _select_statements(source.text, ported.code) if options.classes else source.text
        lines = before.splitlines(True), ported.code.splitlines(True)
        shown = "".join(difflib.unified_diff(*lines, source.name, f"{source.name} (JAX)"))
    else:
        shown = add_header(source, ported.code, made_of)
    if options.output is not None:
        write_file(choose_target(options, source.name, many), shown, source.encoding)
    elif options.report != "-":  # as bytes: no line end is translated, and a declared encoding is kept
        sys.stdout.flush()
        sys.stdout.buffer.write(shown.encode(source.encoding))
        sys.stdout.buffer.flush()


def describe_difference(options: argparse.Namespace, source: Text, ported: Ported, many: bool) -> str:
    """Return how the file that a port is written to is not this port, and the remedy.

    Empty where it is this port, perhaps with the header of another version.
    """
    target = choose_target(options, source.name, many)
    if not target.is_file():
        return f"{target}, the port of {source.name}, does not exist: run fnjax port without --check"
    content = _read_target(target)
    code = ported.code.replace("\r\n", "\n").encode(source.encoding)
    if _HEADER.search(content) and _hash(content) == _hash(code):
        return ""
    if why := _describe_edit(content):
        return f"{target} {why}: run fnjax port with --force to replace it, or give -o another name"
    return f"{target} is not the port of {source.name} as that is now: run fnjax port without --check"


def _select_statements(text: str, code: str) -> str:
    """Return of a source the docstring, the imports, and the statements whose names the port has too."""
    wanted = {n for s in ast.parse(code).body for n in collect_bound(s)}
    lines = text.splitlines(True)
    kept: list[str] = []
    last = 0
    for i, node in enumerate(ast.parse(text).body):
        end = node.end_lineno or node.lineno
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if is_import or wanted & collect_bound(node) or (i == 0 and isinstance(node, ast.Expr)):
            kept += lines[last:end]
        last = end
    return "".join(kept)


def write_file(path: Path, text: str, encoding: str = "utf-8", folders: bool = True) -> None:
    """Write a file in one step, so that none is ever half written; a device is written to directly.

    Raises:
        UsageError: if it cannot be written.
    """
    content = text.encode(encoding)
    try:
        path = resolve_path(path)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise UsageError(f"cannot write {str(path)!r}: {e.strerror}") from e
