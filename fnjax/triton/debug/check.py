"""`kernel.check[grid](...)`: execution of a launch program by program, and a report of its faults."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.debug.execution import Access, Execution, Launched, Position, Unwritten, Waiting, unwritten
from fnjax.triton.debug.races import Clocks, Log
from fnjax.triton.interpreter.source import Source
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor
from fnjax.triton.values import types
from fnjax.triton.values.affine import Array
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.state import Grid, launching

LARGE, SAMPLE = 4096, 1024  # programs of a grid that is sampled, and of the sample
OUTSIDE, EMPTY, RACE, WAIT = "out of bounds", "unwritten", "race", "endless wait"
ASSERTION, NARROWED, UNDEFINED = "assertion", "64 bits", "undefined"


Index = int | tuple[int, ...] | None  # of an element; None for a finding that is of no element
Key = tuple[Any, ...]  # kind, position and buffer of a finding, and what else tells it from others


class Runs(Protocol):
    """Kernel that is checked or drawn: a `fnjax.triton.launch.Kernel`, see there."""

    @property
    def source(self) -> Source:
        """The kernel's."""

    def run(self, *args: Any, grid: Grid, **named: Any) -> Any:
        """Launch the kernel."""


@dataclasses.dataclass
class Finding:
    """Fault of a kernel: its first occurrence, and how often it occurred.

    Attributes:
        kind: "out of bounds", "unwritten", "undefined", "race", "endless wait", "assertion" or "64 bits".
        function: the kernel or helper.
        file: its file.
        line: the line in the file.
        program: the program's indices along the axes of the grid.
        parameter: the array, by the parameter that it was passed for.
        index: the element: a tuple for an array of several axes; outside of the array, its flat address.
        message: a sentence that describes the fault.
        elements: the number of elements concerned, in all programs together.
        programs: the number of programs concerned.
    """

    kind: str
    function: str
    file: str
    line: int
    program: tuple[int, ...]
    parameter: str | None
    index: Index
    message: str
    elements: int = 1
    programs: int = 1

    def __str__(self) -> str:
        often = f" ({_counted(self.elements, 'element')} in {_counted(self.programs, 'program')})"
        text = linecache.getline(self.file, self.line).strip()
        where = f"{Path(self.file).name}:{self.line}, in {self.function}"
        return f"{self.kind}: {self.message}{often if self.kind != WAIT else ''}\n    {where}: {text}"


