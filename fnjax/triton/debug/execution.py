"""Execution of a launch on NumPy arrays, one program after the other, with a watcher that sees each memory access.

`kernel.check` and `kernel.draw` use it. The interpreter is the same as for JAX, for a single program whose number is
known. Three things differ: memory is NumPy's, and each access is reported; conditions are known, so that an `if` takes
one branch and loops are sequential; and a program that waits for something that no earlier program did is ended.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.interpreter.interpreter import Frame, bind, call, evaluate, interpret, known_condition, plain
from fnjax.triton.interpreter.liveness import Loop
from fnjax.triton.interpreter.loops import Range, check_loop, keeping_types
from fnjax.triton.interpreter.source import Source
from fnjax.triton.interpreter.waits import decisive
from fnjax.triton.values import types
from fnjax.triton.values.affine import Array, Shape, leading
from fnjax.triton.values.affine import constant as constant_affine
from fnjax.triton.values.arithmetic import as_tensor, broadcast, of_affine, of_data
from fnjax.triton.values.exceptions import EndsProgram, KernelError
from fnjax.triton.values.pointers import Pointer
from fnjax.triton.values.state import State, current, entered
from fnjax.triton.values.tensor import Tensor, aligned

MOST_ITERATIONS = 100_000  # iterations of a `while`; one with more is reported as endless


class Unwritten(np.ndarray):
    """Buffer with uninitialised elements, as torch.empty returns it."""


def unwritten(like: jax.ShapeDtypeStruct) -> Unwritten:
    """Return an uninitialised buffer of a shape and dtype: full of NaN, or of zeros for integers."""
    kind = jax.dtypes.canonicalize_dtype(like.dtype)
    fill = np.nan if jnp.issubdtype(kind, jnp.floating) else 0
    return np.full(like.shape, fill, kind).view(Unwritten)


class Position(NamedTuple):
    """Position in the source of a kernel or helper."""

    function: str
    file: str
    line: int


class Access(NamedTuple):
    """Memory access of one statement in one program.

    Attributes:
        kind: "read", "write" or "atomic".
        buffer: index of the array.
        elements: indices of its elements, in the order of lanes.
        outside: addresses outside of the array.
        values: for a write or an atomic, the elements' values after it.
        changed: False for an atomic that has changed nothing.
        volatile: True for a read that is meant to see what other programs write.
        acquires: True for an atomic whose user may rely on what other programs released.
        releases: True for an atomic that publishes what its program did before.
    """

    kind: str
    buffer: int
    elements: np.ndarray
    outside: np.ndarray
    values: np.ndarray | None = None
    changed: bool = True
    volatile: bool = False
    acquires: bool = False
    releases: bool = False


class Waiting(NamedTuple):
    """Report on a program that was ended in a `while`.

    Attributes:
        place: the loop.
        seen: (buffer, elements) that its last iteration read.
        stuck: True if that iteration changed nothing; False if the loop had too many iterations.
    """

    place: Position
    seen: list[tuple[int, np.ndarray]]
    stuck: bool


class Old(Tensor):
    """Old value of an atomic: using it orders the program after those whose atomics it has seen."""

    def __init__(self, data: np.ndarray, kind: types.dtype, look: Callable[[], None]) -> None:
        super().__init__(None, kind, data.shape[leading() :])
        self._found, self._look = data, look

    @property
    def _data(self) -> np.ndarray:
        """The array; reading it calls `look`, which the watcher gave."""
        self._look()
        return self._found

    @_data.setter
    def _data(self, value: object) -> None:
        """Ignore a new array: it is kept in `_found`."""


class Launched(Protocol):
    """Launch that is executed: a `fnjax.triton.launch.Launch`, see there."""

    source: Source
    grid: tuple[int, ...]
    parameters: Mapping[str, tuple[str, Any]]
    stored: Sequence[int]

    @property
    def name(self) -> str:
        """The kernel's."""

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return the values of the parameters that the kernel starts with."""


class Watch(Protocol):
    """Watcher of an execution."""

    def starts(self, number: int, ids: tuple[int, ...]) -> None:
        """Begin another program."""

    def access(self, access: Access, place: Position) -> Callable[[], None] | None:
        """Take note of an access; a function that is returned is called when the old value of an atomic is used."""

    def fails(self, place: Position, message: str, lanes: int) -> None:
        """Take note of a `tl.device_assert` that does not hold in some lanes."""

    def narrowed(self, place: Position, kind: types.dtype, values: np.ndarray) -> None:
        """Take note of 64-bit values that do not fit into 32 bits."""

    def waits(self, waiting: Waiting) -> None:
        """Take note of a program that was ended in a `while`."""


class Execution:
    """One launch, executed program by program.

    Args:
        launch: the launch.
        arrays: one for each buffer.
        traced: the scalars that a launch would trace.
        watcher: is told of programs, accesses and faults.
        poisoned: the positions of loads whose masked lanes, which are undefined without `other`, hold `poison`, not 0.
        poison: infinity of one sign.

    Raises:
        KernelError: an array is traced.
    """

    def __init__(
        self,
        launch: Launched,
        arrays: Sequence[Array],
        traced: Sequence[Array],
        watcher: Watch,
        poisoned: Collection[Position] = (),
        poison: float = 0.0,
    ) -> None:
        for array in (*arrays, *traced):
            if isinstance(array, jax.core.Tracer):
                raise KernelError(
                    f"kernel {launch.name}: check and draw look at concrete arrays: call them outside of jax.jit"
                )
        self.launch, self.watcher, self.poisoned, self.poison = launch, watcher, poisoned, poison
        self.undefined: dict[Position, None] = {}  # positions of loads without `other` that have left out lanes
        self.memory = [np.array(jnp.asarray(a)).reshape(-1) for a in arrays]
        self.given = [np.asarray(x) for x in traced]
        self.changes = 0  # number of accesses that have changed memory
        self.seen: list[tuple[int, np.ndarray]] = []  # (buffer, elements) read in the current iteration of a `while`

    def run(self, sample: Iterable[int] | None = None) -> list[np.ndarray]:
        """Execute all programs, the last axis of the grid fastest as in Triton's interpreter; return stored arrays.

        Args:
            sample: the positions of the programs that are executed, in their order; None for all.
        """
        names = self.launch.named([*self.memory, *self.given])
        names = {k: self.to_numpy(v) for k, v in names.items()}
        positions = range(math.prod(self.launch.grid)) if sample is None else sample
        for number, position in enumerate(positions):
            ids = tuple(map(int, np.unravel_index(position, self.launch.grid)))
            with entered(State(self.launch.grid, programs=ids)) as state:
                state.execution = self
                self.watcher.starts(number, ids)
                try:
                    call(self.launch.source, names)
                except EndsProgram as end:
                    self.watcher.waits(end.args[0])
        return [self.memory[i] for i in self.launch.stored]

    # -------------------------------------------------------------------------------------------- values

    def to_numpy(self, value: object) -> Any:
        """Return a value as a NumPy array, so that it is known to the interpreter."""
        if isinstance(value, tuple):
            items = list(map(self.to_numpy, value))
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if not isinstance(value, Tensor) or isinstance(value, Old) or value._data is None:
            return value
        data = value._data
        if isinstance(data, jax.core.Tracer) or (isinstance(data, np.ndarray) and value.affine is not None):
            return value
        return of_data(np.asarray(data), value.dtype, value.shape)

    # -------------------------------------------------------------------------------------------- memory

    def _lanes(self, pointer: Pointer, shape: Shape, lanes: Tensor | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the addresses of all lanes, the mask of active lanes inside of the array, and of those outside."""
        offset = pointer.offset
        data = offset.data if offset.affine is None else offset.affine.array(np)
        address = _full(data, shape).reshape(-1)
        alive = np.ones(address.shape, bool) if lanes is None else _full(lanes.data, shape).reshape(-1)
        there = (address >= 0) & (address < self.memory[pointer.buffer].size)
        return address, alive & there, alive & ~there

    def _report(self, access: Access) -> Callable[[], None] | None:
        """Report an access to the watcher and return what it returns."""
        if access.kind != "write":
            self.seen.append((access.buffer, access.elements))
        return self.watcher.access(access, here())

    def load(
        self, pointer: Pointer, shape: Shape, lanes: Tensor | None, other: Tensor | None, volatile: bool
    ) -> Tensor:
        """Execute `tl.load`."""
        address, inside, outside = self._lanes(pointer, shape, lanes)
        self._report(Access("read", pointer.buffer, address[inside], address[outside], volatile=volatile))
        kind = pointer.element
        data = np.zeros(address.shape, kind.array)
        if other is not None:
            data[:] = _full(other.data, shape).reshape(-1)
        elif len(address) > inside.sum() + outside.sum():
            self.undefined[here()] = None
            if here() in self.poisoned:
                data[:] = np.asarray(self.poison if kind.is_floating() else np.sign(self.poison) * 85).astype(
                    kind.array
                )
        data[inside] = self.memory[pointer.buffer][address[inside]]
        return of_data(data.reshape((1,) * leading() + shape), kind, shape)

    def store(self, pointer: Pointer, lanes: Tensor | None, value: Tensor) -> None:
        """Execute `tl.store`; where lanes share an address, the last one's value stays."""
        shape = pointer.shape
        address, inside, outside = self._lanes(pointer, shape, lanes)
        memory = self.memory[pointer.buffer]
        index, values = address[inside], _full(value.data, shape).reshape(-1)[inside].astype(memory.dtype)
        before = memory[index]
        memory[index] = values
        self.changes += not _same(before, memory[index])
        self._report(Access("write", pointer.buffer, index, address[outside], memory[index]))

    def atomic(
        self, name: str, pointer: Pointer, lanes: Tensor | None, value: Tensor, expected: Tensor | None, sem: object
    ) -> Tensor:
        """Execute `tl.atomic_*` lane after lane and return the old values."""
        shape = np.broadcast_shapes(pointer.shape, value.shape)
        address, inside, outside = self._lanes(pointer, shape, lanes)
        memory = self.memory[pointer.buffer]
        index, new = address[inside], _full(value.data, shape).reshape(-1)[inside].astype(memory.dtype)
        wanted = None if expected is None else _full(expected.data, shape).reshape(-1)[inside].astype(memory.dtype)
        old = np.zeros(address.shape, memory.dtype)
        before = memory[index]
        with np.errstate(all="ignore"):
            if len(np.unique(index)) == len(index):
                old[inside] = before
                memory[index] = _combined(name, before, new, wanted)
            else:
                taken = np.empty_like(before)
                for lane, at in enumerate(index):
                    taken[lane] = memory[at]
                    one = slice(lane, lane + 1)
                    memory[at] = _combined(name, taken[one], new[one], None if wanted is None else wanted[one])[0]
                old[inside] = taken
        changed = not _same(before, memory[index])
        self.changes += changed
        order = str(getattr(sem, "value", sem) or "acq_rel").lower()
        acquires, releases = (order in (word, "acq_rel") for word in ("acquire", "release"))
        effect = changed, False, acquires, releases and (changed or name != "cas")
        look = self._report(Access("atomic", pointer.buffer, index, address[outside], memory[index], *effect))
        data = old.astype(pointer.element.array).reshape((1,) * leading() + shape)
        return of_data(data, pointer.element, shape) if look is None else Old(data, pointer.element, look)

    # ------------------------------------------------------------------------------ messages of kernels

    def printed(self, parts: Iterable[object]) -> None:
        """Print the arguments of `tl.device_print` with the program's number."""
        if self.poisoned:  # the programs have printed before
            return
        shown = [_full(p.data, p.shape).reshape(p.shape) if isinstance(p, Tensor) else plain(p) for p in parts]
        print(f"program {current().programs}:", *shown)  # noqa: T201 - device_print prints

    def asserted(self, lanes: Tensor, mask: Tensor | None, message: object) -> None:
        """Report the lanes where a `tl.device_assert` fails."""
        shape = np.broadcast_shapes(lanes.shape, () if mask is None else mask.shape)
        fails = ~_full(lanes.data, shape) & (True if mask is None else _full(mask.data, shape))
        if fails.any():
            self.watcher.fails(here(), str(plain(message)), int(fails.sum()))

    def narrowed(self, kind: types.dtype, values: np.ndarray) -> None:
        """Report 64-bit values that do not fit into 32 bits, where their upper bits matter."""
        self.watcher.narrowed(here(), kind, values)

    # --------------------------------------------------------------------------------------------- loops

    def loop(self, frame: Frame, node: Loop) -> None:
        """Execute a `for` or a `while` sequentially.

        Raises:
            EndsProgram: a `while` changes nothing, or has more than `MOST_ITERATIONS` iterations.
        """
        check_loop(node)
        if isinstance(node, ast.While):
            with keeping_types(frame, node):
                self._while(frame, node)
            return
        given = evaluate(frame, node.iter)
        with contextlib.nullcontext() if getattr(given, "unrolled", True) else keeping_types(frame, node):
            self._for(frame, node, given)

    def _for(self, frame: Frame, node: ast.For, given: Iterable[object] | Range) -> None:
        """Execute a `for` sequentially."""
        items: Any = given
        if isinstance(given, Range):
            bounds = [as_tensor(b) for b in (given.start, given.stop, given.step)]
            if bounds[2].uniform() == 0:
                raise ValueError("the step of a range is zero")
            items = range(*map(int, bounds))
            if not given.unrolled:
                kind = types.promote(bounds[0].dtype, bounds[2].dtype)
                items = (of_affine(constant_affine(i), kind) for i in items)
        for item in items:
            bind(frame, node.target, item)
            interpret(frame, node.body)

    def _while(self, frame: Frame, node: ast.While) -> None:
        """Execute a `while` sequentially.

        Raises:
            EndsProgram: an iteration changes nothing, or there are more than `MOST_ITERATIONS`.
        """
        names, _ = decisive(node)
        for _ in range(MOST_ITERATIONS):
            before, changes = {n: frame.names.get(n) for n in names}, self.changes
            self.seen = []
            frame.line = node.lineno
            if not known_condition(evaluate(frame, node.test)):
                return
            interpret(frame, node.body)
            if changes == self.changes and all(_equal(before[n], frame.names.get(n)) for n in names):
                raise EndsProgram(Waiting(here()._replace(line=node.lineno), self.seen, True))
        raise EndsProgram(Waiting(here()._replace(line=node.lineno), self.seen, False))


def here() -> Position:
    """Return the position that is being executed."""
    frame = current().frames[-1]
    return Position(frame.source.name, frame.source.file, frame.line)


def _full(data: Array, shape: Shape) -> np.ndarray:
    """Return an array with the block's axes broadcast to their full size."""
    data = aligned(np.asarray(data), len(shape))
    return np.broadcast_to(data, data.shape[: leading()] + tuple(shape))


def _combined(name: str, old: np.ndarray, new: np.ndarray, wanted: np.ndarray | None) -> np.ndarray:
    """Return the new values of an atomic."""
    if name == "cas":
        return np.where(old == wanted, new, old)
    function: Any = {"add": np.add, "max": np.maximum, "min": np.minimum}.get(name)
    function = function or {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.get(name)
    return new if function is None else function(old, new)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True where two arrays have the same bits."""
    return bool(a.tobytes() == b.tobytes())


def _equal(a: object, b: object) -> bool:
    """Return whether two values of one variable are equal."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype:
        return _same(_full(broadcast(a, a.shape).data, a.shape), _full(broadcast(b, b.shape).data, b.shape))
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_equal, a, b))
    return type(a) is type(b) and isinstance(a, bool | int | float | str) and a == b
