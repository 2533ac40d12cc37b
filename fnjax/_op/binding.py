"""Validation of a call's arguments and of a body's results against the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax._op.messages import (
    aliased,
    no_new_values,
    no_sequence,
    not_none,
    other_new_value,
    wrong_argument,
    wrong_call,
    wrong_result,
)
from fnjax._op.schema import Parameter, Schema
from fnjax._op.types import Refused, Type
from fnjax._primitives.tree import is_array, is_tensor, is_tracer

Method = Callable[..., Any]


def bind(
    schema: Schema, qualname: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments, defaults filled in, and the keyword-only ones, converted to the schema's types.

    Raises:
        OperatorError: where PyTorch refuses the call, in its wording.
    """
    parameters, positional = schema.parameters, schema.positional
    declaration = qualname + schema.text
    if len(args) > len(parameters):
        raise wrong_call(
            f"{qualname}() expected at most {len(parameters)} argument(s) but received {len(args)} argument(s).",
            declaration,
        )
    if len(args) > len(positional):
        raise wrong_call(
            f"{qualname}() takes {len(positional)} positional argument(s) but {len(args)} was/were given. ", declaration
        )
    given: dict[str, Any] = {p.name: value for p, value in zip(positional, args, strict=False)}
    names = {p.name for p in parameters}
    for name, value in kwargs.items():
        if name not in names:
            raise wrong_call(f"Unknown keyword argument '{name}' for operator '{qualname}'.", declaration, "Schema")
        if name in given:
            raise wrong_call(
                f"Argument '{name}' specified both as positional and keyword argument.", declaration, "Schema"
            )
        given[name] = value
    taken = {p.name: _take_argument(qualname, declaration, i, p, given) for i, p in enumerate(parameters)}
    return [taken[p.name] for p in positional], {p.name: taken[p.name] for p in schema.keyword_only}


def _take_argument(qualname: str, declaration: str, position: int, p: Parameter, given: Mapping[str, Any]) -> Any:
    if p.name not in given:
        if p.is_required:
            raise wrong_call(f"{qualname}() is missing value for argument '{p.name}'.", declaration)
        return float(p.default) if p.type == Type("float") and isinstance(p.default, int) else p.default
    value = given[p.name]
    try:
        return p.type.take(value)
    except Refused:
        raise wrong_argument(qualname, p.name, position, p.type.name, value, declaration) from None


def take_results(
    schema: Schema, qualname: str, method: Method, args: Sequence[Any], value: Any, *, who: str = "the body"
) -> Any:
    """Check and convert the results of a body: a result, a tuple of results, or None, then the new values.

    Args:
        schema: of the operator.
        qualname: its name.
        method: the body.
        args: the positional arguments that it received.
        value: its result.
        who: "the body" or "register_fake", whose results may be arguments.

    Raises:
        FnjaxError: if the results do not match the schema.
    """
    changed = [(p, arg) for p, arg in zip(schema.positional, args, strict=True) if p.mutated]
    if not changed:
        own = _take_own(schema, qualname, method, value)
        fresh: list[Any] = []
    else:
        n = len(schema.returns)
        wanted = _describe_results(schema, [p.name for p, _ in changed])
        values = value if isinstance(value, tuple) or (isinstance(value, list) and n + len(changed) > 1) else (value,)
        if len(values) != n + len(changed) or (not n and values[0] is None and changed[0][1] is not None):
            raise no_new_values(method, qualname, who, [p.name for p, _ in changed], wanted, value)
        own_values = tuple(values[:n]) if schema.is_tuple else values[0] if n else None
        own = _take_own(schema, qualname, method, own_values)
        fresh = [_take_new(qualname, method, p, arg, v) for (p, arg), v in zip(changed, values[n:], strict=True)]
    if who == "the body" and not schema.is_view:
        _refuse_aliases(qualname, method, args, own)
    if not fresh:
        return own
    owned = list(own) if schema.is_tuple else [own] if schema.returns else []
    return tuple(owned + fresh) if len(owned) + len(fresh) > 1 else fresh[0]


def _describe_results(schema: Schema, names: Sequence[str]) -> str:
    parts = [*(t.text() for t in schema.returns), *(f"the new {name}" for name in names)]
    return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _take_own(schema: Schema, qualname: str, method: Method, value: Any) -> Any:
    wanted = schema.text.rpartition(" -> ")[2]
    if not schema.returns:
        if value is not None and not (schema.is_tuple and value == ()):
            raise not_none(method, qualname, value)
        return None
    if not schema.is_tuple:
        return _take_result(schema.returns[0], qualname, method, value)
    if not isinstance(value, tuple | list) or len(value) != len(schema.returns):
        raise no_sequence(method, qualname, wanted, value)
    return tuple(_take_result(t, qualname, method, v) for t, v in zip(schema.returns, value, strict=True))


def _take_result(wanted: Type, qualname: str, method: Method, value: Any) -> Any:
    if wanted.listed:
        if not isinstance(value, tuple | list) or not all(map(is_tensor, value)):
            raise wrong_result(method, qualname, wanted.text(), value)
        return list(value)
    if not wanted.is_tensor and is_tracer(value) and value.ndim == 0:
        return value
    try:
        return wanted.take(value.item() if isinstance(value, np.generic) and not wanted.is_tensor else value)
    except Refused:
        raise wrong_result(method, qualname, wanted.text(), value) from None


def _take_new(qualname: str, method: Method, p: Parameter, old: Any, new: Any) -> Any:
    pairs = (
        zip(old, new, strict=True)
        if p.type.listed and isinstance(new, list | tuple) and len(old) == len(new)
        else [(old, new)]
    )
    for before, after in pairs:
        same = before is after is None or (
            is_tensor(before) and is_tensor(after) and (before.shape, _kind(before)) == (after.shape, _kind(after))
        )
        if not same:
            raise other_new_value(method, qualname, p.name, before, after)
    return list(new) if p.type.listed else new


def _kind(array: Any) -> Any:
    return array.dtype if is_array(array) else jax.dtypes.canonicalize_dtype(array.dtype)


def _refuse_aliases(qualname: str, method: Method, args: Sequence[Any], results: Any) -> None:
    seen = [a for a in _flat(args) if is_tensor(a)]
    for result in _flat(results):
        if is_tensor(result):
            if any(result is other for other in seen):
                raise aliased(method, qualname.partition("::")[2])
            seen.append(result)


def _flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]
