"""`fnjax port`: the porter from the command line."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnjax._cli.call import UsageError
from fnjax._cli.target import list_imported
from fnjax._progress import make_progress
from fnjax.port.output import (
    are_current,
    are_many,
    check_outputs,
    check_replaced,
    choose_target,
    describe_difference,
    emit_port,
    hash_sources,
    name_source,
    write_file,
)
from fnjax.port.sources import Text, iter_sources
from fnjax.port.verify import Job, Verdict, verify
from fnjax.port.verify.record import DIFFERS, NOT_TRIED
from fnjax.port.verify_command import (
    DIFFERENT,
    Verifier,
    add_search,
    check_search,
    read_cases,
    run_verifiers,
)

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
    parser.add_argument(
        "source", nargs="+", metavar="SOURCE", help="a file, a notebook, a folder, or - for standard input"
    )
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
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing: exit with 1 if a file of -o is not the port of its source as it is now (for pre-commit)",
    )
    parser.add_argument("--force", action="store_true", help="replace a port that has been edited, or another file")
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write what was found as JSON; - is standard output, which then has no port",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run each class and its port on arguments that are searched for, in a process of their own; "
        "standard error gets a line for each: the port is verified, differs (with the smallest call that shows it) or "
        "could not be tried; the original runs in PyTorch, or in fnjax.torch where PyTorch is not installed; what the "
        "class needs of the file is executed",
    )
    parser.add_argument("--args", metavar="ARGS", help="arguments for --verify to begin with: 'randn(3, 8), 2'")
    add_search(parser)
    parser.set_defaults(run=_run_port)


def _run_port(options: argparse.Namespace) -> int:
    if "" in (*options.source, options.output, options.report):
        raise UsageError("an empty name: name a file, a folder, or - for standard input")
    if options.check and (options.output is None or options.diff or options.verify or options.report):
        raise UsageError("--check needs -o, and goes without --diff, --verify and --report")
    if not options.verify and any(
        getattr(options, name) is not None for name in ("args", "cases", "seconds", "against")
    ):
        raise UsageError("--args, --cases, --seconds and --against are for --verify")
    if options.verify:
        check_search(options)
    sources = list(iter_sources(options.source, options.output))
    check_outputs(options, sources)
    results: list[tuple[Text, Ported]] = []
    if len(sources) == 1 and sources[0].explicit and _is_jax_source(sources[0].text):
        raise UsageError(f"{sources[0].name} is JAX source already: there is nothing to port")
    unusable = [s for s in sources if s.problem]
    if options.check and not unusable and are_current(options, sources):
        return 0
    try:
        from fnjax.port.engine.folder import port_files
    except ImportError as e:
        raise UsageError(f"fnjax port needs libcst: pip install libcst ({e})") from e
    readable = [s for s in sources if not s.problem]
    texts, roots = {s.name: s.text for s in readable}, {s.name: s.root for s in readable}
    gc.freeze()  # what is there stays; searching it for garbage takes a tenth of the time
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
        elif source.explicit and len(sources) == 1:
            raise UsageError(ported.problem)
        elif not ported.readable:
            unusable.append(replace(source, problem=ported.problem))
        elif source.explicit and not options.classes:  # most files of a folder have no Function: no message
            print(f"fnjax: {ported.problem}; it is left out", file=sys.stderr)
    for source in unusable:
        print(f"fnjax: {source.problem}; it is left out", file=sys.stderr)
    names = [c.name for _, ported in results for c in ported.classes]
    missing = [w for w in options.classes or () if not any(n == w or n.endswith(f".{w}") for n in names)]
    if not results or missing:
        what = f"Function class {missing[0]!r}" if missing else "torch.autograd.Function class"
        raise UsageError(f"no file in {', '.join(options.source)} has a {what}")
    cases = read_cases(options, names, options.args or "") if options.verify else {}
    many = are_many(options, sources)
    check_replaced(options, [source.name for source, _ in results], many)
    if options.check:
        differences = [describe_difference(options, source, ported, many) for source, ported in results]
        for text in filter(None, differences):
            print(text, file=sys.stderr)
        return int(any(differences))
    made_of = hash_sources(options, sources, [name_source(source) for source, _ in results])
    for source, ported in results:
        for f in ported.findings:
            word = "" if f.severity == "error" else "note: "
            print(f"{source.describe_line(f.line)}:{f.col} {f.code} {word}{f.message}", file=sys.stderr)
        _say_summary(source.name, ported)
        emit_port(options, source, ported, many, made_of)
    verdicts = _verify_all(options, results, many, cases) if options.verify else {}
    if options.report:
        report = json.dumps(_make_report(results, verdicts), indent=2) + "\n"
        if options.report == "-":
            sys.stdout.write(report)
        else:
            write_file(Path(options.report), report, folders=False)
    if any(v.status == DIFFERS for v in verdicts.values()):
        return DIFFERENT
    whole = all(not p.as_is and all(c.status == "ported" for c in p.classes) for _, p in results)
    return int(bool(unusable) or not whole)


def _is_jax_source(text: str) -> bool:
    """Return whether a text imports JAX or fnjax, and not PyTorch."""
    try:
        imported = list_imported([*ast.walk(ast.parse(text))])
    except (SyntaxError, ValueError, RecursionError):
        return False
    return bool(imported & {"jax", "fnjax"}) and "torch" not in imported


def _say_summary(name: str, ported: Ported) -> None:
    """Print which parts of a file are JAX source, stay as they are, or are left out, unless all is JAX source."""
    if not ported.as_is and not (ported.left_out and ported.classes):
        return
    done = [c.name for c in ported.classes if c.status == "ported"]
    operators = sum("::" in n for n in done)
    parts = [f"{_count(len(done) - operators, 'class')} in JAX"] if ported.classes else []
    parts += [f"{_count(operators, 'operator')} in JAX"] if operators else []
    if ported.as_is:
        classes = sum(bool(re.search(rf"\n    class {n}\b", ported.code)) for n in ported.as_is)
        counts = [_count(classes, "class")] if classes else []
        counts += [_count(len(ported.as_is) - classes, "function")] if classes < len(ported.as_is) else []
        what = "as it is" if len(ported.as_is) == 1 else "as they are"
        parts.append(f"{' and '.join(counts)} {what}: {', '.join(ported.as_is)}")
    parts += [f"left out: {', '.join(ported.left_out)}"] if ported.left_out else []
    print(f"{name}: {'; '.join(parts)}", file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{('es' if what.endswith('s') else 's') * (number != 1)}"


def _verify_all(
    options: argparse.Namespace, results: list[tuple[Text, Ported]], many: bool, cases: Mapping[str, list[str]]
) -> dict[tuple[str, str], Verdict]:
    """Return the verdicts by file and class."""
    keys: list[tuple[str, str]] = []
    verifiers: list[tuple[str, str, Verifier]] = []
    with _make_modules(results) as modules:
        for source, ported in results:
            target = "" if options.output is None or options.diff else str(choose_target(options, source.name, many))
            for c in ported.classes:
                left = {f.code for f in c.findings if f.severity == "error"}
                verifier: Verifier = functools.partial(_report_partial, c.name)
                if c.status in {"ported", "as_is"} or left <= {"untraced"}:
                    traced = "untraced" not in left  # of which jit and second derivatives are
                    job = Job(
                        source.name,
                        source.text,
                        c.name,
                        place=modules.get(source.name, target if target.endswith(".py") else ""),
                        port=ported.code,
                        seconds=options.seconds,
                        second=traced,
                        cases=cases.get(c.name, []),
                        modes=["eager", "jit"] if traced else ["eager"],
                        against=options.against,
                    )
                    verifier = functools.partial(verify, job)
                keys.append((source.name, c.name))
                verifiers.append((source.name if source.name != "<stdin>" else "-", target, verifier))
        return dict(zip(keys, run_verifiers(verifiers, seconds=options.seconds), strict=True))


@contextlib.contextmanager
def _make_modules(results: list[tuple[Text, Ported]]) -> Iterator[dict[str, str]]:
    """Write several ports into a folder, where they can import each other; yield the name of each one's module."""
    modules: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source, ported in results if len(results) > 1 else ():
            inner = Path("fnjax_ports", os.path.relpath(source.name, source.root)).with_suffix(".py")
            modules[source.name] = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
            write_file(Path(folder) / inner, ported.code, source.encoding)
        sys.path.append(folder)
        try:
            yield modules
        finally:
            sys.path.remove(folder)


def _report_partial(name: str, **_: Any) -> Verdict:
    return Verdict(name, NOT_TRIED, "it is not ported whole")


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
