"""`kernel.draw[grid](...)`: figure of which program reads and writes which element."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fnjax.triton.debug.check import Runs, names_of, shown, title, with_empty_buffers
from fnjax.triton.debug.execution import Access, Execution, Launched, Position, Waiting
from fnjax.triton.values import types
from fnjax.triton.values.affine import Array, Shape
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.state import Grid, launching

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

UNTOUCHED, OTHERS, MANY, OUTLINE, QUIET, FAULT = "#f4f4f2", "#cfcfca", "#55554f", "#ffffff", "#6b6b68", "#b3261e"
PIXELS = 360  # maximum along an axis of an array; of longer ones several elements share a pixel
NAMED = 16  # maximum number of programs, and of sets of them, with an entry each in the legend; else a scale


Path = str | os.PathLike[str]
Program = int | tuple[int, ...] | list[int]  # its indices along the grid


class Draw:
    """Value of `kernel.draw`: `kernel.draw[grid](*args, **meta)` returns a matplotlib Figure.

    The launch is executed program by program, as by `kernel.check`. Each array has a panel for its elements that are
    read, and one for those written (atomics write). An element has the colour of its program, or of the set of programs
    that share it. Long arrays of one axis are broken into rows; for arrays of three axes and more, the last axis is the
    row.

    `kernel.draw("picture.png")[grid](...)` also writes the figure to a file; `kernel.draw(program=(1, 0))[grid](...)`
    shows one program only. It needs matplotlib: `pip install matplotlib`.

    Examples:
        >>> import jax, jax.numpy as jnp, fnjax.triton as triton, fnjax.triton.language as tl
        >>> @triton.jit
        ... def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        ...     at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ...     tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)
        >>> empty = jax.ShapeDtypeStruct((50,), jnp.float32)
        >>> figure = double_kernel.draw[(4,)](jnp.arange(50.0), empty, 50, BLOCK=16)
        >>> figure.savefig("double.png")  # doctest: +SKIP

    Args:
        path: the file to write, as a PNG or in the format that its ending names.
        program: the indices along the grid of the only program to show, or one integer.
    """

    def __init__(self, kernel: Runs, path: Path | None = None, program: Program | None = None) -> None:
        self.kernel, self.path, self.program = kernel, path, program

    def __call__(self, path: Path | None = None, program: Program | None = None) -> Draw:
        """Return the same with options."""
        return Draw(self.kernel, path, program)

    def __getitem__(self, grid: Grid) -> Callable[..., Figure]:
        return lambda *args, **named: self._drawn(grid, args, named)

    def _drawn(self, grid: Grid, args: Sequence[Any], named: dict[str, Any]) -> Figure:
        """Return the figure of one launch, and write it to `path` if given; ImportError without matplotlib."""
        try:
            import matplotlib.figure  # noqa: F401 - an extra
        except ImportError as error:
            raise ImportError("kernel.draw needs matplotlib: pip install matplotlib") from error
        args, named = with_empty_buffers(args, named)
        kept = []

        def run(launch: Launched, arrays: Sequence[Array], traced: Sequence[Array]) -> list[np.ndarray]:
            touches = Touches(launch, arrays, self.program)
            kept.append(touches)
            return Execution(launch, arrays, traced, touches).run()

        with launching(run):
            self.kernel.run(*args, grid=grid, **named)
        figure = picture(kept[-1])
        if self.path is not None:
            figure.savefig(self.path, dpi=150)
        return figure


class Touches:
    """Watcher of a `execution.Execution` that records the set of programs that read or write each element."""

    def __init__(self, launch: Launched, arrays: Sequence[Array], program: Program | None) -> None:
        self.launch, self.names = launch, names_of(launch)
        self.shapes, self.types = [np.shape(a) for a in arrays], [np.dtype(a.dtype).name for a in arrays]
        self.ids: list[tuple[int, ...]] = []
        self.sets: list[frozenset[int]] = [frozenset()]
        self._number_of: dict[frozenset[int], int] = {frozenset(): 0}
        # By buffer and "read" or "written": the number of each element's set, and how many addresses are outside.
        self.found: dict[tuple[int, str], np.ndarray] = {}
        self.outside: dict[tuple[int, str], int] = {}
        self.chosen = None if program is None else self._chosen(program)

    def _chosen(self, program: Program) -> int:
        """Return the flat index of the only program to show.

        Raises:
            KernelError: the grid has no such program.
        """
        ids = tuple(program) if isinstance(program, tuple | list) else (program,)
        grid = self.launch.grid
        wide = ids + (0,) * (len(grid) - len(ids))
        if len(wide) != len(grid) or not all(0 <= i < n for i, n in zip(wide, grid, strict=True)):
            raise KernelError(f"kernel {self.launch.name}: there is no program {program} in {title(self.launch)}")
        return int(np.ravel_multi_index(wide, grid))

    def starts(self, number: int, ids: tuple[int, ...]) -> None:
        """Begin another program."""
        self.ids.append(shown(ids, self.launch.grid))

    def access(self, access: Access, place: Position) -> None:
        """Add the current program to the sets of the elements that it accesses."""
        program = len(self.ids) - 1
        key = access.buffer, "read" if access.kind == "read" else "written"
        if key not in self.found:
            self.found[key] = np.zeros(math.prod(self.shapes[access.buffer]), np.int64)
            self.outside[key] = 0
        self.outside[key] += len(access.outside)
        found = self.found[key]
        before, where = np.unique(found[access.elements], return_inverse=True)
        found[access.elements] = np.array([self._joined(int(n), program) for n in before], np.int64)[where]

    def _joined(self, number: int, program: int) -> int:
        """Return the number of a set of programs with one program added."""
        joined = self.sets[number] | {program}
        if joined not in self._number_of:
            self._number_of[joined] = len(self.sets)
            self.sets.append(joined)
        return self._number_of[joined]

    def fails(self, place: Position, message: str, lanes: int) -> None:
        """Ignore assertions that fail."""

    def narrowed(self, place: Position, kind: types.dtype, values: np.ndarray) -> None:
        """Ignore values that need 64 bits."""

    def waits(self, waiting: Waiting) -> None:
        """Ignore waits: such programs are drawn as far as they run."""


def picture(touches: Touches) -> Figure:
    """Return the figure, with one column of panels for reads and one for writes.

    Raises:
        KernelError: the kernel accesses no array.
    """
    from matplotlib.figure import Figure

    if not touches.found:
        raise KernelError(f"kernel {touches.launch.name} reads and writes nothing that could be drawn")
    columns = {}
    for verb in ("read", "written"):
        panels = [Raster(touches, b, verb) for b in touches.names if (b, verb) in touches.found]
        if panels:
            columns[verb] = panels
    palette = Palette(touches, [raster for panels in columns.values() for raster in panels])
    height = max(sum(raster.height for raster in panels) for panels in columns.values()) + 0.3
    figure = Figure(figsize=(0.4 + 5.4 * len(columns), 0.4 + height + palette.height), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[0.4 + height, palette.height])
    body, foot = halves
    sides: Any = np.atleast_1d(body.subfigures(1, len(columns), wspace=0.04))
    for side, (verb, panels) in zip(sides, columns.items(), strict=True):
        heights = [raster.height for raster in panels]
        left = height - 0.3 - sum(heights)
        axes = side.subplots(len(panels) + 1, 1, squeeze=False, height_ratios=[*heights, max(left, 0.01)])[:, 0]
        side.suptitle(verb, fontsize=10, color=QUIET)
        for axis, raster in zip(axes, panels, strict=False):
            raster.draw(axis, palette)
        axes[-1].axis("off")
    alone = "" if touches.chosen is None else f", program {_label(touches.ids[touches.chosen])} alone"
    body.suptitle(f"{title(touches.launch)}{alone}", fontsize=12, fontweight="bold")
    palette.explain(foot)
    return figure


class Palette:
    """Colours for sets of programs, and the legend."""

    def __init__(self, touches: Touches, rasters: Sequence[Raster]) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import to_rgb

        self.ids, used = touches.ids, sorted({int(n) for r in rasters for n in np.unique(r.sets[r.there])})
        programs, chosen = len(self.ids), touches.chosen
        self.scaled = programs > NAMED and chosen is None
        if self.scaled:
            self.programs = colormaps["turbo"](np.linspace(0.04, 0.96, programs))[:, :3]
        else:
            colours = colormaps["tab10" if programs < 10 or chosen is not None else "tab20"]
            greys = (7,) if colours.N == 10 else (14, 15)
            scheme = [colours(i)[:3] for i in range(colours.N) if i not in greys]
            self.programs = np.array([scheme[i % len(scheme)] for i in range(programs)])
        self.sets, self.entries = {0: np.array(to_rgb(UNTOUCHED))}, []
        shared = [n for n in used if len(touches.sets[n]) > 1]
        few = len(shared) <= NAMED
        for n in used:
            members = sorted(touches.sets[n])
            if chosen is not None:
                self.sets[n] = np.array(to_rgb(OTHERS)) if members else self.sets[0]
                if chosen in members:
                    self.sets[n] = self.programs[0]
            elif len(members) == 1:
                self.sets[n] = self.programs[members[0]]
            elif members and few and len(members) < programs:  # a little darker than the mean of their colours
                self.sets[n] = 0.78 * self.programs[members].mean(0)
            elif members:
                self.sets[n] = np.array(to_rgb(MANY))
        if chosen is not None:
            self.entries = [(self.programs[0], f"program {_label(self.ids[chosen])}"), (OTHERS, "other programs")]
        else:
            if not self.scaled:
                self.entries = [(c, f"program {_label(ids)}") for c, ids in zip(self.programs, self.ids, strict=True)]
            if few:
                self.entries += [(self.sets[n], _named(touches.sets[n], self.ids)) for n in shared]
            else:
                self.entries.append((MANY, "several programs"))
        if 0 in used:
            self.entries.append((UNTOUCHED, "nobody"))
        longest = max([1, *(len(label) for _, label in self.entries)])
        self.columns = max(1, min(len(self.entries), 130 // (longest + 6)))
        lines = math.ceil(len(self.entries) / self.columns)
        self.height = 0.1 + 0.2 * lines + (0.6 if self.scaled else 0)

    def image(self, sets: np.ndarray) -> np.ndarray:
        """Return the colour of each pixel."""
        numbers, where = np.unique(sets, return_inverse=True)
        return np.array([self.sets[int(n)] for n in numbers])[where.reshape(sets.shape)]

    def explain(self, figure: FigureBase) -> None:
        """Draw the legend, and a colour scale where there are many programs."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize
        from matplotlib.patches import Patch

        handles = [Patch(facecolor=c, edgecolor="#8a8a86", linewidth=0.5, label=label) for c, label in self.entries]
        if handles:
            figure.legend(
                handles=handles, ncols=self.columns, loc="lower center", frameon=False, fontsize=8, handlelength=1.2
            )
        if self.scaled:
            axis = figure.add_axes((0.2, 1 - 0.3 / self.height, 0.6, 0.12 / self.height))
            scale = ScalarMappable(Normalize(0, len(self.ids) - 1), ListedColormap(self.programs))
            bar = figure.colorbar(scale, cax=axis, orientation="horizontal")
            ticks = np.unique(np.linspace(0, len(self.ids) - 1, 6).round().astype(int))
            bar.set_ticks(ticks.tolist(), labels=[_label(self.ids[t]) for t in ticks])
            bar.ax.tick_params(labelsize=8, length=2)
            bar.outline.set_linewidth(0.4)
            bar.ax.set_title("program", fontsize=8, pad=3)


