"""Schemas of operators: inferred from annotations, or parsed from text."""

from __future__ import annotations

import ast
import collections.abc
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from fnjax._op.grammar import NAMED, TYPE, split_at_commas
from fnjax._op.types import Type
from fnjax.errors import OperatorError, SchemaError, error

UNKNOWN = "unknown"
dtype = np.dtype
"""`fnjax.dtype`: how an operator annotates an argument that takes a dtype."""

_BASES: dict[Any, str] = {
    jax.Array: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    np.dtype: "ScalarType",
    jax.Device: "Device",
}
_IN_LISTS = ("Tensor", "SymInt", "float", "bool", "Scalar")
_IN_OPTIONAL_LISTS = ("SymInt", "float", "bool")
_RETURNED = ("Tensor", "SymInt", "float", "bool", "Scalar")
VALID = (
    "jax.Array, int, float, bool, str, fnjax.dtype (numpy.dtype), jax.Device and int | float | bool, Optional of "
    "these; list and Sequence of jax.Array, Optional[jax.Array], int, float, bool; Optional lists of int, float, bool"
)


class Parameter(NamedTuple):
    """Parameter of an operator; a missing default is `inspect.Parameter.empty`."""

    name: str
    type: Type
    default: Any
    keyword_only: bool
    mutated: bool

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is inspect.Parameter.empty


