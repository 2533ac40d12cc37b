"""Origins of values (`Value.origin`): integers as affine expressions, and values that branches chose."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnjax.torch.recording.graph import Value

BRANCH = "branch"  # of the origin of a value that a branch chose, before the test and the values of both branches
RANK = "rank"  # of the origin of a device's index along an axis
Affine = tuple[dict[Any, int], int]  # by the traced integer its coefficient; and what is added


def find_length(start: Any, stop: Any) -> int | None:
    """Return `stop - start` of integers or values of integers, None where it is not known."""
    terms, constant = _combine("sub", _expand(stop), _expand(start)) or ({0: 1}, 0)
    return None if terms else constant


def _expand(x: Any, depth: int = 8) -> Affine | None:
    """Return the affine expression of an integer, by the sums and products that it comes from."""
    if type(x) is int:
        return {}, x
    if not isinstance(x, Value) or x.array.dtype.kind != "i":
        return None
    name, *parts = x.origin or (None,)
    if name in {"add", "sub", "mul"} and depth:
        found = _combine(name, *(_expand(p, depth - 1) for p in parts))
        if found is not None:
            return found
    return {x.origin if name == RANK else x: 1}, 0


def _combine(name: str, a: Affine | None, b: Affine | None) -> Affine | None:
    if a is None or b is None:
        return None
    if name == "mul":
        (terms, const), factor = (a, b) if not b[0] else (b, a)
        return None if factor[0] else ({k: v * factor[1] for k, v in terms.items()}, const * factor[1])
    sign = 1 if name == "add" else -1
    terms = {k: a[0].get(k, 0) + sign * b[0].get(k, 0) for k in {**a[0], **b[0]}}
    return {k: v for k, v in terms.items() if v}, a[1] + sign * b[1]


def are_one(a: Value, b: Value) -> Any:
    """Return whether two values are one object, as branches have assigned them: a bool, traced where a test says so."""
    if a is b:
        return True
    for x, y in ((a, b), (b, a)):
        if x.origin is not None and x.origin[0] == BRANCH:
            _, test, *sides = x.origin
            same = y.origin is not None and y.origin[:2] == x.origin[:2]
            yes, no = (are_one(s, y.origin[2 + i] if same else y) for i, s in enumerate(sides))  # type: ignore[index]
            if yes is no is False:
                return False
            return jnp.where(test.array != 0, yes, no)
    return False
