"""Precision in which a function computes, whatever the dtypes of its inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax.extend import source_info_util

from fnjax._primitives.jaxprs import iter_equations, read_body
from fnjax._primitives.tree import is_inexact

# By the size in bytes of the narrowest floats: step, absolute and relative tolerance of finite differences. In a
# computation with 32 bits, a step of 1e-2 leaves four digits.
FINITE_DIFFERENCES = {8: (1e-6, 1e-5, 1e-3), 4: (1e-2, 2e-3, 1e-2), 2: (0.25, 0.1, 0.1), 1: (0.5, 0.3, 0.3)}


@dataclasses.dataclass(frozen=True)
class Precision:
    """Narrowest floats of a computation.

    Attributes:
        dtype: their dtype.
        narrowed: whether they are narrower than those of the inputs.
        location: file and line of the first operation that narrows floats to them; empty if there is none.
    """

    dtype: Any
    narrowed: bool = False
    location: str = ""

    @property
    def size(self) -> int:
        """The size of a real number in bytes."""
        return int(jnp.finfo(self.dtype).bits) // 8  # type: ignore[no-untyped-call]  # NumPy's knows fewer dtypes

    @property
    def resolution(self) -> float:
        """The distance from 1 to the next number."""
        return float(jnp.finfo(self.dtype).eps)  # type: ignore[no-untyped-call]  # NumPy's knows fewer dtypes

    def __str__(self) -> str:
        return f"{self.dtype}" + (f" (from {self.location} on)" if self.location else "")


def find_precision(inputs: Iterable[Any], programs: Iterable[Any]) -> Precision:
    """Return the narrowest floats in which programs compute.

    Args:
        inputs: the dtypes of the arrays that are differentiated.
        programs: jaxprs; None for what cannot be traced.
    """
    found = min(map(Precision, inputs), key=lambda p: p.size)
    for eqn in (eqn for program in programs if program is not None for eqn in iter_equations(program)):
        for var in eqn.outvars:
            if is_inexact(var.aval) and Precision(var.aval.dtype).size < found.size:
                found = Precision(var.aval.dtype, True, "")
            if found.narrowed and not found.location and var.aval.dtype == found.dtype and _narrows(eqn, found):
                found = dataclasses.replace(found, location=source_info_util.summarize(eqn.source_info))
    return found


def _narrows(eqn: Any, to: Precision) -> bool:
    """Return whether an operation, not the call of a program, casts wider floats to narrow ones."""
    wide = (a for a in eqn.invars if is_inexact(a.aval) and Precision(a.aval.dtype).size > to.size)
    return any(wide) and read_body(eqn) is None
