"""What walks through a statement have made and left, so that none is walked again where nothing is known anew."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import libcst as cst

from fnjax.port.analysis.terms import Sink, Statements
from fnjax.port.known.facts import State, Value

Made = tuple[Statements, int] | None  # what takes the place of how many statements


@dataclass(slots=True)
class Trace:
    """One walk.

    Attributes:
        around: what was known beside the state.
        start: the variables before it.
        made: the translation.
        end: the variables after it.
        sink: what it has found and needs.
        returns: what its `return` statements give.
        saves: its calls of ctx.save_for_backward.
        unset: what has to be None before the loops around.
    """

    around: tuple[object, ...]
    start: State
    made: Made
    end: State
    sink: Sink
    returns: list[Value]
    saves: list[cst.Call]
    unset: set[str]


@dataclass(slots=True)
class Traces:
    """The walks through one routine, by what was walked."""

    known: dict[Hashable, list[Trace]] = field(default_factory=dict)

    def find(self, key: Hashable, around: tuple[object, ...], start: State) -> Trace | None:
        """The walk that began like this, if there was one."""
        found = (t for t in self.known.get(key, ()) if t.around == around and t.start == start)
        return next(found, None)

    def add(self, key: Hashable, trace: Trace) -> None:
        """One more walk."""
        self.known.setdefault(key, []).append(trace)
