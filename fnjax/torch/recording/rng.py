"""Random numbers, which are drawn within `with fnjax.torch.seed(key)`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax

from fnjax._primitives.jax_internals import find_program
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.journal import next_serial, refuse_in_branch

DEFAULT_SEED = 67280421310721  # PyTorch's


class _Open(NamedTuple):
    """Seed of the present block, and the program (a trace of JAX) in which the block began."""

    block: seed
    program: Any

    def may_draw(self) -> bool:
        """Return whether its keys may be used here: not in a program within the block, where they are constants."""
        return find_program() is self.program


_current: ContextVar[_Open | None] = ContextVar("_current", default=None)


class seed:  # noqa: N801 - a context manager, used as a function
    """Draw random numbers in the block from a JAX key.

    Each draw folds a counter into the key, so that no key is used twice and none is carried out of a trace.
    A function whose trace JAX caches (under jax.jit, jax.checkpoint or jax.lax.scan) takes the key as an argument and
    opens the block itself: a key that it closes over would be a constant of its program, and is refused.

    Args:
        key: a key of `jax.random.key`, or an integer.

    Examples:
        >>> import fnjax.torch as torch
        >>> with torch.seed(0):
        ...     x = torch.rand(3)
        >>> x.shape
        torch.Size([3])
    """

    # Of each generator that was used in the block: when it was seeded, the seed, the number of keys drawn since, and
    # the number of loops around it.
    _streams: Mapping[Any, tuple[int, int, int, int]] = MappingProxyType({})
    _iterations: tuple[Any, ...] = ()  # those of the loops whose bodies are traced
    _number = DEFAULT_SEED  # the last seed of torch.manual_seed

    def __init__(self, key: Any) -> None:
        self._key = self._root = jax.random.key(key) if isinstance(key, int) else key
        self._count = 0

    def __enter__(self) -> Self:
        self._token = _current.set(_Open(self, find_program()))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def next(self, generator: Any = None) -> Any:
        """Return a key that was not used before, or the next one of a generator's seed."""
        if generator is None:
            self._count += 1
            return jax.random.fold_in(self._key, self._count)
        serial, number, count, depth = self._streams.get(generator, (0, *generator.start, 0))
        self._streams = {**self._streams, generator: (serial, number, count + 1, depth)}
        key = _fold_seed(self._root, number)
        for iteration in self._iterations[depth:]:
            key = jax.random.fold_in(key, iteration)
        return jax.random.fold_in(key, count + 1)


class _Refusal(seed):
    """Block in which drawing random numbers raises."""

    def next(self, generator: Any = None) -> Any:
        raise NotSupported(
            "random numbers drawn within torch.vmap", "torch.vmap(f, randomness='same'), or draw them outside of f"
        )


@contextlib.contextmanager
def without_draws(refused: bool = True) -> Iterator[None]:
    """Make drawing random numbers raise in a block."""
    with _Refusal(0) if refused else contextlib.nullcontext():
        yield


def next_key(generator: Any = None) -> Any:
    """Return a new key of the present block, or of a generator in it.

    Raises:
        NotSupported: the call is not within a `seed` block.
    """
    found = _current.get()
    if found is None:
        raise NotSupported(
            "random numbers are drawn, and JAX's random numbers need a key",
            "call it within `with fnjax.torch.seed(key):`",
        )
    if not found.may_draw():
        raise NotSupported(
            "random numbers drawn in a function that JAX traces (jax.jit, jax.checkpoint, jax.lax.scan), from a key "
            "of a block around it: they would be the same for each key",
            "pass the key as an argument of that function, and open `with fnjax.torch.seed(key):` within it",
        )
    return found.block.next(generator)


