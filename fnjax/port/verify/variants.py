"""Variants of a comparison: other precisions, other memory, a second call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fnjax.torch
from fnjax.port.compare.comparing import MODES, Comparing
from fnjax.port.compare.values import Inputs

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant.

    Attributes:
        wrap: returns another function of tensors, PyTorch's or those of fnjax.torch; None for the function itself.
        options: other attributes of the comparison.
        modes: how the port is run.
    """

    wrap: Callable[[Function], Function] | None
    options: dict[str, Any]
    modes: Sequence[str] = ("eager",)

    def change(self, comparing: Comparing) -> Comparing:
        """Return the comparison in this variant, for a class that fnjax.torch has loaded."""
        wrap = self.wrap
        if wrap is None:
            return replace(comparing, **self.options)

        def ported(*args: Any, **key: Any) -> Any:
            return fnjax.torch.jax_view(wrap(functools.partial(comparing.ported, **key)))(*args)

        ported.__self__ = comparing.ported.__self__  # type: ignore[attr-defined] # of apply: the class
        return replace(comparing, original=wrap(comparing.original), ported=ported, **self.options)


def _map_tensors(change: Callable[[Any], Any], values: Any) -> Any:
    """Return a value in which tensors of floating point numbers are changed; tuples and lists by their members."""
    if isinstance(values, (list, tuple)):
        return type(values)([_map_tensors(change, v) for v in values])
    return change(values) if hasattr(values, "is_floating_point") and values.is_floating_point() else values


def _in_bfloat16(function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*_map_tensors(lambda x: x.bfloat16(), args), **kwargs)
        return _map_tensors(lambda x: x.float(), found)

    return call


def _on_other_memory(function: Function) -> Function:
    """Return the function, called with tensors whose elements are in another order, or apart."""

    def change(x: Any) -> Any:
        if x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        return x.unsqueeze(-1).repeat(1, 2)[:, 0] if x.dim() else x

    return lambda *args, **kwargs: function(*_map_tensors(change, args), **kwargs)


def _twice(function: Function) -> Function:
    """Return the results of two calls, and the arguments, which the function may write to."""
    return lambda *args, **kwargs: (function(*args, **kwargs), function(*args, **kwargs), *args)


VARIANTS = {
    "float64": Variant(None, {"dtype": "float64"}, MODES),
    "bfloat16": Variant(_in_bfloat16, {"rtol": 0.1, "atol": 0.1, "second": False}),
    "non-contiguous": Variant(_on_other_memory, {}),
    "second call": Variant(_twice, {}),
}


def computes_in_float32(comparing: Comparing, inputs: Inputs) -> bool:
    """Return whether the original's float64 results rise in steps, as those of a class that casts to float32."""
    step = 1e-7  # about the relative distance of numbers of float32

    def run(count: int) -> np.ndarray[Any, Any]:
        args = [a + count * step if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in inputs.args]
        found, _ = comparing.run_original(replace(inputs, args=args))
        return np.concatenate([x.ravel() for x in (*found.outputs, *found.gradients) if x.dtype.kind == "f"])

    start, one, two = map(run, range(3))
    bend, rise = two - 2 * one + start, two - start
    return bool(np.linalg.norm(bend) > 0.01 * np.linalg.norm(rise))
