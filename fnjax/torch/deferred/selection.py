"""`x[mask]` with a traced mask: the whole tensor and its mask, as far as the number of entries need not be known.

Operations on each entry run on the whole; reductions take the mask (the table's column `where`); `y[mask] = selection`
writes back. Indices that `nonzero` finds are selections of all indices. All else asks for the size, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch._autograd.graph import Value, are_same, compute
from fnjax.torch._dtypes import DTYPES
from fnjax.torch._table import Operation, Overload
from fnjax.torch._tensor import Tensor, make
from fnjax.torch.loading.errors import NotSupported

# Operations along one axis: on what a mask over other axes selects, they run on the whole.
_ALONG = frozenset(
    [
        "sum", "mean", "prod", "std", "var", "norm", "logsumexp", "softmax", "log_softmax", "cumsum",
        "cumprod", "cummax", "cummin", "sort", "argsort", "topk", "kthvalue", "median", "mode", "max",
        "min", "amax", "amin", "argmax", "argmin", "all", "any", "flip",
    ]
)  # fmt: skip
# Losses with a term for each entry.
LOSSES = frozenset(
    [
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "hinge_embedding_loss",
        "margin_ranking_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss",
    ]
)  # fmt: skip


class Mask(Value):
    """A traced mask.

    Attributes:
        at: the axis of the whole tensor at which its axes begin.
    """

    __slots__ = ("at",)

    def __init__(self, mask: Value, at: int) -> None:
        super().__init__(mask.array)
        self.origin, self.at = mask.origin, at

    def fit(self, mask: Any, ndim: int) -> Any:
        """Return the mask's array as booleans that broadcast with the whole tensor's, which has `ndim` axes."""
        return (mask != 0).reshape((1,) * self.at + mask.shape + (1,) * (ndim - self.at - mask.ndim))


def select(x: Tensor, mask: Tensor, at: int = 0) -> Tensor:
    """Return the entries of x that a traced mask over some of its axes selects."""
    value = x.value
    found = make(
        value.array, x.dtype, value=Value(value.array, value.node, value.index, requires_grad=value.requires_grad)
    )
    found.mask = Mask(mask.value, at)
    return found


def whole(x: Tensor) -> Tensor:
    """Return a selection's whole tensor."""
    return make(x.array, x.dtype, value=x.value)


def find_indices(mask: Tensor) -> tuple[Tensor, ...]:
    """Return for each axis the indices where a traced mask is not zero, as selections."""
    shape = mask.layout.shape
    grids = (
        make(jax.lax.broadcasted_iota(DTYPES["int64"].array, shape, d), DTYPES["int64"]) for d in range(len(shape))
    )
    return tuple(select(g, mask) for g in grids)


def flatten_selected(x: Tensor, name: str, args: Sequence[Any]) -> Tensor | None:
    """Return the view of a selection that has one axis; None for other views, and for rows of several entries."""
    shape: Any = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    if not (
        (name in {"ravel", "flatten"} and not args)
        or (name in {"reshape", "view_as_shape"} and tuple(shape) == (-1,))
        or (name == "squeeze" and tuple(args) in {(), (1,), (-1,)})
    ):
        return None
    mask = x.mask
    assert mask is not None
    ndim = mask.array.ndim
    if mask.at or any(n != 1 for n in x.layout.shape[ndim:]):
        return None
    if x.layout.ndim == ndim:
        return x
    value = compute(lambda a: (a.reshape(a.shape[:ndim]),), [x.value], "ViewBackward")[0]
    found = make(value.array, x.dtype, value=value)
    found.mask = mask
    return found


def find_mask(values: Sequence[Any]) -> Mask | None:
    """Return the mask of the selections among arguments; None where there is none.

    Raises:
        NotSupported: two selections have different masks.
    """
    found: Mask | None = None
    for x in values:
        if isinstance(x, Tensor) and x.mask is not None:
            if found is not None and not (found.at == x.mask.at and are_same(found, x.mask)):
                raise NotSupported("an operation on entries that two different traced masks select", "use torch.where")
            found = x.mask
    return found


