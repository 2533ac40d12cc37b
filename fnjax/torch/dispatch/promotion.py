"""PyTorch's type promotion for the lines of the table: in which dtype an operation computes, and that of its result."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fnjax._torch_ops import Overload
from fnjax._torch_ops.signature import NOT_PROMOTING
from fnjax.torch.deferred.number import Operand
from fnjax.torch.dispatch.binding import BoundCall
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import FLOAT32, as_dtype, default_dtype, dtype, promote, result_type, type_of_number
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Value

_PROMOTING_NUMBERS = {"other", "input", "exponent", "value", "weight", "min", "max", "end", "src"}
_HALVES = {"float16", "bfloat16"}
ROUNDING = {"add", "sub", "subtract", "rsub", "remainder"}  # which round a number to the tensor's dtype of 16 bits
_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max"}  # which round a bound to the tensor's dtype before they compare
_JOINING = {"scatter", "scatter_add", "scatter_reduce", "index_add", "index_reduce", "index_put", "put"}


def find_result_dtype(
    result: dtype | None, value: Value, index: int, overload: Overload, tensors: Sequence[Tensor]
) -> dtype | None:
    """Return torch's dtype of a result, by its index; None for the dtype of its array."""
    kind = np.dtype(value.array.dtype).kind
    if overload.result != "pair":
        indices = index > 0 and kind in "iu" and result is not None and result.kind != "int"
        return dtype("int64") if indices else find_same(value, tensors) if result is None else result
    if kind in "iu" and overload.fields[index : index + 1] == ("indices",):
        return dtype("int64")
    return find_same(value, tensors)


def find_same(value: Value, tensors: Sequence[Tensor]) -> dtype | None:
    """Return the first tensor's dtype, else the default dtype, if it maps to the array's; else None.

    Without 64 bits several dtypes of torch map to one of JAX: the array of an int64 tensor has int32.
    """
    candidates = [tensors[0].dtype] if tensors else []
    if (default := default_dtype()) is not FLOAT32 and all(t.dtype.kind in {"bool", "int"} for t in tensors):
        candidates += [default, default.to_complex()]
    return next((own for own in candidates if own.array == value.array.dtype), None)


def name_of(call: BoundCall) -> str:
    """Return the last part of an operation's name."""
    return call.operation.names[0].rpartition(".")[2].rstrip("_")


def find_dtypes(call: BoundCall, values: Mapping[str, Any]) -> tuple[dtype | None, dtype | None]:
    """Return the dtype to which tensors are cast before an operation, and the result's dtype; None for no change."""
    overload, first = call.overload, call.operation.first
    tensors: list[Tensor] = []
    numbers: list[Iterable[type]] = []  # of each number the types of which it may be
    for name, value in values.items():
        if name in NOT_PROMOTING or name == "dim":
            continue
        for x in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(x, Tensor):
                if type(x) is Operand:
                    numbers.append(x.kinds)
                else:
                    tensors.append(x)
            elif (
                overload.result in {"promoted", "bool", "float"}
                and name in _PROMOTING_NUMBERS
                and isinstance(x, (bool, int, float, complex))
            ):
                numbers.append([type_of_number(x)])
    given = values.get("dtype")
    if given is not None:
        own = as_dtype(given)
        cast = FLOAT32 if first.precise and own.name in _HALVES else own
        return (cast if "input" in values and overload.result in {"same", "float"} else None), own
    if not tensors and not numbers:
        return None, _creation_dtype(call, values)
    kind = overload.result
    common = _find_common(tensors, numbers, shows=kind != "bool")
    if kind in {"promoted", "bool"}:
        if common.kind == "bool" and name_of(call) in _JOINING:
            return dtype("int64"), common
        same = common if len(tensors) + len(numbers) > 1 else None
        if kind == "bool":
            return same, common if common.name == "uint8" and name_of(call) in {"any", "all"} else dtype("bool")
        scalars = any(float in kinds for kinds in numbers) or any(
            t.ndim == 0 and t.dtype is not common for t in tensors
        )
        wide = scalars or first.precise or values.get("alpha", 1) != 1
        halves = common.name in _HALVES and wide and name_of(call) not in _CLAMPS
        if halves:  # PyTorch multiplies by the number in float32
            return dtype("float32"), common
        if first.quotient and common.kind in {"bool", "int"} and not values.get("rounding_mode"):
            return default_dtype(), default_dtype()
        return same, common
    precise = first.precise and common.name in _HALVES
    if kind == "float":
        target = common if common.kind in {"float", "complex"} or first.integers else default_dtype()
        return FLOAT32 if precise else target, common if precise or first.integers else None
    if kind == "complex" and common.kind in {"bool", "int"}:
        return default_dtype(), None
    if kind == "list" and first.quotient:
        return (default_dtype() if common.kind in {"bool", "int"} else None), None
    if kind == "int":
        if name_of(call) == "bincount" and isinstance(weights := values.get("weights"), Tensor):
            return None, FLOAT32 if weights.dtype is FLOAT32 else dtype("float64")
        return None, dtype("int32" if values.get("out_int32") else "int64")
    if kind == "same" and tensors:
        own = tensors[0].dtype
        if own.kind == "bool" and name_of(call) in _JOINING:
            return dtype("int64"), own
        if first.large and own.kind in {"bool", "int"}:
            return dtype("int64"), dtype("int64")
        if len(tensors) > 1 and any(t.dtype is not own for t in tensors):
            own = result_type([(t.dtype, t.ndim) for t in tensors])
        return FLOAT32 if precise else None, own
    return None, None


def _find_common(tensors: Sequence[Tensor], numbers: Sequence[Iterable[type]], *, shows: bool) -> dtype:
    """Return the dtype in which an operation computes.

    Raises:
        NotSupported: the dtype depends on the type of a traced number, which a traced test decides.
    """
    given = [(t.dtype, t.ndim) for t in tensors]
    found = {result_type(given, kinds) for kinds in itertools.product(*numbers)}
    if len(found) > 1 and shows:
        raise NotSupported(
            f"a result of the dtype {' or '.join(sorted(map(str, found)))}, by the type of a number that JAX decides",
            "make the number of one type in all branches and iterations, as float(n)",
        )
    return functools.reduce(promote, found)


def _creation_dtype(call: BoundCall, values: Mapping[str, Any]) -> dtype | None:
    kinds = [type_of_number(v) for v in values.values() if isinstance(v, (bool, int, float, complex))]
    result = call.overload.result
    if result == "float":
        return default_dtype()
    if result == "int":
        return default_dtype() if float in kinds else dtype("int64")
    return None
