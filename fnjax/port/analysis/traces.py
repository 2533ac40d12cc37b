"""What evaluations of statements have found, so that none is evaluated again where nothing is known anew."""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fnjax.port.analysis.effects import NOTHING, Effects
from fnjax.port.analysis.expr import Diagnostics, Prologue, Statements
from fnjax.port.known.facts import State, Value

Made = tuple[Statements, int] | None  # what takes the place of how many statements


@dataclass(slots=True)
class Region:
    """What an evaluation through something has found; nothing of it holds until the evaluation adopts it.

    Attributes:
        made: the translation.
        end: the variables after it.
        diagnostics: what it has found and needs.
        before: what goes in front of the statement that it stands in.
        returns: what its `return` statements give.
        saves: its calls of ctx.save_for_backward.
        unset: what has to be None before the loops around.
        effects: what it does.
        leaves: whether nothing after it is reached from it.
    """

    end: State
    diagnostics: Diagnostics
    made: Any = None
    before: Prologue = field(default_factory=Prologue)
    returns: list[Value] = field(default_factory=list)
    saves: list[cst.Call] = field(default_factory=list)
    unset: set[str] = field(default_factory=set)
    effects: Effects = NOTHING
    leaves: bool = False

    @property
    def untraced(self) -> bool:
        """True if something in it asks for a tensor's value, so that it runs outside jit only."""
        return any(f.code == "untraced" for f in self.diagnostics.findings)

    def is_untraced_at(self, places: Container[tuple[int, int]]) -> bool:
        """Return whether that stands at one of these places."""
        return any(f.code == "untraced" and (f.line, f.col) in places for f in self.diagnostics.findings)


@dataclass(slots=True)
class Trace:
    """One evaluation through statements.

    Attributes:
        around: what was known next to the state.
        start: the variables before it.
        region: what it has found.
    """

    around: tuple[object, ...]
    start: State
    region: Region


@dataclass(slots=True)
class Traces:
    """The evaluations through one routine, by what was evaluated."""

    known: dict[Hashable, list[Trace]] = field(default_factory=dict)

    def find_trace(self, key: Hashable, around: tuple[object, ...], start: State) -> Region | None:
        """Return what an evaluation has found that began like this, if there was one."""
        found = (t.region for t in self.known.get(key, ()) if t.around == around and t.start == start)
        return next(found, None)

    def add_trace(self, key: Hashable, trace: Trace) -> None:
        """Add one evaluation."""
        self.known.setdefault(key, []).append(trace)
