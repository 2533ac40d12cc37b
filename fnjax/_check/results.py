"""Results and error of `opcheck`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fnjax.errors import FnjaxError

SUCCESS = "SUCCESS"
SKIPPED = "SKIPPED"


class OpcheckError(FnjaxError, RuntimeError):
    """Error of `opcheck`: a function failed a test.

    Attributes:
        results: the results that `opcheck` would have returned.
    """

    def __init__(self, message: str, results: OpcheckResults) -> None:
        super().__init__(message)
        self.results = results


OpcheckError.__module__ = "fnjax"


class OpcheckResults(dict[str, Any]):
    """Dict of test name to "SUCCESS", "SKIPPED: why", or the exception of a failure; its string is a table."""

    @property
    def failures(self) -> dict[str, Exception]:
        """The tests that failed."""
        return {name: result for name, result in self.items() if isinstance(result, Exception)}

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:<{width}}  {_line(result)}" for name, result in self.items())


def _line(result: Any) -> str:
    if not isinstance(result, Exception):
        return str(result)
    lines = str(result).splitlines() or [""]
    return f"FAILED   {type(result).__name__}: {lines[0]:.150}"


OpcheckResults.__module__ = "fnjax"


def join_failures(failures: Mapping[str, str]) -> str:
    """Return the texts of failed tests, each once; if all but two lines were in earlier texts, these two lines only."""
    tests: dict[str, list[str]] = {}
    for name, text in failures.items():
        tests.setdefault(text, []).append(name)
    parts, shown = [], set[str]()
    for text, names in tests.items():
        lines = text.splitlines()
        new = [line for line in lines if line not in shown]
        short = len(new) <= 2 < len(lines) - len(new)
        parts.append(f"{', '.join(names)}: " + ("\n".join([*new, "  the rest as above"]) if short else text))
        shown.update(lines)
    return "\n\n".join(parts)