@dataclasses.dataclass
class Report:
    """Result of a check. Printed, it shows all findings; `report.ok` is True where nothing is wrong.

    Attributes:
        launch: kernel and grid, as text.
        findings: a list of `Finding`.
        outputs: the arrays that the launch would have returned.
        untouched: by parameter, the number of elements of an uninitialised buffer that no program has written.
        sampled: the number of programs that were executed of a large grid, and of all; None if all were.
    """

    launch: str
    findings: list[Finding]
    outputs: Any
    untouched: dict[str, int]
    sampled: tuple[int, int] | None = None

    @property
    def ok(self) -> bool:
        """Return True where nothing was found, and every element of an uninitialised buffer to store to was written."""
        return not self.findings and not any(self.untouched.values())

    def assert_clean(self) -> None:
        """Raise an AssertionError that shows what is wrong, if anything is (`ok`). For tests."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        head = f"{self.launch}: {_counted(len(self.findings), 'finding') if self.findings else 'nothing found'}"
        left = [f"left unwritten: {_counted(n, 'element')} of {name}" for name, n in self.untouched.items() if n]
        if self.sampled is not None:
            head += f" in {self.sampled[0]} of {self.sampled[1]} programs, a sample of the grid"
        return "\n".join([head, *map(str, self.findings), *left])

    __repr__ = __str__


class Check:
    """Value of `kernel.check`: `kernel.check[grid](*args, **meta)` returns a `Report`.

    The launch is executed program after program on NumPy arrays, outside jit. Faults are reported, not raised:

    - out of bounds: an unmasked lane reads or writes an address outside of the array;
    - unwritten: an element of an uninitialised buffer is read (an atomic reads, too) before any program has written it.
      JAX's arrays are all initialised: pass a `jax.ShapeDtypeStruct` for a buffer like `torch.empty`; each is a buffer
      of its own;
    - undefined: what is stored, or an address, depends on lanes that the mask of a `tl.load` without `other` leaves
      out: a launch finds zeros there, a GPU anything;
    - race: two programs write different values to an element, or one reads it and the other writes it, and no atomic
      orders them;
    - endless wait: a `while` that nothing can end: a lock that is not released, or that waits for a later program;
    - assertion: a `tl.device_assert` that does not hold. The arguments of `tl.device_print` are printed;
    - 64 bits: without `jax_enable_x64`, an int64 or uint64 value that 32 bits do not hold is divided, compared, shifted
      right or converted to a float: a launch computes another result.

    Of a grid with more than 4,096 programs 1,024 are executed: the first and the last one, and others at even distances
    between them. The report says so. Reads of unwritten elements and endless waits are then not reported, since the
    programs that are left out might have written, and the outputs are those of the sample.

    Examples:
        >>> import jax, jax.numpy as jnp, fnjax.triton as triton, fnjax.triton.language as tl
        >>> @triton.jit
        ... def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
        ...     at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ...     tl.store(out_ptr + at, factor * tl.load(x_ptr + at, mask=at < n), mask=at < n)
        >>> empty = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> report = scale_kernel.check[(4,)](jnp.arange(100.0), empty, 100, 2.0, BLOCK=32)
        >>> print(report)
        scale_kernel[4]: nothing found
        >>> report.assert_clean()
    """

    def __init__(self, kernel: Runs) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Grid) -> Callable[..., Report]:
        return lambda *args, **named: checked(self.kernel, grid, args, named)


def checked(kernel: Runs, grid: Grid, args: Sequence[Any], named: dict[str, Any]) -> Report:
    """Execute one launch and return its report."""
    args, named = with_empty_buffers(args, named)
    kept = []

    def run(launch: Launched, arrays: Sequence[Array], traced: Sequence[Array]) -> list[jax.Array]:
        watcher = Watcher(launch, arrays)
        sample = sample_of(math.prod(launch.grid))
        execution = Execution(launch, arrays, traced, watcher)
        stored = execution.run(sample)

        def differs(poisoned: Sequence[Position]) -> Difference | None:
            for poison in (np.inf, -np.inf) if poisoned else ():
                other = Watcher(launch, arrays)
                with np.errstate(all="ignore"), contextlib.suppress(KernelError):
                    found = Execution(launch, arrays, traced, other, poisoned, poison).run(sample)
                    if changed := watcher.different(stored, found, other):
                        return changed
            return None

        if changed := differs(list(execution.undefined)):
            guilty = {place: differs([place]) for place in execution.undefined}
            for place, each in guilty.items() if any(guilty.values()) else [(next(iter(guilty)), changed)]:
                if each:
                    watcher.depends(place, *each)
        kept.append((watcher, sample))
        return [jnp.asarray(a) for a in stored]

    with launching(run):
        outputs = kernel.run(*args, grid=grid, **named)
    if not kept:  # a grid without programs
        return Report(kernel.source.name, [], outputs, {})
    watcher, sample = kept[-1]
    if sample is None:
        return Report(title(watcher.launch), watcher.all_findings(), outputs, watcher.untouched())
    findings = [f for f in watcher.all_findings() if f.kind not in (EMPTY, WAIT)]
    return Report(title(watcher.launch), findings, outputs, {}, (len(sample), math.prod(watcher.launch.grid)))


def sample_of(programs: int) -> np.ndarray | None:
    """Return the positions of the programs that are executed of a large grid, in their order; None to execute all."""
    if programs <= LARGE:
        return None
    return np.linspace(0, programs - 1, SAMPLE).round().astype(np.int64)


def with_empty_buffers(args: Iterable[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with each jax.ShapeDtypeStruct replaced by an uninitialised buffer."""

    def filled(value: Any) -> Any:
        if isinstance(value, TensorDescriptor):
            return dataclasses.replace(value, base=filled(value.base))
        return unwritten(value) if isinstance(value, jax.ShapeDtypeStruct) else value

    return [filled(a) for a in args], {k: filled(v) for k, v in named.items()}


Difference = tuple[int, int, int, int]  # buffer, first element, program, and number of elements


