"""Results of two branches, between which a tensor's value selects.

What: whether two values may be arrays of one dtype and shape; numbers next to arrays; scalars that take the place of
arrays.
Before: `if m == 0: return x, 1` and `return x / m, m`
After: `return jax.lax.cond(m == 0, lambda: (x, jnp.full_like(m, 1)), lambda: (x / m, m))`
Safety: what is neither an array nor a number keeps the branch Python's, which is a finding.
Limits: branches of other shapes or dtypes than is known of them raise when the port runs.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.known.facts import Value
from fnjax.port.torch import MISSING, fill
from fnjax.port.tree.located import list_nodes

Ends = list[dict[str, Value]]


def _may_be_number(value: Value) -> bool:
    """Return whether this is a number, or perhaps one and perhaps an array."""
    plain = value.parts is None and value.element is None
    return plain and (value.origin.mixed or (value.kind == "static" and value.dtype in {"int", "float", "bool"}))


def must_select(a: Value, b: Value, yes: cst.BaseExpression, no: cst.BaseExpression) -> bool:
    """Return whether two values differ in type, so that jnp.where has to choose: a number and an array among them."""
    given = any(v.traced and _is_given(w, node) for v, w, node in ((a, b, no), (b, a, yes)))
    return given or is_number_choice(a, b) or _are_unlike_scalars(a, b)


def is_number_choice(a: Value, b: Value, open_: bool = False) -> bool:
    """Return whether one of two values is a number, and the other is one or an array, or may be (`open_`)."""
    others = [v for v in (a, b) if not _may_be_number(v) and not v.is_tensor]
    fitting = all(open_ and v.kind == "unknown" and v.memref is not None for v in others)
    return fitting and any(map(_may_be_number, (a, b)))


def _is_given(value: Value, node: cst.BaseExpression) -> bool:
    """Return whether this may be a number that a caller passes: no function computes it."""
    plain = value.parts is None and value.element is None and not value.name
    number = value.kind == "static" and value.dtype == "unknown" and value.literal is MISSING and plain
    return (number or value.kind == "unknown") and not list_nodes(node, cst.Call)


def _are_unlike_scalars(a: Value, b: Value) -> bool:
    """Return whether two arrays without axes may be of different dtypes, as `torch.tensor(0)` and a sum."""
    return a.is_tensor and b.is_tensor and 0 in (a.rank, b.rank) and a.dtype != b.dtype


_NARROW = frozenset({"float16", "bfloat16", "int8", "uint8", "int16"})


def are_alike(a: Value, b: Value) -> bool:
    """Return whether two arrays may have one dtype and shape, as far as they are known."""
    if a.parts is not None and b.parts is not None:
        return len(a.parts) == len(b.parts) and all(map(are_alike, a.parts, b.parts))
    if not (a.is_tensor and b.is_tensor):
        kinds = {v.literal is None or (v.kind == "static" and v.null.optional) for v in (a, b)}
        return len(kinds) == 1 or not (_may_be_number(a) or _may_be_number(b) or a.is_tensor or b.is_tensor)
    if a.null.optional != b.null.optional:
        return False
    dtypes = {a.dtype, b.dtype}
    exact = {a.exact, b.exact}
    if len(dtypes) == 2 and ("bool" in dtypes or "unknown" not in dtypes):
        return False
    if len(exact) == 2 and exact & _NARROW and not any(e.startswith("?") for e in exact):
        return False
    return (a.rank == b.rank or None in (a.rank, b.rank)) and not (
        _is_made_of_entries(a, b) or _is_made_of_entries(b, a)
    )


def _is_made_of_entries(a: Value, b: Value) -> bool:
    """Return whether one array is made of some elements of the other."""
    if (
        a.memref is None
        or b.memref is None
        or a.memref.storage != b.memref.storage
        or not a.memref.is_prefix_of(b.memref)
    ):
        return False
    return any(isinstance(s.expression, cst.Subscript) for s in b.memref.steps[len(a.memref.steps) :])


def may_be_widened(a: Value, b: Value) -> bool:
    """Return whether one of two values is an integer and the other perhaps an array, or a number, of others."""
    if a.kind == b.kind == "static" and "unknown" not in {a.dtype, b.dtype} and a.dtype != b.dtype:
        return True
    number, array = (a, b) if b.is_tensor else (b, a)
    return array.is_tensor and number.kind == "static" and number.dtype in {"int", "bool"} and a.dtype != b.dtype


def describe_choice(a: Value, b: Value) -> Value:
    """Return what is known of jnp.where of two numbers or arrays."""
    arrays = [v for v in (a, b) if v.kind != "static"]
    dtypes = {v.dtype for v in (a, b)}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float" if dtypes <= {"int", "bool", "float"} else "unknown"
    ranks = {v.rank for v in arrays} or {0}
    return Value("tensor", dtype, ranks.pop() if len(ranks) == 1 else None)


def was_number(after: Value, before: Value | None) -> bool:
    """Return whether a variable is a number on one side and an array on the other."""
    numbers = {"int", "float", "bool"}
    return after.parts is None and after.element is None and before is not None and before.dtype in numbers


def join_returned(returns: list[Value]) -> bool:
    """Replace the last two of the returned tuples by what jax.lax.cond makes of them; return False if it cannot."""
    first, second = returns[-2:]
    if first.parts is None or second.parts is None:
        return True
    joined = []
    for a, b in zip(first.parts, second.parts, strict=True):
        numbers = [_may_be_number(v) and not v.origin.mixed for v in (a, b)]
        if any(v.kind == "static" and not (_may_be_number(v) or v.literal is None or v.parts) for v in (a, b)):
            return False
        if any(numbers) and a.dtype != b.dtype:
            return False
        joined.append((describe_choice(a, b),) * 2 if any(numbers) else (a, b))
    returns[-2:] = [replace(v, parts=tuple(j[k] for j in joined)) for k, v in enumerate((first, second))]
    return True


def is_scalar_for(new: Value, old: Value) -> bool:
    """Return whether a scalar takes the place of an array of which no shape is known."""
    return new.is_tensor and new.rank == 0 and old.rank is None and old.memref is not None


def shape_like(ev: Evaluator, value: cst.BaseExpression, other: cst.BaseExpression, known: Value) -> cst.BaseExpression:
    """Return a scalar in the shape of another value, which may be (1,): `jnp.full_like(m, jnp.max(x))`."""
    ev.diagnostics.imports.add("jnp")
    return fill("jnp.full_like(B, A)" if known.is_tensor else "A.reshape(jnp.shape(B))", A=value, B=other)
