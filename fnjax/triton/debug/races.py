"""Race detection: vector clocks that atomics pass on, and one pass over the log of each buffer.

A program's clock is the number of atomics by which it has released what it did before. A program that uses the old
value of an atomic, or reads with `volatile=True`, is ordered after everything released there. An atomic whose old value
is not used orders nothing for its program: it could as well have run first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fnjax.triton.debug.execution import Position

Clock = dict[int, int]  # by program, the number of its releases


class Event(NamedTuple):
    """Memory access with its position in the partial order.

    Attributes:
        kind: "read", "write", "atomic", or "look" (a volatile read or an atomic without effect: atomics may follow it).
        program: the program.
        clock: the program's clock.
        after: by program, the clock up to which this event comes after it.
        place: position in the source.
    """

    kind: str
    program: int
    clock: int
    after: Clock
    place: Position

    def follows(self, other: Event) -> bool:
        """Return True if this event comes after an earlier one in every execution."""
        return self.program == other.program or self.after.get(other.program, -1) >= other.clock


class Race(NamedTuple):
    """Two events on one element that are not ordered."""

    earlier: Event
    later: Event
    element: int


class Clocks:
    """Clock of the current program, and the clocks that atomics have released, by buffer and element."""

    def __init__(self) -> None:
        self.single: dict[tuple[int, int], Clock] = {}  # by buffer and element
        self.blocks: dict[int, list[tuple[np.ndarray, Clock]]] = {}  # by buffer, pairs of elements and clock

    def starts(self, program: int) -> None:
        """Begin another program, which nothing precedes."""
        self.program, self.clock = program, 0
        self.after: Clock = {}

    def event(self, kind: str, place: Position) -> Event:
        """Return an event of the current program."""
        return Event(kind, self.program, self.clock, self.after, place)

    def release(self, buffer: int, index: np.ndarray) -> None:
        """Publish what the program has done to programs that acquire one of these elements, and advance its clock."""
        done = self.after | {self.program: self.clock}
        if len(index) == 1:
            key = buffer, int(index[0])
            self.single[key] = _joined(self.single.get(key, {}), done)
        else:
            self.blocks.setdefault(buffer, []).append((index, done))
        self.clock += 1

    def acquiring(self, buffer: int, index: np.ndarray) -> Callable[[], None]:
        """Return a function that orders the program after all that is released at these elements now.

        It is called if and when the program uses the values that it read there.
        """
        found = [self.single[key] for key in ((buffer, int(e)) for e in index) if key in self.single]
        blocks, count = self.blocks.get(buffer, []), len(self.blocks.get(buffer, []))
        program = self.program

        def look() -> None:
            if program == self.program:
                for done in (*found, *(d for elements, d in blocks[:count] if np.isin(index, elements).any())):
                    self.after = _joined(self.after, done)
            found.clear()

        return look


def _joined(a: Clock, b: Clock) -> Clock:
    """Return the pointwise maximum of two vector clocks."""
    if len(b) > len(a):
        a, b = b, a
    return a | {p: c for p, c in b.items() if a.get(p, -1) < c}


class Log:
    """Accesses of all programs to one buffer, in their order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.elements: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def add(self, event: Event, index: np.ndarray, values: np.ndarray | None) -> None:
        """Append one access."""
        if len(index):
            self.events.append(event)
            self.elements.append(index)
            self.values.append(np.zeros(len(index), np.uint64) if values is None else _bits(values))

    def races(self) -> Iterator[tuple[Race, list[int]]]:
        """Yield one race for each pair of source positions and programs, with all its elements: (Race, elements)."""
        if not self.events or len({e.program for e in self.events}) < 2:
            return
        number = np.repeat(np.arange(len(self.events)), [len(i) for i in self.elements])
        elements, values = np.concatenate(self.elements), np.concatenate(self.values)
        order = np.argsort(elements, kind="stable")
        number, elements, values = number[order], elements[order], values[order]
        starts = np.flatnonzero(np.r_[True, elements[1:] != elements[:-1]])
        programs = np.array([e.program for e in self.events])[number]
        writes = np.array([e.kind in ("write", "atomic") for e in self.events])[number]
        several = np.minimum.reduceat(programs, starts) != np.maximum.reduceat(programs, starts)
        several &= np.logical_or.reduceat(writes, starts)
        ends = np.r_[starts[1:], len(elements)]
        seen: dict[tuple[bytes, bytes], tuple[list[tuple[Event, Event]], list[int]]] = {}
        for start, end in zip(starts[several], ends[several], strict=True):
            alike = values[start:end]
            key = number[start:end].tobytes(), np.unique(alike, return_inverse=True)[1].tobytes()
            if key not in seen:
                seen[key] = list(_unordered_pairs([self.events[i] for i in number[start:end]], alike)), []
            seen[key][1].append(int(elements[start]))
        for found, where in seen.values():
            for earlier, later in found:
                yield Race(earlier, later, where[0]), where


def _unordered_pairs(events: Sequence[Event], values: np.ndarray) -> Iterator[tuple[Event, Event]]:
    """Yield pairs of unordered events on one element, with each later event at most once.

    Two writes of the same value do not race.
    """
    write, value = None, None
    reads: list[tuple[Event, bool]] = []
    atomics: list[Event] = []
    for event, new in zip(events, values, strict=True):
        before = []
        if write is not None and not (event.kind == "write" and new == value):
            before.append(write)
        if event.kind in ("read", "write"):
            before += atomics
        if event.kind in ("write", "atomic"):
            silent = event.kind == "write" and write is not None and new == value
            before += [
                r for r, own in reads if not (silent and own) and not (event.kind == "atomic" and r.kind == "look")
            ]
        found = next((b for b in before if not event.follows(b)), None)
        if found is not None:
            yield found, event
        if event.kind == "write":
            write, value, reads, atomics = event, new, [], []
        elif event.kind == "atomic":
            atomics.append(event)
        else:
            reads.append((event, write is not None and write.program == event.program))


def _bits(values: np.ndarray) -> np.ndarray:
    """Return values as unsigned integers of 64 bits, for comparison by bits."""
    wide = np.ascontiguousarray(values)
    return wide.view(f"u{wide.dtype.itemsize}").astype(np.uint64) if wide.dtype != bool else wide.astype(np.uint64)
