"""Origins of values (`Value.origin`): integers as affine expressions, and values that branches selected."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.graph import Value

NOT, AND, OR = "not", "and", "or"  # of a bool's origin, before those that it is made of
BRANCH = "branch"  # of the origin of a value that a branch chose, before the test and the values of both branches
RANK = "rank"  # of the origin of a device's index along an axis
Affine = tuple[dict[Any, int], int]  # by the traced integer its coefficient; and what is added


def find_length(start: Any, stop: Any) -> int | None:
    """Return `stop - start` for integers or traced integers; None if the difference is not constant."""
    terms, constant = _combine("sub", _expand(stop), _expand(start)) or ({0: 1}, 0)
    return None if terms else constant


def _expand(x: Any, depth: int = 8) -> Affine | None:
    """Return an integer as an affine expression, read from its origins: sums, differences and products."""
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


def are_one(a: Any, b: Any, known: dict[tuple[int, int], Any] | None = None) -> Any:
    """Return whether two values, or tensors, are one object, where branches have assigned them.

    Args:
        a: a value or tensor.
        b: another one.
        known: results of other pairs, by their ids.

    Returns:
        A bool; a traced bool if a traced test decides.

    Raises:
        NotSupported: a value is one of several tensors, and it is not known which.
    """
    if a is b:
        return True
    known = {} if known is None else known
    key = id(a), id(b)
    if key not in known:
        known[key] = _find_one(a, b, known)
    return known[key]


def _find_one(a: Any, b: Any, known: dict[tuple[int, int], Any]) -> Any:
    for x, y in ((a, b), (b, a)):
        test, *sides = _list_sides(x)
        if sides:
            other, *others = _list_sides(y)
            yes, no = (are_one(s, others[i] if other is test else y, known) for i, s in enumerate(sides))
            return yes if yes is no else jnp.where(test.array != 0, yes, no)
    return False


def _list_sides(x: Any) -> tuple[Any, ...]:
    """Return the traced test that selects between two objects, and both objects; (None,) if there is no such test."""
    if isinstance(x, Value):
        return x.origin[1:] if x.origin is not None and x.origin[0] == BRANCH else (None,)
    sides: tuple[Any, ...] = getattr(x, "sides", (None,))
    if not sides:
        raise NotSupported("`is` of a tensor of which JAX decides which it is", "decide outside of jax.jit")
    return sides