class Watcher:
    """Watcher of a `execution.Execution` that records accesses and collects findings."""

    def __init__(self, launch: Launched, arrays: Sequence[Array]) -> None:
        self.launch = launch
        self.shapes = [np.shape(a) for a in arrays]
        self.names = names_of(launch)
        self.written = {i: np.zeros(np.size(a), bool) for i, a in enumerate(arrays) if isinstance(a, Unwritten)}
        self.logs = {i: Log() for i in launch.stored}
        # By element, the program that changed it last, and the position in the source.
        self.writer = {i: np.full(np.size(arrays[i]), -1, np.int64) for i in launch.stored}
        self.line = {i: np.zeros(np.size(arrays[i]), np.int64) for i in launch.stored}
        self.places: dict[Position, int] = {}
        self.clocks = Clocks()
        self.ids: list[tuple[int, ...]] = []
        self.found: dict[Key, tuple[Finding, set[int]]] = {}  # with its programs
        self.left: list[tuple[int, Waiting]] = []  # programs that were ended

    def starts(self, number: int, ids: tuple[int, ...]) -> None:
        """Begin another program."""
        self.ids.append(shown(ids, self.launch.grid))
        self.clocks.starts(number)

    def access(self, access: Access, place: Position) -> Callable[[], None] | None:
        """Check one access against those before it.

        Returns:
            for an atomic that acquires: a function to be called when its old value is used; else None.
        """
        buffer, index = access.buffer, access.elements
        verb = {"read": "reads", "write": "writes", "atomic": "updates"}[access.kind]
        if len(access.outside):
            size = int(np.prod(self.shapes[buffer], dtype=int))
            at = int(access.outside[0])
            message = f"{self._who(-1)} {verb} {self.names[buffer]}[{at}], which has {_counted(size, 'element')}"
            self._find(OUTSIDE, place, buffer, at, message, len(access.outside))
        if buffer in self.written:
            written = self.written[buffer]
            if access.kind != "write" and not self.left and not written[index].all():
                missing = index[~written[index]]
                first = int(missing[0])
                message = f"{self._who(-1)} {verb} {self._element(buffer, first)}, which nobody has written"
                self._find(EMPTY, place, buffer, self._index(buffer, first), message, len(missing))
            if access.kind != "read":
                written[index] = True
        look = None
        if access.kind == "atomic" and access.acquires:
            look = self.clocks.acquiring(buffer, index)
        elif access.volatile:
            self.clocks.acquiring(buffer, index)()
        if buffer in self.logs:
            kind = access.kind
            if access.volatile or (kind == "atomic" and not access.changed):
                kind = "look"
            self.logs[buffer].add(self.clocks.event(kind, place), index, access.values if kind == "write" else None)
            if access.kind != "read" and access.changed:
                self.writer[buffer][index] = len(self.ids) - 1
                self.line[buffer][index] = self.places.setdefault(place, len(self.places))
        if access.kind == "atomic" and access.releases:
            self.clocks.release(buffer, index)
        return look

    def fails(self, place: Position, message: str, lanes: int) -> None:
        """Add a finding for a `tl.device_assert` that does not hold."""
        text = f"{self._who(-1)}: {message or 'the condition does not hold'}"
        self._find(ASSERTION, place, None, None, text, lanes)

    def narrowed(self, place: Position, kind: types.dtype, values: np.ndarray) -> None:
        """Add a finding for 64-bit values that do not fit into 32 bits, where their upper bits matter."""
        message = (
            f"{self._who(-1)} needs the value {values[0]} of {kind}, and JAX has 32 bits: a launch computes another "
            "result (jax.config.update('jax_enable_x64', True))"
        )
        self._find(NARROWED, place, None, None, message, len(values))

    def different(
        self, stored: Sequence[np.ndarray], others: Sequence[np.ndarray], other: Watcher
    ) -> Difference | None:
        """Return buffer, first element, program and number of elements that another execution changes, or None.

        They differ after it, or only it reads or writes them, outside of the array.
        """
        for key, (finding, programs) in other.found.items():
            if finding.kind == OUTSIDE and key not in self.found and isinstance(finding.index, int):
                return key[2], finding.index, min(programs), finding.elements
        for buffer, a, b in zip(self.launch.stored, stored, others, strict=True):
            elements = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
            if len(elements):
                first = int(elements[0])
                return buffer, first, max(int(w.writer[buffer][first]) for w in (self, other)), len(elements)
        return None

    def depends(self, place: Position, buffer: int, element: int, program: int, elements: int) -> None:
        """Add a finding for a load whose masked lanes decide on what is stored, or on an address."""
        what = "" if 0 <= element < math.prod(self.shapes[buffer]) else ", an address outside of it,"
        message = (
            f"{self._element(buffer, element)}{what} depends on lanes that the mask leaves out, which are undefined "
            "without other=..."
        )
        self._find(UNDEFINED, place, buffer, self._index(buffer, element), message, elements, program=program)

    def waits(self, waiting: Waiting) -> None:
        """Note that the current program was ended in a `while`."""
        self.left.append((len(self.ids) - 1, waiting))

    def _find(
        self,
        kind: str,
        place: Position,
        buffer: int | None,
        index: Index,
        message: str,
        elements: int,
        key: Key = (),
        program: int | None = None,
    ) -> None:
        """Add a finding, or count one more occurrence of it."""
        key = kind, place, buffer, *key
        program = len(self.ids) - 1 if program is None else program
        if key in self.found:
            finding, programs = self.found[key]
            finding.elements += elements
        else:
            name = None if buffer is None else self.names[buffer]
            finding = Finding(
                kind, place.function, place.file, place.line, self.ids[program], name, index, message, elements
            )
            self.found[key] = finding, (programs := set())
        programs.add(program)
        finding.programs = len(programs)

    def _who(self, number: int) -> str:
        ids = self.ids[number]
        return f"program {ids[0] if len(ids) == 1 else ids}"

    def _index(self, buffer: int, element: int) -> int | tuple[int, ...]:
        """Return the index of an element: an integer, or a tuple for an array of several axes, if it is inside."""
        shape = self.shapes[buffer]
        flat = len(shape) < 2 or not 0 <= element < math.prod(shape)
        return int(element) if flat else tuple(map(int, np.unravel_index(int(element), shape)))

    def _element(self, buffer: int, element: int) -> str:
        """Return an element as text, for example `x_ptr[3, 4]`."""
        index = self._index(buffer, element)
        return f"{self.names[buffer]}[{', '.join(map(str, index if isinstance(index, tuple) else (index,)))}]"

    # ------------------------------------------------------------------------------ after all programs

    def all_findings(self) -> list[Finding]:
        """Return all findings by kind, in the order in which they were found."""
        for number, waiting in self.left:
            self._wait(number, waiting)
        for buffer, log in self.logs.items():
            for (earlier, later, element), elements in log.races():
                did = {"read": "read", "look": "read", "write": "wrote", "atomic": "updated"}[earlier.kind]
                does = {"read": "reads", "look": "reads", "write": "writes", "atomic": "updates"}[later.kind]
                what = "another value there" if did == "wrote" and does == "writes" else "it"
                message = (
                    f"{self._who(later.program)} {does} {self._element(buffer, element)}, and "
                    f"{self._who(earlier.program)} {did} {what} in line {earlier.place.line}: nothing orders them"
                )
                index, key = self._index(buffer, element), (earlier.place, earlier.kind, later.kind)
                self._find(RACE, later.place, buffer, index, message, len(elements), key, later.program)
        kinds = [OUTSIDE, EMPTY, UNDEFINED, ASSERTION, NARROWED, RACE, WAIT]
        return sorted((f for f, _ in self.found.values()), key=lambda f: kinds.index(f.kind))

    def _wait(self, number: int, waiting: Waiting) -> None:
        """Add the finding for a waiting program, which says which later program it waits for, if any."""
        who = self._who(number)
        if not waiting.stuck or not waiting.seen:
            message = f"{who} is still in this loop after {_counted(len(waiting.seen), 'read')}" if waiting.seen else ""
            message = message or f"{who} is in a loop that changes nothing and reads nothing"
            self._find(WAIT, waiting.place, None, None, message, 0, program=number)
            return
        buffer, index = next(((b, i) for b, i in waiting.seen if b in self.writer and len(i)), waiting.seen[0])
        element = int(index[0]) if len(index) else 0
        by = int(self.writer[buffer][element]) if buffer in self.writer else -1
        name, later = self._element(buffer, element), by > number
        if later:
            line = self._line(buffer, element)
            message = (
                f"{who} waits for {name}, which the later {self._who(by)} changes in line {line}: a program may "
                "wait for those before it only"
            )
        elif by >= 0:
            line = self._line(buffer, element)
            who_ = "it" if by == number else self._who(by)
            message = (
                f"{who} waits for {name}, which {who_} changed last, in line {line}, and which nobody changes again"
            )
        else:
            message = f"{who} waits for {name}, which nobody changes"
        self._find(
            WAIT, waiting.place, buffer, self._index(buffer, element), message, 1, ("later",) if later else (), number
        )

    def _line(self, buffer: int, element: int) -> int:
        """Return the line that changed an element last."""
        return list(self.places)[int(self.line[buffer][element])].line

    def untouched(self) -> dict[str, int]:
        """Return, by parameter, how many elements of uninitialised buffers no program has written."""
        return {self.names[b]: int((~w).sum()) for b, w in self.written.items() if b in self.logs}


def names_of(launch: Launched) -> dict[int, str]:
    """Return, by buffer, the names of the parameters that it was passed for, joined by "/"."""
    names: dict[int, str] = {}
    for parameter, (kind, value) in launch.parameters.items():
        if kind in ("array", "described"):
            buffer = value[0] if kind == "described" else value
            names[buffer] = f"{names[buffer]}/{parameter}" if buffer in names else parameter
    return names


def shown(ids: tuple[int, ...], grid: Sequence[int]) -> tuple[int, ...]:
    """Return a program's indices along the axes of the grid that the user gave: trailing axes of size 1 are dropped."""
    used = max([1, *(d + 1 for d, n in enumerate(grid) if n > 1)])
    return tuple(ids[:used])


def title(launch: Launched) -> str:
    """Return the kernel and its grid as text, for example `kernel[4, 2]`."""
    return f"{launch.name}[{', '.join(map(str, shown(launch.grid, launch.grid)))}]"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