class Raster:
    """One panel: an array as a rectangle of pixels, each for one element or for several."""

    def __init__(self, touches: Touches, buffer: int, verb: str) -> None:
        shape = touches.shapes[buffer]
        self.members, self.ids, self.numbered = touches.sets, touches.ids, touches.chosen is None
        self.name = touches.names[buffer].replace("/", " = ")
        self.about = f"{touches.types[buffer]}[{', '.join(map(str, shape))}]"
        self.outside = touches.outside[buffer, verb]
        self.rows, self.width = _rows(shape)
        self.wrapped = len(shape) < 2 and self.rows > 1
        sets = touches.found[buffer, verb]
        missing = self.rows * self.width - sets.size
        there = np.pad(np.ones(sets.size, bool), (0, missing)).reshape(self.rows, self.width)
        sets = np.pad(sets, (0, missing)).reshape(self.rows, self.width)
        self.steps = math.ceil(self.rows / PIXELS), math.ceil(self.width / PIXELS)
        self.sets = _shrunk(sets, self.steps, [touches.chosen in m for m in touches.sets])
        self.there = _shrunk(there, self.steps, [])
        self.height = 0.65 + (min(3.0, max(0.4, 4.6 * self.rows / self.width)) if self.rows > 1 else 0.25)

    def draw(self, axis: Axes, palette: Palette) -> None:
        """Draw the pixels, labels where there is room, axes and title."""
        image = palette.image(self.sets)
        image[~self.there] = 1.0
        extent = (-0.5, self.width - 0.5, self.rows - 0.5, -0.5)
        axis.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
        axis.set_xlim(-0.5, max(self.width, 8 if self.rows == 1 else 1) - 0.5)
        for side in axis.spines.values():
            side.set_visible(False)
        whole = self.steps == (1, 1)
        if whole and self.width <= 64 and self.rows <= 16:
            axis.set_xticks(np.arange(-0.5, self.width), minor=True)
            axis.set_yticks(np.arange(-0.5, self.rows), minor=True)
            axis.grid(which="minor", color=OUTLINE, linewidth=0.8 if self.width <= 32 else 0.4)
        if self.numbered:
            small = whole and max(len(_label(ids)) for ids in self.ids) * self.width <= 100 and self.rows <= 16
            (self._numbers if small else self._names)(axis, image)
        _ticks(axis.xaxis, self.width)
        if self.rows > 1:
            _ticks(axis.yaxis, self.rows)
        else:
            axis.set_yticks([])
        axis.tick_params(which="both", length=0, labelsize=7, pad=2)
        axis.set_title(self.name, loc="left", fontsize=10, fontweight="bold", pad=4)
        axis.set_title(self.about, loc="right", fontsize=8, color=QUIET, pad=4)
        notes = [f"{self.width} elements in a row"] if self.wrapped else []
        if not whole:
            notes.append(f"a pixel is {self.steps[0]} × {self.steps[1]} elements")
        if self.outside:
            notes.append(f"{self.outside} address{'es' if self.outside > 1 else ''} outside of the array")
        axis.set_xlabel(", ".join(notes), fontsize=8, color=FAULT if self.outside else QUIET, labelpad=2)

    def _names(self, axis: Axes, image: np.ndarray) -> None:
        """Label rectangles of one set of programs, if they are large enough, with their programs."""
        rows, columns = self.sets.shape
        for number in np.unique(self.sets[self.sets > 0])[:64]:
            i, j = np.nonzero(self.sets == number)
            tall, wide = np.ptp(i) + 1, np.ptp(j) + 1
            text = _named(self.members[number], self.ids)
            if tall * wide != len(i) or tall * self.height < 0.2 * rows or wide * 60 < len(text) * columns:
                continue
            middle = (j.min() + wide / 2) * self.steps[1] - 0.5, (i.min() + tall / 2) * self.steps[0] - 0.5
            axis.text(*middle, text, ha="center", va="center", fontsize=8, color=_readable(image[i[0], j[0]]))

    def _numbers(self, axis: Axes, image: np.ndarray) -> None:
        """Label each element with its program, or with the number of its programs."""
        size = 7 if max(len(_label(ids)) for ids in self.ids) * self.width <= 64 else 5.5
        for row, column in zip(*np.nonzero(self.sets), strict=True):
            members = self.members[self.sets[row, column]]
            text = _label(self.ids[min(members)]) if len(members) == 1 else f"×{len(members)}"
            axis.text(column, row, text, ha="center", va="center", fontsize=size, color=_readable(image[row, column]))


