"""Function, the class that users derive from."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from fnjax._errors import MissingMethodError
from fnjax._function.apply import apply as call_function
from fnjax._function.ctx import FunctionCtx
from fnjax._function.reader import FunctionMeta, Reader
from fnjax._function.spec import Options
from fnjax._messages.definitions import called_class, called_instance
from fnjax._primitives.tree import is_array


class _Apply:
    """Descriptor that returns the `apply` of the class, the same object at each lookup."""

    def __get__(self, instance: object, owner: type[Function]) -> Callable[..., Any]:
        return owner._apply


class Function(Options, metaclass=FunctionMeta):
    """Base of custom autograd Functions: PyTorch's class, with JAX operations in its methods.

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
        >>> square = Square.apply
        >>> print(jax.jit(jax.grad(square))(3.0))
        6.0
        >>> print(jax.grad(jax.grad(square))(3.0))
        2.0

    Attributes:
        pytree: set to True to have containers of arrays traversed, in and out; `ctx.needs_input_grad` and the
            gradients then have the structure of the arguments.
        clear_saved_tensors_on_access: as in PyTorch: `ctx.saved_tensors` may be read once.
        boxed_grads_call: as in PyTorch: `backward(ctx, grads)` gets one list.
        generate_vmap_rule: accepted as in PyTorch, without effect: JAX batches forward and backward without it.
        checkpoint_name: the name by which policies of `jax.checkpoint` refer to the residuals of this class
            (`jax.checkpoint_policies.save_only_these_names`); by default the name of the class.
        device_copies: set to True, as `fnjax port` does, if `backward` sums gradients over devices as PyTorch's
            processes do: inside `jax.shard_map` each device has its own copy of those outputs.
        derive_jvp: deprecated; accepted, without effect. Without a `jvp` forward mode is always the transpose of
            `backward`.
    """

    _ctx: ClassVar[type[FunctionCtx]]
    _apply: ClassVar[Callable[..., Any]]
    apply = _Apply()
    """The Function as a plain JAX function, with the parameters of `forward` less `ctx`: one object for each class, for
    `jax.jit`, `jax.grad`, `jax.vmap` and the like. Outside every transformation it runs `forward` only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._ctx = type(f"{cls.__name__}Backward", (FunctionCtx,), {"__module__": cls.__module__})
        cls._apply = _make_apply(cls, Reader(cls, Function))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if any(map(is_array, args)):  # functools.partial(F, ...), jax.vmap(F): PyTorch only warns
            raise called_class(type(self).__name__)
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should "
            "invoke them on the class itself. Instantiating an autograd function will raise an error in a future "
            "version of PyTorch.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: Functions are called through `apply`."""
        raise called_instance(type(self).__name__)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs: `forward(ctx, *args)`, or `forward(*args)` if there is a `setup_context`.

        Args:
            *args: a `FunctionCtx` (without a setup_context) that takes what backward needs, then the arguments of
                `apply`; arrays are JAX arrays, tracers under a transformation.
            **kwargs: keyword-only arguments; these take static values.

        Returns:
            An array, or a tuple of arrays and static values.
        """
        raise MissingMethodError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> Any:
        """Record what backward needs, in the style where forward takes no ctx.

        Args:
            ctx: a `FunctionCtx`.
            inputs: the arguments of forward, defaults filled in.
            output: what forward returned.
        """
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        """Compute a gradient for each argument of forward: `backward(ctx, *grad_outputs)`.

        Args:
            ctx: a `FunctionCtx` with what forward saved.
            *grad_outputs: for each output the gradient of the loss with respect to it, of the output's shape and
                dtype; zeros where the loss does not use it; None for outputs that are not arrays.

        Returns:
            An array or None for each argument, as a tuple, or a single one. A gradient that broadcast is summed to
            the shape of its argument and cast to its dtype.
        """
        raise MissingMethodError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """Compute a whole batch at once: `vmap(info, in_dims, *args)`. Without it JAX batches forward and backward.

        Args:
            info: `info.batch_size` is the size of the batch; `info.randomness` is "error".
            in_dims: for each argument the axis of its batch; None where it is the same for all examples or static.
            *args: the arguments of forward, arrays with their batch axis.

        Returns:
            A pair (output, out_dims): the batched output, and for each array its batch axis, or None.
        """
        raise NotImplementedError("vmap is not implemented.")

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Any) -> Any:
        """Compute the tangents of the outputs: `jvp(ctx, *tangents)`, for forward mode.

        Args:
            ctx: a `FunctionCtx`; its `saved_tensors` are the arrays of `save_for_forward`.
            *tangents: for each argument of forward its tangent, of its shape and dtype; zeros where it is not perturbed
                (None after `ctx.set_materialize_grads(False)`); None for static values and integers.

        Returns:
            For each output its tangent, or None where that is zero or the output has no derivative.
        """
        raise MissingMethodError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )


def _make_apply(cls: type[Function], reader: Reader) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        return call_function(reader.read(), args, kwargs)

    apply.__name__, apply.__qualname__ = cls.__name__, f"{cls.__qualname__}.apply"
    apply.__module__, apply.__doc__ = cls.__module__, cls.__doc__
    apply.__self__ = cls  # type: ignore[attr-defined]  # as PyTorch's apply, a class method, has it
    forward = reader.find("forward")
    if forward is not None:  # jax.jit(F.apply, static_argnames=...) reads it
        with contextlib.suppress(ValueError):  # a builtin without a signature
            signature = inspect.signature(forward)
            skipped = 0 if reader.find("setup_context") else 1
            apply.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect's own protocol
                parameters=list(signature.parameters.values())[skipped:]
            )
    return apply


Function.__module__ = "fnjax"
