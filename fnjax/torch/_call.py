"""Running a line of the table: binding, type promotion, and the JAX expression as a function."""

from __future__ import annotations

import ast
import itertools
import math
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._dtypes import DEFAULT, as_dtype, dtype, result_type, type_of_number
from fnjax.torch._errors import NotSupported
from fnjax.torch._missing import Missing
from fnjax.torch._random import next_key
from fnjax.torch._selection import check_operands, find_mask, whole
from fnjax.torch._table import MISSING, Absent, Operation, Overload, Refuse, find_operation
from fnjax.torch._table.derivatives import use_derivative
from fnjax.torch._table.signature import ALIASES, SIZES, Parameter, read_literal_text
from fnjax.torch._tensor import Size, Tensor, is_known, make
from fnjax.torch._values import Value, compute

_SUPPORT = ("general", "derivatives", "memory", "indexing", "layers", "images", "linear", "losses", "random", "trees")
_PROMOTING_NUMBERS = {"other", "input", "exponent", "value", "weight", "min", "max", "end", "src"}
_NOT_PROMOTING = {"condition", "mask", "indices", "index", "out", "weight_index"}


@cache
def _names() -> dict[str, Any]:
    """Return what templates read: JAX, NumPy, math and the support functions."""
    found: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "math": math, "itertools": itertools}
    for module in _SUPPORT:
        found |= {k: v for k, v in vars(import_module(f"fnjax.torch._support.{module}")).items() if k.startswith("_")}
    return found


class BoundCall:
    """A call whose arguments have found their parameters; what the table's functions ask (`_table.record.Call`)."""

    differentiated, rounding, unpacked = True, True, None

    def __init__(self, operation: Operation, overload: Overload, values: Mapping[str, Any]) -> None:
        self.operation, self.overload, self.values = operation, overload, values

    def _get(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        default = next((p.default for p in self.overload.parameters if p.name == name), None)
        return None if default is None else read_literal_text(default)

    def is_passed(self, name: str) -> bool:
        """Return whether the call passes a parameter."""
        return name in self.values

    def is_given(self, name: str) -> bool:
        """Return whether the call passes another value for a parameter than its default."""
        if name not in self.values:
            return False
        default = next(p.default for p in self.overload.parameters if p.name == name)
        value = self.values[name]
        if default is None or isinstance(value, Tensor):
            return True
        known = read_literal_text(default)
        return type(value) is not type(known) or value != known

    def read_literal(self, name: str) -> Any:
        """Return the value of a parameter; MISSING of a tensor."""
        value = self._get(name)
        return MISSING if isinstance(value, Tensor) or callable(value) else value

    def find_kind(self, name: str) -> str:
        """Return `tensor` or `static`."""
        return "tensor" if _is_tensor(self._get(name)) else "static"

    def is_surely_tensor(self, name: str) -> bool:
        """Return whether an argument is a tensor."""
        return isinstance(self._get(name), Tensor)

    def may_be_none(self, name: str) -> bool:
        """Return whether an argument is None."""
        return self._get(name) is None

    def find_dtype(self, name: str) -> str:
        """Return the class of an argument's dtype."""
        value = self._get(name)
        if isinstance(value, Tensor):
            return value.dtype.kind
        return type_of_number(value).__name__ if isinstance(value, (bool, int, float, complex)) else "unknown"

    def find_rank(self, name: str) -> int | None:
        """Return the number of dimensions of an argument."""
        value = self._get(name)
        return value.ndim if isinstance(value, Tensor) else None

    def find_role(self, name: str) -> str:
        """Return what a Python value is for."""
        value = self._get(name)
        if isinstance(value, dtype) or (isinstance(value, type) and value in {bool, int, float, complex}):
            return "dtype"
        kinds: tuple[tuple[Any, str], ...] = ((str, "device"), (Size, "size"), (tuple, "tuple"), (list, "list"))
        found = next((role for kind, role in kinds if isinstance(value, kind)), "")
        return found or ("int" if type(value) is int else "device" if type(value).__name__ == "device" else "")

    def find_named_dtype(self, name: str) -> str:
        """Return torch's name of a dtype."""
        value = self._get(name)
        return value.name if isinstance(value, dtype) else ""

    def is_variable(self, name: str) -> bool:
        """Return True: arguments are evaluated once."""
        return True

    def have_same_shape(self, name: str, other: str) -> bool:
        """Return whether two tensors have the same shape."""
        a, b = self._get(name), self._get(other)
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape

    def list_section_starts(self, name: str) -> list[str]:
        """Return []: the support function finds them."""
        return []

    def is_positive(self, name: str) -> bool:
        """Return whether all sizes in an argument are none of expand's -1."""
        sizes = self._get(name)
        return all(s >= 0 for s in (sizes if isinstance(sizes, (tuple, list)) else [sizes]))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(isinstance(x, Tensor) for x in value))


