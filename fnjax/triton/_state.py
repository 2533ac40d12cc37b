"""What one launch has while it is traced: its memory, its axes, the predicate that holds, where in the source it is."""

import contextlib
import threading
from typing import NamedTuple

import numpy as np

from fnjax._errors import FnjaxError
from fnjax.triton._forms import LEAD, Form, Sym, laid


class KernelError(FnjaxError, RuntimeError):
    """A kernel, or how it was launched, has no meaning here; the message names kernel, line and remedy."""

    __module__ = "fnjax.triton"  # tracebacks show the public name


class NeedsSequence(Exception):  # noqa: N818  a signal, never seen by users
    """The result of an atomic is used: programs must run one after the other."""


class EndsProgram(Exception):  # noqa: N818  a signal, never seen by users
    """A program that is watched waits for what does not come: it is left."""


class CutsGrid(Exception):  # noqa: N818  a signal, never seen by users
    """Addresses are even along axes of the grid once these are cut: by leading axis, the sizes that it is cut into."""


class NotAnAxis(Exception):  # noqa: N818  a signal, never seen by users
    """The turns of a loop cannot be run side by side."""


class State:
    """The memory of a launch (flat arrays by buffer), its grid, and what is active.

    Attributes:
        cuts: for each axis of the grid the sizes that it is cut into, each a leading axis of all values.
        lead: the sizes of the leading axes: those of the grid, then those of loops whose turns run side by side.
        turns: of these loops, the variables that count their turns, and what was read and written in them.
    """

    def __init__(self, grid, in_sequence=False, programs=None, cuts=None):
        self.grid, self.in_sequence, self.programs = grid, in_sequence, programs
        self.cuts = cuts or [[size] for size in grid]
        at_once = not in_sequence and programs is None
        lead = [size for sizes in self.cuts for size in sizes if size > 1] if at_once else []
        self.lead = (*lead, *(1,) * (LEAD - len(lead)))
        self.turns: list[Turns] = []
        self.traced = 0  # how many loops are being traced turn by turn
        self.repeats = 0  # how many loops are being written out, turn after turn
        self.ready: dict = {}  # memory as loops have cut it before their first turn, by buffer and layout
        self.wanted: set = set()  # what they should have cut
        self.pieces: dict = {}  # memory as turns of loops that are written out have split it
        self.buffers = []
        self.loops = {}  # what loops carried when they were traced before
        self.active = None  # a truth of the lanes that are alive, or None for all
        self.written = set()
        self.frames = []  # calls that have not returned, the innermost last
        self.marks = None  # where programs that wait for ever are noted (`_waits`), when they run in sequence
        self.watch = None  # what runs one program after the other on NumPy arrays (`_programs`), where something does

    def program(self, axis):
        """The number of the program along an axis of the grid, as a form."""
        if self.in_sequence:
            count = Sym(self.programs[axis], 0, self.grid[axis] - 1)
            return Form(np.zeros((1,) * LEAD, np.int64), syms=((count, 1),) if self.grid[axis] > 1 else ())
        base, place = np.zeros((1,) * LEAD, np.int64), sum(n > 1 for sizes in self.cuts[:axis] for n in sizes)
        for size in self.cuts[axis]:
            base = base * size
            if size > 1:
                base = base + laid(np.arange(size, dtype=np.int64), place)
                place += 1
        return Form(base)

    def cut(self, digits):
        """The cuts with leading axes of the grid cut further; None if there are not so many axes."""
        places = iter(range(LEAD))
        cuts = [
            [n for size in sizes for n in (digits.get(next(places), [size]) if size > 1 else [size])]
            for sizes in self.cuts
        ]
        return cuts if cuts != self.cuts and sum(n > 1 for sizes in cuts for n in sizes) <= LEAD else None

    def note(self, kind, buffer, form, conditions):
        """An access to memory, for loops whose turns run side by side."""
        if self.turns:
            forms = [f if f is None else f.untraced() for f in (form, *conditions)]
            self.turns[-1].accesses.append(Access(kind, buffer, forms[0], tuple(forms[1:]), self.traced))

    @contextlib.contextmanager
    def side_by_side(self, count):
        """While the turns of a loop are one more leading axis."""
        place = sum(n > 1 for n in self.lead)
        if place == LEAD:
            raise NotAnAxis
        lead, active, traced = self.lead, self.active, self.traced
        self.lead = tuple(count if d == place else n for d, n in enumerate(lead))
        self.turns.append(Turns(Sym.along(place, count), traced))
        try:
            yield self.turns[-1]
        finally:
            self.turns.pop()
            self.lead, self.active, self.traced = lead, active, traced

    @contextlib.contextmanager
    def repeating(self):
        """While a loop is written out."""
        self.repeats += 1
        try:
            yield
        finally:
            self.repeats -= 1

    def depends_on_turns(self, form):
        """Whether a form may be another one in another turn of a loop."""
        beside = any(form.base.shape[turns.count.axis] > 1 for turns in self.turns)
        return bool(form.syms) or beside or self.repeats > 0

    @contextlib.contextmanager
    def only(self, truth):
        """What happens inside happens where `truth` holds."""
        before = self.active
        self.active = truth
        try:
            yield
        finally:
            self.active = before


class Turns:
    """Turns of a loop that run side by side: the variable that counts them, and the accesses to memory in them."""

    def __init__(self, count, traced):
        self.count, self.traced = count, traced
        self.accesses: list[Access] = []


class Access(NamedTuple):
    """One statement's access to memory.

    Attributes:
        kind: "read", "write", or the name of an atomic.
        buffer: which array.
        form: the address, where it is one.
        conditions: forms that are not negative where memory is accessed.
        traced: how many loops around the statement are traced turn by turn.
    """

    kind: str
    buffer: int
    form: Form | None
    conditions: tuple[Form, ...]
    traced: int


SMALL = 1 << 16  # elements that need not be saved
_LOCAL = threading.local()


def instead():
    """What runs launches in this thread instead of JAX, if anything does."""
    return getattr(_LOCAL, "instead", None)


@contextlib.contextmanager
def launching(runner):
    """While launches go to `runner`: it is given the launch, its arrays, and the numbers that would be traced."""
    before = instead()
    _LOCAL.instead = runner
    try:
        yield
    finally:
        _LOCAL.instead = before


def afford(array):
    """Refuse what turns side by side would make larger than the launch's arrays are."""
    state = getattr(_LOCAL, "state", None)
    if state is None or not state.turns or array.size <= SMALL or not any(_depends(array, t) for t in state.turns):
        return
    if array.size > 2 * sum(buffer.size for buffer in state.buffers):
        raise NotAnAxis


def _depends(array, turns):
    return array.shape[turns.count.axis] > 1


def watching():
    """Return what runs one program after the other on NumPy arrays (`_programs`), or None."""
    state = getattr(_LOCAL, "state", None)
    return None if state is None else state.watch


def is_running():
    """Whether a launch is being traced."""
    return getattr(_LOCAL, "state", None) is not None


def current():
    """The launch that is being traced."""
    found = getattr(_LOCAL, "state", None)
    if found is None:
        raise KernelError("functions of triton.language work inside kernels only, launched as kernel[grid](...)")
    return found


@contextlib.contextmanager
def entered(state):
    """While a launch is traced."""
    before = getattr(_LOCAL, "state", None)
    _LOCAL.state = state
    try:
        yield state
    finally:
        _LOCAL.state = before
