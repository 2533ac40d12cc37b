"""Options and verdicts of the search, shared by `fnjax port --verify` and `fnjax compare`."""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fnjax._cli.call import UsageError
from fnjax._progress import make_progress
from fnjax.port.compare.reference import PYTORCH, REFERENCES, choose_reference
from fnjax.port.verify import Verdict

SECONDS = 20.0
DIFFERENT = 3  # the exit status
_MOST = 8  # classes that are verified at a time, with up to 6 GiB each


def add_search(parser: argparse._ActionsContainer, references: Sequence[str] = REFERENCES) -> None:
    """Add the options of the search, and of the reference."""
    either = "PyTorch, the default where it is installed, or fnjax.torch, which needs no PyTorch"
    parser.add_argument(
        "--against",
        choices=references,
        help=f"what runs the original: {either if len(references) > 1 else 'PyTorch'}",
    )
    parser.add_argument(
        "--cases",
        metavar="FILE",
        help="calls to begin with, where the search fails: a file of lines such as Swish.apply(randn(3, 4), 2.0), with "
        "arguments as in --args",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help=f"processor time to search and compare a class (default: {SECONDS:g})",
    )


def check_search(options: argparse.Namespace) -> None:
    """Put the reference into `against` and the time into `seconds`, as given or by default; say if it is not PyTorch.

    Raises:
        UsageError: if they cannot be used.
    """
    try:
        if options.against is None and choose_reference(None) != PYTORCH:
            print("note: PyTorch is not installed: the reference is fnjax.torch", file=sys.stderr)
        options.against = choose_reference(options.against)
    except ImportError as e:
        raise UsageError(f"--against {options.against}: {e}") from e
    options.seconds = SECONDS if options.seconds is None else options.seconds
    if not options.seconds > 0:
        raise UsageError(f"--seconds {options.seconds:g} leaves no time; give a positive number")


def read_cases(options: argparse.Namespace, names: list[str], args: str) -> dict[str, list[str]]:
    """Return the arguments of the user's calls, by class.

    Args:
        options: those of the command.
        names: the classes.
        args: the value of `--args`; empty for none.
    """
    found: dict[str, list[str]] = {}
    if args:
        if len(names) > 1:
            raise UsageError(f"--args is for one class: choose one of {', '.join(names)} with --class, or use --cases")
        _parse_cases(f"f({args})", f"--args {args!r}")
        found = {name: [args] for name in names}
    if options.cases is None:
        return found
    try:
        text = Path(options.cases).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {options.cases!r}: {getattr(e, 'strerror', None) or e}") from e
    for statement in _parse_cases(text, repr(options.cases)).body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            raise UsageError(
                f"line {statement.lineno} of {options.cases} is not a call such as Swish.apply(randn(3, 4))"
            )
        name = ast.unparse(call.func).removesuffix(".apply")
        operator = "::".join(name.removesuffix(".default").split(".")[-2:])  # of torch.ops.mylib.scale
        full = [n for n in names if name in {n, n.rpartition(".")[2]} or n == operator]
        if not full:
            known = ", ".join(names)
            raise UsageError(f"line {statement.lineno} of {options.cases} calls {name}; there is {known or 'no class'}")
        found.setdefault(full[0], []).append(", ".join(map(ast.unparse, [*call.args, *call.keywords])))
    return found


def _parse_cases(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as e:
        raise UsageError(f"cannot read {what}: {e.msg} (line {e.lineno})") from e


class Verifier(Protocol):
    """Function that finds the verdict on one class."""

    def __call__(self, *, progress: Callable[[str], None] | None, cancelled: threading.Event) -> Verdict:
        """Return the verdict.

        Args:
            progress: called with a line on the state of the search.
            cancelled: set when no verdict is wanted any more.
        """


def run_verifiers(
    verifiers: Sequence[tuple[str, str, Verifier]],
    describe: Callable[[str, str, Verdict], str] | None = None,
    *,
    seconds: float = 0,
) -> list[Verdict]:
    """Return the verdicts on several classes, and print each on standard error, in this order.

    Classes are verified in parallel where there are several processors; each has a process of its own.

    Args:
        verifiers: for each class its file and that of its port, which may be empty, and what finds its verdict.
        describe: returns what is printed, from the two files and the verdict; by default what that says itself.
        seconds: what a class may take of processor time, which is printed first.
    """
    show, cancelled = make_progress(), threading.Event()
    count = len(verifiers)
    if seconds:
        classes = "a class" if count == 1 else f"{count} classes"
        print(f"comparing {classes}: up to {seconds:g} seconds of processor time each (--seconds)", file=sys.stderr)

    def verify_one(number: int) -> Verdict:
        head = f"class {number + 1} of {count}: " if count > 1 else ""
        progress = (lambda text: show(head + text)) if show is not None else None
        return verifiers[number][2](progress=progress, cancelled=cancelled)

    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(max(1, min(count, (os.cpu_count() or 1), _MOST))) as pool:
        try:
            for (original, ported, _), verdict in zip(verifiers, pool.map(verify_one, range(count)), strict=True):
                clear = "\r\x1b[K" if show is not None else ""
                text = verdict.describe(original, ported) if describe is None else describe(original, ported, verdict)
                print(clear + text, file=sys.stderr, flush=True)
                verdicts.append(verdict)
        except BaseException:
            cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return verdicts
