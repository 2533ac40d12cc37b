"""Count the lines of code of the package, folder by folder: `python tools/code_lines.py [--since COMMIT]`.

A line counts unless it is blank, a comment or part of a docstring. The core is what
`fnjax.Function` needs: the packages of CORE and the files next to the packages but the command line's.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import textwrap
import tokenize
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CORE = ("_primitives", "_function")
COMMAND = ("__main__.py", "_command.py")
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Counts(NamedTuple):
    """Lines of a file: of code, of comments alone, and all."""

    code: int
    comments: int
    whole: int


def count(text: str) -> Counts:
    """Count the lines of a source; a comment after code does not make a line of comment."""
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = text.splitlines()
    code -= {number for number, line in enumerate(lines, 1) if not line.strip()}
    return Counts(len(code), len(comments - code), len(lines))


def sources(commit: str | None) -> dict[PurePosixPath, str]:
    """Return the package's files by their path in it: those on disk, or those of a commit."""
    if commit is None:
        package = ROOT / "fnjax"
        return {PurePosixPath(p.relative_to(package).as_posix()): p.read_text() for p in sorted(package.rglob("*.py"))}
    names = [n for n in git("ls-tree", "-r", "--name-only", commit, "fnjax/").splitlines() if n.endswith(".py")]
    return {PurePosixPath(name).relative_to("fnjax"): git("show", f"{commit}:{name}") for name in names}


def git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def show(title: str, files: dict[PurePosixPath, str]) -> int:
    """Print a table of the rooms; return the lines of the core."""
    rooms: dict[str, dict[str, Counts]] = defaultdict(dict)
    for path, text in files.items():
        room = path.parts[0] if len(path.parts) > 1 else "command" if path.name in COMMAND else "core's own"
        rooms[room][str(path)] = count(text)
    print(title)
    for room, counts in sorted(rooms.items()):
        print(f"  {room}: {sum(c.code for c in counts.values())} in {len(counts)} files")
        names = sorted(counts, key=lambda name: -counts[name].code)
        each = ", ".join(f"{name.removeprefix(room + '/')}:{counts[name].code}" for name in names)
        print(textwrap.fill(each, 120, initial_indent="    ", subsequent_indent="    "))
    core = {name: c for room in (*CORE, "core's own") for name, c in rooms[room].items()}
    code, comments, whole = map(sum, zip(*core.values(), strict=True))
    largest = max(core, key=lambda name: core[name].whole)
    print(f"  core: {code} lines of code in {len(core)} files; largest {largest}, {core[largest].whole} lines in all")
    print(f"  comments: {comments} lines, {100 * comments / whole:.1f} % of the core's {whole}\n")
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the lines of code of the package, room by room.")
    parser.add_argument("--since", metavar="COMMIT", help="count that commit too")
    options = parser.parse_args()
    before = show(options.since, sources(options.since)) if options.since else None
    now = show("now", sources(None))
    print(f"core: {now}" if before is None else f"core: {before} at {options.since}, {now} now")


if __name__ == "__main__":
    main()
