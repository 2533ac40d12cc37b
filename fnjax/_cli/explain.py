"""`fnjax explain`: the entry of an error on the pages of errors."""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path
from typing import Any

from fnjax._cli.call import UsageError

_HEADING = re.compile(r"^#{2,3} (.*?) \{#([\w-]+)\}\n", re.MULTILINE)


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="explain an error, by the word after `see: fnjax explain` in its message",
        description="Print what an error means, an example that raises it, and what to do. Without a name, list all.",
        epilog="example: fnjax explain closure",
    )
    parser.add_argument("name", nargs="?", help="the word after `see: fnjax explain` in the message")
    parser.set_defaults(run=_run_explain)


def read_entries() -> dict[str, tuple[str, str]]:
    """Return the title and the text of each entry, by name."""
    here = Path(__file__)
    folder = here.parent if here.with_name("errors.md").is_file() else here.parents[2] / "docs"  # a wheel has them here
    found: dict[str, tuple[str, str]] = {}
    for path in [*sorted((folder / "errors").glob("*.md")), folder / "errors.md"]:
        parts = _HEADING.split(path.read_text(encoding="utf-8"))[1:]
        texts = [re.split(r"^#{1,3} ", text, flags=re.MULTILINE)[0].strip() for text in parts[2::3]]
        found |= {name: (title, text) for title, name, text in zip(parts[::3], parts[1::3], texts, strict=True)}
    return found


def _run_explain(options: argparse.Namespace) -> int:
    entries = read_entries()
    if options.name is None:
        width = max(map(len, entries))
        for name, (title, _) in entries.items():
            print(f"{name:{width}}  {title}")
        return 0
    if options.name not in entries:
        close = difflib.get_close_matches(options.name, entries, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`fnjax explain` lists all names"
        raise UsageError(f"there is no error named {options.name!r}; {hint}")
    title, text = entries[options.name]
    print(f"{title}\n\n{text}")
    return 0
