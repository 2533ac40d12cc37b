"""custom_fwd and custom_bwd, the decorators of torch.amp."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp

from fnjax._primitives.tree import is_tensor

F = TypeVar("F", bound=Callable[..., Any])


@overload
def custom_fwd(fwd: F, *, device_type: str | None = None, cast_inputs: Any = None) -> F: ...
@overload
def custom_fwd(*, device_type: str | None = None, cast_inputs: Any = None) -> Callable[[F], F]: ...


def custom_fwd(fwd: Any = None, *, device_type: str | None = None, cast_inputs: Any = None) -> Any:
    """Cast the floating point arguments of a `forward`, as `torch.amp.custom_fwd` does.

    Unlike PyTorch, which casts only in an autocast region, it always casts: JAX has no autocast. The gradients have the
    dtype of the arguments as they were given to `apply`.

    Args:
        fwd: the method; without it, a decorator is returned.
        device_type: accepted as in PyTorch, without effect.
        cast_inputs: the dtype to cast to; without it, nothing changes.

    Raises:
        ValueError: if `device_type` is not a string.

    Examples:
        >>> import jax.numpy as jnp, fnjax
        >>> class MatMul(fnjax.Function):
        ...     @staticmethod
        ...     @fnjax.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
        ...     def forward(ctx, a, b):
        ...         ctx.save_for_backward(a, b)
        ...         return a @ b
        ...     @staticmethod
        ...     @fnjax.custom_bwd(device_type="cuda")
        ...     def backward(ctx, grad_output):
        ...         a, b = ctx.saved_tensors
        ...         return grad_output @ b.T, a.T @ grad_output
        >>> MatMul.apply(jnp.ones((2, 2)), jnp.ones((2, 2))).dtype
        dtype(bfloat16)
    """
    _check_device_type(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    if cast_inputs is None:
        return fwd

    @functools.wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return fwd(*jax.tree.map(cast, args), **jax.tree.map(cast, kwargs))

    def cast(leaf: Any) -> Any:
        is_floating = is_tensor(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(cast_inputs) if is_floating else leaf

    return forward


@overload
def custom_bwd(bwd: F, *, device_type: str | None = None) -> F: ...
@overload
def custom_bwd(*, device_type: str | None = None) -> Callable[[F], F]: ...


def custom_bwd(bwd: Any = None, *, device_type: str | None = None) -> Any:
    """Accept a `backward` as it is: `torch.amp.custom_bwd` restores an autocast state that JAX does not have.

    Raises:
        ValueError: if `device_type` is not a string.
    """
    _check_device_type(device_type)
    return functools.partial(custom_bwd, device_type=device_type) if bwd is None else bwd


def _check_device_type(device_type: object) -> None:
    if device_type is not None and not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
