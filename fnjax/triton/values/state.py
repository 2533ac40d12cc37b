"""State of one launch while its kernel is interpreted."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import jax
import numpy as np

from fnjax.triton.values.affine import (
    MOST,
    Affine,
    Array,
    LoopVariable,
    OneArray,
    VectorVariable,
    along_axis,
    leading,
    with_leading,
)
from fnjax.triton.values.exceptions import KernelError, NotVectorizable
from fnjax.triton.values.views import Layout

Grid = SupportsIndex | Sequence[SupportsIndex] | Callable[[dict[str, Any]], Any]  # as launches give it
Splits = list[list[int]]  # for each axis of the grid, the sizes that it is split into
# Takes the `Launch`, its arrays, and the scalars that would be traced; returns the stored arrays.
Runner = Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]


class State:
    """State of one launch: its memory (flat arrays by buffer), its grid, and the mask of active lanes.

    Attributes:
        splits: for each axis of the grid, the sizes that it is split into; each size is one leading axis of all values.
        lead: sizes of the leading axes: those of the grid, its last axis first, then those of vectorised loops.
            Neighbours along the first axis of a grid mostly are neighbours in memory: fewer views are transposed.
        vectorized_loops: for each vectorised loop around the current statement, its loop variable and memory accesses.
    """

    def __init__(
        self, grid: tuple[int, ...], in_sequence: bool = False, programs: Any = None, splits: Splits | None = None
    ) -> None:
        self.grid, self.in_sequence, self.programs = grid, in_sequence, programs
        self.splits = splits or [[size] for size in grid]
        at_once = not in_sequence and programs is None
        lead = [size for sizes in reversed(self.splits) for size in sizes if size > 1] if at_once else []
        self.lead = tuple(lead) or (1,)
        self.vectorized_loops: list[VectorizedLoop] = []
        self.accesses: list[LoopAccess] = []  # of the innermost loop around the current statement
        self.streams: Any = None  # the `streams.Streams` of the innermost loop, where it is a sequential `for`
        self.outputs: dict[Any, jax.Array] = {}  # by stream, the rows that an iteration has written
        self.traced = 0  # number of sequentially traced loops around the current statement
        self.unrolled_loops = 0  # number of unrolled loops around the current statement
        # By buffer and layout: memory, reshaped before a loop's first iteration.
        self.reshaped: dict[tuple[int, Layout], tuple[jax.Array, jax.Array]] = {}
        self.to_reshape = set[tuple[int, Layout]]()  # keys that `reshaped` lacks: the loop is traced again with them
        # By buffer, layout and dimension: memory, and its slices that unrolled iterations made, with where they start.
        self.slices: dict[tuple[int, Layout, int], tuple[jax.Array, list[tuple[int, jax.Array]]]] = {}
        self.buffers: list[jax.Array] = []
        self.rows: dict[int, Rows] = {}  # by buffer, memory as the last store through a view has left it
        self.loops: dict[Any, Any] = {}  # results of earlier traces of a loop, which the next trace starts from
        self.active: Any = None  # mask of the active lanes, or None for all
        self.frames: list[Any] = []  # calls that have not returned, the innermost last
        self.marks: Any = None  # where endless waits are recorded (`waits.Marks`) when programs run in sequence
        self.elementwise = False  # within functions of scalars that are called on blocks
        self.execution: Any = None  # the `execution.Execution` that executes programs on NumPy arrays, if any

    def program(self, axis: int) -> Affine:
        """Return the index of the current program along `axis` of the grid, as an affine expression."""
        if self.in_sequence:
            variable = LoopVariable(self.programs[axis], 0, self.grid[axis] - 1)
            return Affine(np.zeros((1,) * leading(), np.int64), terms=((variable, 1),) if self.grid[axis] > 1 else ())
        base = np.zeros((1,) * leading(), np.int64)
        place = sum(n > 1 for sizes in self.splits[axis + 1 :] for n in sizes)
        for size in self.splits[axis]:
            base = base * size
            if size > 1:
                base = base + along_axis(np.arange(size, dtype=np.int64), place, len(self.lead))
                place += 1
        return Affine(base)

    def in_grid_order(self) -> tuple[int, ...]:
        """Return the leading axes in the order in which programs run, the slowest first: grid, then loops."""
        found: list[int] = []
        if self.in_sequence or self.programs is not None:
            return tuple(range(len(self.lead)))
        for sizes in reversed(self.splits):
            found = [*range(len(found), len(found) + sum(n > 1 for n in sizes)), *found]
        return (*found, *range(len(found), len(self.lead)))

    def split_grid(self, radix: Mapping[int, list[int]]) -> Splits | None:
        """Return `splits` with leading axes of the grid split further into a mixed radix.

        Args:
            radix: by leading axis, the sizes that it is split into, slowest first.

        Returns:
            the new splits; None if nothing changes or more than `MOST` leading axes would be needed.
        """
        places = iter(range(MOST))
        splits = [
            [n for size in sizes for n in (radix.get(next(places), [size]) if size > 1 else [size])]
            for sizes in reversed(self.splits)
        ][::-1]
        return splits if splits != self.splits and sum(n > 1 for sizes in splits for n in sizes) <= MOST else None

    def record_access(self, kind: str, buffer: int, affine: Affine | None, conditions: Sequence[Affine]) -> None:
        """Record a memory access of the innermost loop, so that `independence` can check it later."""
        if self.vectorized_loops or self.traced:
            address = None if affine is None else affine.untraced()
            rest = tuple(condition.untraced() for condition in conditions)
            self.accesses.append(LoopAccess(kind, buffer, address, rest, self.traced))

    @contextlib.contextmanager
    def by_element(self) -> Iterator[None]:
        """Take conditions element by element, since a function of scalars is called on blocks (`elementwise`)."""
        before, self.elementwise = self.elementwise, True
        try:
            yield
        finally:
            self.elementwise = before

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[LoopAccess]]:
        """Record the memory accesses of a loop, in the list that it yields, while the context lasts."""
        before, self.accesses = self.accesses, []
        try:
            yield self.accesses
        finally:
            self.accesses = before

    @contextlib.contextmanager
    def vectorizing(self, size: int) -> Iterator[VectorizedLoop]:
        """Add a leading axis of `size` for the iterations of a loop while the context lasts.

        Yields:
            the `VectorizedLoop` that collects the memory accesses of the loop's body. Values made before need its
            `with_axis`, and those that are used afterwards its `without_axis`.

        Raises:
            NotVectorizable: all leading axes are in use.
        """
        place = sum(n > 1 for n in self.lead)
        if place == MOST:
            raise NotVectorizable
        lead, active, traced = self.lead, self.active, self.traced
        self.lead = (*lead[:place], size)
        is_new = place == len(lead)
        try:
            with with_leading(len(self.lead)), self.recording() as accesses:
                self.vectorized_loops.append(VectorizedLoop(LoopVariable.along(place, size), traced, is_new, accesses))
                yield self.vectorized_loops[-1]
        finally:
            self.vectorized_loops.pop()
            self.lead, self.active, self.traced = lead, active, traced

    @contextlib.contextmanager
    def unrolling(self) -> Iterator[None]:
        """Count one more unrolled loop around the current statement while the context lasts."""
        self.unrolled_loops += 1
        try:
            yield
        finally:
            self.unrolled_loops -= 1

    def varies_in_loops(self, affine: Affine) -> bool:
        """Return True where an affine expression may differ between the iterations of a loop around it."""
        vectorized = any(affine.base.shape[loop.variable.axis] > 1 for loop in self.vectorized_loops)
        return bool(affine.terms) or vectorized or self.unrolled_loops > 0

    @contextlib.contextmanager
    def masked(self, mask: Any) -> Iterator[None]:
        """Restrict memory accesses and assignments to lanes where `mask` holds, while the context lasts."""
        before = self.active
        self.active = mask
        try:
            yield
        finally:
            self.active = before


class Snapshot:
    """Names, memory and mask before a statement, restored where it is interpreted anew.

    Attributes:
        names: the names of its frame.
        buffers: see `State`, as the others.
    """

    def __init__(self, frame: Any) -> None:
        state: State = frame.state
        self.state, self.frame, self.names = state, frame, dict(frame.names)
        self.buffers, self.rows, self.active = list(state.buffers), dict(state.rows), state.active
        self.streams, self.outputs = state.streams, state.outputs

    def restore(self) -> None:
        """Set the names of the frame and the state to what they were."""
        state, self.frame.names = self.state, dict(self.names)
        state.buffers, state.rows, state.active = list(self.buffers), dict(self.rows), self.active
        state.streams, state.outputs = self.streams, self.outputs


@dataclasses.dataclass(frozen=True, eq=False)
class VectorizedLoop:
    """Iterations of a vectorised loop.

    Attributes:
        variable: its loop variable.
        traced: number of sequentially traced loops around it.
        is_new: True where its leading axis was added; False where an axis of size 1 was there.
        accesses: the memory accesses in its body.
    """

    variable: VectorVariable
    traced: int
    is_new: bool
    accesses: list[LoopAccess]

    def with_axis(self, array: OneArray) -> OneArray:
        """Return an array that was made before the loop, with the loop's axis."""
        shape = list(array.shape)
        shape.insert(self.variable.axis, 1)
        return array.reshape(shape) if self.is_new else array

    def without_axis(self, array: OneArray) -> OneArray:
        """Return an array that is used after the loop, without the loop's axis, along which it does not vary."""
        shape = list(array.shape)
        del shape[self.variable.axis]
        return array.reshape(shape) if self.is_new else array


