"""The original where PyTorch is not installed: the same source, run by fnjax.torch.

The table of operations is shared with the porter, so an operation that is wrong there is wrong on both sides; aliases,
writes, control flow and dtypes are known here at run time, and are not shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fnjax.torch
from fnjax._check.streams import make_stream
from fnjax._op.registry import OPERATORS
from fnjax.port.compare.in_jax import Port
from fnjax.port.compare.reference import FNJAX_TORCH
from fnjax.port.compare.values import Inputs, Results, Values, draw_like
from fnjax.torch.functions.creation import uninitialised
from fnjax.torch.loading.load import list_files


class FnjaxTorch:
    """fnjax.torch as the reference."""

    name = FNJAX_TORCH
    torch = fnjax.torch
    patience = 30.0  # each operation on a new shape is compiled

    def __init__(self) -> None:
        self._draws = 0
        self._operators: dict[str, Any] = {}  # those of the original: the port defines others under the same names

    def load(self, place: str) -> Any:
        """Load a module by its name, or by the path of its file."""
        before = dict(OPERATORS)
        found = fnjax.torch.load(place) if place.endswith(".py") else fnjax.torch.import_module(place)
        self._operators |= {name: made for name, made in OPERATORS.items() if before.get(name) is not made}
        return found

    def list_files(self) -> list[str]:
        """Return the files that were loaded."""
        return list_files()

    def seed(self, number: int) -> None:
        """Seed the random numbers that the original draws."""
        self._draws = 1000 * number

    def run(self, function: Callable[..., Any], inputs: Inputs, fill: int = 0) -> tuple[Results, list[Values]]:
        """Return outputs, gradients and second derivatives, and the cotangents that were drawn for them."""
        self._draws += 1
        key = jax.random.key(self._draws)

        def on_tensors(*given: Any, **named: Any) -> Any:
            # What an in-place Function writes to is a copy; each of the three steps draws the same numbers.
            fresh = [x.clone() if isinstance(x, fnjax.torch.Tensor) else x for x in given]
            with fnjax.torch.seed(key):
                return function(*fresh, **named)

        draw = make_stream("cotangents", inputs.seed)
        port = Port(fnjax.torch.jax_view(on_tensors), inputs, plain=True)
        before, token = dict(OPERATORS), uninitialised.set(fill)
        OPERATORS.update(self._operators)
        try:
            port.check_shapes(inputs.args, (fnjax.torch.NotSupported, jax.errors.JAXTypeError))
            return port.run_drawing(inputs.args, lambda arrays: [_draw_cotangent(a, draw) for a in arrays])
        finally:
            OPERATORS.update(before)
            uninitialised.reset(token)


def _draw_cotangent(array: np.ndarray[Any, Any], draw: np.random.Generator) -> Any:
    return draw_like(array, draw) if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact) else None


REFERENCE = FnjaxTorch()
