"""The result of a comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

RANDOM = "random, not compared"  # the message of an entry

# By dtype the relative and absolute tolerance: sums in another order differ in the last digits.
TOLERANCES = {"float32": (1e-4, 1e-5), "float64": (1e-7, 1e-9)}


@dataclass(frozen=True, slots=True)
class Entry:
    """Comparison of one array.

    Attributes:
        what: `output 0`, `gradient of x`, `second derivative of x`.
        mode: `eager` or `jit`.
        equal: whether all elements agree.
        worst: the index of the element that differs most, in relation to the tolerance.
        original: PyTorch's value there, or that of the reference.
        ported: JAX's.
        message: the problem where there is no value: another shape, an exception.
        known: a second derivative that differs because PyTorch's is not the derivative of its own gradient, and the
            port's is.
        reference: what ran the original: PyTorch or fnjax.torch.
    """

    what: str
    mode: str
    equal: bool
    worst: tuple[int, ...] = ()
    original: complex | None = None
    ported: complex | None = None
    message: str = ""
    known: bool = False
    reference: str = "PyTorch"

    @property
    def distance(self) -> float:
        """The distance of the sides at the worst element; NaN without values."""
        return math.nan if self.original is None or self.ported is None else abs(self.original - self.ported)

    def __str__(self) -> str:
        head = f"{'ok  ' if self.equal else 'note' if self.known else 'FAIL'} {self.mode:5} {self.what}"
        if self.message or self.original is None or self.ported is None:
            return f"{head}: {self.message}" if self.message else head
        place = f"[{', '.join(map(str, self.worst))}]"
        why = " (the derivative of PyTorch's gradient)" if self.known else ""
        return f"{head}: worst at {place}: {self.reference} {self.original:.9g}, JAX {self.ported:.9g}{why}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`.

    Attributes:
        entries: an entry for each array and mode.
        notes: what could not be compared, and why that is not an error of the port.
    """

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if everything agrees, but for known discrepancies."""
        return all(entry.equal or entry.known for entry in self.entries)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.entries), *(f"note: {note}" for note in self.notes)])