class Schema(NamedTuple):
    """Parameters and results of an operator.

    Attributes:
        parameters: all of them, those that may be passed by position first.
        returns: the types of its own results.
        is_tuple: whether they are returned as a tuple.
        text: in PyTorch's notation: `(Tensor x, float eps=1e-05) -> Tensor`.
        is_view: whether a result may be an argument.
    """

    parameters: tuple[Parameter, ...]
    returns: tuple[Type, ...]
    is_tuple: bool
    text: str
    is_view: bool = False

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that may be passed by position."""
        return tuple(p for p in self.parameters if not p.keyword_only)

    @property
    def keyword_only(self) -> tuple[Parameter, ...]:
        """The keyword-only parameters."""
        return tuple(p for p in self.parameters if p.keyword_only)

    @property
    def mutated(self) -> tuple[Parameter, ...]:
        """The parameters whose new values the operator returns."""
        return tuple(p for p in self.parameters if p.mutated)

    @property
    def signature(self) -> inspect.Signature:
        """The Python signature."""
        return inspect.Signature(
            [
                inspect.Parameter(p.name, _KINDS[p.keyword_only], default=p.default)
                for p in sorted(self.parameters, key=lambda p: p.keyword_only)
            ]
        )


_KINDS = {False: inspect.Parameter.POSITIONAL_OR_KEYWORD, True: inspect.Parameter.KEYWORD_ONLY}


def infer_schema(
    prototype_function: Callable[..., Any], /, *, mutates_args: str | Iterable[str], op_name: str | None = None
) -> str:
    """Infer the schema of a function from its annotations, as `torch.library.infer_schema` does; jax.Array is Tensor.

    Args:
        prototype_function: the function; each parameter and the result are annotated.
        mutates_args: the names of the arguments that it mutates, or "unknown" for all arrays.
        op_name: a name to prepend.

    Raises:
        SchemaError: (a ValueError) if an annotation is missing or unsupported.

    Examples:
        >>> import jax, fnjax
        >>> def scale(x: jax.Array, factor: float = 2.0, *, shift: int | None = None) -> jax.Array:
        ...     return x * factor
        >>> fnjax.infer_schema(scale, mutates_args=())
        '(Tensor x, float factor=2.0, *, SymInt? shift=None) -> Tensor'
    """
    return (op_name or "") + infer(prototype_function, mutates_args).text


def infer(function: Callable[..., Any], mutates_args: str | Iterable[str]) -> Schema:
    """Infer the schema of a function from its annotations."""
    code = inspect.unwrap(function)
    space: dict[str, Any] = code.__globals__  # a callable without globals fails here, as in torch
    signature = inspect.signature(function)

    def refuse(what: str, fix: str = "") -> NoReturn:
        head = f"infer_schema(func): {what} Got func with signature {signature})"
        raise error(SchemaError, head, "operator-schema", fix=fix)

    if not isinstance(mutates_args, str):
        mutates_args = tuple(mutates_args)
    elif mutates_args != UNKNOWN:
        raise error(
            SchemaError,
            "mutates_args must either be a sequence of the names of the arguments that are mutated or the string "
            "'unknown'. ",
            "operator-schema",
            got=repr(mutates_args),
            fix="write mutates_args=() where nothing is mutated",
        )
    parameters = []
    for name, given in signature.parameters.items():
        if given.kind not in _KINDS.values():
            refuse("We do not support positional-only args, varargs, or varkwargs.")
        if given.annotation is given.empty:
            refuse(f"Parameter {name} must have a type annotation.", f"annotate {name}, with one of {VALID}")
        kind = _read_annotation(given.annotation, space, refuse)
        if kind is None:
            refuse(
                f"Parameter {name} has unsupported type {given.annotation}. {_hint(given.annotation)}", f"use {VALID}"
            )
        mutated = kind.is_tensor if mutates_args == UNKNOWN else name in mutates_args
        if mutated and not kind.is_tensor:
            refuse(f"Parameter {name} is in mutable_args but only Tensors or collections of Tensors can be mutated")
        if not _is_default(given.default):
            refuse(f"Parameter {name} has an unsupported default value type {type(given.default)}.")
        if kind.is_tensor and given.default is not given.empty and given.default is not None:
            raise unreadable_schema(f"{name}={given.default!r}", "expected None but found another default of a Tensor")
        parameters.append(Parameter(name, kind, given.default, given.kind is given.KEYWORD_ONLY, mutated))
    if mutates_args != UNKNOWN and (unseen := set(mutates_args) - set(signature.parameters)):
        refuse(
            f"{unseen} in mutates_args were not found in the custom op's signature. mutates_args should contain the "
            "names of all args that the custom op mutates, or just the string 'unknown' if you don't know."
        )
    returns, is_tuple, returned = _read_returns(signature.return_annotation, space, refuse)
    text = f"({', '.join(_spell(parameters))}) -> {returned}"
    return Schema(tuple(parameters), returns, is_tuple, text)


def _is_default(value: Any) -> bool:
    if value is inspect.Parameter.empty or value is None:
        return True
    return isinstance(value, int | float | bool | str) or _dtype_name(value) is not None


def _dtype_name(value: Any) -> str | None:
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    if not is_dtype and not isinstance(getattr(value, "dtype", None), np.dtype):  # jnp.float32 has a dtype
        return None
    try:
        return str(np.dtype(value).name)
    except TypeError:
        return None


def _spell(parameters: Iterable[Parameter]) -> Iterable[str]:
    seen = False
    for i, p in enumerate(parameters):
        if p.keyword_only and not seen:
            seen = True
            yield "*"
        typed = f"{p.type.text(f'(a{i}!)' if p.mutated else '')} {p.name}"
        yield typed if p.is_required else f"{typed}={_spell_default(p.default)}"


def _spell_default(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if value is None or isinstance(value, int | float) else str(_dtype_name(value))


def _read_annotation(annotation: Any, space: dict[str, Any], refuse: Callable[..., NoReturn]) -> Type | None:
    """Return the type of an annotation, None if an operator cannot have it."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, space)
        except Exception as e:  # noqa: BLE001 - any error means that it is not a type
            because = str(e) if isinstance(e, NameError) else f"{type(e).__name__}: {e}"
            refuse(
                f"Unsupported type annotation {annotation}. It is not a type. ({because}). If you are using "
                "'from __future__ import annotations', all types in annotations must be importable at module scope."
            )
    if isinstance(annotation, collections.abc.Hashable) and annotation in _BASES:
        return Type(_BASES[annotation])
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is np.dtype:
        return Type("ScalarType")
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, space, refuse)
    if origin in (list, collections.abc.Sequence):
        inner = _read_annotation(args[0], space, refuse)
        if inner is None or inner.listed or inner.base not in _IN_LISTS or (inner.optional and not inner.is_tensor):
            return None
        return Type(inner.base, listed=True, optional_items=inner.optional)
    return None


def _read_union(args: tuple[Any, ...], space: dict[str, Any], refuse: Callable[..., NoReturn]) -> Type | None:
    members = [a for a in args if a is not types.NoneType]
    if set(members) == {int, float, bool}:  # torch.types.Number
        inner: Type | None = Type("Scalar")
    else:
        inner = _read_annotation(members[0], space, refuse) if len(members) == 1 else None
    if inner is None or inner.optional or len(members) == len(args):
        return inner if len(members) == len(args) else None
    return None if inner.listed and inner.base not in _IN_OPTIONAL_LISTS else inner._replace(optional=True)


def _hint(annotation: Any) -> str:
    if typing.get_origin(annotation) is tuple or annotation is tuple:
        return "We do not support Tuple inputs in schema. As a workaround, please try to use List instead."
    return f"The valid types are: {VALID}."


