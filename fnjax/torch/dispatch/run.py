"""Running a line of the table: its JAX expression as a function of arrays."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._contexts import AUTOCAST
from fnjax._torch_ops import Absent, Operation, Overload, Refuse, find_operation
from fnjax._torch_ops.derivatives import use_derivative
from fnjax._torch_ops.record import VANISH
from fnjax._torch_ops.signature import PARSING, read_literal_text
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import on_operands
from fnjax.torch.deferred.selection import holds_selection
from fnjax.torch.dispatch.autocast import cast_arguments
from fnjax.torch.dispatch.binding import BoundCall, bind, spell
from fnjax.torch.dispatch.checks import check_values
from fnjax.torch.dispatch.on_selections import run_selected
from fnjax.torch.dispatch.promotion import NOT_PROMOTING, find_dtypes, find_result_dtype, name_of
from fnjax.torch.errors import NotSupported, find_line
from fnjax.torch.memory.dtypes import as_dtype, dtype, float_of
from fnjax.torch.memory.strides import Strides, find_strides
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.graph import are_same, compute
from fnjax.torch.recording.rng import next_key
from fnjax.torch.views import strided

_SUPPORT = (
    "general",
    "derivatives",
    "memory",
    "indexing",
    "layers",
    "images",
    "linear",
    "losses",
    "random",
    "recurrent",
    "rounding",
    "special",
    "trees",
)


@cache
def _names() -> dict[str, Any]:
    """Return the names that templates may use: JAX, NumPy, math and the support functions."""
    found: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "math": math, "itertools": itertools}
    for name in _SUPPORT:
        module = import_module(f"fnjax._torch_ops.jax_functions.{name}")
        found |= {k: v for k, v in vars(module).items() if k.startswith("_")}
    return found


# ---------------------------------------------------------------------------------- templates as functions


# By JAX's function, or the operator, the function that rounds as PyTorch does.
_ROUNDED = {"Div": "_quotient", "Pow": "_power", "jnp.mean": "_mean", "jax.lax.rsqrt": "_rsqrt"}


@lru_cache(4096)
def _compile(name: str, text: str, parameters: tuple[str, ...], omitted: frozenset[str]) -> Callable[..., Any]:
    """Return a template as a function of its parameters, which rounds as PyTorch does.

    A keyword that just hands on an omitted parameter is left out.
    """
    names, tree = _names(), _parse(text)
    source_of = text.encode()

    class Adapt(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            name = _ROUNDED.get(type(node.op).__name__)
            return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], []) if name else node

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            name = ast.unparse(node.func)
            node.func = ast.Name(_ROUNDED[name], ast.Load()) if name in _ROUNDED else node.func
            node.keywords = [
                k
                for k in node.keywords
                if not (isinstance(k.value, ast.Name) and k.value.id in omitted and not _in_parentheses(source_of, k))
            ]
            return node

    body = ast.unparse(Adapt().visit(copy.deepcopy(tree)))
    function: Callable[..., Any] = eval(f"lambda {', '.join(parameters)}: {body}", names)
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
        raise NotSupported(f"torch's {spell(call.operation.names[0])}: {e}") from None


def _check_read(call: BoundCall) -> None:
    """Raise where an argument is given that the template does not read.

    Raises:
        NotSupported: the first such argument.
    """
    text = call.overload.template
    if not isinstance(text, str):  # a function, which asks for what it needs
        return
    read = {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}
    for name in call.values:
        if name not in read and name not in VANISH and name not in {"dtype", "out"} and call.is_given(name):
            raise NotSupported(f"torch.{spell(call.operation.names[0])} with {name}=, which has no counterpart in JAX")


@cache
def _parse(text: str) -> ast.Expression:
    with PARSING:
        return ast.parse(text, mode="eval")


# ---------------------------------------------------------------------------------- running

# JAX's errors where it needs the values of what it traces.
_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def run(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation of the table by its qualified name: tensors and Python values in, tensors out.

    Raises:
        NotSupported: the table does not have it, or not in this form.
    """
    if any(isinstance(x, Deferred) for x in (*args, *kwargs.values())):
        return on_operands(lambda *args, **kwargs: _run_operation(name, args, kwargs), args, kwargs)
    return _run_operation(name, args, kwargs)


