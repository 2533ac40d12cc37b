"""`fnjax port`: the porter from the command line."""

from __future__ import annotations

import argparse
import difflib
import gc
import io
import json
import os
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnjax._cli.call import UsageError
from fnjax.port.verify import Verdict, verify
from fnjax.port.verify.record import DIFFERS, NOT_TRIED
from fnjax.port.verify_command import DIFFERENT, add_search, make_progress, read_cases, read_reference, say_verdict

if TYPE_CHECKING:
    from fnjax.port.result import Ported


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "port",
        help="translate torch.autograd.Function classes into JAX source",
        description="Translate files with torch.autograd.Function classes into JAX source with fnjax.Function classes. "
        "What cannot be translated, modules, and functions that use Functions or kernels stay PyTorch source, which "
        "fnjax.torch runs. The files are read, and run with --verify only. Exit status: 0 if all is JAX source, 1 if "
        "something stays as it is, or with --strict is left to port by hand (each on standard error), or a file of a "
        "folder cannot be read, 2 if the input cannot be used, 3 if --verify found that a port differs from its "
        "original.",
        epilog="example: fnjax port activations.py -o activations_jax.py",
    )
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="a file, a folder, or - for standard input")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the file, or for several sources the folder, to write to"
    )
    parser.add_argument("--diff", action="store_true", help="show what changes as a diff")
    parser.add_argument(
        "--class", dest="classes", action="append", metavar="NAME", help="port this class only; may be repeated"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="leave a raise in the place of what cannot be translated; without it the class stays PyTorch source, "
        "which fnjax.torch runs",
    )
    parser.add_argument("--report", metavar="FILE", help="write what was found as JSON")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run each class and its port on arguments that are searched for, in a process of their own, and say on "
        "standard error whether the port is proved, differs (with the smallest call that shows it) or could not be "
        "tried; the original runs in PyTorch, or in fnjax.torch where PyTorch is not installed; what the class needs "
        "of the file is executed",
    )
    parser.add_argument("--args", metavar="ARGS", help="arguments for --verify to begin with: 'randn(3, 8), 2'")
    add_search(parser)
    parser.set_defaults(run=_run_port)


def _run_port(options: argparse.Namespace) -> int:
    try:
        from fnjax.port.engine.folder import port_files
    except ImportError as e:
        raise UsageError(f"fnjax port needs libcst: pip install 'fnjax[port]' ({e})") from e
    if "" in (*options.source, options.output, options.report):
        raise UsageError("an empty name: name a file, a folder, or - for standard input")
    sources = list(_iter_sources(options.source, options.output))
    _check_outputs(options, sources)
    if not options.verify and (options.args is not None or options.cases is not None):
        raise UsageError("--args and --cases are for --verify")
    results: list[tuple[Text, Ported]] = []
    unusable = [s for s in sources if s.problem]
    readable = [s for s in sources if not s.problem]
    texts, roots = {s.name: s.text for s in readable}, {s.name: s.root for s in readable}
    gc.freeze()  # what is there stays; looking through it for what may go takes a tenth of the time
    try:
        progress = make_progress() if len(sources) > 1 else None
        found = port_files(texts, roots, options.classes, progress, strict=options.strict)
    finally:
        gc.unfreeze()
    for source in readable:
        ported = found.get(source.name)
        if ported is None:  # of the files that others import from, one of which no class needs anything
            continue
        if not ported.problem:
            results.append((source, ported))
        elif source.explicit:
            raise UsageError(ported.problem)
        elif not ported.readable:  # most files of a folder have no Function, and no word is needed of them
            unusable.append(replace(source, problem=ported.problem))
    for source in unusable:
        print(f"fnjax: {source.problem}; it is left out", file=sys.stderr)
    if not results:
        raise UsageError(f"no file in {', '.join(options.source)} has a torch.autograd.Function class")
    for source, ported in results:
        for f in ported.findings:
            word = "" if f.severity == "error" else "note: "
            print(f"{source.name}:{f.line}:{f.col} {f.code} {word}{f.message}", file=sys.stderr)
        _say_summary(source.name, ported)
        _emit_port(options, source, ported, len(sources) > 1 or any(Path(s).is_dir() for s in options.source))
    verdicts = _verify_in_folder(options, results, len(sources) > 1) if options.verify else {}
    if options.report:
        _write_file(Path(options.report), json.dumps(_make_report(results, verdicts), indent=2) + "\n", folders=False)
    if any(v.status == DIFFERS for v in verdicts.values()):
        return DIFFERENT
    whole = all(not p.as_is and all(c.status == "ported" for c in p.classes) for _, p in results)
    return int(bool(unusable) or not whole)


