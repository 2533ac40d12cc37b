"""State of one launch while its kernel is interpreted."""

import contextlib
import threading
from typing import NamedTuple

import numpy as np

from fnjax.triton.values.affine import LEAD, Form, Sym, laid
from fnjax.triton.values.exceptions import KernelError, NotAnAxis


class State:
    """State of one launch: its memory (flat arrays by buffer), its grid, and the mask of active lanes.

    Attributes:
        cuts: for each axis of the grid, the sizes that it is split into; each size is one leading axis of all values.
        lead: sizes of the leading axes: those of the grid, then those of loops that are vectorised.
        turns: for each vectorised loop around the current statement, its loop variable and memory accesses.
    """

    def __init__(self, grid, in_sequence=False, programs=None, cuts=None):
        self.grid, self.in_sequence, self.programs = grid, in_sequence, programs
        self.cuts = cuts or [[size] for size in grid]
        at_once = not in_sequence and programs is None
        lead = [size for sizes in self.cuts for size in sizes if size > 1] if at_once else []
        self.lead = (*lead, *(1,) * (LEAD - len(lead)))
        self.turns: list[Turns] = []
        self.traced = 0  # number of sequentially traced loops around the current statement
        self.repeats = 0  # number of unrolled loops around the current statement
        self.ready: dict = {}  # by buffer and layout: memory, reshaped before a loop's first iteration
        self.wanted: set = set()  # keys that `ready` lacks: the loop is traced again with them
        self.pieces: dict = {}  # by buffer, layout and dimension: slices that unrolled iterations made
        self.buffers = []
        self.loops = {}  # results of earlier traces of a loop, which the next trace starts from
        self.active = None  # mask of the active lanes, or None for all
        self.written = set()
        self.frames = []  # calls that have not returned, the innermost last
        self.marks = None  # where endless waits are recorded (`waits.Marks`) when programs run in sequence
        self.watch = None  # the `execution.Run` that executes programs on NumPy arrays, if any

    def program(self, axis):
        """Return the index of the current program along `axis` of the grid, as an affine expression."""
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
        """Return `cuts` with leading axes of the grid split further into a mixed radix.

        Args:
            digits: by leading axis, the sizes that it is split into, slowest first.

        Returns:
            the new cuts; None if nothing changes or more than `LEAD` leading axes would be needed.
        """
        places = iter(range(LEAD))
        cuts = [
            [n for size in sizes for n in (digits.get(next(places), [size]) if size > 1 else [size])]
            for sizes in self.cuts
        ]
        return cuts if cuts != self.cuts and sum(n > 1 for sizes in cuts for n in sizes) <= LEAD else None

    def note(self, kind, buffer, form, conditions):
        """Record a memory access of the innermost vectorised loop, so that `independence` can check it later."""
        if self.turns:
            forms = [f if f is None else f.untraced() for f in (form, *conditions)]
            self.turns[-1].accesses.append(Access(kind, buffer, forms[0], tuple(forms[1:]), self.traced))

    @contextlib.contextmanager
    def side_by_side(self, count):
        """Add a leading axis of size `count` for the iterations of a loop while the context lasts.

        Yields:
            the `Turns` that collects the memory accesses of the loop's body.

        Raises:
            NotAnAxis: all leading axes are in use.
        """
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
        """Count one more unrolled loop around the current statement while the context lasts."""
        self.repeats += 1
        try:
            yield
        finally:
            self.repeats -= 1

    def depends_on_turns(self, form):
        """Return True where an affine expression may differ between the iterations of a loop around it."""
        beside = any(form.base.shape[turns.count.axis] > 1 for turns in self.turns)
        return bool(form.syms) or beside or self.repeats > 0

    @contextlib.contextmanager
    def only(self, truth):
        """Restrict memory accesses and assignments to lanes where the mask `truth` holds, while the context lasts."""
        before = self.active
        self.active = truth
        try:
            yield
        finally:
            self.active = before


class Turns:
    """Iterations of a vectorised loop: its loop variable (`count`) and the memory accesses in its body."""

    def __init__(self, count, traced):
        self.count, self.traced = count, traced
        self.accesses: list[Access] = []


class Access(NamedTuple):
    """Memory access of one statement, for all programs and iterations.

    Attributes:
        kind: "read", "write", or the name of an atomic.
        buffer: index of the array.
        form: the address as an affine expression; None where it is not affine.
        conditions: affine expressions that are at least 0 wherever memory is accessed.
        traced: number of sequentially traced loops around the statement.
    """

    kind: str
    buffer: int
    form: Form | None
    conditions: tuple[Form, ...]
    traced: int


SMALL = 1 << 16  # arrays of at most so many elements are never refused by `afford`
_LOCAL = threading.local()


def instead():
    """Return the function that runs launches of this thread in place of JAX; None where there is none."""
    return getattr(_LOCAL, "instead", None)


@contextlib.contextmanager
def launching(runner):
    """Send launches of this thread to `runner` while the context lasts.

    Args:
        runner: takes the `Launch`, its arrays, and the scalars that would be traced; returns the stored arrays.
    """
    before = instead()
    _LOCAL.instead = runner
    try:
        yield
    finally:
        _LOCAL.instead = before


def afford(array):
    """Check that vectorising a loop does not make an array much larger than the launch's memory.

    Raises:
        NotAnAxis: `array` depends on a vectorised loop, and is larger than `SMALL` and than twice all buffers together.
    """
    state = getattr(_LOCAL, "state", None)
    if state is None or not state.turns or array.size <= SMALL or not any(_depends(array, t) for t in state.turns):
        return
    if array.size > 2 * sum(buffer.size for buffer in state.buffers):
        raise NotAnAxis


def _depends(array, turns):
    return array.shape[turns.count.axis] > 1


def watching():
    """Return the `execution.Run` that executes this launch on NumPy arrays; None where JAX traces it."""
    state = getattr(_LOCAL, "state", None)
    return None if state is None else state.watch


def is_running():
    """Return True while a kernel is being interpreted in this thread."""
    return getattr(_LOCAL, "state", None) is not None


def current():
    """Return the state of the launch that is being interpreted.

    Raises:
        KernelError: there is none: a function of triton.language was called outside of a kernel.
    """
    found = getattr(_LOCAL, "state", None)
    if found is None:
        raise KernelError("functions of triton.language work inside kernels only, launched as kernel[grid](...)")
    return found


@contextlib.contextmanager
def entered(state):
    """Make `state` the current one while the context lasts."""
    before = getattr(_LOCAL, "state", None)
    _LOCAL.state = state
    try:
        yield state
    finally:
        _LOCAL.state = before
