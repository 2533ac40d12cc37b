"""Progress in one line of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable


def make_progress() -> Callable[[str], None] | None:
    """Return a function that replaces the present line of the terminal by a text; None if standard error is none."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    return show
