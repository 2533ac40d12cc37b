"""Comparison of the arrays of original and port, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.errors import OnceDifferentiableError
from fnjax.port.compare.record import RANDOM, Entry
from fnjax.port.compare.values import Results, Values

# JAX's messages where it cannot differentiate forward, and the reason.
_LACKING = {
    "Pure callbacks do not support": "what runs on the host",
    "Reverse-mode differentiation does not work for lax.while_loop": "a loop that ends on a value",
    "a gradient of a loop that ends on a traced value": "a loop that ends on a value",
    "a second derivative of what torch.autograd gave without create_graph": "torch.autograd without create_graph",
}


def compare_entries(
    theirs: Results,
    ours: Results,
    mode: str,
    selected: Sequence[int],
    tolerances: tuple[float, float],
    drawn: set[str],
    name: str = "PyTorch",
) -> Iterator[Entry]:
    """Yield an entry for each array of the port and of `name`; of those `drawn` at random only shape and dtype count.

    Second derivatives by the cotangents of outputs have one only where they differ: that is a stop_gradient too many.
    """
    for (original, labels), ported in zip(
        theirs.label_steps(selected), (ours.outputs, ours.gradients, ours.seconds), strict=True
    ):
        if not original:  # PyTorch has none; there is a note
            return
        if ours.error is not None and not ported:
            what = labels[0].split(" of ")[0].split(" 0")[0] + "s"
            if original is theirs.seconds and (lacking := _find_lacking(ours.error, original)):
                yield Entry(what, mode, True, message=f"not compared: JAX has none of {lacking}")
                return
            yield Entry(what, mode, False, message=f"{type(ours.error).__name__}: {ours.error}")
            return
        if len(original) != len(ported):
            message = f"the port returns {len(ported)} arrays, the original {len(original)}"
            yield Entry(labels[0].split(" ")[0] + "s", mode, False, message=message)
            return
        for label, left, right in zip(labels, original, ported, strict=True):
            if left is None:
                continue
            entry = compare_arrays(label, mode, left, right, tolerances, name)
            if label in drawn and entry.original is not None:
                entry = Entry(label, mode, True, message=RANDOM)
            if not (entry.equal and "cotangent" in label):
                yield entry


def _find_lacking(error: Exception, seconds: Values) -> str:
    """Return what JAX rightly has no second derivative of, as text; an empty text if it should have one."""
    if isinstance(error, OnceDifferentiableError) and not any(a is not None and a.any() for a in seconds):
        return "a gradient that PyTorch drops: backward, @once_differentiable, returned None for it"
    return next((reason for text, reason in _LACKING.items() if text in str(error)), "")


def find_differing(runs: Sequence[Results], selected: Sequence[int]) -> set[str]:
    """Return the labels of the arrays that differ between runs of one side."""
    found = set()
    for parts in zip(*(r.label_steps(selected) for r in runs), strict=True):
        for arrays in zip(*(values for values, _ in parts), parts[0][1], strict=False):
            *values, label = arrays
            if values[0] is None:
                continue
            wide = [np.asarray(v, np.complex128) for v in values]
            if not all(np.array_equal(v, wide[0], equal_nan=True) for v in wide):
                found.add(label)
    return found


def compare_arrays(
    what: str,
    mode: str,
    original: np.ndarray[Any, Any],
    ported: np.ndarray[Any, Any],
    tolerances: tuple[float, float],
    name: str = "PyTorch",
) -> Entry:
    """Compare an array of the original with that of the port, element by element."""
    if original.shape != ported.shape:
        return Entry(what, mode, False, message=f"shape {ported.shape} for {name}'s {original.shape}")
    dtypes = [jax.numpy.asarray(a).dtype for a in (original, ported)]  # without 64-bit types int64 is int32 there
    if dtypes[0] != dtypes[1]:
        return Entry(what, mode, False, message=f"dtype {ported.dtype} for {name}'s {original.dtype}")
    if not original.size:
        return Entry(what, mode, True)
    wide = [a.astype(np.complex128 if original.dtype.kind == "c" else np.float64) for a in (original, ported)]
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    with np.errstate(invalid="ignore"):
        excess = np.abs(wide[1] - wide[0]) / (tolerances[1] + tolerances[0] * np.abs(wide[0]))
    excess = np.where(same, 0.0, np.where(np.isnan(excess), np.inf, excess))
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    place = tuple(int(i) for i in worst)
    left, right = (a[worst].item() for a in wide)
    return Entry(what, mode, bool(excess[worst] <= 1), place, left, right, reference=name)
