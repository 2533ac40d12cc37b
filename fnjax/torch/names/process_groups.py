"""Process groups: a group is the name of a mesh axis, and the default group is set by a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

from fnjax import collectives
from fnjax._contexts import DEFAULT_GROUP
from fnjax.torch.deferred.number import Number, number
from fnjax.torch.deferred.origins import RANK
from fnjax.torch.recording.graph import Value

_EXCHANGE: ContextVar[Exchange | None] = ContextVar("_EXCHANGE", default=None)


class ProcessGroup(str):
    """A process group: the name of a mesh axis."""

    __slots__ = ()

    def size(self) -> int:
        """Return the number of devices along the axis."""
        return int(jax.lax.axis_size(str(self)))

    def rank(self) -> Any:
        """Return the index of this device along the axis, a traced number."""
        return get_rank(self)

    def name(self) -> str:
        """Return the name of the axis."""
        return str(self)

    @property
    def group_name(self) -> str:
        """The name of the axis."""
        return str(self)


def find_axis(group: Any) -> str:
    """Return the axis of a group, or of a mesh of PyTorch.

    Raises:
        ValueError: the group is the default one, and no block has set it.
    """
    found = get_default() if group is None else group.get_group() if hasattr(group, "get_group") else group
    if found is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call init_process_group.\n"
            '  fix: call within `with fnjax.torch.distributed.axis("name"):`, a mesh axis of jax.shard_map, or pass '
            "the name of the axis as the group"
        )
    axis = collectives.axis_of(str(found) if isinstance(found, str) else found)
    assert isinstance(axis, str)
    return axis


def get_rank(group: Any = None) -> Any:
    """Return the index of this device along the axis: a traced number."""
    axis = find_axis(group)
    found = number(collectives.axis_index(axis))
    if type(found) is Number:
        found.value.origin = (RANK, axis)
    return found


def as_group(x: Any) -> Any:
    """Return the name of a mesh axis as a process group, and anything else unchanged."""
    if type(x) is not str:
        return x
    try:
        jax.lax.axis_size(x)
    except (NameError, AssertionError, ValueError, KeyError):
        return x
    return ProcessGroup(x)


def get_default() -> str | None:
    """Return the axis that is the default group."""
    axis: str | None = DEFAULT_GROUP.value
    return axis


def default_axis(name: str | None) -> AbstractContextManager[None]:
    """Make an axis the default process group of a block.

    Examples:
        >>> import jax
        >>> import fnjax.torch as torch
        >>> def total(x):
        ...     with torch.distributed.axis("i"):
        ...         torch.distributed.all_reduce(x)
        ...     return x
        >>> jax.vmap(torch.jax_view(total), axis_name="i")(jax.numpy.arange(3.0)).tolist()
        [3.0, 3.0, 3.0]
    """
    return nullcontext() if name == DEFAULT_GROUP.value else DEFAULT_GROUP(name)


class Exchange(NamedTuple):
    """Values that a function has sent and received so far.

    Attributes:
        sent: (value, index of the receiver, mesh axis) of each send.
        received: (array of the received type, index of the sender, mesh axis) of each receive.
    """

    sent: list[tuple[Value, Any, str]]
    received: list[tuple[Any, Any, str]]


@contextmanager
def exchanging() -> Iterator[None]:
    """Record the sends and receives of one function within a block."""
    token = _EXCHANGE.set(Exchange([], []))
    try:
        yield
    finally:
        _EXCHANGE.reset(token)


def get_exchange() -> Exchange | None:
    """Return the sends and receives of the present function; None outside of `exchanging`."""
    return _EXCHANGE.get()