def bind(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Return the call by the first signature that fits.

    Raises:
        TypeError: none fits.
    """
    wrong = ""
    for overload in operation.overloads:
        found = _bind_to(overload.parameters, args, kwargs)
        if not isinstance(found, str):
            return BoundCall(operation, overload, found)
        wrong = found
    raise TypeError(f"{_spell(operation.names[0])}() {wrong}")


def _bind_to(parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | str:
    values: dict[str, Any] = {}
    names = {p.name for p in parameters}
    places = [p for p in parameters if not p.keyword]
    rest = list(args)
    for parameter in places:
        if not rest:
            break
        if parameter.variadic:
            one = len(rest) == 1 and (parameter.name == "data" or not isinstance(rest[0], Tensor))
            values[parameter.name] = rest[0] if one else tuple(rest)
            rest = []
            break
        values[parameter.name] = rest.pop(0)
    if rest:
        return f"takes {len(places)} positional arguments but {len(args)} were given"
    for name, value in kwargs.items():
        own = name if name in names or name == "out" else ALIASES.get(name, name)
        if own == "from":
            own = "from_"
        if own not in names and own != "out":
            return f"got an unexpected keyword argument '{name}'"
        if own in values:
            return f"got multiple values for argument '{name}'"
        values[own] = value
    for p in parameters:
        if p.name not in values:
            if p.default is None and not p.variadic:
                return f"missing required argument '{p.name}'"
            continue
        value = values[p.name]
        if p.kind and (p.kind == "tensor") != isinstance(value, Tensor):
            return f"argument '{p.name}' must be {'a Tensor' if p.kind == 'tensor' else 'a Python value'}"
        if p.name in SIZES:
            values[p.name] = _as_sizes(value)
    return values


def _as_sizes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_as_sizes(v) for v in value)
    if isinstance(value, Tensor) and value.dtype.kind == "int" and is_known(value.array) and not value.ndim:
        return int(value.array)
    return int(value) if isinstance(value, np.integer) else value


def _spell(name: str) -> str:
    return name.rpartition(".")[2]


# ---------------------------------------------------------------------------------- templates as functions


@lru_cache(4096)
def _compile(name: str, text: str, parameters: tuple[str, ...], omitted: frozenset[str]) -> Callable[..., Any]:
    """Return a template as a function of its parameters; a keyword that just hands on an omitted one is left out."""
    tree = ast.parse(text, mode="eval")
    source_of = text.encode()

    class Drop(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            node.keywords = [
                k
                for k in node.keywords
                if not (isinstance(k.value, ast.Name) and k.value.id in omitted and not _in_parentheses(source_of, k))
            ]
            return node

    body = ast.unparse(Drop().visit(tree))
    function: Callable[..., Any] = eval(f"lambda {', '.join(parameters)}: {body}", _names())
    return function


def _in_parentheses(source: bytes, keyword: ast.keyword) -> bool:
    value = keyword.value
    return (
        source[value.col_offset - 1 : value.col_offset] == b"("
        and source[value.end_col_offset : (value.end_col_offset or 0) + 1] == b")"
    )


def _find_template(call: BoundCall) -> str:
    overload = call.overload
    if isinstance(overload.template, str):
        return overload.template
    try:
        return overload.template(call)
    except Refuse as e:
        raise NotSupported(f"torch's {_spell(call.operation.names[0])}: {e}") from None


# ---------------------------------------------------------------------------------- running


def run(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation of the table by its qualified name: tensors and Python values in, tensors out.

    Raises:
        NotSupported: the table does not have it, or not in this form.
    """
    operation = find_operation(name)
    if operation is None or isinstance(operation, Absent):
        reason = "" if operation is None else f" {operation.reason}"
        raise NotSupported(
            f"{name}{reason or ' is not an operation that fnjax.torch has'}", getattr(operation, "remedy", "")
        )
    return run_call(bind(operation, args, kwargs))


def run_call(call: BoundCall) -> Any:
    """Run a call that is bound."""
    overload, operation = call.overload, call.operation
    template = use_derivative(operation.names[0], _find_template(call), call.read_literal)
    parameters = tuple(p.name for p in overload.parameters)
    values: dict[str, Any] = {}
    for p in overload.parameters:
        if p.name in call.values:
            value = call.values[p.name]
            if p.name == "dim" and operation.first.axes and value in ((), []):
                value = None
            values[p.name] = value
        else:
            values[p.name] = () if p.variadic else None if p.default is None else read_literal_text(p.default)
    if not overload.traced and any(isinstance(v, Tensor) and not is_known(v.array) for v in values.values()):
        raise NotSupported(
            f"torch.{_spell(operation.names[0])} of a tensor that JAX traces: its result's size depends on the values",
            "use torch.where or a mask, or call it outside of jax.jit",
        )
    if operation.first.empty and any(t.shape == (0,) for t in _list_tensors(values)):
        template = template.replace("jnp.concatenate", operation.first.empty)
    mask = find_mask([*values.values()])
    if mask is not None:
        how = check_operands(values, mask, operation, overload)
        if how != "each":
            return _reduce_selected(how, call, values, mask)
        values = {n: whole(v) if isinstance(v, Tensor) and v.mask is not None else v for n, v in values.items()}
    omitted = frozenset(n for n in parameters if not call.is_given(n))
    compute_in, result = _find_dtypes(call, values)
    names = parameters
    if overload.random:
        names = (*parameters, "key")
        values["key"] = next_key()
    function = _compile(operation.names[0], template, names, omitted)
    found = _run(function, operation, overload, names, values, compute_in, result)
    if mask is not None:
        found.mask = mask
    return found


def _reduce_selected(template: str, call: BoundCall, values: Mapping[str, Any], mask: Value) -> Tensor:
    """Run a reduction over what a traced mask selects."""
    x = next(v for v in values.values() if isinstance(v, Tensor))
    function = _compile(call.operation.names[0], template.format(x="x", m="m"), ("x", "m"), frozenset())
    cast, result = _find_dtypes(call, {**values, **{n: whole(v) for n, v in values.items() if v is x}})

    def reduce(a: Any, m: Any) -> tuple[Any, ...]:
        a = a if cast is None else a.astype(cast.array)
        return (function(a, (m != 0).reshape(m.shape + (1,) * (a.ndim - m.ndim))),)

    value = compute(reduce, [x.value, mask], _spell(call.operation.names[0]))[0]
    found = _wrap(value, result)
    if call.operation.first.along:
        found.mask = mask
    return found


def _run(
    function: Callable[..., Any],
    operation: Operation,
    overload: Overload,
    names: Sequence[str],
    values: dict[str, Any],
    compute_in: dtype | None,
    result: dtype | None,
) -> Any:
    tensors: list[Tensor] = []
    slots: list[Any] = []  # for each parameter how it is made of arrays

    def plan(name: str, value: Any) -> Callable[[Sequence[Any]], Any]:
        if isinstance(value, Tensor):
            at = len(tensors)
            tensors.append(value)
            cast = (
                compute_in
                if compute_in is not None and name not in _NOT_PROMOTING and _casts(value, compute_in)
                else None
            )
            return lambda arrays: arrays[at] if cast is None else arrays[at].astype(cast.array)
        if isinstance(value, (list, tuple)) and any(isinstance(x, Tensor) for x in value):
            parts = [plan(name, x) for x in value]
            return lambda arrays: [part(arrays) for part in parts]
        if isinstance(value, Missing):
            raise value.refuse()
        if isinstance(value, dtype):
            return lambda arrays: value.array
        if isinstance(value, type) and value in {bool, int, float, complex}:
            return lambda arrays: as_dtype(value).array
        return lambda arrays: value

    slots = [plan(n, values[n]) for n in names]
    structure: list[Any] = []

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        found = function(*(slot(arrays) for slot in slots))
        flat, tree = jax.tree.flatten(found)
        structure[:] = [tree]
        return tuple(flat)

    if overload.result in {"static", "dtype", "size", "rank", "whole", "device", "finfo", "iinfo", "none"}:
        return function(*(slot([t.array for t in tensors]) for slot in slots))
    try:
        results = compute(on_arrays, [t.value for t in tensors], _spell(operation.names[0]))
    except OverflowError as e:
        raise NotSupported(
            f"torch.{_spell(operation.names[0])}: {e}", "switch 64-bit numbers on: JAX_ENABLE_X64=1"
        ) from None
    made = [_wrap(v, _result_dtype(result, v, i, overload)) for i, v in enumerate(results)]
    out = structure[0].unflatten(made)
    if overload.fields and isinstance(out, (tuple, list)) and len(out) == len(overload.fields):
        return _make_fields(_spell(operation.names[0]), overload.fields)(*out)
    return tuple(out) if isinstance(out, list) else out


def _list_tensors(values: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among arguments, and in their lists."""
    flat = [x for v in values.values() for x in (v if isinstance(v, (list, tuple)) else [v])]
    return [x for x in flat if isinstance(x, Tensor)]


@cache
def _make_fields(name: str, fields: tuple[str, ...]) -> Any:
    """Return the type of a result with named fields."""
    return namedtuple(name, fields)  # noqa: PYI024 - its fields are the table's


def _casts(tensor: Tensor, to: dtype) -> bool:
    return tensor.array.dtype != to.array


def _wrap(value: Any, own: dtype | None) -> Tensor:
    if not isinstance(value.array, jax.Array):
        value.array = jnp.asarray(value.array)
    if own is not None and own.is_complex and value.array.dtype.kind == "f":  # abs, angle
        own = own.to_real()
    if own is not None and value.array.dtype != own.array:
        value = compute(lambda x: (x.astype(own.array),), [value], "ToCopyBackward")[0]
    return make(value.array, own, value=value)


def _result_dtype(result: dtype | None, value: Value, index: int, overload: Overload) -> dtype | None:
    if overload.result != "pair":
        return result
    kind = np.dtype(value.array.dtype).kind
    return dtype("int64") if kind in "iu" and overload.fields[index : index + 1] == ("indices",) else None


def _find_dtypes(call: BoundCall, values: Mapping[str, Any]) -> tuple[dtype | None, dtype | None]:
    """Return the dtype to which tensors are cast before an operation, and that of its result; None: as they are."""
    overload, first = call.overload, call.operation.first
    tensors: list[Tensor] = []
    numbers: list[type] = []
    for name, value in values.items():
        if name in _NOT_PROMOTING or name == "dim":
            continue
        for x in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(x, Tensor):
                if x.number:
                    numbers.append({"bool": bool, "int": int, "float": float, "complex": complex}[x.dtype.kind])
                else:
                    tensors.append(x)
            elif (
                overload.result in {"promoted", "bool", "float"}
                and name in _PROMOTING_NUMBERS
                and isinstance(x, (bool, int, float, complex))
            ):
                numbers.append(type_of_number(x))
    given = values.get("dtype")
    if given is not None:
        own = as_dtype(given)
        return (own if "input" in values and overload.result in {"same", "float"} else None), own
    if not tensors and not numbers:
        return None, _creation_dtype(call, values)
    common = result_type([(t.dtype, t.ndim) for t in tensors], numbers)
    kind = overload.result
    if kind in {"promoted", "bool"}:
        same = common if len(tensors) + len(numbers) > 1 else None
        if kind == "bool":
            return same, dtype("bool")
        scalars = any(k is float for k in numbers) or any(t.ndim == 0 and t.dtype is not common for t in tensors)
        halves = common.name in {"float16", "bfloat16"} and scalars
        if halves:  # PyTorch multiplies by the number in float32
            return dtype("float32"), common
        if first.quotient and common.kind in {"bool", "int"} and not values.get("rounding_mode"):
            return DEFAULT, DEFAULT
        return same, common
    if kind == "float":
        target = common if common.kind in {"float", "complex"} else DEFAULT
        return target, None
    if kind == "int":
        return None, dtype("int64")
    if kind == "same" and tensors:
        own = tensors[0].dtype
        if first.large and own.kind in {"bool", "int"}:
            return dtype("int64"), dtype("int64")
        if len(tensors) > 1 and any(t.dtype is not own for t in tensors):
            own = result_type([(t.dtype, t.ndim) for t in tensors])
        return None, own
    return None, None


def _creation_dtype(call: BoundCall, values: Mapping[str, Any]) -> dtype | None:
    kinds = [type_of_number(v) for v in values.values() if isinstance(v, (bool, int, float, complex))]
    result = call.overload.result
    if result == "float":
        return DEFAULT
    if result == "int":
        return DEFAULT if float in kinds else dtype("int64")
    return None
