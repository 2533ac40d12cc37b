"""`x[mask]` with a traced mask: the whole tensor and its mask, as far as the number of entries need not be known.

Operations on each entry run on the whole; reductions take the mask (the table's column `where`); `y[mask] = selection`
writes back. All else asks for the size, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fnjax.torch._errors import NotSupported
from fnjax.torch._table import Operation, Overload
from fnjax.torch._tensor import Tensor, make
from fnjax.torch._values import Value


def select(x: Tensor, mask: Tensor) -> Tensor:
    """Return the entries of x that a traced mask over its first axes selects."""
    value = x.value
    found = make(
        value.array, x.dtype, value=Value(value.array, value.node, value.index, requires_grad=value.requires_grad)
    )
    found.mask = mask.value
    return found


def whole(x: Tensor) -> Tensor:
    """Return a selection's whole tensor."""
    return make(x.array, x.dtype, value=x.value)


def find_mask(values: Sequence[Any]) -> Value | None:
    """Return the mask of the selections among arguments; None where there is none.

    Raises:
        NotSupported: two selections have different masks.
    """
    found = None
    for x in values:
        if isinstance(x, Tensor) and x.mask is not None:
            if found is not None and found is not x.mask and found.array is not x.mask.array:
                raise NotSupported("an operation on entries that two different traced masks select", "use torch.where")
            found = x.mask
    return found


def check_operands(values: Mapping[str, Any], mask: Value, operation: Operation, overload: Overload) -> str:
    """Return how an operation runs on a selection: `each`, or the table's expression with a mask.

    Raises:
        NotSupported: it asks for the number of entries.
    """
    name = operation.names[0].rpartition(".")[2]
    selections = [x for x in values.values() if isinstance(x, Tensor) and x.mask is not None]
    rows = selections[0].layout.ndim - mask.array.ndim
    if operation.first.each:
        others = [x for x in values.values() if isinstance(x, Tensor) and x.mask is None and x.ndim > rows]
        if others and any(x.layout.size > 1 for x in others):
            raise NotSupported(
                f"torch.{name} of what a traced mask selects and of a tensor of another size", "use torch.where"
            )
        return "each"
    template = operation.first.where
    if template and all(values.get(n) is None or values.get(n) is False for n in ("dim", "keepdim", "dtype")):
        return template
    if template and "where={m}" in template and mask.array.ndim == 1 and values.get("dtype") is None:
        dim, ndim = values.get("dim"), selections[0].layout.ndim
        dims = [d % ndim for d in (dim if isinstance(dim, (tuple, list)) else [dim]) if type(d) is int]
        if dims == [0]:
            keeps = f", keepdims={bool(values.get('keepdim'))}"
            return template.replace("where={m}", f"where={{m}}, axis=0{keeps}")
        if dims and 0 not in dims:  # of each row
            return "each"
    raise NotSupported(
        f"torch.{name} of what a traced mask selects: the number of entries is not known under jit",
        "use torch.where(mask, x, 0) and a reduction, or call it outside of jax.jit",
    )
