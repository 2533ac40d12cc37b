"""Random numbers: `with fnjax.torch.seed(key)` around what draws them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Self

import jax

from fnjax.torch.loading.errors import NotSupported

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


class _Refusal(seed):
    """Block in which nothing may be drawn."""

    def next(self) -> Any:
        raise NotSupported(
            "random numbers drawn within torch.vmap", "torch.vmap(f, randomness='same'), or draw them outside of f"
        )


@contextlib.contextmanager
def without_draws(refused: bool = True) -> Iterator[None]:
    """Refuse draws in a block."""
    with _Refusal(0) if refused else contextlib.nullcontext():
        yield


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


class State:
    """State of a seed block: its key (None without a block), and the number of keys drawn so far."""

    def __init__(self, key: Any, count: int) -> None:
        self.key, self.count = key, count


jax.tree_util.register_pytree_node(State, lambda s: ((s.key,), s.count), lambda count, keys: State(*keys, count))


def get_state(device: Any = None) -> State:
    """Return the state of the block's random numbers (torch.get_rng_state)."""
    found = _current.get()
    return State(None, 0) if found is None else State(found._key, found._count)


def set_state(new_state: State, device: Any = None) -> None:
    """Draw the same random numbers again, from a state on (torch.set_rng_state)."""
    if not isinstance(new_state, State):
        raise TypeError(f"expected a state of torch.get_rng_state, got {type(new_state).__name__}")
    if new_state.key is not None:
        block = seed(new_state.key)
        block._count = new_state.count
        _current.set(block)


@contextlib.contextmanager
def fork(devices: Any = None, enabled: bool = True, **_: Any) -> Iterator[None]:
    """Leave the random numbers after a block as they were before it (torch.random.fork_rng)."""
    before = _current.get()
    count = 0 if before is None else before._count
    try:
        yield
    finally:
        if enabled:
            _current.set(before)
            if before is not None:
                before._count = count
