"""`fnjax check`, with `--against pytorch`: the Functions of a folder in fnjax.torch beside PyTorch."""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fnjax._cli import check
from fnjax._cli.call import UsageError
from fnjax.port.compare.reference import PYTORCH, is_installed
from fnjax.port.compare_command import iter_functions
from fnjax.port.sources import Text, iter_sources
from fnjax.port.verify import Job, verify
from fnjax.port.verify.extraction import find_package
from fnjax.port.verify.record import DIFFERS, NOT_TRIED, REFUSED, VERIFIED
from fnjax.port.verify_command import DIFFERENT, add_search, check_search, read_cases, run_verifiers

WORDS = {VERIFIED: "right", REFUSED: "refused", DIFFERS: "different", NOT_TRIED: "not tried"}
_VARIANTS = ("float64", "bfloat16", "non-contiguous", "second call")  # of verify.variants, which imports JAX
_ENOUGH = 17  # calls in float32


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = check.add(commands)
    group = parser.add_argument_group(
        "beside PyTorch",
        "with --against pytorch the target is a file or a folder of PyTorch source; each torch.autograd.Function there "
        "runs in fnjax.torch and in PyTorch, in a process of its own, on arguments that are searched for, and gets a "
        "line on standard error: right, refused by fnjax.torch, different, or not tried. Outputs, gradients and second "
        "derivatives are compared, eager and jit, for each pattern of differentiated arguments, and in "
        f"{', '.join(_VARIANTS)}. Exit status: 0 if all are right, 1 if one is refused or not tried or a file cannot "
        "be read, 3 if one is different",
    )
    add_search(group, [PYTORCH])
    parser.set_defaults(run=_run_check)


def _run_check(options: argparse.Namespace) -> int:
    if options.against is None:
        if options.cases or options.seconds:
            raise UsageError("--cases and --seconds are for --against pytorch")
        return check.run_check(options)
    if not is_installed():
        raise UsageError("--against pytorch: PyTorch is not installed: install it")
    check_search(options)
    place, _, name = options.target.partition(":")
    if not Path(place).exists():
        raise UsageError(f"there is no file or folder {place!r}")
    left_out = list[str]()
    found = [(s, n) for s, n in _find_functions(iter_sources([place], None), left_out) if not name or n == name]
    if not found:
        raise UsageError(f"{place} has no torch.autograd.Function{f' {name}' if name else ''}")
    cases = read_cases(options, sorted({n for _, n in found}), "")
    verdicts = run_verifiers(
        [(s.name, s.name, functools.partial(verify, _make_job(s, n, options, cases.get(n, [])))) for s, n in found],
        lambda file, _, verdict: f"{file}:{verdict.describe(file, file, WORDS)}",
        seconds=options.seconds,
    )
    counts = collections.Counter(WORDS[v.status] for v in verdicts)
    if options.json:
        pairs = zip(found, verdicts, strict=True)
        classes = [{"file": s.name, **v.make_json(), "status": WORDS[v.status]} for (s, _), v in pairs]
        print(json.dumps({"counts": counts, "classes": classes, "left out": left_out}, indent=2))
    else:
        parts = [f"{counts[word]} {word}" for word in WORDS.values() if counts[word]]
        print(", ".join([*parts, f"files left out: {len(left_out)}"] if left_out else parts))
    return DIFFERENT if counts[WORDS[DIFFERS]] else int(bool(left_out) or any(v.status != VERIFIED for v in verdicts))


def _make_job(source: Text, name: str, options: argparse.Namespace, cases: Sequence[str]) -> Job:
    needs_package = imports_own_package(source.text, Path(source.name))
    return Job(
        source.name,
        source.text,
        name,
        place=source.name if needs_package else "",
        port="" if needs_package else source.text,  # by itself: its package may take long to load
        seconds=options.seconds,
        seed=options.seed,
        cases=cases,
        enough=_ENOUGH,
        against=options.against,
        variants=_VARIANTS,
    )


def imports_own_package(text: str, path: Path) -> bool:
    """Return whether a file imports from the package that it is in, or from a file next to it."""
    nodes = [*ast.walk(ast.parse(text))]
    named = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    named += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    first = {name.split(".")[0] for name in named}
    package = find_package(path.absolute())
    near = {package.name} if package else {p.stem for p in path.parent.iterdir()}
    return any(isinstance(n, ast.ImportFrom) and n.level for n in nodes) or bool(first & near)


def _find_functions(sources: Iterable[Text], left_out: list[str]) -> Iterator[tuple[Text, str]]:
    """Yield the classes that derive from a Function, perhaps by a class of another file; nothing is executed.

    Args:
        sources: the files.
        left_out: gets the names of files that cannot be read.
    """
    classes: list[tuple[Text, str, set[str]]] = []
    for source in sources:
        try:
            names = [*iter_functions(source.text, Path(source.name))] if "torch" in source.text else []
        except UsageError as e:
            print(f"fnjax: {e}; it is left out", file=sys.stderr)
            left_out.append(source.name)
            continue
        bases = {
            n.name: {ast.unparse(b).rpartition(".")[2] for b in n.bases}
            for n in ast.walk(ast.parse(source.text))
            if isinstance(n, ast.ClassDef)
        }
        classes += [(source, name, bases[name]) for name in names if name in bases]
    derived = {"Function", "InplaceFunction"}
    while more := {name for _, name, bases in classes if bases & derived} - derived:
        derived |= more
    yield from ((source, name) for source, name, bases in classes if bases & derived)
