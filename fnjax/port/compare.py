"""A Function in PyTorch and its port on the same numbers: outputs, gradients, second derivatives, eager and jit.

This is the only part of fnjax that imports PyTorch, and it runs both sides.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

# By dtype the relative and absolute tolerance: sums in another order differ in the last digits.
TOLERANCES = {"float32": (1e-4, 1e-5), "float64": (1e-7, 1e-9)}
Values = list[Any]  # NumPy arrays, and None for what has no cotangent


@dataclass(frozen=True, slots=True)
class Entry:
    """One array of both sides.

    Attributes:
        what: `output 0`, `gradient of x`, `second derivative of x`.
        mode: `eager` or `jit`.
        equal: whether all entries agree.
        worst: the index of the entry that differs most, in relation to the tolerance.
        original: PyTorch's number there.
        ported: JAX's.
        message: what is wrong where that is no number: another shape, an exception.
        excused: a second derivative that differs because PyTorch's is not the derivative of its own gradient, and the
            port's is: PyTorch takes what forward computed and saved for constant.
    """

    what: str
    mode: str
    equal: bool
    worst: tuple[int, ...] = ()
    original: complex | None = None
    ported: complex | None = None
    message: str = ""
    excused: bool = False

    def __str__(self) -> str:
        head = f"{'ok  ' if self.equal else 'note' if self.excused else 'FAIL'} {self.mode:5} {self.what}"
        if self.message or self.original is None or self.ported is None:
            return f"{head}: {self.message}" if self.message else head
        place = f"[{', '.join(map(str, self.worst))}]"
        why = " (the derivative of PyTorch's gradient)" if self.excused else ""
        return f"{head}: worst at {place}: PyTorch {self.original:.9g}, JAX {self.ported:.9g}{why}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    Attributes:
        entries: an entry for each array and mode.
        notes: what could not be compared, and why that is no fault of the port.
    """

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether everything agrees, but for what is excused."""
        return all(entry.equal or entry.excused for entry in self.entries)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.entries), *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _Results:
    """Outputs, gradients and second derivatives of one side, and the exception that ended it at the last of them."""

    outputs: Values
    gradients: Values
    seconds: Values
    error: Exception | None = None


def compare(
    original: Callable[..., Any],
    ported: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dtype: str = "float32",
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    key: str = "",
    second: bool = True,
) -> Comparison:
    """Run a Function in PyTorch and its port on the same numbers, and compare.

    Gradients are those that random cotangents give, and second derivatives those of the gradients, with random
    cotangents again. Complex gradients are compared in PyTorch's convention, the conjugate of JAX's.

    Args:
        original: `Name.apply` of a torch.autograd.Function, or any function of tensors.
        ported: `Name.apply` of a fnjax.Function, or any function of JAX arrays.
        args: the arguments, arrays as NumPy arrays; floats and complex numbers take the precision of dtype.
        kwargs: keyword arguments.
        dtype: "float32" or "float64".
        rtol: relative tolerance, by default 1e-4 for float32 and 1e-7 for float64.
        atol: absolute tolerance, by default 1e-5 and 1e-9.
        seed: for the random cotangents, and for what the port draws.
        key: the name of the port's argument that takes a key of jax.random, if it draws random numbers. What depends on
            them is told by running both sides with several seeds; of that only shapes and dtypes are compared.
        second: whether second derivatives are compared too.

    Returns:
        A Comparison; printing it shows the worst entry of each array.

    Raises:
        ValueError: for another dtype.
        ImportError: without PyTorch.
        Exception: whatever the original raises when it is called.
    """
    if dtype not in TOLERANCES:
        raise ValueError(f"dtype must be 'float32' or 'float64', not {dtype!r}")
    usual = TOLERANCES[dtype]
    tolerances = (usual[0] if rtol is None else rtol, usual[1] if atol is None else atol)
    args, kwargs = [_cast(a, dtype) for a in args], dict(kwargs or {})
    with jax.enable_x64(dtype == "float64"):
        theirs, cotangents = _pytorch(original, args, kwargs, np.random.default_rng(seed))
        if not second:
            theirs = replace(theirs, seconds=[], error=None if theirs.gradients else theirs.error)
        drawn: set[str] = set()
        ours_kwargs = kwargs
        if key:
            keys = jax.random.split(jax.random.key(seed), 4)
            ours_kwargs = {**kwargs, key: keys[0]}
            again = [_jax(ported, args, {**kwargs, key: k}, cotangents, "eager", theirs) for k in keys]
            again_theirs = [_pytorch(original, args, kwargs, np.random.default_rng(seed))[0] for _ in keys]
            drawn = _differing(again, args) | _differing([theirs, *again_theirs], args)
        entries: list[Entry] = []
        unmeasured: set[str] = set()
        for mode in ("eager", "jit"):
            ours = _jax(ported, args, ours_kwargs, cotangents, mode, theirs)
            found = list(_entries(theirs, ours, mode, args, tolerances, drawn))
            entries.extend(_excused(found, original, args, kwargs, cotangents, ours.seconds, unmeasured))
    notes = []
    if any(e.excused for e in entries):
        notes.append(
            "PyTorch takes what forward computed and saved for constant when it differentiates backward; JAX's second "
            "derivatives are right there, as finite differences of PyTorch's gradient confirm"
        )
    notes += [
        f"which of the second derivatives that differ is right cannot be measured by finite differences: {why}"
        for why in sorted(unmeasured)
    ]
    if drawn:
        notes.append(
            f"of what depends on random numbers only shapes and dtypes are compared: {', '.join(sorted(drawn))}"
        )
    if theirs.error is not None:
        which = "second derivatives" if theirs.gradients else "derivatives"
        notes.append(f"PyTorch gives no {which} here: {type(theirs.error).__name__}: {theirs.error}")
    if not any(isinstance(a, np.ndarray) and a.dtype.kind in "fc" for a in args):
        notes.append("no argument is an array of floating point or complex numbers: only outputs are compared")
    return Comparison(tuple(entries), tuple(notes))


def _cast(value: Any, dtype: str) -> Any:
    """An array in the precision that is asked for; lists and tuples by their members, anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(dtype)
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return value.astype("complex64" if dtype == "float32" else "complex128")
    return value