def _read_returns(
    annotation: Any, space: dict[str, Any], refuse: Callable[..., NoReturn]
) -> tuple[tuple[Type, ...], bool, str]:
    """Return the types of the results, whether they are a tuple, and their text."""
    if annotation is inspect.Signature.empty:
        refuse("No return type annotation was provided. Please add one.")
    if isinstance(annotation, str):
        annotation = None if annotation == "None" else _evaluate(annotation, space, refuse)
    if annotation is None or annotation is types.NoneType:
        return (), False, "()"
    is_tuple = typing.get_origin(annotation) is tuple
    members = typing.get_args(annotation) if is_tuple else (annotation,)
    found = [_read_annotation(member, space, refuse) for member in members]
    for kind in found:
        is_list_of_arrays = kind is not None and kind.listed and kind.is_tensor and not kind.optional_items
        if kind is None or kind.optional or kind.base not in _RETURNED or (kind.listed and not is_list_of_arrays):
            refuse(f"Return has unsupported type {annotation}.", _VALID_RETURNS)
    if any(typing.get_origin(member) is collections.abc.Sequence for member in members):
        refuse(f"Return has unsupported type {annotation}.", _VALID_RETURNS)
    kinds = tuple(kind for kind in found if kind is not None)
    text = ", ".join(kind.text() for kind in kinds)
    if is_tuple:
        text = f"(({text}))" if len(kinds) == 1 else f"({text})"
    return kinds, is_tuple, text


_VALID_RETURNS = "return jax.Array, list[jax.Array], int, float, bool, int | float | bool, a tuple of these, or None"


def _evaluate(annotation: str, space: dict[str, Any], refuse: Callable[..., NoReturn]) -> Any:
    try:
        return eval(annotation, space)
    except Exception as e:  # noqa: BLE001 - any error means that it is not a type
        refuse(f"Unsupported type annotation {annotation}. It is not a type. ({e}).")


# ---------------------------------------------------------------------------------------------------------------------
# Parsing of a given schema


def read_schema(text: str) -> Schema:
    """Parse a schema: `(Tensor x, int y=2, *, float eps=1e-05) -> (Tensor, Tensor)`.

    Raises:
        OperatorError: for a text that is not a schema.
    """
    text = " ".join(text.split()).replace("( ", "(").replace(" )", ")")  # it may be written over several lines
    found = re.fullmatch(r"\((?P<parameters>.*)\)\s*->\s*(?P<returns>.+?)", text)
    if found is None:
        raise unreadable_schema(text, "expected a schema of the form (...) -> ...")
    keyword_only, parameters, is_view = False, [], False
    for part in split_at_commas(found["parameters"]):
        if part == "*":
            keyword_only = True
            continue
        named = NAMED.match(part)
        if named is None:
            raise unreadable_schema(text, f"expected a type and a name but found {part!r}")
        kind, write, alias = _read_type(named["type"], text)
        is_view |= alias and not write
        default = inspect.Parameter.empty if named["default"] is None else _read_default(named["default"], kind, text)
        parameters.append(Parameter(named["name"], kind, default, keyword_only, write))
    returned = found["returns"]
    is_tuple = returned.startswith("(")
    parts = split_at_commas(returned[1:-1] if is_tuple else returned)
    if len(parts) == 1 and parts[0].startswith("("):
        parts = split_at_commas(parts[0][1:-1])
    if is_tuple and len(parts) == 1:  # one result, as torch reads it
        is_tuple, text = False, f"({found['parameters']}) -> {parts[0]}"
    kinds = tuple(_read_type(part.split(" ")[0] if "->" not in part else part, text)[0] for part in parts)
    return Schema(tuple(parameters), kinds, is_tuple and bool(kinds), text.strip(), is_view)


def unreadable_schema(text: str, what: str) -> OperatorError:
    """Build the error for a schema that cannot be parsed."""
    return error(
        OperatorError,
        what,
        "operator-schema",
        expected="a schema like (Tensor x, float eps=1e-05) -> Tensor",
        got=text,
    )


def _read_type(text: str, schema: str) -> tuple[Type, bool, bool]:
    match = TYPE.match(text.strip())
    if match is None:
        raise unreadable_schema(
            schema,
            f"unknown type specifier {text!r}. Common valid schema types include Tensor, SymInt, int, float, bool, "
            "Scalar",
        )
    listed = match["list"] is not None
    optional = bool(match["q2"] if listed else match["q1"])
    optional_items = listed and bool(match["q1"])
    size = match["size"] or ""
    return Type(match["base"], listed, optional, optional_items, size), bool(match["write"]), match["alias"] is not None


def _read_default(text: str, kind: Type, schema: str) -> Any:
    text = text.strip()
    if kind.base == "ScalarType" and text != "None":
        return np.dtype(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise unreadable_schema(schema, f"expected a default but found {text!r}") from None
    if kind.listed and kind.size and isinstance(value, int | float):
        return [value] * int(kind.size)
    return value
