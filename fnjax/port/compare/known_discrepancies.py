"""Second derivatives that are wrong in PyTorch, and right in the port.

PyTorch takes what forward computed and saved for constant when it differentiates backward, and outputs that are marked
non-differentiable as well. Where the port's second derivatives differ, what PyTorch leaves out is added: how PyTorch's
backward depends on what was saved, by PyTorch's own differentiation (so that what backward detaches stays constant),
times how that depends on the argument, by finite differences, or by PyTorch's differentiation of forward, which minds
the rules of Functions that forward calls. Where this cannot be done, and for second derivatives by a cotangent, finite
differences of PyTorch's gradient have to decide. All of it is measured in float64, or in float32 where PyTorch's class
raises for float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fnjax._check.streams import make_stream
from fnjax.port.compare.in_pytorch import make_array, make_tensor, run_torch, settle_torch
from fnjax.port.compare.record import Entry
from fnjax.port.compare.values import Inputs, Values, flatten

STEPS = {"float64": 1e-4, "float32": 1e-2}  # of finite differences


def mark_known_discrepancies(
    entries: list[Entry], side: Original, theirs: Values, ours: Values, unmeasured: set[str]
) -> Iterator[Entry]:
    """Yield the entries; second derivatives that are wrong in PyTorch alone are marked.

    Args:
        entries: of outputs, gradients and second derivatives.
        side: PyTorch's function and its inputs.
        theirs: PyTorch's second derivatives.
        ours: the port's.
        unmeasured: is extended with the reason where nothing tells which of the two is right.
    """
    vectors = [k for k, c in enumerate(side.cotangents[0]) if c is not None]
    moved = [(f"argument {n}", n, False) for n in side.inputs.selected]
    moved += [(f"the cotangent of output {k}", k, True) for k in vectors]
    places = {f"second derivative of {what}": (i, n, of_it) for i, (what, n, of_it) in enumerate(moved)}
    right = all(e.equal for e in entries if not e.what.startswith("second derivative"))
    for entry in entries:
        known = False
        if entry.what in places and right and entry.original is not None and not entry.equal:
            i, which, of_cotangent = places[entry.what]
            try:
                known = _is_slope(side, which, of_cotangent, theirs[i], ours[i])
            except Exception as e:  # noqa: BLE001 - without a measurement nothing is marked
                unmeasured.add(f"PyTorch's class raises for values close to these ({type(e).__name__}: {e})")
        yield replace(entry, known=known)


def _is_slope(side: Original, which: int, of_cotangent: bool, theirs: Any, ours: Any) -> bool:
    """Return whether the port's second derivative is that of PyTorch's gradient, along a direction.

    By a cotangent PyTorch lacks what torch.autograd gave without create_graph.

    Raises:
        Exception: where PyTorch's class raises for float64 and float32.
    """
    direction = _choose_direction((side.cotangents[0] if of_cotangent else side.inputs.args)[which])
    terms, their_terms = (np.real(np.conj(s.astype(np.complex128)) * direction) for s in (ours, theirs))
    for dtype, step in STEPS.items():
        one = _Direction(replace(side, inputs=side.inputs.cast(dtype)), which, of_cotangent, direction, step)
        try:
            with settle_torch(dtype):
                try:
                    if of_cotangent:
                        raise TypeError("backward is linear in it")
                    slopes = [float(np.sum(their_terms)) + s for s in one.measure_left_out(side.find_intermediates())]
                except Exception:  # noqa: BLE001 - its methods cannot be called one by one
                    slopes = [one.measure_slope()]
        except Exception:
            if dtype == "float32":
                raise
            continue
        # What PyTorch leaves out may cancel most of what it has, of which rounding then is the larger part.
        near = 1e-3 * float(np.sum(np.abs(terms))) + 1e-4 * float(np.sum(np.abs(their_terms))) + 1e-6
        if any(abs(float(np.sum(terms)) - slope) <= near for slope in slopes):
            return True  # else a class that computes in float32 whatever it is given needs the larger step
    return False


def _choose_direction(at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    direction = make_stream("direction", 0).normal(size=at.shape)
    if at.ndim > 1 and at.shape[-1] == at.shape[-2] and np.allclose(at, at.swapaxes(-1, -2)):
        direction = direction + direction.swapaxes(-1, -2)  # eigh and cholesky read half of it
    return np.asarray(direction)


@dataclass(frozen=True)
class Original:
    """PyTorch's function and its inputs.

    Attributes:
        function: the function, or apply of a class.
        inputs: in the precision of the comparison.
        cotangents: those of outputs, and of gradients.
    """

    function: Callable[..., Any]
    inputs: Inputs
    cotangents: Sequence[Values]

    def call_forward(self, given: list[Any], *, recorded: bool = False) -> tuple[_Context, list[Any]]:
        """Call forward, and return its ctx and its outputs.

        Raises:
            Exception: where it cannot be called by itself.
        """
        cls: Any = getattr(self.function, "__self__", None)
        if self.inputs.kwargs or not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
            raise TypeError("no Function's apply")
        made: Any = cls
        ctx = _Context(tuple(i in self.inputs.selected for i in range(len(given))))
        with torch.set_grad_enabled(recorded):
            if made.setup_context is torch.autograd.Function.setup_context:
                found = made.forward(ctx, *given)
            else:
                found = made.forward(*given)
                made.setup_context(ctx, tuple(given), found)
        return ctx, flatten(found)

    def find_intermediates(self) -> tuple[list[int], list[str]]:
        """Return what backward reads of forward as a constant in PyTorch: indices of saved tensors, and attributes.

        In the precision of the comparison: in another the result of a cast may be the argument itself.
        """
        given = _make_arguments(self.inputs)
        with settle_torch(self.inputs.dtype):
            ctx, outputs = self.call_forward(given)
        keep = {id(x) for x in [*given, *outputs]} - {id(x) for x in ctx.marked}
        places = [i for i, t in enumerate(ctx.kept) if _is_inexact(t) and id(t) not in keep]
        own = ("kept", "marked", "needs_input_grad")
        names = [n for n, t in vars(ctx).items() if n not in own and _is_inexact(t) and id(t) not in keep]
        return places, names


class _Context:
    """ctx for methods that are called without PyTorch's machinery."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.kept: list[Any] = []
        self.marked: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.kept = list(tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.kept)

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.marked = tensors

    saved_variables = saved_tensors
    save_for_forward = mark_dirty = set_materialize_grads = lambda *_: None


