"""Validation of a call's arguments and of a body's results against the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax._op.schema import Parameter, Schema
from fnjax._op.types import Refused, Type
from fnjax._primitives.tree import is_array, is_tensor, is_tracer, iter_leaves
from fnjax.errors import OperatorError, OutputError, describe, error, type_name

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
        raise _wrong_call(
            f"{qualname}() expected at most {len(parameters)} argument(s) but received {len(args)} argument(s).",
            declaration,
        )
    if len(args) > len(positional):
        raise _wrong_call(
            f"{qualname}() takes {len(positional)} positional argument(s) but {len(args)} was/were given. ", declaration
        )
    given: dict[str, Any] = {p.name: value for p, value in zip(positional, args, strict=False)}
    names = {p.name for p in parameters}
    for name, value in kwargs.items():
        if name not in names:
            raise _wrong_call(f"Unknown keyword argument '{name}' for operator '{qualname}'.", declaration, "Schema")
        if name in given:
            raise _wrong_call(
                f"Argument '{name}' specified both as positional and keyword argument.", declaration, "Schema"
            )
        given[name] = value
    taken = {p.name: _take_argument(qualname, declaration, i, p, given) for i, p in enumerate(parameters)}
    return [taken[p.name] for p in positional], {p.name: taken[p.name] for p in schema.keyword_only}


def _wrong_call(head: str, declaration: str, word: str = "Declaration") -> OperatorError:
    """Build the error for arguments that cannot be bound."""
    return error(OperatorError, f"{head} {word}: {declaration}", "operator-arguments")


def _take_argument(qualname: str, declaration: str, position: int, p: Parameter, given: Mapping[str, Any]) -> Any:
    if p.name not in given:
        if p.is_required:
            raise _wrong_call(f"{qualname}() is missing value for argument '{p.name}'.", declaration)
        return float(p.default) if p.type == Type("float") and isinstance(p.default, int) else p.default
    value = given[p.name]
    try:
        return p.type.take(value)
    except Refused:
        raise _wrong_argument(qualname, p, position, value, declaration) from None


def _wrong_argument(qualname: str, p: Parameter, position: int, value: Any, declaration: str) -> OperatorError:
    """Build the error for an argument of another type than the schema's."""
    kind, wanted, fix = type_name(value), p.type.name, ""
    if kind == "Tensor":
        kind = "torch.Tensor"
        fix = "convert it: jnp.asarray(tensor.numpy())"
    elif wanted == "Tensor" and isinstance(value, int | float | complex):
        fix = f"pass jnp.asarray({value!r})"
    elif kind == "array" and wanted in ("int", "float", "bool", "number"):
        fix = "pass a number: an array of one element would do where its value is known"
    return error(
        OperatorError,
        f"{qualname}() Expected a value of type '{wanted}' for argument '{p.name}' but instead found type '{kind}'.\n"
        f"Position: {position}\nValue: {value!r:.200}\nDeclaration: {declaration}",
        "operator-arguments",
        fix=fix,
    )


def take_results(
    schema: Schema, qualname: str, method: Method, args: Sequence[Any], value: Any, *, who: str = "the body"
) -> Any:
    """Check and convert what a body returned: its own results, then the new value of each argument that it mutates.

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
        mutated = [p.name for p, _ in changed]
        wanted = _describe_results(schema, mutated)
        values = value if isinstance(value, tuple) or (isinstance(value, list) and n + len(changed) > 1) else (value,)
        if len(values) != n + len(changed) or (not n and values[0] is None and changed[0][1] is not None):
            raise error(
                OperatorError,
                f"{who} of {qualname} did not return the new values of what it mutates ({', '.join(mutated)})",
                "operator-mutates",
                method=method,
                expected=f"{wanted}: JAX arrays do not change, so their new values come after its own outputs",
                got=describe(value),
                fix=f"return the new {', '.join(mutated)}, and bind them where {qualname} is called",
            )
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
            raise error(
                OperatorError,
                f"Expected {qualname} to return None but it returned something else instead.",
                "operator-result",
                method=method,
                got=describe(value),
                fix="annotate what it returns",
            )
        return None
    if not schema.is_tuple:
        return _take_result(schema.returns[0], qualname, method, value)
    if not isinstance(value, tuple | list) or len(value) != len(schema.returns):
        if isinstance(value, tuple | list):
            head = f"{qualname} returned {len(value)} results; its schema wants {wanted}"
        else:
            head = f"Object of type '{type_name(value)}' is not an instance of 'sequence' (the results of {qualname})"
        raise error(OutputError, head, "operator-result", method=method, expected=wanted, got=describe(value))
    return tuple(_take_result(t, qualname, method, v) for t, v in zip(schema.returns, value, strict=True))


def _take_result(wanted: Type, qualname: str, method: Method, value: Any) -> Any:
    if wanted.listed:
        if not isinstance(value, tuple | list) or not all(map(is_tensor, value)):
            raise _wrong_result(method, qualname, wanted.text(), value)
        return list(value)
    if not wanted.is_tensor and is_tracer(value) and value.ndim == 0:
        return value
    try:
        return wanted.take(value.item() if isinstance(value, np.generic) and not wanted.is_tensor else value)
    except Refused:
        raise _wrong_result(method, qualname, wanted.text(), value) from None


def _wrong_result(method: Method, qualname: str, wanted: str, value: object) -> OperatorError:
    """Build the error for a result of another type than the schema's."""
    head = f"Unable to cast {describe(value)} to {wanted} (a result of {qualname})"
    return error(OperatorError, head, "operator-result", method=method, expected=wanted, got=describe(value))


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
            raise error(
                OperatorError,
                f"the new value of '{p.name}' from {qualname} is none of what it mutates",
                "operator-mutates",
                method=method,
                expected=describe(before),
                got=describe(after),
            )
    return list(new) if p.type.listed else new


def _kind(array: Any) -> Any:
    return array.dtype if is_array(array) else jax.dtypes.canonicalize_dtype(array.dtype)


def _refuse_aliases(qualname: str, method: Method, args: Sequence[Any], results: Any) -> None:
    seen = [a for a in iter_leaves(args) if is_tensor(a)]
    for result in iter_leaves(results):
        if is_tensor(result):
            if any(result is other for other in seen):
                name = qualname.partition("::")[2]
                raise error(
                    OperatorError,
                    f"{name}: The output of this custom operator (1) must not also be an input to this custom operator "
                    "and (2) may not alias any inputs to this custom operator or other returns. The most common way to "
                    "trigger this error is if we have y = custom_op(x) and y and x are the same array.",
                    "operator-result",
                    method=method,
                    fix="return a copy (x.copy()), or do not return it",
                )
            seen.append(result)
