"""Decorators of methods: once_differentiable, and custom_fwd and custom_bwd of torch.amp."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp

from fnjax._function.ctx import FunctionCtx, arrays_of, map_arrays
from fnjax._function.spec import ONCE
from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax._primitives.tree import is_tensor, map_leaves, split, to_tensor
from fnjax.errors import OnceDifferentiableError, error

F = TypeVar("F", bound=Callable[..., Any])


def once_differentiable(fn: F) -> F:
    """Mark a `backward` that must not be differentiated: a second derivative raises instead of being wrong.

    Unlike PyTorch, which silently drops the term in one of its two cases, it always raises.

    Examples:
        >>> import jax, fnjax
        >>> class Cube(fnjax.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x ** 3
        ...     @staticmethod
        ...     @fnjax.once_differentiable
        ...     def backward(ctx, grad_output):
        ...         x, = ctx.saved_tensors
        ...         return 3 * x ** 2 * grad_output
        >>> print(jax.grad(Cube.apply)(2.0))
        12.0
        >>> jax.grad(jax.grad(Cube.apply))(2.0)
        Traceback (most recent call last):
        ...
        fnjax.errors.OnceDifferentiableError: trying to differentiate twice ...
    """

    @functools.wraps(fn)
    def backward(*args: Any, **kwargs: Any) -> Any:
        return _call_once(fn, args, kwargs)

    setattr(backward, ONCE, True)
    return backward  # type: ignore[return-value]  # of the same signature


def _call_once(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a backward under stop_gradient, like PyTorch's no_grad; a derivative of what it returns raises an error."""
    leaves, rest = split(list(args), lambda x: isinstance(x, jax.Array | FunctionCtx))
    contexts = [x for x in leaves if isinstance(x, FunctionCtx)]
    arrays = [x for x in leaves if not isinstance(x, FunctionCtx)]
    kept = [leaf for ctx in contexts for leaf in arrays_of(ctx)]
    stop = jax.lax.stop_gradient
    stopped = [map_arrays(stop, x) if isinstance(x, FunctionCtx) else stop(x) for x in leaves]
    grads, result = split(fn(*rest.fill(stopped), **kwargs), is_tensor)
    if not grads:
        return result.fill([])
    # The equation outlives this trace, so it holds names, not the ctx.
    names = [f"{type(ctx).__name__.removesuffix('Backward')}.backward" for ctx in contexts]
    make_error = functools.partial(_differentiated_twice, fn, names)
    return result.fill(nondifferentiable([to_tensor(g) for g in grads], [*kept, *arrays], make_error))


def _differentiated_twice(method: Callable[..., Any], names: list[str]) -> OnceDifferentiableError:
    return error(
        OnceDifferentiableError,
        "trying to differentiate twice a function that was marked with @once_differentiable "
        f"({', '.join(names) or getattr(method, '__qualname__', repr(method))})",
        "once-differentiable",
        method=method,
        fix="remove @once_differentiable if backward is made of operations that JAX can differentiate",
    )


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
        return fwd(*cast(args), **cast(kwargs))

    def is_floating(leaf: Any) -> bool:
        return is_tensor(leaf) and jnp.issubdtype(to_tensor(leaf).dtype, jnp.floating)

    def cast(tree: Any) -> Any:
        return map_leaves(lambda x: to_tensor(x).astype(cast_inputs), tree, is_floating)

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