def _readable(colour: np.ndarray) -> str:
    """Return the text colour that is readable on a colour."""
    return "white" if colour @ (0.299, 0.587, 0.114) < 0.55 else "#222222"


def _rows(shape: Shape) -> tuple[int, int]:
    """Return the number of rows that an array is drawn in, and the number of elements in a row."""
    if len(shape) >= 2:
        return max(math.prod(shape[:-1]), 1), max(shape[-1], 1)
    size = math.prod(shape)
    if size <= 64:
        return 1, max(size, 1)
    width = 2 ** round(math.log2(math.sqrt(size * 4)))
    return math.ceil(size / width), width


def _shrunk(sets: np.ndarray, steps: tuple[int, int], chosen: Sequence[bool]) -> np.ndarray:
    """Return one set of programs for each pixel: the first of its elements' sets that is not empty.

    Args:
        sets: for each element of a drawn array the index of its set; 0 is the empty set.
        steps: the rows and columns of elements in a pixel.
        chosen: for each set whether it takes precedence.
    """
    if steps == (1, 1):
        return sets
    rows, columns = (math.ceil(n / s) for n, s in zip(sets.shape, steps, strict=True))
    wide = [(0, n * s - m) for n, s, m in zip((rows, columns), steps, sets.shape, strict=True)]
    pixels = np.pad(sets, wide).reshape(rows, steps[0], columns, steps[1]).transpose(0, 2, 1, 3)
    members = pixels.reshape(rows, columns, -1)
    rank = (members > 0) + (np.array(chosen)[members] if any(chosen) else 0)
    return np.take_along_axis(members, rank.argmax(-1)[..., None], -1)[..., 0]


def _ticks(axis: Axis, size: int) -> None:
    """Set about nine ticks, at multiples of a power of two, along an axis of `size` elements."""
    step = max(1, 2 ** math.ceil(math.log2(size / 9)))
    axis.set_ticks(range(0, size, step))


def _named(members: frozenset[int], ids: Sequence[tuple[int, ...]]) -> str:
    """Return the label of a set of programs, shortened for large ones."""
    labels = [_label(ids[p]) for p in sorted(members)]
    if len(labels) == len(ids) > 1:
        return f"all {len(labels)} programs"
    return " + ".join(labels) if len(labels) <= 4 else f"{len(labels)} programs, {labels[0]} to {labels[-1]}"


def _label(ids: tuple[int, ...]) -> str:
    """Return the label of a program."""
    return str(ids[0]) if len(ids) == 1 else f"({', '.join(map(str, ids))})"