class Rows(NamedTuple):
    """Memory in the layout of a view.

    Attributes:
        flat: the same memory as it is in `State.buffers`.
        layout: the layout (`views.View.layout`).
        rows: the array with one axis for each dimension of the layout.
    """

    flat: jax.Array
    layout: Layout
    rows: jax.Array


class LoopAccess(NamedTuple):
    """Memory access of one statement, for all programs and iterations.

    Attributes:
        kind: "read", "write", or the name of an atomic.
        buffer: index of the array.
        affine: the address as an affine expression; None where it is not affine.
        conditions: affine expressions that are at least 0 wherever memory is accessed.
        traced: number of sequentially traced loops around the statement.
    """

    kind: str
    buffer: int
    affine: Affine | None
    conditions: tuple[Affine, ...]
    traced: int


SMALL = 1 << 16  # arrays of at most so many elements are never refused by `check_size`
_LOCAL = threading.local()


def instead() -> Runner | None:
    """Return the function that runs launches of this thread in place of JAX; None where there is none."""
    found: Runner | None = getattr(_LOCAL, "instead", None)
    return found


@contextlib.contextmanager
def launching(runner: Runner) -> Iterator[None]:
    """Send launches of this thread to `runner` while the context lasts."""
    before = instead()
    _LOCAL.instead = runner
    try:
        yield
    finally:
        _LOCAL.instead = before


