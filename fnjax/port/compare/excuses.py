"""Second derivatives that PyTorch has wrong, and the port right.

PyTorch takes what forward computed and saved for constant when it differentiates backward. Where the port's second
derivatives differ, what PyTorch leaves out is added: how PyTorch's backward depends on what was saved, by PyTorch's own
differentiation (so that what backward detaches stays constant), times how that depends on the argument, by finite
differences, or by PyTorch's differentiation of forward, which minds the rules of Functions that forward calls. Where
this cannot be done, finite differences of PyTorch's gradient have to tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fnjax._check.streams import make_stream
from fnjax.port.compare.in_pytorch import make_array, make_tensor, run_torch, settle_torch
from fnjax.port.compare.record import Entry
from fnjax.port.compare.values import Results, Values, cast_arrays, flatten, list_differentiated

STEP = 1e-4
Measured = tuple[float, float]  # along a direction: what is asked about, and the sum of its terms' sizes


def excuse_entries(
    entries: list[Entry],
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: Sequence[int] | None,
    cotangents: Sequence[Values],
    sides: tuple[Results, Results],
    unmeasured: set[str],
) -> Iterator[Entry]:
    """The entries; second derivatives that PyTorch alone has wrong are excused. Why that is unknown is `unmeasured`."""
    theirs, ours = (side.seconds for side in sides)
    places = {f"second derivative of argument {n}": i for i, n in enumerate(list_differentiated(args, argnums))}
    right = all(e.equal for e in entries if not e.what.startswith("second derivative"))
    for entry in entries:
        excuse = False
        i = places.get(entry.what)
        if i is not None and right and entry.original is not None and not entry.equal:
            which = list_differentiated(args, argnums)[i]
            wide = [cast_arrays(a, "float64") for a in args]
            direction = _choose_direction(np.asarray(wide[which]))
            try:
                with settle_torch("float64"):
                    try:
                        left_out = _measure_left_out(original, wide, kwargs, argnums, cotangents, which, direction)
                        slopes = [float(np.sum(np.real(np.conj(theirs[i]) * direction))) + s for s in left_out]
                    except Exception:  # noqa: BLE001 - its methods do not run by themselves
                        slopes = [_measure_slope(original, wide, kwargs, argnums, cotangents, which, direction)]
                terms = np.real(np.conj(ours[i]) * direction)
                near = 1e-3 * float(np.sum(np.abs(terms))) + 1e-6
                excuse = any(abs(float(np.sum(terms)) - slope) <= near for slope in slopes)
            except Exception as e:  # noqa: BLE001 - what cannot be measured excuses nothing
                unmeasured.add(f"PyTorch's class raises for float64 ({type(e).__name__}: {e})")
        yield replace(entry, excused=excuse)


def _choose_direction(at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    direction = make_stream("direction", 0).normal(size=at.shape)
    if at.ndim > 1 and at.shape[-1] == at.shape[-2] and np.allclose(at, at.swapaxes(-1, -2)):
        direction = direction + direction.swapaxes(-1, -2)  # eigh and cholesky read half of it
    return np.asarray(direction)


def _measure_slope(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: Sequence[int] | None,
    cotangents: Sequence[Values],
    which: int,
    direction: np.ndarray[Any, Any],
) -> float:
    """The derivative of PyTorch's gradient along a direction, by finite differences."""
    draw = make_stream("cotangents", 0)

    def gradient(step: float) -> float:
        moved = [np.asarray(a + step * direction) if i == which else a for i, a in enumerate(args)]
        found = run_torch(function, moved, kwargs, draw, argnums, cotangents[0])[0].gradients
        pairs = [(c, g) for c, g in zip(cotangents[1], found, strict=True) if c is not None]
        return sum(float(np.real(np.sum(np.conj(c) * g))) for c, g in pairs)

    return (gradient(STEP) - gradient(-STEP)) / (2 * STEP)