class Stream:
    """Position in the sequence of a block's keys: code that is run again from there draws the same numbers.

    Programs that fnjax itself traces, such as a Function's forward or a loop, draw from it as well.

    Attributes:
        block: the block, or None where nothing can be drawn.
        has_drawn: whether the code that was run last from here, in `resume`, drew anything: not what other code drew.
    """

    has_drawn = False

    def __init__(self) -> None:
        found = _current.get()
        self.block = found.block if found is not None and found.may_draw() else None
        self._count = 0 if self.block is None else self.block._count
        self._streams = seed._streams if self.block is None else self.block._streams

    @property
    def key(self) -> Any:
        """The block's key; None where nothing can be drawn."""
        return None if self.block is None else self.block._key

    @property
    def is_used(self) -> bool:
        """True once anything was drawn in the block after this position, by whatever code."""
        return self.block is not None and self._is_passed(self.block)

    def _is_passed(self, block: seed) -> bool:
        return block._count > self._count or block._streams is not self._streams

    def resume(self, key: Any = None, iteration: Any = None) -> AbstractContextManager[None]:
        """Draw from here in a block.

        Args:
            key: the block's key as an operand of the program that is traced.
            iteration: of a loop, whose body is traced once.
        """
        return contextlib.nullcontext() if self.block is None else self._resume(self.block, key, iteration)

    @contextlib.contextmanager
    def _resume(self, own: seed, key: Any, iteration: Any) -> Iterator[None]:
        block = copy.copy(own)
        block._count, block._streams = self._count, self._streams
        if key is not None:
            block._key = block._root = key
        if iteration is not None:
            block._key = jax.random.fold_in(jax.random.fold_in(block._key, self._count + 1), iteration)
            block._iterations = (*own._iterations, iteration)
        with block:
            yield
        self.has_drawn = self._is_passed(block)
        own._count = max(own._count, block._count)
        if block._streams is not self._streams:
            own._streams = {**own._streams, **{g: max(s, own._streams.get(g, s)) for g, s in block._streams.items()}}


class State:
    """State of a seed block, or of a generator.

    Attributes:
        key: the key of the block; None without one, and for a generator.
        count: the number of keys drawn so far.
        number: the seed of the generator.
    """

    def __init__(self, key: Any, count: int, number: int = 0) -> None:
        self.key, self.count, self.number = key, count, number


jax.tree_util.register_pytree_node(
    State, lambda s: ((s.key,), (s.count, s.number)), lambda counts, keys: State(*keys, *counts)
)


def initial_seed() -> int:
    """Return the last seed of torch.manual_seed in the present block, or PyTorch's default."""
    found = _current.get()
    return DEFAULT_SEED if found is None else found.block._number


def find_stream(generator: Any) -> State:
    """Return the state of a generator in the present block."""
    found = _current.get()
    known = {} if found is None else found.block._streams
    _, number, count, _ = known.get(generator, (0, *generator.start, 0))
    return State(None, count, number)


def begin_stream(generator: Any, state: State) -> None:
    """Draw the numbers of a generator from a state on."""
    _check_state(state)
    refuse_in_branch(generator.serial, "a seed of a generator")
    generator.start = state.number, state.count
    found = _current.get()
    if found is not None:
        block = found.block
        entry = next_serial(), state.number, state.count, len(block._iterations)
        block._streams = {**block._streams, generator: entry}


def get_state(device: Any = None) -> State:
    """Return the state of the block's random numbers (torch.get_rng_state)."""
    found = _current.get()
    return State(None, 0) if found is None or not found.may_draw() else State(found.block._key, found.block._count)


def set_state(new_state: State, device: Any = None) -> None:
    """Draw the same random numbers again, from a state on (torch.set_rng_state)."""
    _check_state(new_state)
    if new_state.key is not None:
        _enter(new_state.key, new_state.count)


def _check_state(state: Any) -> None:
    """Raise a TypeError if a value is no state."""
    if not isinstance(state, State):
        raise TypeError(f"expected a state of torch.get_rng_state or get_state, got {type(state).__name__}")


def _enter(key: Any, count: int) -> None:
    """Draw from a key until the enclosing block ends."""
    found = _current.get()
    block = seed(key)
    block._count = count
    if found is not None:
        block._root, block._streams, block._iterations = (
            found.block._root,
            found.block._streams,
            found.block._iterations,
        )
    block.__enter__()


def restart(number: int) -> None:
    """Draw the random numbers of a seed of torch.manual_seed from here on; they depend on the block's key as well.

    Raises:
        NotSupported: the call is not within a `seed` block.
    """
    found = _current.get()
    if found is None or not found.may_draw():
        raise NotSupported(
            "torch.manual_seed sets a global state, which JAX has not", "call within `with fnjax.torch.seed(key):`"
        )
    _enter(_fold_seed(found.block._root, number), 0)
    _current.get().block._number = number  # type: ignore[union-attr] # that of _enter


def _fold_seed(key: Any, number: int) -> Any:
    """Return the key of a seed of 64 bits."""
    key = jax.random.fold_in(key, 0)  # draws count from 1
    for half in (number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF):
        key = jax.random.fold_in(key, half)
    return key


@contextlib.contextmanager
def fork(devices: Any = None, enabled: bool = True, **_: Any) -> Iterator[None]:
    """Leave the random numbers after a block as they were before it (torch.random.fork_rng)."""
    before = _current.get()
    count = 0 if before is None else before.block._count
    try:
        yield
    finally:
        if enabled:
            _current.set(before)
            if before is not None:
                before.block._count = count
