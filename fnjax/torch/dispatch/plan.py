"""Plans: how an operation of the table runs on arguments of one signature.

Everything that depends on dtypes, shapes, strides and Python values alone is computed once: the template, the dtype to
which tensors are cast, the dtype and the strides of the results.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.jax_internals import INLINE_EARLY, is_staged
from fnjax._torch_ops.derivatives import use_derivative
from fnjax._torch_ops.signature import NOT_PROMOTING, read_literal_text
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.dispatch.binding import BoundCall, list_members, spell
from fnjax.torch.dispatch.checks import check_values, reads_elements
from fnjax.torch.dispatch.dtype_checks import check_dtypes
from fnjax.torch.dispatch.promotion import ROUNDING, find_dtypes, find_result_dtype, name_of
from fnjax.torch.dispatch.shape_checks import check_shapes
from fnjax.torch.dispatch.templates import check_read, compile_template, find_template
from fnjax.torch.errors import NotSupported, find_line, list_remedies
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import as_dtype, dtype, float_of
from fnjax.torch.memory.strides import Strides, find_strides
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.graph import Value, are_same, compute
from fnjax.torch.recording.rng import next_key
from fnjax.torch.views import strided

# JAX's errors where it needs the values of what it traces.
_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_STATIC = frozenset({"static", "dtype", "size", "rank", "whole", "device", "finfo", "iinfo", "none"})


class _At(int):
    """Position of a tensor among those of a call."""

    __slots__ = ()


def _put(values: Iterable[Any], tensors: Sequence[Any]) -> list[Any]:
    """Return values with tensors, or their arrays, in their positions."""
    return [
        tensors[v] if type(v) is _At else _put(v, tensors) if type(v) is list else v  # of tensors, or a copy
        for v in values
    ]


class Plan:
    """Compiled form of an operation for all calls of one signature: dtypes, shapes, strides and Python values.

    Args:
        call: the first call of the signature.
        tensors: a list to which its tensors are added, in the order in which `run` takes the tensors of other calls.

    Attributes:
        reads_elements: whether `check` depends on the elements of tensors, and must run for each call.

    Raises:
        NotSupported: JAX cannot run it.
        RuntimeError: PyTorch refuses it, as other exceptions of PyTorch's.
    """

    def __init__(self, call: BoundCall, tensors: list[Tensor]) -> None:
        overload, operation = self._overload, self._operation = call.overload, call.operation
        template, replaced, dropped = use_derivative(operation.names[0], find_template(call), call.read_literal)
        check_read(call)
        values: dict[str, Any] = {}
        for p in overload.parameters:
            if p.name in call.values:
                value = call.values[p.name]
                if p.name == "dim" and operation.first.axes and value in ((), []):
                    value = None
                values[p.name] = value
            else:
                values[p.name] = () if p.variadic else None if p.default is None else read_literal_text(p.default)
        self._name, self._spelling = name_of(call), spell(operation.names[0])
        given = [x for x in list_members(values.values()) if isinstance(x, Tensor)]
        self._check_known(given)
        self.reads_elements = not overload.traced or reads_elements(self._name)
        if operation.first.empty and any(t.shape == (0,) for t in given):
            replaced = {**replaced, "jnp.concatenate": operation.first.empty}
        check_dtypes(self._name, values)
        check_shapes(self._name, values)
        check_values(self._name, values)
        omitted = frozenset(p.name for p in overload.parameters if not call.is_given(p.name))
        compute_in, self._result = find_dtypes(call, values)
        if self._result is not None and self._result.kind in {"bool", "int"}:  # PyTorch truncates the factors
            for n in {"alpha", "beta"} & values.keys():
                values[n] = values[n] if isinstance(values[n], Tensor) else int(values[n])
        if (own := self._result if compute_in is None else compute_in) is not None:
            values = {n: float_of(v, own) for n, v in values.items()}
        if compute_in is not self._result and self._result is not None and self._name in ROUNDING:
            kind = self._result.array
            values = {n: float(np.asarray(v, kind)) if type(v) is float else v for n, v in values.items()}
        if operation.first.precise and compute_in is not None and compute_in is not self._result and "dtype" in values:
            values["dtype"] = compute_in
        self._is_random = overload.random and "key" in template
        self._generator = values.pop("generator", None)
        names = (*values, "key") if self._is_random else tuple(values)
        given_in = names, omitted, tuple(replaced.items()), dropped
        self._function = compile_template(template, *given_in)
        self._difference = (
            compile_template("_difference(input, other)", *given_in) if template == "input - other" else None
        )
        self._compute_in = compute_in
        self._casts: list[Any] = []  # for each tensor the dtype of JAX to which it is cast, or None
        self._values = {n: self._place(n, v, tensors) for n, v in values.items()}
        self._slots = [_to_jax(v) for v in self._values.values()]
        self._is_casting = any(c is not None for c in self._casts)
        self._has_origin = not overload.random and all(map(_is_plain, values.values()))
        self._traced = self._call
        self._results: dict[Any, tuple[dtype, Any, Strides | None]] = {}

    def share(self) -> None:
        """Make JAX cache the trace of the function and of its derivatives, for later calls in traced programs."""
        self._traced = jax.jit(self._call, static_argnums=0, inline=INLINE_EARLY)

    def _place(self, name: str, value: Any, tensors: list[Tensor]) -> Any:
        """Return an argument with positions for its tensors, which are added to a list."""
        if isinstance(value, Tensor):
            tensors.append(value)
            to = None if name in NOT_PROMOTING else self._compute_in
            self._casts.append(None if to is None else to.array)
            return _At(len(tensors) - 1)
        if isinstance(value, (list, tuple)):
            parts = [self._place(name, x, tensors) for x in value]
            if type(value) is list or any(isinstance(x, Tensor) for x in value):
                return parts
            return tuple(parts) if list in map(type, parts) else value
        if isinstance(value, Deferred):
            raise value.refuse()
        return value

    def _name_values(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Return the arguments of a call by their names."""
        return dict(zip(self._values, _put(self._values.values(), tensors), strict=True))

    def _check_known(self, tensors: Sequence[Tensor]) -> None:
        if not self._overload.traced and not all(is_known(t.array) for t in tensors):
            raise NotSupported(
                f"torch.{self._spelling} of a tensor that JAX traces: its result's size depends on the values",
                "use torch.where or a mask, or call it outside of jax.jit",
            )

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Check the elements of another call's tensors: raise PyTorch's errors that depend on their values."""
        self._check_known(tensors)
        check_values(self._name, self._name_values(tensors))

    def _call(self, function: Callable[..., Any], arrays: Sequence[Any], extra: Sequence[Any]) -> Any:
        if self._is_casting:
            both = zip(arrays, self._casts, strict=True)
            arrays = [a if to is None or a.dtype == to else a.astype(to) for a, to in both]
        return function(*_put(self._slots, arrays), *extra)

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Return the results for the tensors of a call.

        Raises:
            NotSupported: JAX cannot run it.
            RuntimeError: the shapes do not fit.
        """
        given = [t.value for t in tensors]
        function = self._function
        if self._difference is not None and _is_one_array(tensors):
            function = self._difference
        extra = (next_key(self._generator),) if self._is_random else ()
        if self._overload.result in _STATIC:
            return function(*_put(self._slots, [v.array for v in given]), *extra)
        tree: Any = None

        def on_arrays(*arrays: Any) -> Any:
            nonlocal tree
            is_traced = all(isinstance(a, jax.core.Tracer) for a in arrays) and is_staged()
            flat, tree = jax.tree.flatten((self._traced if is_traced else self._call)(function, arrays, extra))
            return tuple(flat)

        try:
            results = compute(on_arrays, given, self._spelling)
        except OverflowError as e:
            raise NotSupported(f"torch.{self._spelling}: {e}", "switch 64-bit numbers on: JAX_ENABLE_X64=1") from None
        except _CONCRETE as e:
            raise self._refuse_traced(tensors) from e
        except (TypeError, ValueError, AssertionError) as e:
            if axis := re.search(r"axis (-?\d+) is out of bounds for array of dimension (\d+)", str(e)):
                strided._axis(int(axis[1]), int(axis[2]))
            if "hashable" in str(e) and "Tracer" in str(e):  # as a parameter of a JAX operation
                raise self._refuse_traced(tensors) from e
            if isinstance(e, (jax.errors.JAXTypeError, NotSupported)) or not tensors:
                raise
            each = self._operation.first.each or self._operation.strides == "each"
            raise RuntimeError(_describe_shapes(self._spelling, tensors, e, each)) from e
        made = [self._make_result(i, v, tensors) for i, v in enumerate(results)]
        if self._has_origin and isinstance(results[0].array, jax.core.Tracer):
            origin = self._compute_in, *_put(self._values.values(), given)
            for i, x in enumerate(made):
                x.memory.value.origin = (function, i, *origin)
        out = tree.unflatten(made)
        fields = self._overload.fields
        if fields and isinstance(out, (tuple, list)) and len(out) == len(fields):
            return _make_fields(self._spelling, fields)(*out)
        return tuple(out) if isinstance(out, list) else out

    def _refuse_traced(self, tensors: Sequence[Tensor]) -> NotSupported:
        """Build the exception for values that JAX traces; it names the arguments that are numbers."""
        numbers = {
            name: x.array
            for name, value in self._name_values(tensors).items()
            for x in list_members([value])
            if isinstance(x, Tensor) and not (x.ndim or is_known(x.array))
        }
        what = f"the traced number {' and '.join(numbers)}" if numbers else "a tensor that JAX traces"
        return NotSupported(
            f"torch.{self._spelling} needs the value of {what}",
            list_remedies(*numbers.values()) if numbers else "call it outside of jax.jit",
        )

    def _make_result(self, index: int, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        """Return a result as a tensor."""
        if not isinstance(value.array, jax.Array):
            value.array = jnp.asarray(value.array)
        found, shape = value.array.dtype, value.array.shape
        known = self._results.get((index, found, shape))
        if known is None:
            own = find_result_dtype(self._result, value, index, self._overload, tensors)
            if own is not None and own.is_complex and found.kind == "f":  # abs, angle
                own = own.to_real()
            to = None if own is None or found == own.array else own.array
            strides = find_strides(self._operation.strides, shape, tensors, self._name_values(tensors))
            known = (as_dtype(found) if own is None else own), to, strides
            self._results[index, found, shape] = known
        own, to, strides = known
        if to is not None:
            value = compute(lambda x: (x.astype(to),), [value], "ToCopyBackward")[0]
        return make(value, own, strides=strides)


def _to_jax(value: Any) -> Any:
    """Return an argument in the form that templates take."""
    if type(value) is list:
        return [_to_jax(v) for v in value]
    if isinstance(value, dtype) or (isinstance(value, type) and value in {bool, int, float, complex}):
        return as_dtype(value).array
    if callable(value) and not isinstance(value, type):  # a distance function of the caller's
        return lambda *given: value(*map(make, given)).array
    return value


def _is_one_array(tensors: Sequence[Tensor]) -> bool:
    """Return whether both are views of one traced array: XLA may round a product in a difference differently."""
    if len(tensors) < 2 or is_known(tensors[0].array):
        return False
    return are_same(tensors[0].memory.value, tensors[1].memory.value)


def _describe_shapes(name: str, tensors: Sequence[Tensor], error: Exception, each: bool) -> str:
    """Return PyTorch's message for tensors whose shapes do not fit, with the user's line."""
    shapes = [tuple(t.shape) for t in tensors]
    text = (layouts.describe_mismatch(*shapes) if each else "") or str(error).partition("\n")[0]
    return f"{text}\n  in: torch.{name} of shapes {', '.join(map(str, shapes))}\n  at: {find_line()}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (Tensor, bool, int, float, complex, str, dtype))


@cache
def _make_fields(name: str, fields: tuple[str, ...]) -> Any:
    """Return the type of a result with named fields."""
    return namedtuple(name, fields)  # noqa: PYI024 - its fields are the table's