def _run_operation(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    operation = find_operation(name)
    if operation is None or isinstance(operation, Absent):
        reason = "" if operation is None else f" {operation.reason}"
        raise NotSupported(
            f"{name}{reason or ' is not an operation that fnjax.torch has'}", getattr(operation, "remedy", "")
        )
    if AUTOCAST.value:
        args, kwargs = cast_arguments(name, args, kwargs)
    return run_call(bind(operation, args, kwargs))


def _is_one_array(x: Any, y: Any) -> bool:
    """Return whether both are views of one traced array: XLA may round a product in a difference otherwise."""
    both = isinstance(x, Tensor) and isinstance(y, Tensor) and not is_known(x.array)
    return both and are_same(x.memory.value, y.memory.value)


def run_call(call: BoundCall) -> Any:
    """Run a call that is bound."""
    if holds_selection(call.values.values()):
        return run_selected(call, run_call, _find_template)
    lifted = _lift(call)
    if lifted is not None:
        found = run_call(lifted)
        return jax.tree.map(lambda x: x.show(x.layout[..., 0]) if x.ndim else x, found, is_leaf=_is_tensor_itself)
    overload, operation = call.overload, call.operation
    template = use_derivative(operation.names[0], _find_template(call), call.read_literal)
    _check_read(call)
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
            f"torch.{spell(operation.names[0])} of a tensor that JAX traces: its result's size depends on the values",
            "use torch.where or a mask, or call it outside of jax.jit",
        )
    if operation.first.empty and any(t.shape == (0,) for t in _list_tensors(values)):
        template = template.replace("jnp.concatenate", operation.first.empty)
    check_values(name_of(call), values)
    omitted = frozenset(n for n in parameters if not call.is_given(n))
    compute_in, result = find_dtypes(call, values)
    if result is not None and result.kind in {"bool", "int"}:  # PyTorch truncates the factors
        for n in {"alpha", "beta"} & values.keys():
            values[n] = values[n] if isinstance(values[n], Tensor) else int(values[n])
    if (own := result if compute_in is None else compute_in) is not None:
        values = {n: float_of(v, own) for n, v in values.items()}
    if operation.first.precise and compute_in is not None and compute_in is not result and "dtype" in values:
        values["dtype"] = compute_in
    if template == "input - other" and _is_one_array(call.values["input"], call.values["other"]):
        template = "_difference(input, other)"
    names = parameters
    if overload.random and "key" in template:
        names = (*parameters, "key")
        values["key"] = next_key()
    function = _compile(operation.names[0], template, names, omitted)
    return _run(function, operation, overload, names, values, compute_in, result)


def _is_tensor_itself(value: Any) -> bool:
    return isinstance(value, Tensor)


