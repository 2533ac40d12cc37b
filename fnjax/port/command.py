"""`fnjax port`: the porter from the command line."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnjax._command import UsageError

if TYPE_CHECKING:
    from fnjax.port.result import Ported


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "port",
        help="translate torch.autograd.Function classes into JAX source",
        description="Translate files with torch.autograd.Function classes into JAX source with fnjax.Function classes. "
        "The files are read, never run. Exit status: 0 if every class is ported whole, 1 if something is left for "
        "the hand (each on standard error), 2 if the input cannot be used.",
        epilog="example: fnjax port activations.py -o activations_jax.py",
    )
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="a file, a folder, or - for standard input")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the file, or for several sources the folder, to write to"
    )
    parser.add_argument("--diff", action="store_true", help="show what changes as a diff")
    parser.add_argument("--class", dest="classes", action="append", metavar="NAME", help="port this class only")
    parser.add_argument("--report", metavar="FILE", help="write what was found as JSON")
    parser.set_defaults(run=_port)


def _port(options: argparse.Namespace) -> int:
    try:
        from fnjax.port.engine import port_source
    except ImportError as e:
        raise UsageError(f"fnjax port needs libcst: pip install 'fnjax[port]' ({e})") from e
    sources = list(_sources(options.source))
    if options.output is not None:
        _writable(options, sources)
    results: list[tuple[str, str, Ported]] = []
    for name, text, explicit in sources:
        ported = port_source(text, name, options.classes)
        if ported.problem and not explicit:
            continue  # of a folder: most of its files have no Function
        if ported.problem:
            raise UsageError(ported.problem)
        results.append((name, text, ported))
    if not results:
        raise UsageError(f"no file in {', '.join(options.source)} has a torch.autograd.Function class")
    for name, text, ported in results:
        for f in ported.findings:
            word = "" if f.severity == "error" else "note: "
            print(f"{name}:{f.line}:{f.col} {f.code} {word}{f.message}", file=sys.stderr)
        _emit(options, name, text, ported, len(sources) > 1 or any(Path(s).is_dir() for s in options.source))
    if options.report:
        _write(Path(options.report), json.dumps(_report(results), indent=2) + "\n")
    return int(any(c.status != "ported" for _, _, ported in results for c in ported.classes))


def _sources(names: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Each file's name, its text, and whether the user named it."""
    for name in names:
        if name == "-":
            yield "<stdin>", sys.stdin.read(), True
            continue
        path = Path(name)
        if path.is_dir():
            for inner in sorted(path.rglob("*.py")):
                yield str(inner), _read(inner), False
        else:
            yield name, _read(path), True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(
            f"cannot read {str(path)!r}: {e.strerror if isinstance(e, OSError) else 'it is no UTF-8 text'}"
        ) from e


def _writable(options: argparse.Namespace, sources: list[tuple[str, str, bool]]) -> None:
    """Refuse an output that is one of the inputs."""
    many = len(sources) > 1 or any(Path(s).is_dir() for s in options.source)
    if many and Path(options.output).is_file():
        raise UsageError(f"{options.output!r} is a file, and there are several sources; -o needs a folder")
    for name, _, _ in sources:
        target = _target(options, name, many)
        if name != "<stdin>" and target.exists() and target.resolve() == Path(name).resolve():
            raise UsageError(f"{str(target)!r} is the source itself; fnjax port does not write over its input")
    if options.report:
        written = {_target(options, name, many).resolve() for name, _, _ in sources} | {
            Path(n).resolve() for n, _, _ in sources
        }
        if Path(options.report).resolve() in written:
            raise UsageError(f"--report {options.report!r} is a source or the output itself")


def _target(options: argparse.Namespace, name: str, many: bool) -> Path:
    out = Path(options.output)
    if not many and not out.is_dir() and not str(options.output).endswith(os.sep):
        return out
    roots = [Path(s) for s in options.source if Path(s).is_dir() and Path(name).is_relative_to(s)]
    return out / (Path(name).relative_to(roots[0]) if roots else Path(name).name)


def _emit(options: argparse.Namespace, name: str, text: str, ported: Ported, many: bool) -> None:
    shown = ported.code
    if options.diff:
        lines = difflib.unified_diff(text.splitlines(True), ported.code.splitlines(True), name, f"{name} (JAX)")
        shown = "".join(lines)
    if options.output is None:
        sys.stdout.write(shown)
    else:
        _write(_target(options, name, many), shown)


def _write(path: Path, text: str) -> None:
    """Write a file at once, so that none is ever half written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise UsageError(f"cannot write {str(path)!r}: {e.strerror}") from e


def _report(results: list[tuple[str, str, Ported]]) -> dict[str, Any]:
    keys = ("line", "col", "code", "severity", "message")
    many = len(results) > 1
    return {
        "classes": [
            ({"file": name} if many else {})
            | {"name": c.name, "status": c.status, "findings": [{k: getattr(f, k) for k in keys} for f in c.findings]}
            for name, _, ported in results
            for c in ported.classes
        ]
    }
