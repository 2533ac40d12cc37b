"""Function, the class that users derive from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from fnjax._function.apply import Apply, make_apply
from fnjax._function.ctx import FunctionCtx
from fnjax._function.spec import METHODS, Options, check_class, read_methods
from fnjax._primitives.tree import is_array
from fnjax.errors import DefinitionError, MissingMethodError, error


class Function(Options):
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
        linear: set to True if forward is linear in its differentiable arguments, together, and backward is its
            transpose. JAX then transposes and differentiates by these two: `jax.linear_transpose`, iterative solvers
            and every derivative work, whatever forward is made of. Integers, static values and arrays in containers
            are parameters of the linear map. What backward reads of ctx may depend on the parameters only.
    """

    __module__ = "fnjax"
    _base_methods: ClassVar[dict[str, Callable[..., Any]]]  # those below, which a class has not defined
    _ctx: ClassVar[type[FunctionCtx]]
    _apply: ClassVar[Callable[..., Any]]
    apply = Apply()
    """The Function as a plain JAX function, with the parameters of `forward` less `ctx`: one object for each class, for
    `jax.jit`, `jax.grad`, `jax.vmap` and the like. Outside every transformation it runs `forward` only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._ctx = type(f"{cls.__name__}Backward", (FunctionCtx,), {"__module__": cls.__module__})
        check_class(cls)
        cls._apply = make_apply(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if any(map(is_array, args)):  # functools.partial(F, ...), jax.vmap(F): PyTorch only warns
            name = type(self).__name__
            raise error(
                DefinitionError,
                f"{name} is a class and was called with arrays; methods on autograd functions are all static",
                "instances",
                fix=f"call {name}.apply(...); also functools.partial({name}.apply, ...), jax.vmap({name}.apply)",
            )
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should "
            "invoke them on the class itself. Instantiating an autograd function will raise an error in a future "
            "version of PyTorch.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: Functions are called through `apply`."""
        name = type(self).__name__
        raise error(
            DefinitionError,
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            f"function with static forward method. ({name})",
            "instances",
            fix=f"call {name}.apply(...)",
        )

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


Function._base_methods = dict(zip(METHODS, read_methods(Function), strict=True))
__test__ = {"Function": Function}  # doctest skips classes of another `__module__`


def _refuse_base_class(*_: Any, **__: Any) -> Any:
    raise error(
        MissingMethodError,
        "fnjax.Function is the base class and has no forward",
        "no-forward",
        fix="call apply of a class that derives from it and defines forward and backward",
    )


Function._apply = _refuse_base_class