def _say_summary(name: str, ported: Ported) -> None:
    """Print what of a file is JAX source, what stays as it is, and what is left out, where not all is JAX."""
    if not ported.as_is and not (ported.left_out and ported.classes):
        return
    done = sum(c.status == "ported" for c in ported.classes)
    parts = [f"{done} class{'es' * (done != 1)} in JAX"]
    parts += [f"{len(ported.as_is)} as they are: {', '.join(ported.as_is)}"] if ported.as_is else []
    parts += [f"left out: {', '.join(ported.left_out)}"] if ported.left_out else []
    print(f"{name}: {'; '.join(parts)}", file=sys.stderr)


def _verify_in_folder(
    options: argparse.Namespace, results: list[tuple[Text, Ported]], many: bool
) -> dict[tuple[str, str], Verdict]:
    """Both sides of each class, run where the ports can import each other; what became of each, by file and class."""
    if len(results) == 1:
        return _verify_all(options, results, many, {})
    with tempfile.TemporaryDirectory() as folder:
        modules = {}
        for source, ported in results:
            inner = Path("fnjax_ports", os.path.relpath(source.name, source.root))
            modules[source.name] = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
            _write_file(Path(folder) / inner, ported.code, source.encoding)
        sys.path.append(folder)
        try:
            return _verify_all(options, results, many, modules)
        finally:
            sys.path.remove(folder)


def _verify_all(
    options: argparse.Namespace, results: list[tuple[Text, Ported]], many: bool, modules: Mapping[str, str]
) -> dict[tuple[str, str], Verdict]:
    against = read_reference(options)
    names = [c.name for _, ported in results for c in ported.classes]
    cases = read_cases(options, names, options.args or "")
    found = {}
    for source, ported in results:
        place = (
            f"{source.name} {_choose_target(options, source.name, many) if options.output is not None else 'PORTED'}"
        )
        for c in ported.classes:
            left = {f.code for f in c.findings if f.severity == "error"}
            if c.status in {"ported", "as_is"} or left <= {"untraced"}:
                verdict = verify(
                    source.name,
                    source.text,
                    c.name,
                    ported.code,
                    place=modules.get(source.name, ""),
                    seconds=options.seconds,
                    cases=cases.get(c.name),
                    modes=("eager",) if "untraced" in left else ("eager", "jit"),
                    against=against,
                    progress=make_progress(),
                )
            else:
                verdict = Verdict(c.name, NOT_TRIED, "it is not ported whole")
            say_verdict(verdict, place)
            found[source.name, c.name] = verdict
    return found


@dataclass(frozen=True, slots=True)
class Text:
    """A source: its name, whether the user named it, what it holds in which encoding, or why it cannot be read.

    Its modules are named from the folder `root`.
    """

    name: str
    explicit: bool
    root: str
    text: str = ""
    encoding: str = "utf-8"
    problem: str = ""


def _resolve_path(path: str | Path) -> Path:
    """A path without links; `Path.resolve` raises for a link that leads to itself."""
    return Path(os.path.realpath(path))


def _iter_sources(names: list[str], output: str | None) -> Iterator[Text]:
    """What the names stand for; the output folder is no source, where it lies in one."""
    for name in dict.fromkeys(names):
        path = Path(name)
        if name != "-" and path.is_dir():
            out = _resolve_path(output) if output is not None else _resolve_path(path)
            for inner in sorted(path.rglob("*.py")):
                if not inner.is_dir() and (out == _resolve_path(path) or not _resolve_path(inner).is_relative_to(out)):
                    yield _read_source(str(inner), inner, False, name)
            continue
        found = (
            _read_source("<stdin>", None, True, ".")
            if name == "-"
            else _read_source(name, path, True, str(path.parent))
        )
        if found.problem:
            raise UsageError(found.problem)
        yield found