def _lift(call: BoundCall) -> BoundCall | None:
    """Return a call along axis 0 of a tensor without axes as one of tensors with one axis; None for all others."""
    dim = call.values.get("dims" if name_of(call) == "flip" else "dim")
    x = next(iter(call.values.values()), None)
    if (
        not isinstance(x, Tensor)
        or x.ndim
        or isinstance(dim, bool)
        or ("index" in call.values and name_of(call) != "index_select")
        or call.overload.alias != "new"
    ):
        return None
    if dim not in (0, -1) and not (isinstance(dim, (tuple, list)) and [*dim] in ([0], [-1])):
        return None
    values = {
        n: v.show(v.layout[None]) if isinstance(v, Tensor) and not v.ndim and n != "q" else v
        for n, v in call.values.items()
    }
    if any(p.name == "keepdim" for p in call.overload.parameters):
        values["keepdim"] = True
    return BoundCall(call.operation, call.overload, values)


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
                if compute_in is not None and name not in NOT_PROMOTING and _casts(value, compute_in)
                else None
            )
            return lambda arrays: arrays[at] if cast is None else arrays[at].astype(cast.array)
        if isinstance(value, (list, tuple)) and any(isinstance(x, Tensor) for x in value):
            parts = [plan(name, x) for x in value]
            return lambda arrays: [part(arrays) for part in parts]
        if isinstance(value, Deferred):
            raise value.refuse()
        if callable(value) and not isinstance(value, (type, dtype)):  # a distance function of the caller's
            return lambda arrays: lambda *given: value(*map(make, given)).array
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
        results = compute(on_arrays, [t.value for t in tensors], spell(operation.names[0]))
    except OverflowError as e:
        raise NotSupported(
            f"torch.{spell(operation.names[0])}: {e}", "switch 64-bit numbers on: JAX_ENABLE_X64=1"
        ) from None
    except _CONCRETE as e:
        raise NotSupported(
            f"torch.{spell(operation.names[0])} of a tensor that JAX traces: it needs the values",
            "pass Python numbers, or call it outside of jax.jit",
        ) from e
    except (TypeError, ValueError) as e:
        if axis := re.search(r"axis (-?\d+) is out of bounds for array of dimension (\d+)", str(e)):
            strided._axis(int(axis[1]), int(axis[2]))
        if isinstance(e, (jax.errors.JAXTypeError, NotSupported)) or len({t.shape for t in tensors}) < 2:
            raise
        raise RuntimeError(_describe_shapes(spell(operation.names[0]), tensors, e, operation.first.each)) from e
    made = []
    for i, v in enumerate(results):
        strides = find_strides(operation.strides, v.array.shape, tensors, values)
        made.append(_wrap(v, find_result_dtype(result, v, i, overload, tensors), strides))
    if not overload.random and not is_known(results[0].array) and all(map(_is_plain, values.values())):
        given = [v.value if isinstance(v, Tensor) else v for v in values.values()]
        for i, x in enumerate(made):
            x.value.origin = (function, i, compute_in, *given)
    out = structure[0].unflatten(made)
    if overload.fields and isinstance(out, (tuple, list)) and len(out) == len(overload.fields):
        return _make_fields(spell(operation.names[0]), overload.fields)(*out)
    return tuple(out) if isinstance(out, list) else out


def _describe_shapes(name: str, tensors: Sequence[Tensor], error: Exception, each: bool) -> str:
    """Return PyTorch's message for tensors whose shapes do not fit, with the user's line."""
    shapes = [tuple(t.shape) for t in tensors]
    text = str(error).partition("\n")[0]
    if name in {"mm", "matmul"} and [len(s) for s in shapes] == [2, 2]:
        text = "mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x{})".format(*shapes[0], *shapes[1])
    elif each and len(shapes) == 2:
        both = [(1,) * (max(map(len, shapes)) - len(s)) + s for s in shapes]
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(*both, strict=True)) if a != b and 1 not in (a, b)]
        for i, a, b in pairs[-1:]:
            text = f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {i}"
    return f"{text}\n  in: torch.{name} of shapes {', '.join(map(str, shapes))}\n  at: {find_line()}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (Tensor, bool, int, float, complex, str, dtype))


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


def _wrap(value: Any, own: dtype | None, strides: Strides | None) -> Tensor:
    if not isinstance(value.array, jax.Array):
        value.array = jnp.asarray(value.array)
    if own is not None and own.is_complex and value.array.dtype.kind == "f":  # abs, angle
        own = own.to_real()
    if own is not None and value.array.dtype != own.array:
        value = compute(lambda x: (x.astype(own.array),), [value], "ToCopyBackward")[0]
    return make(value.array, own, value=value, strides=strides)