def check_size(array: Array) -> None:
    """Check that vectorising a loop does not make an array much larger than the launch's memory.

    Raises:
        NotVectorizable: `array` depends on a vectorised loop, and is larger than `SMALL` and than twice all buffers.
    """
    state: State | None = getattr(_LOCAL, "state", None)
    if (
        state is None
        or not state.vectorized_loops
        or array.size <= SMALL
        or not any(array.shape[loop.variable.axis] > 1 for loop in state.vectorized_loops)
    ):
        return
    if array.size > 2 * sum(buffer.size for buffer in state.buffers):
        raise NotVectorizable


def current_execution() -> Any:
    """Return the `execution.Execution` that executes this launch on NumPy arrays; None where JAX traces it."""
    state = getattr(_LOCAL, "state", None)
    return None if state is None else state.execution


def is_running() -> bool:
    """Return True while a kernel is being interpreted in this thread."""
    return getattr(_LOCAL, "state", None) is not None


def current() -> State:
    """Return the state of the launch that is being interpreted.

    Raises:
        KernelError: there is none: a function of triton.language was called outside of a kernel.
    """
    found: State | None = getattr(_LOCAL, "state", None)
    if found is None:
        raise KernelError("functions of triton.language work inside kernels only, launched as kernel[grid](...)")
    return found


@contextlib.contextmanager
def entered(state: State) -> Iterator[State]:
    """Make `state` the current one while the context lasts."""
    before = getattr(_LOCAL, "state", None)
    _LOCAL.state = state
    try:
        with with_leading(len(state.lead)):
            yield state
    finally:
        _LOCAL.state = before
