"""Operations of the table on selections by a traced mask; operations without a rule here are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.deferred.missing import Missing
from fnjax.torch.deferred.selection import Selection, both_fit, fit, settle
from fnjax.torch.dispatch.binding import BoundCall, list_members
from fnjax.torch.dispatch.dtype_checks import check_dtypes
from fnjax.torch.dispatch.promotion import name_of
from fnjax.torch.dispatch.templates import find_template
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.graph import Value, compute

# Losses with a term for each element.
_LOSSES = frozenset(
    [
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "hinge_embedding_loss",
        "margin_ranking_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits",
        "poisson_nll_loss",
    ]
)  # fmt: skip
# The value of an element that changes nothing. Those along an axis keep it.
_ALONG = {"cumsum": 0, "cumprod": 1, "logcumsumexp": -np.inf, "softmax": -np.inf, "log_softmax": -np.inf}
_NEUTRAL = _ALONG | {
    "sum": 0, "nansum": 0, "prod": 1, "all": 1, "any": 0, "count_nonzero": 0, "nanmean": np.nan, "logsumexp": -np.inf,
    "norm": 0, "vector_norm": 0, "frobenius_norm": 0, "max": -np.inf, "amax": -np.inf, "min": np.inf, "amin": np.inf,
}  # fmt: skip
_COUNTING = frozenset({"mean", "std", "var"})  # jnp's have an argument `where`
_OF_SOME = frozenset({"max", "min", "amax", "amin"})  # PyTorch raises where there is no element
# Along other axes than the selected one they run on all; the first keep the axis.
_ORDERING = frozenset({"sort", "argsort", "topk", "cummax", "cummin", *_ALONG})
_OTHER_AXES = frozenset(
    {"argmax", "argmin", "kthvalue", "median", "nanmedian", "mode", *_ORDERING, *_NEUTRAL, *_COUNTING}
)

Run = Callable[[BoundCall], Any]


def run_selected(call: BoundCall, run_call: Run) -> Any:
    """Run a call that has selections among its arguments.

    Raises:
        NotSupported: the operation needs the number of elements, or has no rule for selections.
    """
    name, values = name_of(call), call.values
    check_dtypes(name, values)
    given = list_members(values.values())
    tensors = [x for x in given if isinstance(x, Tensor)]
    selections: list[Any] = [x for x in given if type(x) is Selection]
    like = max(selections, key=lambda s: s.ndim)
    is_flat = sum(isinstance(v, Tensor) for v in values.values()) == len(tensors)
    if is_flat and not call.overload.random:
        if name in {"dot", "inner", "matmul"} and len(selections) == len(tensors) == 2 and like.ndim == 1:
            return (selections[0] * selections[1]).sum(dtype=like.dtype)
        if name in _LOSSES:
            return _run_loss(call, like, run_call)
        if call.operation.each or call.operation.strides == "each" or (name in {"max", "min"} and len(tensors) == 2):
            return _run_each(call, like, run_call)
        if len(tensors) == 1 and name in _OTHER_AXES:
            return _run_along(call, like, name, run_call)
        if len(selections) == 1 and _has_rows(call, like, name):
            found = {n: v.whole if type(v) is Selection else v for n, v in values.items()}
            return like.of(run_call(BoundCall(call.operation, call.overload, found)))
    raise like.refuse(f"torch.{name}")


def _run_each(call: BoundCall, like: Selection, run_call: Run) -> Selection:
    """Run an elementwise operation on whole tensors."""
    values, fits = dict[str, Any](), like.fits
    for n, v in call.values.items():
        values[n], own = fit(v, like)
        fits = both_fit(fits, own)
    found = run_call(BoundCall(call.operation, call.overload, values))
    if not isinstance(found, Tensor) or found.ndim != like.ndim:
        raise like.refuse(f"torch.{name_of(call)}")
    return Selection(found, like.mask, like.at, fits)


def _run_loss(call: BoundCall, like: Selection, run_call: Run) -> Any:
    """Run a loss, whose terms are reduced afterwards."""
    reduction = call.read_literal("reduction")
    if reduction not in {"mean", "sum", "none"}:
        raise NotSupported(f"reduction={reduction!r} of a loss of what a traced mask selects", "use 'mean' or 'sum'")
    terms = _run_each(BoundCall(call.operation, call.overload, {**call.values, "reduction": "none"}), like, run_call)
    return terms if reduction == "none" else getattr(terms, reduction)()


def _run_along(call: BoundCall, x: Selection, name: str, run_call: Run) -> Any:
    """Run a reduction, or an operation along an axis."""
    dim = call.read_literal("dim")
    keeps = name in _ORDERING
    if (keeps and dim is None) or (isinstance(dim, bool) and name not in _COUNTING):  # of std, `unbiased`
        raise x.refuse(f"torch.{name}")
    given = [] if dim is None or isinstance(dim, bool) else dim if isinstance(dim, (tuple, list)) else [dim]
    axes = {d % x.ndim for d in given} or {*range(x.ndim)}
    conditions: list[Value | None] = []
    overload, values = call.overload, dict(call.values)
    parameter = next(n for n, v in values.items() if v is x)
    values[parameter] = x.whole
    if x.at in axes and name in _COUNTING:
        text = f"{find_template(call)[:-1]}, where=mask)"
        overload = dataclasses.replace(overload, signature=f"{overload.signature}, mask=None", template=lambda _: text)
        values["mask"] = make(x.along(x.mask.array))
    elif x.at in axes:
        if name not in _NEUTRAL or not _is_neutral(call, name, axes):
            raise x.refuse(f"torch.{name}")
        if name in _OF_SOME or call.read_literal("p") == np.inf or call.read_literal("ord") == np.inf:
            conditions = [compute(lambda m: (m.any(),), [x.mask], "")[0]]
        values[parameter] = _fill(x, _NEUTRAL[name], conditions)
    found = run_call(BoundCall(call.operation, overload, values))
    if x.at not in axes or keeps:  # the elements along the axis are still there
        gone = 0 if keeps or call.read_literal("keepdim") is True else sum(d < x.at for d in axes)
        return jax.tree.map(lambda t: x.of(t, x.at - gone), found, is_leaf=lambda t: isinstance(t, Tensor))
    if isinstance(found, tuple):  # of max and min, whose indices count elements that are not selected
        made: Any = type(found)
        return made(settle(found[0], x.fits, *conditions), Missing("the index", x.refuse(f"torch.{name}")))
    return settle(found, x.fits, *conditions)


def _is_neutral(call: BoundCall, name: str, axes: set[int]) -> bool:
    """Return whether the reduction's neutral element is neutral for the order of a norm as well."""
    if name not in {"norm", "vector_norm"}:
        return True
    order = next((o for o in (call.read_literal("p"), call.read_literal("ord")) if o is not None), "fro")
    return order == "fro" or (
        isinstance(order, (int, float)) and order >= 0 and (len(axes) == 1 or name == "vector_norm")
    )


