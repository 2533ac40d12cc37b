"""Collectives of jax.lax, inside shard_map, for ported code that calls torch.distributed.

These take the name of a mesh axis, or a tuple of names, in place of a process group. Their errors name the Function
that uses a missing axis, and they follow two rules for gradients that `jax.lax` leaves to the caller: see `vary` and
`all_gather`.
"""

from __future__ import annotations

from typing import Any

from fnjax.collectives import modules, varying
from fnjax.collectives.axes import axis_index, axis_of, axis_size
from fnjax.collectives.collectives import (
    all_gather,
    all_gather_into,
    all_reduce,
    all_to_all,
    broadcast,
    gather_as,
    receive,
    reduce,
    reduce_scatter,
    scatter_as,
    vary,
)


def __getattr__(name: str) -> Any:
    """Return a function of `varying` or `modules`, by the name that ports of earlier versions have for it."""
    return getattr(modules if name in ("join", "shared") else varying, name)


__all__ = [
    "all_gather",
    "all_gather_into",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "axis_of",
    "axis_size",
    "broadcast",
    "gather_as",
    "modules",
    "receive",
    "reduce",
    "reduce_scatter",
    "scatter_as",
    "vary",
    "varying",
]
