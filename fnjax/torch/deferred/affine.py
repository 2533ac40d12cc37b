"""Traced integers as affine expressions of what they come from: `stop - start` is known where both are traced."""

from __future__ import annotations

from typing import Any

from fnjax.torch._tensor import Tensor

Affine = tuple[dict[Any, int], int]  # by the traced integer its coefficient; and what is added


def set_affine(x: Tensor, affine: Affine | None) -> Tensor:
    """Record the affine expression of a traced integer, valid until it is written to."""
    if affine is not None:
        vars(x)["affine"] = (x.value, affine)
    return x


def find_affine(x: Any) -> Affine | None:
    """Return the affine expression of an integer, or None."""
    if type(x) is int:
        return {}, x
    if not isinstance(x, Tensor) or x.layout.size != 1 or x.dtype.kind != "int":
        return None
    value, affine = vars(x).get("affine", (None, None))
    if value is x.value:
        known: Affine = affine
        return known
    return {x.value: 1}, 0


def combine(name: str, left: Any, right: Any) -> Affine | None:
    """Return the affine expression of `left + right`, `left - right` or `left * right`, or None."""
    if name not in {"add", "sub", "mul"}:
        return None
    a, b = find_affine(left), find_affine(right)
    if a is None or b is None:
        return None
    if name == "mul":
        (terms, const), factor = (a, b) if not b[0] else (b, a)
        if factor[0]:
            return None
        return {k: v * factor[1] for k, v in terms.items()}, const * factor[1]
    sign = 1 if name == "add" else -1
    terms = {k: a[0].get(k, 0) + sign * b[0].get(k, 0) for k in {**a[0], **b[0]}}
    return {k: v for k, v in terms.items() if v}, a[1] + sign * b[1]


def find_length(start: Any, stop: Any) -> int | None:
    """Return `stop - start`, None where it is not known."""
    found = combine("sub", stop, start)
    return found[1] if found is not None and not found[0] else None
