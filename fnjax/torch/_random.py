"""Random numbers: `with fnjax.torch.seed(key)` around what draws them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Self

import jax

from fnjax.torch._errors import NotSupported

_current: ContextVar[seed | None] = ContextVar("_current", default=None)


class seed:  # noqa: N801 - a context manager, used as a function
    """Draw random numbers in the block from a JAX key.

    Each draw folds a counter into the key, so that no key is used twice and none is carried out of a trace.

    Args:
        key: a key of `jax.random.key`, or an integer.

    Examples:
        >>> import fnjax.torch as torch
        >>> with torch.seed(0):
        ...     x = torch.rand(3)
        >>> x.shape
        torch.Size([3])
    """

    def __init__(self, key: Any) -> None:
        self._key = jax.random.key(key) if isinstance(key, int) else key
        self._count = 0

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def next(self) -> Any:
        """Return a key that was not used before."""
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


def next_key() -> Any:
    """Return a fresh key of the block's.

    Raises:
        NotSupported: no block is around.
    """
    found = _current.get()
    if found is None:
        raise NotSupported(
            "random numbers are drawn, and JAX's random numbers need a key",
            "call it within `with fnjax.torch.seed(key):`",
        )
    return found.next()
