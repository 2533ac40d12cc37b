"""Lines of a class that ran."""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

METHODS = ("forward", "setup_context", "backward", "vjp")


class Lines:
    """The lines of a class's methods, and which of them, and of the functions next to them, ran.

    Args:
        cls: the class.
        files: the files whose functions are followed.

    Attributes:
        own: the lines of the class that can run, by method.
        all_own: those of all methods.
        ran: those that ran in the last call, with the file of each.
    """

    def __init__(self, cls: Any, files: set[str]) -> None:
        self.files = files
        self.own: dict[str, set[int]] = {}
        self.file = ""
        for name in METHODS:
            code = getattr(inspect.unwrap(getattr(cls, name, None) or len), "__code__", None)
            if code is not None and code.co_filename in files:
                self.file = self.file or code.co_filename
                self.own[name] = set(_iter_executable(code)) if code.co_filename == self.file else set()
        self.all_own = set[int]().union(*self.own.values())
        self.ran: set[tuple[str, int]] = set()

    @contextmanager
    def trace_lines(self) -> Iterator[None]:
        """Record in `ran` the lines that run meanwhile."""
        self.ran = set()
        before = sys.gettrace()
        sys.settrace(self._trace_frame)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace_frame(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename in self.files else None

    def _trace_line(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.ran.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace_line

    def keep_own(self, ran: AbstractSet[tuple[str, int]]) -> set[int]:
        """Return those of the class among lines that ran."""
        return {line for file, line in ran if file == self.file} & self.all_own

    def list_unseen(self, ran: AbstractSet[tuple[str, int]]) -> list[int]:
        """Return the class's lines that are not among those that ran."""
        return sorted(self.all_own - self.keep_own(ran))

    def measure_progress(self, error: BaseException) -> int:
        """Return how far into its line the exception was raised, to prefer calls that get further."""
        found, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in self.files:
                found = trace.tb_lasti
            trace = trace.tb_next
        return found


def _iter_executable(code: types.CodeType) -> Iterator[int]:
    # The first line is that of the definition, which runs with every call; code of no line is None from Python 3.13 on.
    yield from (line for _, line in dis.findlinestarts(code) if (line or 0) > code.co_firstlineno)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _iter_executable(inner)
