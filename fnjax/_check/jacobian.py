"""Jacobians of any function, by finite differences and from its derivatives, checked independently.

All numbers here are real: a complex array is two parts, its real and its imaginary one. A `DirectionalDerivative` takes
a direction for each part of the inputs and returns the response of each part of the outputs; the responses to all unit
directions are the Jacobian. It is computed in one of two ways with the same result: many steps at once under `jax.jit`,
or one step at a time outside jit, for few steps and for functions that need concrete values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import timeit
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check import running as _running
from fnjax._check.streams import make_stream
from fnjax._progress import make_progress

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Traced = tuple[Any, Callable[[list[Any]], list[Any]]]
Blocks = list[list[Array]]  # one for each input and output: a row for each element of the input, as in PyTorch

CHUNK_BYTES = 128 * 2**20  # the memory limit of the steps that are computed at once
CHUNK_STEPS = 1024
DELAY = 2.0  # seconds until progress is shown
COMPILE_SECONDS = 0.3  # the approximate cost of jax.jit; a step outside jit costs EQUATION_SECONDS for each operation
EQUATION_SECONDS = 8e-5


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Difference of two matrices.

    Attributes:
        row: the element of the input at the worst entry.
        column: the element of the output there.
        numerical: the value by finite differences.
        analytical: the value by the derivative.
        tolerance: the allowed difference.
        count: how many entries exceed their tolerance.
    """

    row: int
    column: int
    numerical: complex
    analytical: complex
    tolerance: float
    count: int