def _flat(value: Any) -> list[Any]:
    return [v for part in value for v in _flat(part)] if isinstance(value, (tuple, list)) else [value]


def _pytorch(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    draw: np.random.Generator,
    known: Values | None = None,
) -> tuple[_Results, list[Values]]:
    """PyTorch's results, and the cotangents that it drew for outputs and gradients; with known ones gradients only."""
    import torch

    def converted(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(converted(v) for v in value)
        if not isinstance(value, np.ndarray):
            return value
        return torch.tensor(value, requires_grad=value.dtype.kind in "fc")

    def drawn(tensors: Sequence[Any]) -> Values:
        return [_drawn(t, draw) if _differentiable(t) else None for t in tensors]

    def pulled(outputs: Sequence[Any], cotangents: Values, recorded: bool = True) -> list[Any]:
        # The whole graph is walked, cotangents and all: with the inputs named, autograd.grad would not meet what
        # once_differentiable leaves there to say no, and give zeros.
        pairs = [
            (o, torch.tensor(c, requires_grad=True)) for o, c in zip(outputs, cotangents, strict=True) if c is not None
        ]
        for x in inputs:
            x.grad = None
        if pairs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # create_graph warns of a cycle, which ends with this call
                tensors, vectors = zip(*pairs, strict=True)
                torch.autograd.backward(tensors, vectors, create_graph=recorded)
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]

    def run() -> list[Any]:
        # What an in-place Function changes must be no leaf.
        called = [x.clone() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in given]
        return [o for o in _flat(function(*called, **kwargs)) if isinstance(o, torch.Tensor)]

    given = [converted(a) for a in args]
    inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = run()
    if known is not None:
        return _Results([], [_numpy(t) for t in pulled(outputs, known, recorded=False)], []), []
    first: Values = []
    second: Values = []
    gradients: list[Any] = []
    seconds: list[Any] = []
    error = None
    try:
        first = drawn(outputs)
        gradients = pulled(outputs, first)
        second = drawn(gradients)
        seconds = pulled(gradients, second)
    except Exception as e:  # noqa: BLE001 - once_differentiable, or whatever the user's backward raises
        error = e
        if not gradients:  # it may have first derivatives all the same, if it writes to what it is given
            with contextlib.suppress(Exception):
                gradients = pulled(run(), first, recorded=False)
    sides = [[_numpy(t) for t in side] for side in (outputs, gradients, seconds)]
    return _Results(sides[0], sides[1], sides[2], error), [first, second]


