"""once_differentiable: a backward that must not be differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from fnjax._function.ctx import FunctionCtx, arrays_of, map_arrays
from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax._primitives.tree import is_tensor, split, to_tensor
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

    return backward  # type: ignore[return-value]  # of the same signature


def _call_once(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a backward under stop_gradient, like PyTorch's no_grad; a derivative of what it returns raises an error."""
    given, form = split(list(args), lambda x: isinstance(x, jax.Array | FunctionCtx))
    contexts = [x for x in given if isinstance(x, FunctionCtx)]
    arrays = [x for x in given if not isinstance(x, FunctionCtx)]
    kept = [leaf for ctx in contexts for leaf in arrays_of(ctx)]
    stop = jax.lax.stop_gradient
    stopped = [map_arrays(stop, x) if isinstance(x, FunctionCtx) else stop(x) for x in given]
    grads, result = split(fn(*form.fill(stopped), **kwargs), is_tensor)
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