class _Context:
    """ctx for methods that are called without PyTorch's machinery."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.kept: list[Any] = []

    def save_for_backward(self, *tensors: Any) -> None:
        self.kept = list(tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.kept)

    saved_variables = saved_tensors
    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = lambda *_: None


def _measure_left_out(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: Sequence[int] | None,
    cotangents: Sequence[Values],
    which: int,
    direction: np.ndarray[Any, Any],
) -> list[float]:
    """What the second derivative along a direction has through what forward computed and saved, measured in two ways.

    Raises:
        Exception: where the methods cannot be called one by one.
    """
    cls: Any = getattr(function, "__self__", None)
    if kwargs or not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        raise TypeError("no Function's apply")
    chosen = list_differentiated(args, argnums)
    made: Any = cls

    def forward(step: float, at: Any = None) -> tuple[_Context, list[Any], list[Any]]:
        moved = [np.asarray(a + step * direction) if i == which else a for i, a in enumerate(args)]
        given = [make_tensor(a) for a in moved]
        if at is not None:
            given[which] = at.clone()
        ctx = _Context(tuple(i in chosen for i in range(len(args))))
        with torch.set_grad_enabled(at is not None):
            if made.setup_context is torch.autograd.Function.setup_context:
                found = made.forward(ctx, *given)
            else:
                found = made.forward(*given)
                made.setup_context(ctx, tuple(given), found)
        return ctx, given, flatten(found)

    ctx, given, outputs = forward(0.0)
    keep = {id(x) for x in [*given, *outputs]}  # what PyTorch's own second derivatives see
    places = [i for i, t in enumerate(ctx.kept) if _is_inexact(t) and id(t) not in keep]
    names = [n for n, t in vars(ctx).items() if n != "kept" and _is_inexact(t) and id(t) not in keep]

    def read(of: _Context) -> list[Any]:
        return [of.kept[i] for i in places] + [getattr(of, n) for n in names]

    leaves = [t.detach().clone().requires_grad_() for t in read(ctx)]
    for place, leaf in zip(places, leaves, strict=False):
        ctx.kept[place] = leaf
    vars(ctx).update(zip(names, leaves[len(places) :], strict=True))
    remaining = iter(cotangents[0])  # one for each tensor
    vectors = [_make_cotangent(next(remaining), o) if isinstance(o, torch.Tensor) else None for o in outputs]
    with torch.enable_grad():
        found = flatten(made.backward(ctx, *vectors))
    pairs = [  # a broadcast gradient is summed to its argument's shape, as PyTorch does it
        (found[i].sum_to_size(given[i].shape), torch.tensor(c).to(found[i].dtype))
        for i, c in zip(chosen, cotangents[1], strict=True)
        if c is not None and isinstance(found[i], torch.Tensor) and found[i].requires_grad
    ]
    if not pairs:
        return [0.0]
    tensors, seconds = zip(*pairs, strict=True)
    slopes: Any = torch.autograd.grad(tensors, leaves, seconds, allow_unused=True)
    after, before = read(forward(STEP)[0]), read(forward(-STEP)[0])
    total = 0.0
    for slope, high, low in zip(slopes, after, before, strict=True):
        if slope is not None:
            total += float(np.real(np.sum(np.conj(_widen(slope)) * (_widen(high) - _widen(low))))) / (2 * STEP)
    found = [total]
    # Forward may be none that PyTorch differentiates; what it writes to after it was saved, PyTorch clones.
    with contextlib.suppress(Exception), torch.autograd.graph.allow_mutation_on_saved_tensors():
        at = make_tensor(args[which], requires_grad=True)
        reached = zip(read(forward(0.0, at)[0]), slopes, strict=True)
        parts, pulls = zip(*[(s, u) for s, u in reached if u is not None], strict=True)
        pulled = torch.autograd.grad(parts, at, pulls)[0]
        found.append(float(np.sum(np.real(np.conj(make_array(pulled)) * direction))))
    return found


def _make_cotangent(vector: Any, output: Any) -> Any:
    return None if vector is None else torch.tensor(vector).to(output.dtype)


def _is_inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _widen(value: Any) -> np.ndarray[Any, Any]:
    return make_array(value).astype(np.complex128)