def _excused(
    entries: list[Entry],
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cotangents: Sequence[Values],
    seconds: Values,
    unmeasured: set[str],
) -> Iterator[Entry]:
    """The entries; second derivatives that PyTorch alone has wrong are excused. Why that is unknown is `unmeasured`."""
    right = all(e.equal for e in entries[: len(entries) - len(seconds)])
    for i, entry in enumerate(entries, len(seconds) - len(entries)):
        wrong = i >= 0 and right and entry.worst and not entry.equal
        excused = False
        if wrong:
            try:
                excused = _is_slope(original, args, kwargs, cotangents, i, seconds[i])
            except Exception as e:  # noqa: BLE001 - what cannot be measured excuses nothing
                unmeasured.add(f"PyTorch's class raises for float64 ({type(e).__name__}: {e})")
        yield replace(entry, excused=excused)


def _is_slope(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cotangents: Sequence[Values],
    which: int,
    second: np.ndarray[Any, Any],
) -> bool:
    """Whether this is the derivative of PyTorch's gradient, by finite differences along a random direction."""
    draw = np.random.default_rng(0)
    inexact = [i for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype.kind in "fc"]
    wide = [_cast(a, "float64") for a in args]
    direction = draw.normal(size=second.shape)
    at = np.asarray(wide[inexact[which]])
    if at.ndim > 1 and at.shape[-1] == at.shape[-2] and np.allclose(at, at.swapaxes(-1, -2)):
        direction = direction + direction.swapaxes(-1, -2)  # eigh and cholesky read half of it

    def gradient(step: float) -> float:
        moved = [a + step * direction if i == inexact[which] else a for i, a in enumerate(wide)]
        found = _pytorch(function, moved, kwargs, draw, cotangents[0])[0].gradients
        pairs = [(c, g) for c, g in zip(cotangents[1], found, strict=True) if c is not None]
        return sum(float(np.real(np.sum(np.conj(c) * g))) for c, g in pairs)

    slope = (gradient(1e-4) - gradient(-1e-4)) / 2e-4
    terms = np.real(np.conj(second) * direction)
    return abs(float(np.sum(terms)) - slope) <= 1e-3 * float(np.sum(np.abs(terms))) + 1e-6


