"""The command `fnjax`: `fnjax check module:Name --args "randn(3, 8), 2"`, `fnjax port torch_file.py -o jax_file.py`.

Its exit status is 0 for success, 1 for a failure, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import fnjax
from fnjax._cli import explain, graph, lint
from fnjax._cli.call import UsageError
from fnjax.port import check_command
from fnjax.port import command as port
from fnjax.port import compare_command as compare
from fnjax.port import load_command as load


class _Version(argparse.Action):
    """Action that prints the versions for bug reports, without importing JAX."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"fnjax {fnjax.__version__}, JAX {version('jax')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="fnjax", description="PyTorch's custom autograd Functions for JAX.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of fnjax and JAX and exit")
    commands = parser.add_subparsers(metavar="command", dest="command", required=True)
    for subcommand in (
        check_command,
        graph,
        port,
        compare,
        lint,
        load,
        explain,
    ):  # each imports what it needs when it runs: help waits for nothing
        subcommand.add(commands)
    given = sys.argv[1:] if argv is None else argv
    if given and given[0].startswith("--") and not any(known.startswith(given[0]) for known in _list_options(parser)):
        _refuse_options(parser, given[:1])
    if given and not given[0].startswith("-") and given[0] not in commands.choices:
        similar = difflib.get_close_matches(given[0], commands.choices, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(commands.choices)}"
        parser.error(f"there is no command {given[0]!r}: {hint}")
    options, unknown = parser.parse_known_args(given)
    if unknown:
        _refuse_options(commands.choices[options.command], unknown)
    if options.command in {"port", "compare", "lint", "load"}:
        _refuse_names(commands.choices[options.command], given[1:])
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except UsageError as e:
        print(f"fnjax: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fnjax: interrupted", file=sys.stderr)
        return 130  # as a shell reports SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's exit writes to it again
        return 141  # as a shell reports SIGPIPE
    return status


def _list_options(parser: argparse.ArgumentParser) -> list[str]:
    return re.findall(r"(?<![\w-])--\w[\w-]*", parser.format_help())


def _refuse_options(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    similar = difflib.get_close_matches(unknown[0].partition("=")[0], _list_options(parser), 1)
    hint = f": did you mean {similar[0]}?" if similar else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _refuse_names(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse `layers.py:Swish` where files are meant, as check and graph take it."""
    for word in words:
        file, _, name = word.rpartition(":")
        if file.endswith(".py"):
            option = f" --class {name}" if "--class" in _list_options(parser) else ", all of which is read"
            parser.error(f"{word!r} is a name in a file: write {file}{option}")


if __name__ == "__main__":
    sys.exit(main())