@dataclass(frozen=True)
class _Direction:
    """A direction of one argument, or of an output's cotangent, along which second derivatives are measured.

    Attributes:
        side: the function, in the precision of the measurement.
        which: the index of the argument, or of the output.
        of_cotangent: whether it is that of an output.
        direction: like the argument, or the cotangent.
        step: of finite differences.
    """

    side: Original
    which: int
    of_cotangent: bool
    direction: np.ndarray[Any, Any]
    step: float

    def _move(self, by: float) -> tuple[Inputs, Values]:
        args, vectors = list(self.side.inputs.args), list(self.side.cotangents[0])
        if self.of_cotangent:
            vectors[self.which] = vectors[self.which] + by * self.direction
        else:
            args[self.which] = np.asarray(args[self.which] + by * self.direction, args[self.which].dtype)
        return replace(self.side.inputs, args=args), vectors

    def measure_slope(self) -> float:
        """Return the derivative of PyTorch's gradient, by finite differences."""

        def gradient(by: float) -> float:
            found = run_torch(self.side.function, *self._move(by))[0].gradients
            pairs = [(c, g) for c, g in zip(self.side.cotangents[1], found, strict=True) if c is not None]
            return sum(float(np.real(np.sum(np.conj(c) * g))) for c, g in pairs)

        return (gradient(self.step) - gradient(-self.step)) / (2 * self.step)

    def measure_left_out(self, intermediates: tuple[list[int], list[str]]) -> list[float]:
        """Return what the second derivative has through what forward computed and saved, measured in two ways.

        Raises:
            Exception: where the methods cannot be called one by one.
        """
        side, (places, names) = self.side, intermediates

        def read(of: _Context) -> list[Any]:
            return [of.kept[i] for i in places] + [getattr(of, n) for n in names]

        def move(by: float) -> list[Any]:
            return read(side.call_forward(_make_arguments(self._move(by)[0]))[0])

        given = _make_arguments(side.inputs)
        ctx, outputs = side.call_forward(given)
        leaves = [t.detach().clone().requires_grad_() for t in read(ctx)]
        for place, leaf in zip(places, leaves, strict=False):
            ctx.kept[place] = leaf
        vars(ctx).update(zip(names, leaves[len(places) :], strict=True))
        remaining = iter(side.cotangents[0])  # one for each tensor
        vectors = [_make_cotangent(next(remaining), o) if isinstance(o, torch.Tensor) else None for o in outputs]
        made: Any = side.function
        with torch.enable_grad():
            found = flatten(made.__self__.backward(ctx, *vectors))
        pairs = [  # a broadcast gradient is summed to its argument's shape, as PyTorch does it
            (found[i].sum_to_size(given[i].shape), torch.tensor(c).to(found[i].dtype))
            for i, c in zip(side.inputs.selected, side.cotangents[1], strict=True)
            if c is not None and isinstance(found[i], torch.Tensor) and found[i].requires_grad
        ]
        if not pairs:
            return [0.0]
        tensors, seconds = zip(*pairs, strict=True)
        slopes: Any = torch.autograd.grad(tensors, leaves, seconds, allow_unused=True)
        total = 0.0
        for slope, high, low in zip(slopes, move(self.step), move(-self.step), strict=True):
            if slope is not None:
                rise = _widen(high) - _widen(low)
                total += float(np.real(np.sum(np.conj(_widen(slope)) * rise))) / (2 * self.step)
        totals = [total]
        # PyTorch may be unable to differentiate forward; what forward writes to after it was saved, PyTorch clones.
        with contextlib.suppress(Exception), torch.autograd.graph.allow_mutation_on_saved_tensors():
            at = make_tensor(side.inputs.args[self.which], requires_grad=True)
            fresh = [make_tensor(a) for a in side.inputs.args]
            fresh[self.which] = at.clone()
            reached = zip(read(side.call_forward(fresh, recorded=True)[0]), slopes, strict=True)
            parts, pulls = zip(*[(s, u) for s, u in reached if u is not None], strict=True)
            pulled = torch.autograd.grad(parts, at, pulls)[0]
            totals.append(float(np.sum(np.real(np.conj(make_array(pulled)) * self.direction))))
        return totals


def _make_arguments(inputs: Inputs) -> list[Any]:
    return [make_tensor(a, i in inputs.selected) for i, a in enumerate(inputs.args)]


def _make_cotangent(vector: Any, output: Any) -> Any:
    return None if vector is None else torch.tensor(vector).to(output.dtype)


def _is_inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _widen(value: Any) -> np.ndarray[Any, Any]:
    return make_array(value).astype(np.complex128)
