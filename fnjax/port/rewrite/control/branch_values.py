"""What two branches give, one of which a tensor's value chooses.

What: whether two values may be arrays of one dtype and shape; numbers next to arrays; scalars that take the place of
arrays.
Before: `if m == 0: return x, 1` and `return x / m, m`
After: `return jax.lax.cond(m == 0, lambda: (x, jnp.full_like(m, 1)), lambda: (x / m, m))`
Safety: what is neither an array nor a number keeps the branch Python's, which is a finding.
Limits: branches of other shapes or dtypes than is known of them raise when the port runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, list_statements, parse
from fnjax.port.known.facts import Value
from fnjax.port.torch import MISSING, bracket, unparse
from fnjax.port.tree.located import find_small_statement, list_nodes

Ends = list[dict[str, Value]]


def _may_be_number(value: Value) -> bool:
    """Return whether this is a number, or perhaps one and perhaps an array."""
    plain = value.parts is None and value.element is None
    return plain and (value.origin.mixed or (value.kind == "static" and value.dtype in {"int", "float", "bool"}))


def is_number_choice(a: Value, b: Value, open_: bool = False) -> bool:
    """Return whether one of two values is a number, and the other is one or an array, or may be (`open_`)."""
    others = [v for v in (a, b) if not _may_be_number(v) and not v.is_tensor]
    return (_may_be_number(a) or _may_be_number(b)) and all(
        open_ and v.kind == "unknown" and v.memref is not None for v in others
    )


def may_be_number_choice(a: Value, b: Value, *given: cst.BaseExpression) -> bool:
    """Whether one of two values is an array and the other, which calls nothing, may be a number of the caller's."""
    called = any(
        isinstance(n, cst.Call) and not unparse(n.func).startswith("jnp.") for g in given for n in list_nodes(g)
    )
    return not called and any(v.traced and (w.kind == "unknown" or _is_given_number(w)) for v, w in ((a, b), (b, a)))


def _is_given_number(value: Value) -> bool:
    """Return whether this is what a caller gives for a number, as the default of the parameter says."""
    plain = value.parts is None and value.element is None and not value.name
    return value.kind == "static" and value.dtype == "unknown" and value.literal is MISSING and plain


def are_unlike_scalars(a: Value, b: Value) -> bool:
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
    """Return whether one array is made of some entries of the other."""
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
    """Return what jnp.where of two numbers or arrays gives."""
    arrays = [v for v in (a, b) if v.kind != "static"]
    dtypes = {v.dtype for v in (a, b)}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float" if dtypes <= {"int", "bool", "float"} else "unknown"
    ranks = {v.rank for v in arrays} or {0}
    return Value("tensor", dtype, ranks.pop() if len(ranks) == 1 else None)


def was_number(after: Value, before: Value | None) -> bool:
    """Return whether a variable is a number on one side and an array on the other."""
    numbers = {"int", "float", "bool"}
    return after.parts is None and after.element is None and before is not None and before.dtype in numbers


def match_results(
    ev: Evaluator, given: list[Value], results: list[cst.BaseExpression], before: dict[str, Value]
) -> list[cst.BaseExpression] | None:
    """Return what two branches return, so that jax.lax.cond takes it; None for what is neither an array nor a number.

    A number next to an array that is known before the branches takes its dtype and shape: `x, 1` and `x / m, m`.
    """
    values = given[-2:]
    if any(v.parts is None for v in values):
        return results
    found, joined = list(results), []
    for i, (a, b) in enumerate(zip(values[0].parts or (), values[1].parts or (), strict=True)):
        if any(
            v.kind == "static" and not _may_be_number(v) and v.literal is not None and v.parts is None for v in (a, b)
        ):
            return None
        if not (_may_be_number(a) or _may_be_number(b)) or a.origin.mixed or b.origin.mixed:
            joined.append((a, b))
            continue
        if a.dtype != b.dtype:
            side = int(_may_be_number(b))
            other = found[1 - side]
            array = other.elements[i].value if isinstance(other, cst.Tuple) else None
            if not (isinstance(array, cst.Name) and array.value in before and before[array.value].is_tensor):
                return None
            found[side] = _fill_part(found[side], i, array.value)
            ev.diagnostics.imports.add("jnp")
        joined.append((describe_choice(a, b),) * 2)
    given[-2:] = [replace(v, parts=tuple(j[k] for j in joined)) for k, v in enumerate(values)]
    return found


def _fill_part(result: cst.BaseExpression, index: int, like: str) -> cst.BaseExpression:
    assert isinstance(result, cst.Tuple)
    element = result.elements[index]
    made = element.with_changes(value=parse(f"jnp.full_like({like}, {unparse(bracket(element.value, 1))})"))
    return result.with_changes(elements=[made if e is element else e for e in result.elements])


def put_in_shape(
    ev: Evaluator, blocks: Sequence[cst.BaseSuite | None], start: dict[str, Value], ends: Ends
) -> list[cst.BaseSuite | None]:
    """Scalars take the shape of what they replace, which may be (1,): `x.max()` becomes `x.max().reshape(m.shape)`."""
    bound = [[ev.program.list_bound(s) for s in list_statements(b)] if b else [] for b in (*blocks, None)]
    made = []
    for side, block in enumerate(blocks):
        other = {n for names_ in bound[1 - side] for n in names_}
        scalars = {
            n: start[n]
            for n, end in ends[side].items()
            if n in start and n not in other and sum(n in b for b in bound[side]) == 1 and is_scalar_for(end, start[n])
        }
        lines = [_put_statement_in_shape(ev, s, scalars) for s in list_statements(block)] if block and scalars else []
        made.append(cst.IndentedBlock(lines) if lines else block)
    return made


def _put_statement_in_shape(
    ev: Evaluator, statement: cst.BaseStatement, scalars: dict[str, Value]
) -> cst.BaseStatement:
    small = find_small_statement(statement)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return statement
    target, value = small.targets[0].target, small.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = list(zip(target.elements, value.elements, strict=True))
        parts = [v.with_changes(value=shape_value(ev, v.value, t.value, scalars)) for t, v in pairs]
        new: cst.BaseExpression = value.with_changes(elements=parts)
    else:
        new = shape_value(ev, value, target, scalars)
    return statement.with_changes(body=[small.with_changes(value=new)])


def is_scalar_for(new: Value, old: Value) -> bool:
    """Return whether a scalar takes the place of an array of which no shape is known."""
    return new.is_tensor and new.rank == 0 and old.rank is None and old.memref is not None


def shape_value(
    ev: Evaluator, value: cst.BaseExpression, target: cst.BaseExpression, scalars: dict[str, Value]
) -> cst.BaseExpression:
    """Return what the variable takes, in the shape that it has."""
    name = unparse(target)
    if name not in scalars or unparse(value) == name:
        return value
    ev.diagnostics.imports.add("jnp")
    return parse(
        f"jnp.full_like({name}, {unparse(bracket(value, 1))})"
        if scalars[name].is_tensor
        else f"{unparse(bracket(value))}.reshape(jnp.shape({name}))"
    )
