"""Jacobians of any function, by finite differences and from its derivatives, without trusting either.

All is real here: a complex array is two parts, its real and its imaginary one. A `Program` takes a direction for each
part of the inputs and gives the response of each part of the outputs; the responses to all unit directions are the
Jacobian. Three ways lead there, and give the same numbers: one step for all elements, where the program as it is
traced shows that each output reads one element only (and where masked steps confirm it); many steps at once under
`jax.jit`; and one step after the other, un-jitted, for few steps and for functions that need concrete values.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check import running as _running
from fnjax._check import sparsity as _sparsity
from fnjax._check.streams import make_stream

Array = np.ndarray[Any, Any]
Arrays = list[Array]

CHUNK_BYTES = 128 * 2**20  # what the steps that are taken at once may hold
CHUNK_STEPS = 1024
MASKS = 2  # how often it is tested that the structure of a program is as its trace shows
COMPILE_SECONDS = 0.15  # what jax.jit costs, about; a step un-jitted costs EQUATION_SECONDS for each operation
EQUATION_SECONDS = 4e-5


class Matrix:
    """One block of a Jacobian: a row for each element of an input, a column for each of an output, as in PyTorch.

    Attributes:
        shape: (n_inputs, n_outputs).
        keys: where values stand, `row * n_outputs + column`, sorted; None when all are there.
        values: the values at `keys`, or all of them in order.
    """

    def __init__(self, shape: tuple[int, int], keys: Array | None, values: Array) -> None:
        self.shape, self.keys, self.values = shape, keys, values

    @classmethod
    def sparse(cls, shape: tuple[int, int], rows: Array, columns: Array, values: Array) -> Matrix:
        """A matrix with one value for each (row, column); -1 for either leaves the value out."""
        there = (rows >= 0) & (columns >= 0)
        keys = rows[there] * shape[1] + columns[there]
        order = np.argsort(keys)
        return cls(shape, keys[order], values[there][order])

    def at(self, keys: Array) -> Array:
        """The values at `keys`."""
        if self.keys is None:
            return self.values[keys]
        if not self.keys.size:
            return np.zeros(keys.shape)
        place = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[place] == keys, self.values[place], 0.0)

    def window(self, rows: Iterable[int], columns: Iterable[int]) -> Array:
        """A part of the matrix in full."""
        keys = np.array(list(rows), np.int64)[:, None] * self.shape[1] + np.array(list(columns), np.int64)
        return self.at(keys)

    def plus_i(self, imaginary: Matrix) -> Matrix:
        """This matrix plus i times another."""
        keys = _unite(self, imaginary)
        if keys is None:
            every = np.arange(self.shape[0] * self.shape[1])
            return Matrix(self.shape, None, self.at(every) + 1j * imaginary.at(every))
        return Matrix(self.shape, keys, self.at(keys) + 1j * imaginary.at(keys))


def _unite(a: Matrix, b: Matrix) -> Array | None:
    return None if a.keys is None or b.keys is None else np.union1d(a.keys, b.keys)


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Where two matrices differ.

    Attributes:
        row: the element of the input in the worst place.
        column: the element of the output there.
        numerical: the value by finite differences.
        analytical: the value that the derivative gives.
        tolerance: by how much they may differ.
        count: how many places differ by too much.
    """

    row: int
    column: int
    numerical: complex
    analytical: complex
    tolerance: float
    count: int


def compare(numerical: Matrix, analytical: Matrix, rtol: float, atol: float) -> Mismatch | None:
    """The worst place where |analytical - numerical| > atol + rtol |numerical|, as `allclose` has it."""
    keys = _unite(numerical, analytical)
    size = numerical.shape[0] * numerical.shape[1] if keys is None else keys.size
    worst: tuple[float, int] | None = None
    count = 0
    for start in range(0, size, 2**20):  # in slices, so that no temporary is as large as the matrix
        some = np.arange(start, min(start + 2**20, size)) if keys is None else keys[start : start + 2**20]
        n, a = numerical.at(some), analytical.at(some)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            excess = np.abs(a - n) - (atol + rtol * np.abs(n))
        excess = np.where(a == n, -np.inf, np.where(np.isnan(excess), np.inf, excess))
        bad = excess > 0
        if bad.any():
            count += int(bad.sum())
            place = int(np.argmax(excess))
            if worst is None or excess[place] > worst[0]:
                worst = (float(excess[place]), int(some[place]))
    if worst is None:
        return None
    key = np.array(worst[1])
    n, a = numerical.at(key)[()], analytical.at(key)[()]
    row, column = divmod(worst[1], numerical.shape[1])
    return Mismatch(row, column, n.item(), a.item(), float(atol + rtol * abs(n)), count)


class StepError(Exception):
    """The outputs changed: what of them ("shape", "dtype"), by which step, from what and to what."""


class NotReentrantError(Exception):
    """The same step gave two results; the largest difference says by how much."""


