"""GradcheckError, and its text for two Jacobians that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fnjax._check.arguments import Leaf
from fnjax._check.jacobian import Array, Blocks, Mismatch
from fnjax._check.problem import measure_resolution
from fnjax.errors import FnjaxError, message

PAGE = "fnjax explain gradcheck"
WHOLE = 8  # the largest number of rows or columns that is shown in full: 80 columns of text
WINDOW = 6  # otherwise this many around the worst entry


class GradcheckError(FnjaxError, RuntimeError):
    """Error of `gradcheck` and `gradgradcheck`: a derivative is not as expected."""


GradcheckError.__module__ = "fnjax"


def failure(head: str, *, expected: str = "", got: str = "", fix: str = "") -> GradcheckError:
    """Build (not raise) a GradcheckError."""
    return GradcheckError(message(head, PAGE, expected=expected, got=got, fix=fix))


class Block(NamedTuple):
    """Block of the Jacobian that PyTorch compares at a time.

    Attributes:
        input: the input of the block.
        output: the output of the block.
        forward: whether it is computed in forward mode, which splits complex inputs; backward splits complex outputs.
        imaginary: whether it is the imaginary part of the split array.
    """

    input: Leaf
    output: Leaf
    forward: bool
    imaginary: bool

    def select(self, blocks: Blocks) -> Array:
        """Return the entries of this block, complex if the array that is not split is complex."""
        split, joined = (self.input, self.output) if self.forward else (self.output, self.input)
        part = split.parts[int(self.imaginary)]
        parts = [blocks[part][p] if self.forward else blocks[p][part] for p in joined.parts]
        return parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0]

    def __str__(self) -> str:
        mode = "computed with forward mode " if self.forward else ""
        part = ""
        if (self.input if self.forward else self.output).is_complex:
            of = "inputs" if self.forward else "outputs"
            part = f"While considering the {'imaginary' if self.imaginary else 'real'} part of complex {of} only, "
        return (
            f"{part}Jacobian {mode}mismatch for output {self.output.position} with respect to input "
            f"{self.input.position},"
        )


Found = tuple[Block, Array, Array, Mismatch]


def mismatch(found: Sequence[Found], eps: float, rtol: float, atol: float, doubt: str, hint: str) -> GradcheckError:
    """Build the error for blocks that differ; it shows the first."""
    block, numerical, analytical, worst = found[0]
    x, y = block.input, block.output
    rows, columns = (_window(n, at) for n, at in zip(numerical.shape, (worst.row, worst.column), strict=True))
    shown = np.ix_(rows, columns)
    window = (
        ""
        if (len(rows), len(columns)) == numerical.shape
        else (
            f"\n(rows {rows.start} to {rows.stop - 1} of {numerical.shape[0]}, columns {columns.start} to "
            f"{columns.stop - 1} of {numerical.shape[1]})"
        )
    )
    index_x, index_y = _index(worst.row, x.shape), _index(worst.column, y.shape)
    total = numerical.shape[0] * numerical.shape[1]
    lines = [
        str(block),
        f"numerical:{_show(numerical[shown])}",
        f"analytical:{_show(analytical[shown])}{window}",
        f"One row for each element of {x.name} of shape {x.shape}, one column for each of {y.name} of shape {y.shape}.",
        (
            f"The worst entry is the derivative of {y.name} at {index_y} with respect to {x.name} at {index_x}: "
            f"numerical {worst.numerical:.10g}, analytical {worst.analytical:.10g}. They differ by "
            f"{abs(worst.analytical - worst.numerical):.3g}, the tolerance is {worst.tolerance:.3g} "
            f"(atol {atol:g} + rtol {rtol:g} * |numerical|). {worst.count} of {total} entries miss it."
        ),
    ]
    others = [f"{p.output.name} with respect to {p.input.name}" for p, *_ in found[1:]]
    others = [text for text in dict.fromkeys(others) if text != f"{y.name} with respect to {x.name}"]
    if others:
        more = f"; and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"Others that miss it: {'; '.join(others[:5])}{more}.")
    if doubt:
        lines.append("The above quantities relating the numerical and analytical jacobians are computed in slow mode.")
        lines.append(f"What fast mode found: {doubt}")
    return failure(
        "\n".join(lines), fix=_precision(block, eps, rtol) or _diagnosis(block, numerical, analytical) or hint
    )


def _show(matrix: Array) -> str:
    return np.array2string(matrix + 0.0, precision=4, max_line_width=120, threshold=WHOLE * WHOLE + 1)


def _window(size: int, at: int) -> range:
    if size <= WHOLE:
        return range(size)
    start = min(max(0, at - WINDOW // 2), size - WINDOW)
    return range(start, start + WINDOW)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, shape)))


def _precision(block: Block, eps: float, rtol: float) -> str:
    """Return a remedy if finite differences are too coarse for the tolerance, else the empty string."""
    for x in (block.input, block.output):
        if measure_resolution(x.dtype) > rtol * eps:
            return (
                f"{x.name} is of {x.dtype}, of which a step of {eps:g} leaves too few digits: give NumPy arrays of "
                "float64, or a larger step and tolerance (for float32 eps=1e-2, atol=1e-2, rtol=1e-2)"
            )
    return ""


def _diagnosis(block: Block, numerical: Array, analytical: Array) -> str:
    """Return the likely cause of a mismatch, or the empty string if several would explain it."""
    some = (numerical != 0) | (analytical != 0)
    n, a = numerical[some], analytical[some]
    x, y, mode = block.input.name, block.output.name, "the jvp" if block.forward else "backward"
    if not np.isfinite(n).all():
        return f"the function is not finite there, or a step away in {x}: give inputs where {y} is"
    if not np.isfinite(a).all():
        return f"{mode} gives numbers that are not finite"

    def alike(factor: float, b: Any) -> bool:
        return bool(np.allclose(a, factor * b, 1e-3, 1e-6))

    if not np.any(n):
        return (
            f"{y} does not change with {x} there: finite differences are all zero, as of every function that is "
            f"constant piece by piece (sign, round, a comparison). Where {mode} gives a surrogate gradient on purpose, "
            "gradcheck can say nothing of it: leave it out (fnjax check --skip gradcheck,forward_ad)"
        )
    if not np.any(a):
        return (
            f"no derivative of {y} by {x} comes out: {mode} leaves it out, or something on the way stops it "
            "(jax.lax.stop_gradient, rounding, a conversion to integers)"
        )
    due = -n.conj() if block.imaginary else n.conj()
    conjugate = not block.forward and np.iscomplexobj(n) and alike(1, due)
    if conjugate and not alike(1, n) and not alike(-1, n):
        return (
            "a conjugate is missing, or one too many: PyTorch's gradient of a real L is ∂L/∂x + i ∂L/∂y, so that of a "
            "holomorphic f is grad * f'.conj() in a Function's backward, and grad * f' in a rule for jax.custom_vjp"
        )
    large = np.abs(n) > 1e-4
    ratio = float(np.median((a[large] / n[large]).real)) if large.any() else 1.0
    if large.sum() > 1 and abs(ratio - 1) > 1e-3 and alike(ratio, n):
        sign = " (a sign, or a conjugate?)" if conjugate else " (a sign?)"
        return f"all entries are {ratio:.4g} times what is due" + (sign if abs(ratio + 1) < 1e-3 else "")
    return ""