def compare(numerical: Array, analytical: Array, rtol: float, atol: float) -> Mismatch | None:
    """Return the worst entry with |analytical - numerical| > atol + rtol |numerical|, as in `allclose`, or None."""
    worst: tuple[float, int, int] | None = None
    count = 0
    step = max(1, 2**20 // max(1, numerical.shape[1]))
    for start in range(0, numerical.shape[0], step):  # in slices, so that no temporary is as large as the matrix
        n, a = numerical[start : start + step], analytical[start : start + step]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            excess = np.abs(a - n) - (atol + rtol * np.abs(n))
        excess = np.where(a == n, -np.inf, np.where(np.isnan(excess), np.inf, excess))
        bad = excess > 0
        if bad.any():
            count += int(bad.sum())
            row, column = map(int, np.unravel_index(np.argmax(excess), excess.shape))
            if worst is None or excess[row, column] > worst[0]:
                worst = (float(excess[row, column]), start + row, column)
    if worst is None:
        return None
    _, row, column = worst
    n, a = numerical[row, column].item(), analytical[row, column].item()
    return Mismatch(row, column, n, a, float(atol + rtol * abs(n)), count)


class StepError(Exception):
    """Error for outputs that change with a step; its args are "shape", "dtype" or "number", the step, old and new."""


class NotReentrantError(Exception):
    """Error for a step with two different results; its argument is the largest difference."""


@dataclasses.dataclass
class DirectionalDerivative:
    """Derivative, exact or by differences, along one direction for each part of the inputs.

    Attributes:
        name: for the progress bar.
        respond: directions → responses, concrete.
        ins: shapes of the parts of the inputs.
        outs: shapes of the parts of the outputs.
        trace: returns the program of the function or of its derivative, without calls, or None if it cannot be
            traced, and `respond` as a function to be traced, which runs that program.
        compiled: whether `respond` runs a compiled program; otherwise it runs one operation after the other.
    """

    name: str
    respond: Callable[[Arrays], Arrays]
    ins: list[tuple[int, ...]]
    outs: list[tuple[int, ...]]
    trace: Callable[[], Traced]
    compiled: bool = False


def compute_jacobian(derivative: DirectionalDerivative, *, by_rows: bool, again: float | None = None) -> Blocks:
    """Return the blocks of a Jacobian, `result[input][output]`.

    Args:
        derivative: its ins are inputs, or outputs if it takes cotangents.
        by_rows: whether it takes cotangents, so that its ins are the columns of each block.
        again: if given, compute every step twice, outside jit.

    Raises:
        NotReentrantError: if two results differ by more than `again`.
    """
    steps = [(i, k) for i, shape in enumerate(derivative.ins) for k in range(math.prod(shape))]
    responses = _take_steps(derivative, steps, again)
    ins, outs = ([0, *itertools.accumulate(map(math.prod, shapes))] for shapes in (derivative.ins, derivative.outs))
    blocks = [[responses[a:b, c:d] for c, d in itertools.pairwise(outs)] for a, b in itertools.pairwise(ins)]
    return [[block.T for block in column] for column in zip(*blocks, strict=True)] if by_rows else blocks


def _take_steps(derivative: DirectionalDerivative, steps: list[tuple[int, int]], again: float | None) -> Array:
    """Return the responses of all outputs, a row for each step (part of the inputs, index of the element)."""
    if again is None and not (derivative.compiled and len(steps) * _measure_step(derivative) < COMPILE_SECONDS):
        traced, staged = derivative.trace()
        if traced is not None:
            operations, held = _running.measure_cost(traced)
            if derivative.compiled or len(steps) * (operations + 5) * EQUATION_SECONDS > COMPILE_SECONDS:
                # After any failure here, the loop below is correct, and its errors are the user's own.
                with contextlib.suppress(Exception):
                    return _compile_steps(derivative, steps, held, staged, batched=_running.is_jax_own(traced))
    return _loop_steps(derivative, steps, again)


def _measure_step(derivative: DirectionalDerivative) -> float:
    """Return the time of one step in seconds, the shortest of three."""
    zeros = [np.zeros(shape) for shape in derivative.ins]
    return min(timeit.repeat(lambda: derivative.respond(zeros), number=1, repeat=3))


def _loop_steps(derivative: DirectionalDerivative, steps: list[tuple[int, int]], again: float | None) -> Array:
    responses = np.zeros((len(steps), sum(map(math.prod, derivative.outs))))
    difference = 0.0
    for row, (part, k) in enumerate(show_progress(steps, derivative.name)):
        try:
            responses[row] = _respond(derivative, part, k)
            if again is not None:
                difference = max(difference, _measure_distance(responses[row], _respond(derivative, part, k)))
        except StepError as e:
            index = tuple(map(int, np.unravel_index(k, derivative.ins[part])))
            what, by, before, after = e.args
            raise AssertionError(
                f"Expected `func` to return outputs with the same {what} when inputs are perturbed on index {index} "
                f"by {by}, but got: {what}s {before} and {after}."
            ) from None
    if again is not None and difference > again:
        raise NotReentrantError(difference)
    return responses


def _respond(derivative: DirectionalDerivative, part: int, k: int) -> Array:
    """Return the response of all outputs, in one row, to a unit step, outside jit."""
    directions = [np.zeros(shape) for shape in derivative.ins]
    directions[part].flat[k] = 1.0
    return np.concatenate([response.ravel() for response in derivative.respond(directions)])


def _measure_distance(x: Array, y: Array) -> float:
    with np.errstate(invalid="ignore"):
        distance = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return float(np.max(np.where(np.isnan(distance), np.inf, distance), initial=0.0))


def _compile_steps(
    derivative: DirectionalDerivative,
    steps: list[tuple[int, int]],
    held: int,
    staged: Callable[[list[Any]], list[Any]],
    *,
    batched: bool,
) -> Array:
    total = len(steps)
    ends = list(itertools.accumulate(map(math.prod, derivative.ins)))

    def one(j: jax.Array) -> jax.Array:
        parts = jnp.split((jnp.arange(total) == j).astype(float), ends[:-1])
        directions = [part.reshape(shape) for part, shape in zip(parts, derivative.ins, strict=True)]
        return jnp.concatenate([jnp.ravel(r).astype(float) for r in staged(directions)])

    run = jax.jit(jax.vmap(one) if batched else lambda js: jax.lax.map(one, js))
    chunk = max(1, min(total, CHUNK_STEPS, CHUNK_BYTES // max(1, held + 8 * total)))
    responses = np.zeros((total, sum(map(math.prod, derivative.outs))))
    for start in show_progress(range(0, total, chunk), derivative.name):
        js = np.minimum(np.arange(start, start + chunk), total - 1)
        responses[start : start + chunk] = run(js)[: total - start]
    # Confirm some of the steps one by one.
    rng = make_stream("steps to confirm", 0)
    for part, end in enumerate(ends):
        size = math.prod(derivative.ins[part])
        if size:
            k = int(rng.integers(size))
            np.testing.assert_allclose(responses[end - size + k], _respond(derivative, part, k), rtol=1e-3, atol=1e-5)
    return responses


def show_progress(steps: Sequence[Any] | range, name: str) -> Iterator[Any]:
    """Return an iterator of the steps, with a line on a terminal once they take longer than DELAY."""
    show = make_progress() if len(steps) > 1 else None
    return iter(steps) if show is None else _show_line(steps, name, show)


def _show_line(steps: Sequence[Any] | range, name: str, show: Callable[[str], None]) -> Iterator[Any]:
    begin, shown = timeit.default_timer(), False
    for number, step in enumerate(steps):
        if timeit.default_timer() - begin > DELAY:
            what = f"{step}, " if isinstance(step, str) else ""
            show(f"{name}: {what}{number + 1} of {len(steps)}")
            shown = True
        yield step
    if shown:
        show("")