def _fill(x: Selection, number: float, conditions: list[Value | None]) -> Tensor:
    """Return the whole tensor with one number in place of the elements that are not selected."""
    own = x.dtype.array
    if not np.isfinite(number) and x.dtype.kind not in {"float", "complex"}:
        settle(x.whole, *conditions)
        raise x.refuse(f"an operation on {x.dtype}")

    def fill(a: Any, m: Any) -> tuple[Any, ...]:
        return (jnp.where(x.along(m), a, jnp.asarray(number, own)),)

    return make(compute(fill, [x.whole.value, x.mask], "WhereBackward")[0], x.dtype)


def _has_rows(call: BoundCall, x: Selection, name: str) -> bool:
    """Return whether an operation runs on each of the rows that are selected: of one selection and plain tensors."""
    values, last = call.values, x.ndim - 1
    if name == "embedding":
        return type(values.get("input")) is Selection and not call.is_given("max_norm")
    if type(values.get("input")) is not Selection or x.at == last:
        return False
    if name in {"layer_norm", "rms_norm"}:
        shape = values["normalized_shape"]
        return x.at < x.ndim - (len(shape) if isinstance(shape, (tuple, list)) else 1)
    return name == "linear" or (name in {"matmul", "mm"} and call.find_rank("mat2" if name == "mm" else "other") == 2)
