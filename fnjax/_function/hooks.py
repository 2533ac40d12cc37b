"""saved_tensors_hooks and save_on_cpu: transformations of saved arrays between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnjax._contexts import HOOKS
from fnjax._primitives.identity import identify
from fnjax.errors import ArgumentError, error, type_name


class Hooks:
    """Pair of hooks; pairs of the same code with the same closures are equal, since they are keys of JAX's caches.

    Attributes:
        pack: array → packed value.
        unpack: packed value → array.
    """

    __slots__ = ("_hash", "_key", "pack", "unpack")

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack, self.unpack = pack, unpack
        self._key = identify((pack, unpack))
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hooks) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """Context manager that changes how Functions called in the block keep arrays between forward and backward.

    `pack_hook` receives each array that `save_for_backward` saves (not attributes of ctx), and its result is kept
    instead: a narrower dtype, a copy in host memory, any pytree. `unpack_hook` receives that in
    backward, also after the block, and returns the array for backward. Of nested blocks the innermost applies; each
    thread has its own.

    The hooks are part of the keys of JAX's caches: a function that `jax.jit` compiled without them, or with others, is
    traced and compiled again in the block. Functions with the same code and the same closure are the same hooks.

    Args:
        pack_hook: array → anything; JAX operations on the array.
        unpack_hook: the result of `pack_hook` → array.

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
                raise error(
                    ArgumentError,
                    f"saved_tensors_hooks: {name} is not callable",
                    "hooks",
                    expected="a function of one argument",
                    got=type_name(hook),
                    fix="pass two functions, saved_tensors_hooks(pack_hook, unpack_hook)",
                )
        self._hooks = pack_hook, unpack_hook
        self._blocks: list[Any] = []

    def __enter__(self) -> None:
        self._blocks.append(HOOKS(Hooks(*self._hooks)))
        self._blocks[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        self._blocks.pop().__exit__(*error)


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """Context manager that keeps saved arrays in the host's memory between forward and backward.

    These are `saved_tensors_hooks` that move arrays to `jax.memory.Space.Host` and back. The derivatives stay the same.

    Unlike PyTorch, the host's memory is always pinned, and only what Functions save is moved: for other operations
    there is `jax.checkpoint` with a policy that offloads (`jax.checkpoint_policies.save_and_offload_only_these_names`).

    Args:
        pin_memory: accepted, without effect.
        device_type: accepted, without effect: arrays come back to the device that computes.

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
        >>> with fnjax.save_on_cpu():
        ...     _, pullback = jax.vjp(Square.apply, jnp.float32(3.0))
        >>> {leaf.sharding.memory_kind for leaf in jax.tree.leaves(pullback)}
        {'pinned_host'}
        >>> print(pullback(jnp.float32(1.0)))
        (Array(6., dtype=float32),)
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(_to_host, _to_device)


saved_tensors_hooks.__module__ = save_on_cpu.__module__ = "fnjax"
__test__ = {x.__name__: x for x in (saved_tensors_hooks, save_on_cpu)}  # doctest skips classes of another `__module__`


def _to_host(array: Any) -> Any:
    return jax.device_put(array, jax.memory.Space.Host)


def _to_device(array: Any) -> Any:
    return jax.device_put(array, jax.memory.Space.Device)
