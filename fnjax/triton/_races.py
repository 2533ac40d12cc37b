"""Which accesses of two programs nothing orders: vector clocks that atomics hand on, and a walk through a log.

A program's clock is the number of atomics by which it has released what it did before. Who looks at the old value of an
atomic, or reads with `volatile=True`, has done so after all that was released there. (An atomic whose old value nobody
looks at orders nothing for its program: it could as well have come first.)
"""

from typing import NamedTuple

import numpy as np

from fnjax.triton._programs import Place


class Event(NamedTuple):
    """An access: of which program, at which of its clocks, and up to which clock of others it comes after."""

    kind: str  # "read", "write", "atomic", or "look": what only reads, and may be overtaken by atomics
    program: int
    clock: int
    after: dict
    place: Place

    def follows(self, other):
        """Whether it comes after an earlier event in every run."""
        return self.program == other.program or self.after.get(other.program, -1) >= other.clock


class Race(NamedTuple):
    """Two events on one element, without order."""

    earlier: Event
    later: Event
    element: int


class Clocks:
    """The clock of the program that runs, and what atomics have released, by buffer and element."""

    def __init__(self):
        self.single: dict = {}  # (buffer, element) -> programs' clocks
        self.blocks: dict = {}  # buffer -> [(elements, programs' clocks)]

    def starts(self, program):
        """Another program: nothing is before it."""
        self.program, self.clock, self.after = program, 0, {}

    def event(self, kind, place):
        """What the program does now."""
        return Event(kind, self.program, self.clock, self.after, place)

    def release(self, buffer, index):
        """All that the program has done is there for who acquires one of these elements."""
        done = self.after | {self.program: self.clock}
        if len(index) == 1:
            key = buffer, int(index[0])
            self.single[key] = _joined(self.single.get(key, {}), done)
        else:
            self.blocks.setdefault(buffer, []).append((index, done))
        self.clock += 1

    def acquiring(self, buffer, index):
        """What the program calls when it looks at what it found at these elements now."""
        found = [self.single[key] for key in ((buffer, int(e)) for e in index) if key in self.single]
        blocks, count = self.blocks.get(buffer, []), len(self.blocks.get(buffer, []))
        program = self.program

        def look():
            if program == self.program:
                for done in (*found, *(d for elements, d in blocks[:count] if np.isin(index, elements).any())):
                    self.after = _joined(self.after, done)
            found.clear()

        return look


def _joined(a, b):
    if len(b) > len(a):
        a, b = b, a
    return a | {p: c for p, c in b.items() if a.get(p, -1) < c}


class Log:
    """What programs did to one buffer, in their order."""

    def __init__(self):
        self.events: list = []
        self.elements: list = []
        self.values: list = []

    def add(self, event, index, values):
        """Enter one access."""
        if len(index):
            self.events.append(event)
            self.elements.append(index)
            self.values.append(np.zeros(len(index), np.uint64) if values is None else _bits(values))

    def races(self):
        """One race for each pair of lines and programs that has some, with all elements: (Race, elements)."""
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
        seen: dict = {}
        for start, end in zip(starts[several], ends[several], strict=True):
            alike = values[start:end]
            key = number[start:end].tobytes(), np.unique(alike, return_inverse=True)[1].tobytes()
            if key not in seen:
                seen[key] = list(_walk([self.events[i] for i in number[start:end]], alike)), []
            seen[key][1].append(int(elements[start]))
        for found, where in seen.values():
            for earlier, later in found:
                yield Race(earlier, later, where[0]), where


def _walk(events, values):
    """Pairs of events on one element that race, each later event once."""
    write, value, reads, atomics = None, None, [], []
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


def _bits(values):
    wide = np.ascontiguousarray(values)
    return wide.view(f"u{wide.dtype.itemsize}").astype(np.uint64) if wide.dtype != bool else wide.astype(np.uint64)
