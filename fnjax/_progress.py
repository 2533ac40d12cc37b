"""Progress in one line of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable


def make_progress() -> Callable[[str], None] | None:
    """Return what shows a text in place of the line of a terminal, or None if standard error is not one."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    return show