def check_operands(
    values: Mapping[str, Any], mask: Mask, operation: Operation, overload: Overload
) -> tuple[str, dict[str, Any]]:
    """Return how an operation runs on a selection, and with which arguments.

    It is `each`, on whole tensors, or the table's expression with a mask.

    Raises:
        NotSupported: it asks for the number of entries.
    """
    name = operation.names[0].rpartition(".")[2]
    given = dict(values)
    whole_ndim = next(x.layout.ndim for x in values.values() if isinstance(x, Tensor) and x.mask is not None)
    rows = whole_ndim - mask.at - mask.array.ndim
    if operation.first.each or name in LOSSES:
        for n, x in values.items():
            if isinstance(x, Tensor) and x.mask is None and x.ndim > rows and x.layout.size > 1:
                given[n] = _spread(name, x, mask, rows)
        return "each", given
    template = operation.first.where
    if template and all(values.get(n) is None or values.get(n) is False for n in ("dim", "keepdim", "dtype")):
        return template, given
    dims = _find_dims(values.get("dim"), mask.at + 1 + rows)
    if template and dims == [mask.at] and values.get("dtype") is None:
        if operation.first.along and not rows and not mask.at:
            return template, given
        if "where={m}" in template and not operation.first.along and not mask.at and mask.array.ndim == 1:
            keeps = f", keepdims={bool(values.get('keepdim'))}"
            return template.replace("where={m}", f"where={{m}}, axis=0{keeps}"), given
    if dims and mask.at not in dims and name in _ALONG:  # of each row
        given["dim"] = tuple(d if d < mask.at else d - mask.at - 1 - rows for d in dims)
        if not isinstance(values["dim"], (tuple, list)):
            (given["dim"],) = given["dim"]
        return "each", given
    raise NotSupported(
        f"torch.{name} of what a traced mask selects: the number of entries is not known under jit",
        "use torch.where(mask, x, 0) and a reduction, or call it outside of jax.jit",
    )


def _find_dims(dim: Any, ndim: int) -> list[int]:
    return [d % ndim for d in (dim if isinstance(dim, (tuple, list)) else [dim]) if type(d) is int]


def _spread(name: str, x: Tensor, mask: Mask, rows: int) -> Tensor:
    """Return a tensor with one entry, or row, for each that a mask selects, at the places of these.

    Where the numbers differ, at which PyTorch raises, the entries are NaN.
    """
    shape = x.layout.shape
    if mask.at or x.ndim != rows + 1 or (shape[0] != 1 and x.dtype.kind not in {"float", "complex"}):
        raise NotSupported(
            f"torch.{name} of what a traced mask selects and of a tensor of another size", "use torch.where"
        )

    def spread(a: Any, m: Any) -> tuple[Any, ...]:
        if len(a) == 1:
            return (a.reshape((1,) * m.ndim + a.shape[1:]),)
        return (jnp.where((m != 0).sum() == len(a), spread_values(a, m)[0], jnp.nan),)

    value = compute(spread, [x.value, mask], "IndexPutBackward")[0]
    return make(value.array, x.dtype, value=value)


def move_selected(array: Any, mask: Any, other: Any) -> tuple[Any, ...]:
    """Return the entries that one mask selects, in their order at the places that another one selects."""
    order = jnp.argsort(mask.ravel() == 0, stable=True)
    return spread_values(array.reshape(-1, *array.shape[mask.ndim :])[order], other)


def spread_values(values: Any, mask: Any) -> tuple[Any, ...]:
    """Return values, one for each entry that a mask selects, at the places of these."""
    order = jnp.cumsum(mask.ravel() != 0) - 1
    return (values[jnp.clip(order, 0, values.shape[0] - 1)].reshape(mask.shape + values.shape[1:]),)
