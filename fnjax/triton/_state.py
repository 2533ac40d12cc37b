"""What one launch has while it is traced: its memory, the predicate that holds, and where in the source it is."""

import contextlib
import threading

from fnjax._errors import FnjaxError


class KernelError(FnjaxError, RuntimeError):
    """A kernel, or how it was launched, has no meaning here; the message names kernel, line and remedy."""


class NeedsSequence(Exception):  # noqa: N818  a signal, never seen by users
    """The result of an atomic is used: programs must run one after the other."""


class EndsProgram(Exception):  # noqa: N818  a signal, never seen by users
    """A program that is watched waits for what does not come: it is left."""


class State:
    """The memory of a launch (flat arrays by buffer), its grid, and what is active."""

    def __init__(self, grid, in_sequence=False, programs=None):
        self.grid, self.in_sequence, self.programs = grid, in_sequence, programs
        self.buffers = []
        self.loops = {}  # what loops carried when they were traced before
        self.active = None  # a truth of the lanes that are alive, or None for all
        self.written = set()
        self.frames = []  # calls that have not returned, the innermost last
        self.marks = None  # where programs that wait for ever are noted (`_waits`), when they run in sequence
        self.watch = None  # what runs one program after the other on NumPy arrays (`_programs`), where something does

    @contextlib.contextmanager
    def only(self, truth):
        """What happens inside happens where `truth` holds."""
        before = self.active
        self.active = truth
        try:
            yield
        finally:
            self.active = before


class Reads:
    """What kernels read from outside of themselves while a launch was traced: names of files and closures, attributes.

    All of it goes through the two functions that note it; what cannot be noted (functions of plain Python, containers
    that can change) makes the trace good for once only.

    Attributes:
        waits: whether a program may refuse to wait for ever.
    """

    def __init__(self):
        self.noted, self.once, self.waits = {}, False, False

    def note(self, owner, name, find, value):
        """`find(owner, name)` gave this value."""
        self.once = self.once or isinstance(value, list | dict | set)
        self.noted[id(owner), name] = owner, name, find, value

    def hold(self):
        """Whether all would be read again."""
        if self.once:
            return False
        for owner, name, find, value in self.noted.values():
            try:
                found = find(owner, name)
            except (AttributeError, NameError, ValueError):
                return False
            if found is not value and not (type(found) is type(value) in _PLAIN and repr(found) == repr(value)):
                return False
        return True


_PLAIN = (bool, int, float, complex, str, bytes)
_LOCAL = threading.local()


@contextlib.contextmanager
def reading(reads):
    """While reads are noted."""
    before = reads_of_trace()
    _LOCAL.reads = reads
    try:
        yield
    finally:
        _LOCAL.reads = before


def reads_of_trace():
    """Where reads are noted, if they are."""
    return getattr(_LOCAL, "reads", None)


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
