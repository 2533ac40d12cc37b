"""Running an operation of the table: by the plan for the signature of its arguments, or one that is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import jax
import numpy as np

from fnjax._contexts import AUTOCAST
from fnjax._torch_ops import Absent, find_operation
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import Operand, on_operands
from fnjax.torch.deferred.selection import Selection, holds_selection
from fnjax.torch.dispatch.autocast import cast_arguments
from fnjax.torch.dispatch.binding import BoundCall, bind
from fnjax.torch.dispatch.on_selections import run_selected
from fnjax.torch.dispatch.plan import Plan
from fnjax.torch.dispatch.promotion import name_of
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import default_dtype, dtype
from fnjax.torch.memory.layout import Size
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.memory.trees import map_leaves

_LIMIT = 4096
_plans: dict[Any, tuple[Plan, tuple[int, ...]]] = {}  # by signature, with the positions of the plan's tensors
_EXACT = frozenset({int, bool, str, NoneType, type})  # equal values of one of these types are the same
_FLOATS = frozenset({float, complex, np.float64})  # 0.0 and -0.0 are equal


def run(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, has_operands: bool = False) -> Any:
    """Run an operation of the table by its qualified name: tensors and Python values in, tensors out.

    Args:
        name: the operation.
        args: the positional arguments.
        kwargs: the keyword arguments.
        has_operands: whether traced numbers among the arguments have been replaced by operands.

    Raises:
        NotSupported: the table does not have the operation, or not for such arguments.
    """
    if AUTOCAST.value and (has_operands or not _holds_deferred(args, kwargs)):
        args, kwargs = cast_arguments(name, args, kwargs)
    tensors: list[Tensor] = []
    key = _find_key(name, args, kwargs, tensors)
    known = None if key is None else _plans.get(key)
    if known is not None:
        plan, order = known
        given = [tensors[i] for i in order]
        if plan.reads_elements:
            plan.check(given)
        return plan.run(given)
    if key is None and not has_operands and _holds_deferred(args, kwargs):
        return on_operands(lambda *args, **kwargs: run(name, args, kwargs, has_operands=True), args, kwargs)
    if key is None:  # JAX's arrays, which users of both have
        args, kwargs = map_leaves(_to_tensor, [*args]), map_leaves(_to_tensor, dict(kwargs))
    operation = find_operation(name)
    if operation is None or isinstance(operation, Absent):
        reason = "" if operation is None else f" {operation.reason}"
        raise NotSupported(
            f"{name}{reason or ' is not an operation that fnjax.torch has'}", getattr(operation, "remedy", "")
        )
    return _run_call(bind(operation, args, kwargs), key, tensors)


def _to_tensor(value: Any) -> Any:
    return make(value) if isinstance(value, jax.Array) else value


def _holds_deferred(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(x, Deferred) for x in (*args, *kwargs.values()))


def _find_key(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[Tensor]) -> Any:
    """Return the signature of a call, the key of its plan; None if it has arguments that cannot be part of a key.

    Args:
        name: the operation.
        args: the positional arguments.
        kwargs: the keyword arguments.
        tensors: a list to which the tensors among the arguments are added.
    """
    is_wide = jax.config.jax_enable_x64  # type: ignore[attr-defined] # JAX sets it
    parts: list[Any] = [name, default_dtype().name, is_wide, *kwargs]
    if not _add_to_key((*args, *kwargs.values()), parts, tensors):
        return None
    if len(tensors) > 1:
        ids = [*map(id, tensors)]
        parts += () if len({*ids}) == len(ids) else map(ids.index, ids)  # one tensor twice
    return tuple(parts)


def _add_to_key(values: Sequence[Any], parts: list[Any], tensors: list[Tensor]) -> bool:
    """Add arguments to a signature, tensors by dtype, shape and strides; return False if one cannot be in a key."""
    for value in values:
        kind: Any = type(value)
        if isinstance(value, Tensor):
            if kind is Selection:
                return False
            layout = value.layout
            parts.append((value.dtype.name, layout.shape, layout.strides, value.kinds if kind is Operand else None))
            tensors.append(value)
        elif kind in _EXACT:
            parts += kind, value
        elif kind in _FLOATS:
            parts += kind, repr(value)
        elif kind is dtype:
            parts += kind, value.name
        elif kind in {tuple, list, Size}:
            parts += kind, len(value)
            if not _add_to_key(value, parts, tensors):
                return False
        else:
            return False
    return True


def _run_call(call: BoundCall, key: Any = None, given: Sequence[Tensor] = ()) -> Any:
    """Run a call whose arguments are bound.

    Args:
        call: the call.
        key: the signature under which its plan is cached; None to cache no plan.
        given: the tensors of the signature.
    """
    if holds_selection(call.values.values()):
        return run_selected(call, _run_call)
    lifted = _lift(call)
    if lifted is not None:
        found = _run_call(lifted)
        return jax.tree.map(lambda x: x.show(x.layout[..., 0]) if x.ndim else x, found, is_leaf=_is_tensor_itself)
    tensors: list[Tensor] = []
    plan = Plan(call, tensors)
    at = {id(t): i for i, t in enumerate(given)}
    if key is not None and at.keys() == {*map(id, tensors)}:  # else the plan has a number of a tensor
        if len(_plans) >= _LIMIT:
            _plans.clear()
        plan.share()
        _plans[key] = plan, tuple(at[id(t)] for t in tensors)
    return plan.run(tensors)


def _is_tensor_itself(value: Any) -> bool:
    return isinstance(value, Tensor)


def _lift(call: BoundCall) -> BoundCall | None:
    """Return a call along axis 0 of a 0-d tensor as a call of 1-d tensors; None for all other calls."""
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