def _read_source(name: str, path: Path | None, explicit: bool, root: str) -> Text:
    """A file, or standard input, as Python reads it: in the encoding that it declares. Its line ends stay."""
    try:
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Text(name, explicit, root, content.decode(encoding), encoding)
    except OSError as e:
        why = e.strerror
    except (SyntaxError, UnicodeDecodeError):
        why = "it is no text in UTF-8 or in an encoding that it declares"
    return Text(name, explicit, root, problem=f"cannot read {name!r}: {why}")


def _check_outputs(options: argparse.Namespace, sources: list[Text]) -> None:
    """Refuse an output, or a report, that is one of the inputs."""
    many = len(sources) > 1 or any(Path(s).is_dir() for s in options.source)
    names = [s.name for s in sources]
    targets = {}
    if options.output is not None:
        if many and (
            Path(options.output).is_file() or (options.output.endswith(".py") and not Path(options.output).is_dir())
        ):
            raise UsageError(f"{options.output!r} is a file, and there are several sources; -o needs a folder")
        targets = {name: _choose_target(options, name, many) for name in names}
    for name, target in targets.items():
        if name != "<stdin>" and target.exists() and _resolve_path(target) == _resolve_path(name):
            raise UsageError(f"{str(target)!r} is the source itself; fnjax port does not write over its input")
    for target in targets.values():
        both = [n for n, t in targets.items() if t == target]
        if len(both) > 1:
            raise UsageError(
                f"{both[0]!r} and {both[1]!r} would both be written to {str(target)!r}; port them one by one"
            )
    used = {_resolve_path(n) for n in names} | {_resolve_path(t) for t in targets.values()}
    if options.report and _resolve_path(options.report) in used:
        raise UsageError(f"--report {options.report!r} is a source or the output itself")


def _choose_target(options: argparse.Namespace, name: str, many: bool) -> Path:
    out = Path(options.output)
    if not many and not out.is_dir() and not str(options.output).endswith(os.sep):
        return out
    roots = [Path(s) for s in options.source if Path(s).is_dir() and Path(name).is_relative_to(s)]
    return out / (Path(name).relative_to(roots[0]) if roots else Path(name).name)


def _emit_port(options: argparse.Namespace, source: Text, ported: Ported, many: bool) -> None:
    shown = ported.code
    if options.diff:
        before, after = source.text.splitlines(True), ported.code.splitlines(True)
        shown = "".join(difflib.unified_diff(before, after, source.name, f"{source.name} (JAX)"))
    if options.output is not None:
        _write_file(_choose_target(options, source.name, many), shown, source.encoding)
    else:  # as bytes: no line end is translated, and a file that declares an encoding keeps to it
        sys.stdout.flush()
        sys.stdout.buffer.write(shown.encode(source.encoding))
        sys.stdout.buffer.flush()


def _write_file(path: Path, text: str, encoding: str = "utf-8", folders: bool = True) -> None:
    """Write a file at once, so that none is ever half written; what is no file, as a device, is written to as it is."""
    content = text.encode(encoding)
    try:
        path = _resolve_path(path)
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


def _make_report(results: list[tuple[Text, Ported]], verdicts: dict[tuple[str, str], Verdict]) -> dict[str, Any]:
    keys = ("line", "col", "code", "severity", "message")
    many = len(results) > 1
    return {
        "as_is": {source.name: ported.as_is for source, ported in results if ported.as_is},
        "left_out": {source.name: ported.left_out for source, ported in results if ported.left_out},
        "classes": [
            ({"file": source.name} if many else {})
            | {"name": c.name, "status": c.status, "findings": [{k: getattr(f, k) for k in keys} for f in c.findings]}
            | ({"verified": verdicts[source.name, c.name].make_json()} if verdicts else {})
            for source, ported in results
            for c in ported.classes
        ],
    }
