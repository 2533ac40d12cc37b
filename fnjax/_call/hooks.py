"""saved_tensors_hooks: what is done to saved arrays between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from fnjax._messages.arguments import no_hook


class Hooks(NamedTuple):
    """A pair of hooks."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


_current: ContextVar[Hooks | None] = ContextVar("_current", default=None)


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """Change how arrays are kept between forward and backward, for Functions that are called in the block.

    `pack_hook` is given each array that `save_for_backward` saves (not what is set as an attribute of ctx), and what it
    returns is kept instead: a narrower dtype, a copy in host memory, any pytree. `unpack_hook` gets that in backward,
    also after the block, and returns the array that backward sees. Of nested blocks the innermost counts; each thread
    has its own.

    Unlike PyTorch, the hooks are in force while JAX traces: a function that `jax.jit` has traced keeps the hooks (or
    none) that it was traced with, inside the block and outside.

    Args:
        pack_hook: array → anything; JAX operations on the array.
        unpack_hook: what `pack_hook` returned → array.

    Raises:
        TypeError: if one of the two is not callable.

    Examples:
        >>> import jax, jax.numpy as jnp, fnjax
        >>> class Square(fnjax.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x ** 2
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         x, = ctx.saved_tensors
        ...         return grad_output * 2 * x
        >>> half = lambda x: x.astype(jnp.bfloat16)
        >>> with fnjax.saved_tensors_hooks(half, lambda kept: kept.astype(jnp.float32)):
        ...     _, pullback = jax.vjp(Square.apply, jnp.float32(3.0))
        >>> print(pullback(jnp.float32(1.0)))
        (Array(6., dtype=float32),)
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise no_hook(name, hook)
        self._hooks = Hooks(pack_hook, unpack_hook)
        self._tokens: list[Token[Hooks | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_current.set(self._hooks))

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())


def current_hooks() -> Hooks | None:
    """The hooks in force."""
    return _current.get()
