"""Count the files in which each rule of the porter answers, the classes that it serves, and what runs of `rewrite`.

    python tools/port_rules.py [--folder DIR] [--below N] [--statements [FILE]] [--ports FILE]

The files are those of the tests' corpora: classes (tests/port/classes_*.py), custom operators, collectives and
kernels, each class a file; `--folder` adds all files of a folder, as tools/port_corpus.py has fetched them. A rule
serves the classes of these files that become JAX source, where it answers in their file. `--ports` writes what
all files become, findings included: a change of the porter that should change nothing leaves this as it is.

Needs Python 3.12 (sys.monitoring), but for `--ports`.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fnjax.port import port_source  # noqa: E402 - of this folder
from fnjax.port.analysis import registry  # noqa: E402

REWRITE = ROOT / "fnjax" / "port" / "rewrite"
OPERATORS = ("test_custom_operators", "test_library_operators", "test_verify_operators")
TOOL = 3  # the number that sys.monitoring knows this tool by


def list_files(folder: pathlib.Path | None) -> Iterator[tuple[str, str, list[str] | None]]:
    """Yield the corpus, text and classes of each file."""
    from tests.port import test_classes, triton_sources

    for name in test_classes.CASES:
        yield "classes", test_classes.source(name), None
    for file in OPERATORS:
        for node in ast.parse((ROOT / "tests" / "port" / f"{file}.py").read_text()).body:
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and "import torch" in value.value:
                yield "operators", value.value, None
    text = (ROOT / "tests" / "port" / "collectives" / "functions.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            yield "collectives", text, [node.name]
    for each in triton_sources.CLASSES.values():
        yield "kernels", triton_sources.KERNELS + each, None
    for path in sorted(folder.rglob("*.py")) if folder else ():
        yield "folder", path.read_text(), None


def list_rules() -> dict[Any, str]:
    """Return all rules, and what each is asked for."""
    found: dict[Any, list[str]] = {}
    for kind, rules in registry.NODES.items():
        for rule in rules:
            found.setdefault(rule.rule, []).append(kind.__name__)
    for call in registry.CALLS:
        found.setdefault(call.rule, []).append(f"Call {' '.join(call.handles) or 'any'}")
    return {rule: ", ".join(kinds) for rule, kinds in found.items()}


class Answers:
    """In which files each rule has answered."""

    def __init__(self) -> None:
        self.file = ""
        self.found: dict[Any, set[str]] = collections.defaultdict(set)
        self.asked: collections.Counter[Any] = collections.Counter()
        self.classes: collections.Counter[str] = collections.Counter()  # of a file that become JAX source
        for rules in registry.NODES.values():
            rules[:] = [replace(r, rule=self.count(r.rule)) for r in rules]
        registry.CALLS[:] = [replace(r, rule=self.count(r.rule)) for r in registry.CALLS]

    def count(self, rule: Any) -> Any:
        """Return a rule that counts its answers; one that stops has answered."""

        def counted(*args: Any) -> Any:
            self.asked[rule] += 1
            try:
                made = rule(*args)
            except Exception:
                self.found[rule].add(self.file)
                raise
            if made is not None:
                self.found[rule].add(self.file)
            return made

        return counted


def list_statements(path: pathlib.Path) -> dict[int, int]:
    """Return the first line of each statement inside a function of a file, and its last."""
    found = {}
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if isinstance(node, ast.stmt) and node is not function and not text:
                    found[node.lineno] = node.end_lineno or node.lineno
    return found


class Lines:
    """In how many files each line of `rewrite` has run."""

    def __init__(self) -> None:
        self.runs: collections.Counter[tuple[str, int]] = collections.Counter()
        self.begun: set[tuple[str, int]] = set()
        monitor = sys.monitoring
        monitor.use_tool_id(TOOL, "port_rules")
        monitor.register_callback(TOOL, monitor.events.LINE, self.note)
        monitor.set_events(TOOL, monitor.events.LINE)

    def note(self, code: Any, line: int) -> Any:
        """Count a line that runs for the first time in a file."""
        if code.co_filename.startswith(str(REWRITE)):
            self.begun.add((code.co_filename, line))
        return sys.monitoring.DISABLE

    def end_file(self) -> None:
        """Add what has run in this file."""
        self.runs.update(self.begun)
        self.begun.clear()
        sys.monitoring.restart_events()


def write_ports(files: list[tuple[str, str, list[str] | None]], path: pathlib.Path) -> None:
    """Write what all files become, translated whole and by half."""
    made = [port_source(t, classes=c, strict=strict) for _, t, c in files for strict in (True, False)]
    ports = [repr(replace(m, in_jax=sorted(m.in_jax))) for m in made]
    path.write_text("\n".join(ports))
    print(f"{len(files)} files: {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}")


def show(rules: dict[Any, str], answers: Answers, below: int) -> None:
    """Print a line for each rule: files of each corpus, questions, name."""
    corpora = sorted({file.split()[0] for found in answers.found.values() for file in found})
    print(f"\n{'serves':>6} {'files':>6} {' '.join(f'{c:>11}' for c in corpora)} {'asked':>8}  rule")
    for rule in sorted(rules, key=lambda r: (len(answers.found[r]), r.__module__, r.__name__)):
        found = answers.found[rule]
        if len(found) < below:
            each = " ".join(f"{sum(f.split()[0] == c for f in found):>11}" for c in corpora)
            where = f"{rule.__module__.removeprefix('fnjax.port.rewrite.')}.{rule.__name__}"
            serves = sum(answers.classes[f] for f in found if f.startswith("folder"))
            print(f"{serves:>6} {len(found):>6} {each} {answers.asked[rule]:>8}  {where} ({rules[rule][:60]})")
    counts = [len(answers.found[r]) for r in rules]
    few = sum(0 < n < 3 for n in counts)
    asked = answers.asked.total()
    print(f"{len(rules)} rules: {counts.count(0)} answer in no file, {few} in one or two; {asked} questions")


def show_statements(lines: Lines, path: pathlib.Path | None) -> None:
    """Print how many statements of each file never run; write those with the numbers of files, if there is a path."""
    whole = never = few = 0
    text = []
    for file in sorted(REWRITE.rglob("*.py")):
        runs = {line: lines.runs[str(file), line] for line in list_statements(file)}
        whole, never = whole + len(runs), never + sum(n == 0 for n in runs.values())
        few += sum(0 < n < 3 for n in runs.values())
        if runs:
            print(f"{sum(n == 0 for n in runs.values()):>6} of {len(runs):>5}  {file.relative_to(REWRITE)}")
        for number, line in enumerate(file.read_text().splitlines(), 1):
            text.append(f"{file.relative_to(REWRITE)}:{number:<4}{runs.get(number, ''):>5} {line}")
    print(f"{whole} statements: {never} never run, {few} for one or two files")
    if path is not None:
        path.write_text("\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, help="a folder with more files")
    parser.add_argument("--below", type=int, default=10**6, help="show rules that answer in fewer files than this")
    parser.add_argument("--statements", type=pathlib.Path, help="write all lines here, and in how many files each runs")
    parser.add_argument("--ports", type=pathlib.Path, help="only write what all files become")
    options = parser.parse_args()
    files = list(list_files(options.folder))
    if options.ports:
        write_ports(files, options.ports)
        return
    rules = list_rules()
    answers, lines = Answers(), Lines()
    for number, (corpus, text, classes) in enumerate(files):
        answers.file = f"{corpus} {number}"
        ported = port_source(text, classes=classes)
        answers.classes[answers.file] = sum(c.status == "ported" for c in ported.classes)
        lines.end_file()
    counts = collections.Counter(corpus for corpus, *_ in files)
    print(", ".join(f"{corpus}: {n} files" for corpus, n in counts.items()))
    show(rules, answers, options.below)
    show_statements(lines, options.statements)


if __name__ == "__main__":
    main()