@dataclasses.dataclass
class Program:
    """A function of one direction for each part of the inputs.

    Attributes:
        name: for the progress bar.
        respond: directions → responses, un-jitted and concrete.
        ins: shapes of the parts of the inputs.
        outs: shapes of the parts of the outputs.
        traced: the program whose elements read (for finite differences, the function itself), without calls; None
            where it cannot be traced.
        staged: as `respond`, to be traced; runs `traced`.
    """

    name: str
    respond: Callable[[Arrays], Arrays]
    ins: list[tuple[int, ...]]
    outs: list[tuple[int, ...]]
    traced: Any = None
    staged: Callable[[list[Any]], list[Any]] | None = None

    def directions(self, part: int, direction: Array) -> Arrays:
        """The direction of one part, zero for all others."""
        return [direction if i == part else np.zeros(shape) for i, shape in enumerate(self.ins)]


def compute_jacobian(program: Program, *, by_rows: bool, again: float | None = None) -> list[list[Matrix]]:
    """The blocks of a Jacobian, `result[input][output]`.

    Args:
        program: its ins are inputs; or outputs, when it takes cotangents.
        by_rows: whether it takes cotangents, so that its ins belong to the columns of each block.
        again: take every step twice, un-jitted, and raise `NotReentrantError` if results differ by more than this.
    """
    found: list[list[Matrix] | None] = [None] * len(program.ins)
    if again is None and program.traced is not None:
        dependence = _sparsity.find_reads(program.traced)
        each = [
            [d.get(i, np.full(out, -1)) for d, out in zip(dependence, program.outs, strict=True)]
            for i in range(len(program.ins))
        ]
        if any(all(r is not None for r in reads) for reads in each):
            off = program.respond([np.zeros(shape) for shape in program.ins])
            found = [_find_by_sparsity(program, i, reads, off) for i, reads in enumerate(each)]
    rest = [i for i, blocks in enumerate(found) if blocks is None]
    if rest:
        for i, blocks in zip(rest, _find_by_steps(program, rest, again), strict=True):
            found[i] = blocks
    done = [row for row in found if row is not None]
    return [[_turn(m) for m in column] for column in zip(*done, strict=True)] if by_rows else done


def _turn(matrix: Matrix) -> Matrix:
    n, m = matrix.shape
    if matrix.keys is None:
        return Matrix((m, n), None, np.ascontiguousarray(matrix.values.reshape(n, m).T).ravel())
    rows, columns = np.divmod(matrix.keys, m)
    return Matrix.sparse((m, n), columns, rows, matrix.values)


def _find_by_sparsity(program: Program, part: int, reads: Sequence[Any], off: Arrays) -> list[Matrix] | None:
    """All responses to one part from one step, if each element of the responses reads one element of it."""
    if any(r is None for r in reads):
        return None
    shape = program.ins[part]
    masks = [_draw_mask(shape, seed) for seed in range(MASKS)]
    try:
        on, *some = (program.respond(program.directions(part, d)) for d in (np.ones(shape), *masks))
    except StepError:
        return None
    for k, (r, full, none) in enumerate(zip(reads, on, off, strict=True)):
        # What reads nothing of the step must not respond. Else the program is not the one that the trace shows, or a
        # backward is not multiplied by grad_output.
        if np.any(none != 0) or np.any((r < 0) & (full != 0)):
            return None
        for mask, masked in zip(masks, some, strict=True):
            expected = np.where(np.append(mask.ravel(), 0.0)[r] > 0, full, 0.0)  # r is -1 for what reads nothing
            slack = np.where(expected == 0, 0.0, 1e-6 * (np.abs(full) + np.max(np.abs(full), initial=0.0)))
            if not np.all(np.abs(masked[k] - expected) <= slack):
                return None
    size = int(np.prod(shape))
    return [
        Matrix.sparse((size, r.size), r.ravel(), np.arange(r.size), full.ravel())
        for r, full in zip(reads, on, strict=True)
    ]


def _draw_mask(shape: tuple[int, ...], seed: int) -> Array:
    """Random zeros and ones, some of each where there are two elements."""
    flat = make_stream("masks", seed).integers(0, 2, int(np.prod(shape))).astype(np.float64)
    if flat.size > 1:
        flat[seed % flat.size], flat[(seed + 1) % flat.size] = 1.0, 0.0
    return flat.reshape(shape)


def _find_by_steps(program: Program, rest: list[int], again: float | None) -> list[list[Matrix]]:
    """All responses to all unit directions of some parts."""
    sizes = [int(np.prod(program.ins[i])) for i in rest]
    if again is None and program.traced is not None and program.staged is not None:
        operations, held = _running.measure_cost(program.traced)
        if sum(sizes) * (operations + 5) * EQUATION_SECONDS > COMPILE_SECONDS:
            # Whatever goes wrong here, the way below is right, and its errors are the user's own.
            try:
                return _compile_steps(program, rest, sizes, held)
            except Exception:  # noqa: BLE001 - as said
                pass
    return _loop_steps(program, rest, sizes, again)