def _differentiable(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and (tensor.is_floating_point() or tensor.is_complex())


def _numpy(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().resolve_conj().cpu()
    half = str(tensor.dtype) in {"torch.bfloat16", "torch.float16"}
    return np.asarray((tensor.float() if half else tensor).numpy())


def _drawn(tensor: Any, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    like = _numpy(tensor)
    values = draw.normal(size=like.shape)
    if like.dtype.kind == "c":
        values = values + 1j * draw.normal(size=like.shape)
    return np.asarray(values, like.dtype)


def _jax(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cotangents: Sequence[Values],
    mode: str,
    theirs: _Results,
) -> _Results:
    """The port's results for the cotangents that PyTorch drew."""
    arrays = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]
    inexact = [i for i in arrays if args[i].dtype.kind in "fc"]

    def outputs(*values: Any) -> list[Any]:
        full = list(args)
        for i, value in zip(arrays, values, strict=True):
            full[i] = value
        return [o for o in _flat(function(*full, **kwargs)) if isinstance(o, jax.Array)]

    def gradients(*values: Any) -> list[Any]:
        def differentiated(*chosen: Any) -> list[Any]:
            full = dict(zip(arrays, values, strict=True)) | dict(zip(inexact, chosen, strict=True))
            return outputs(*full.values())

        found, pullback = jax.vjp(differentiated, *(v for i, v in zip(arrays, values, strict=True) if i in inexact))
        return [jax.numpy.conj(g) for g in pullback(_vectors(found, cotangents[0]))]

    def seconds(*values: Any) -> list[Any]:
        def differentiated(*chosen: Any) -> list[Any]:
            full = dict(zip(arrays, values, strict=True)) | dict(zip(inexact, chosen, strict=True))
            return gradients(*full.values())

        found, pullback = jax.vjp(differentiated, *(v for i, v in zip(arrays, values, strict=True) if i in inexact))
        return [jax.numpy.conj(g) for g in pullback(_vectors(found, cotangents[1]))]

    values = [jax.numpy.asarray(args[i]) for i in arrays]
    steps = [outputs] + [gradients] * bool(theirs.gradients) + [seconds] * bool(theirs.seconds)
    results: list[Values] = []
    error = None
    for step in steps:
        try:
            found = (jax.jit(step) if mode == "jit" else step)(*values)
        except Exception as e:  # noqa: BLE001 - whatever the user's code raises is a result of the comparison
            error = e
            break
        results.append([np.asarray(x) for x in found])
    results += [[]] * (3 - len(results))
    return _Results(results[0], results[1], results[2], error)


def _vectors(outputs: Sequence[Any], cotangents: Values) -> list[Any]:
    """Cotangents in JAX's convention, of the outputs' dtypes."""
    if len(outputs) != len(cotangents):
        raise ValueError(f"the port gives {len(outputs)} arrays, the original {len(cotangents)}")
    vectors: list[Any] = []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if not jax.numpy.issubdtype(output.dtype, jax.numpy.inexact):
            vectors.append(np.zeros(output.shape, jax.dtypes.float0))
        elif cotangent is None:
            vectors.append(jax.numpy.zeros_like(output))
        else:
            vectors.append(jax.numpy.conj(jax.numpy.asarray(cotangent, output.dtype)))
    return vectors


def _labelled(results: _Results, args: Sequence[Any]) -> list[tuple[Values, list[str]]]:
    """Outputs, gradients and second derivatives with what each array is."""
    names = [f"argument {i}" for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype.kind in "fc"]
    return [
        (results.outputs, [f"output {i}" for i in range(len(results.outputs))]),
        (results.gradients, [f"gradient of {n}" for n in names]),
        (results.seconds, [f"second derivative of {n}" for n in names]),
    ]


def _differing(runs: Sequence[_Results], args: Sequence[Any]) -> set[str]:
    """What differs between runs of one side."""
    found = set()
    for parts in zip(*(_labelled(r, args) for r in runs), strict=True):
        for arrays in zip(*(values for values, _ in parts), parts[0][1], strict=False):
            *values, label = arrays
            if not all(np.array_equal(v, values[0], equal_nan=values[0].dtype.kind in "fc") for v in values):
                found.add(label)
    return found


# What JAX says where it cannot differentiate what forward has run.
_LACKING = {
    "Pure callbacks do not support": "what runs on the host",
    "Reverse-mode differentiation does not work for lax.while_loop": "a loop that ends on a value",
}


def _entries(
    theirs: _Results,
    ours: _Results,
    mode: str,
    args: Sequence[Any],
    tolerances: tuple[float, float],
    drawn: set[str],
) -> Iterator[Entry]:
    for (original, labels), ported in zip(
        _labelled(theirs, args), (ours.outputs, ours.gradients, ours.seconds), strict=True
    ):
        if not original:  # PyTorch has none, as a note says
            return
        if ours.error is not None and not ported:
            what = labels[0].split(" of ")[0].split(" 0")[0] + "s"
            lacking = [reason for text, reason in _LACKING.items() if text in str(ours.error)]
            if original is theirs.seconds and lacking:
                yield Entry(what, mode, True, message=f"not compared: JAX has none of {lacking[0]}")
                return
            yield Entry(what, mode, False, message=f"{type(ours.error).__name__}: {ours.error}")
            return
        if len(original) != len(ported):
            message = f"the port gives {len(ported)} arrays, the original {len(original)}"
            yield Entry(labels[0].split(" ")[0] + "s", mode, False, message=message)
            return
        for label, left, right in zip(labels, original, ported, strict=True):
            entry = _entry(label, mode, left, right, tolerances)
            if label in drawn and entry.worst:
                entry = Entry(label, mode, True, message="random, not compared")
            yield entry


def _entry(
    what: str,
    mode: str,
    original: np.ndarray[Any, Any],
    ported: np.ndarray[Any, Any],
    tolerances: tuple[float, float],
) -> Entry:
    """One array of both sides compared, entry by entry."""
    if original.shape != ported.shape:
        return Entry(what, mode, False, message=f"PyTorch's has the shape {original.shape}, JAX's {ported.shape}")
    kinds = [
        np.asarray(jax.numpy.asarray(a)).dtype.kind.replace("u", "i").replace("V", "f") for a in (original, ported)
    ]
    if kinds[0] != kinds[1]:
        return Entry(what, mode, False, message=f"PyTorch's has the dtype {original.dtype}, JAX's {ported.dtype}")
    if not original.size:
        return Entry(what, mode, True)
    wide = [a.astype(np.complex128 if kinds[0] == "c" else np.float64) for a in (original, ported)]
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    with np.errstate(invalid="ignore"):
        excess = np.abs(wide[1] - wide[0]) / (tolerances[1] + tolerances[0] * np.abs(wide[0]))
    excess = np.where(same, 0.0, np.where(np.isnan(excess), np.inf, excess))
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    place = tuple(int(i) for i in worst)
    left, right = (a[worst].item() for a in wide)
    return Entry(what, mode, bool(excess[worst] <= 1), place, left, right)