def _make_blocks(sizes: list[int], outs: list[tuple[int, ...]]) -> list[list[Array]]:
    return [[np.zeros((n, int(np.prod(out)))) for out in outs] for n in sizes]


def _make_matrices(blocks: list[list[Array]]) -> list[list[Matrix]]:
    return [[Matrix((b.shape[0], b.shape[1]), None, b.ravel()) for b in row] for row in blocks]


def _loop_steps(program: Program, rest: list[int], sizes: list[int], again: float | None) -> list[list[Matrix]]:
    blocks = _make_blocks(sizes, program.outs)
    places = [(at, k) for at, size in enumerate(sizes) for k in range(size)]
    difference = 0.0
    for at, k in show_progress(places, program.name):
        shape = program.ins[rest[at]]
        directions = program.directions(rest[at], _make_unit(shape, k))
        try:
            responses = program.respond(directions)
            if again is not None:
                for x, y in zip(responses, program.respond(directions), strict=True):
                    difference = max(difference, _measure_distance(x, y))
        except StepError as e:
            index = tuple(map(int, np.unravel_index(k, shape)))
            what, by, before, after = e.args
            raise AssertionError(
                f"Expected `func` to return outputs with the same {what} when inputs are perturbed on index {index} "
                f"by {by}, but got: {what}s {before} and {after}."
            ) from None
        for block, response in zip(blocks[at], responses, strict=True):
            block[k] = response.ravel()
    if again is not None and difference > again:
        raise NotReentrantError(difference)
    return _make_matrices(blocks)


def _measure_distance(x: Array, y: Array) -> float:
    with np.errstate(invalid="ignore"):
        distance = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return float(np.max(np.where(np.isnan(distance), np.inf, distance), initial=0.0))


def _make_unit(shape: tuple[int, ...], k: int) -> Array:
    unit = np.zeros(int(np.prod(shape)))
    unit[k] = 1.0
    return unit.reshape(shape)


def _compile_steps(program: Program, rest: list[int], sizes: list[int], held: int) -> list[list[Matrix]]:
    staged, total = program.staged, sum(sizes)
    assert staged is not None
    ends = list(itertools.accumulate(sizes))
    out_ends = list(itertools.accumulate(int(np.prod(out)) for out in program.outs))

    def one(j: jax.Array) -> jax.Array:
        unit = (jnp.arange(total) == j).astype(float)
        given = dict(zip(rest, jnp.split(unit, ends[:-1]), strict=True))
        directions = [
            given[i].reshape(shape) if i in given else jnp.zeros(shape) for i, shape in enumerate(program.ins)
        ]
        return jnp.concatenate([jnp.ravel(r).astype(float) for r in staged(directions)])

    many = jax.vmap(one) if _running.is_jax_own(program.traced) else lambda js: jax.lax.map(one, js)
    step = max(1, min(total, CHUNK_STEPS, CHUNK_BYTES // max(1, held + 8 * total)))
    run = jax.jit(many)
    blocks = _make_blocks(sizes, program.outs)
    for start in show_progress(range(0, total, step), program.name):
        js = np.minimum(np.arange(start, start + step), total - 1)
        responses = np.asarray(run(js), np.float64)
        for j, response in zip(range(start, min(start + step, total)), responses, strict=False):
            at = int(np.searchsorted(ends, j, "right"))
            k = j - (ends[at] - sizes[at])
            for block, values in zip(blocks[at], np.split(response, out_ends[:-1]), strict=True):
                block[k] = values
    _confirm(program, rest, blocks)
    return _make_matrices(blocks)


def _confirm(program: Program, rest: list[int], blocks: list[list[Array]]) -> None:
    """Raise unless some of the steps give the same un-jitted."""
    rng = make_stream("steps to confirm", 0)
    for at, i in enumerate(rest):
        if not program.ins[i] or 0 not in program.ins[i]:
            k = int(rng.integers(blocks[at][0].shape[0]))
            for block, response in zip(
                blocks[at], program.respond(program.directions(i, _make_unit(program.ins[i], k))), strict=True
            ):
                np.testing.assert_allclose(block[k], response.ravel(), rtol=1e-3, atol=1e-5)


def show_progress(steps: Sequence[Any] | range, name: str) -> Iterator[Any]:
    """The steps, with a bar on a terminal once they have taken two seconds."""
    if len(steps) > 1 and sys.stderr is not None and sys.stderr.isatty():
        try:
            tqdm = importlib.import_module("tqdm").tqdm
        except ImportError:
            pass
        else:
            return iter(tqdm(steps, desc=name, delay=2.0, leave=False, file=sys.stderr))
    return iter(steps)
