"""CustomOpDef, a custom operator and its registrations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from fnjax._function.function import Function
from fnjax._op.binding import bind, take_results
from fnjax._op.derivative import make_function
from fnjax._op.registry import OPERATORS
from fnjax._op.running import PLATFORMS, Implementation, no_kernel
from fnjax._op.schema import Schema
from fnjax._primitives.jax_internals import is_transformed
from fnjax.errors import OperatorError, SchemaError, error

Method = Callable[..., Any]
Devices = str | Sequence[str] | None


class CustomOpDef:
    """Custom operator: a function with a schema and registered behaviour under JAX. `fnjax.custom_op` makes it.

    Attributes:
        schema: its parameters and results, in PyTorch's notation: `(Tensor x, float eps=1e-05) -> Tensor`.
    """

    def __init__(self, qualname: str, schema: Schema, fn: Method | None) -> None:
        self._qualname, self._schema_read, self._init_fn = qualname, schema, fn
        self._kernels: dict[str | None, Method] = {}
        self._disabled: set[str] = set()
        self._fake: Method | None = None
        self._backward: Method | None = None
        self._setup_context: Method | None = None
        self._vmap: Method | None = None
        self._composite: Method | None = None
        self._autograd: Method | None = None
        self._function: type[Function] | None = None
        self._is_staged = False
        self.__name__ = qualname.partition("::")[2]
        self.__qualname__ = qualname
        self.__module__ = getattr(fn, "__module__", type(self).__module__)
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__signature__ = schema.signature
        before = OPERATORS.get(qualname)
        OPERATORS[qualname] = self
        if before is not None:
            before._forget()

    @property
    def schema(self) -> str:
        """The parameters and results, in PyTorch's notation."""
        return self._schema_read.text

    @property
    def default(self) -> CustomOpDef:
        """The operator itself, as `torch.ops.<namespace>.<name>.default` is the overload without a name."""
        return self

    @property
    def is_differentiable(self) -> bool:
        """True if it has a derivative: register_autograd was called, or its body is differentiated."""
        return self._backward is not None or self._differentiated is not None

    @property
    def _differentiated(self) -> Method | None:
        """The body that JAX differentiates, or None; a body for all platforms is used only without other kernels."""
        return self._autograd or (None if self._kernels else self._composite)

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        overload = OPERATORS.get(f"{self._qualname}.{name}")
        if overload is None:
            spelled = self._qualname.replace("::", ".")
            raise AttributeError(f"The underlying op of '{spelled}' has no overload name '{name}'")
        return overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator with the arguments of its schema.

        Raises:
            OperatorError: (a RuntimeError) if an argument, or what the body returned, does not match the schema.
        """
        last = OPERATORS.get(self._qualname, self)
        return last._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema, qualname = self._schema_read, self._qualname
        given, keywords = bind(schema, qualname, args, kwargs)
        self._is_staged = self._is_staged or is_transformed()
        if (body := self._differentiated) is not None:
            returned = body(*given, **keywords)
            return take_results(schema, qualname, body, given, returned, who="register_fake")
        if self._function is None:
            self._function = make_function(self._implementation(), self._backward, self._setup_context, self._vmap)
        return self._function.apply(*given, keywords)

    def _implementation(self) -> Implementation:
        kernels = {k: v for k, v in self._kernels.items() if k not in self._disabled}
        if self._disabled and self._init_fn is not None:
            kernels.setdefault(None, self._init_fn)
        if self._composite is not None:
            kernels.setdefault(None, self._composite)
        if not kernels:
            raise no_kernel(self._qualname, jax.default_backend(), [])
        fake = self._fake
        if fake is None and not self._schema_read.returns:
            fake = functools.partial(_mutated, self._schema_read)
        name = getattr(self._init_fn, "__name__", self.__name__)
        return Implementation(self, self._qualname, self._schema_read, kernels, fake, name)

    def _forget(self) -> None:
        """Drop the Function and compiled programs after a registration: the last registration counts."""
        self._function = None
        if self._is_staged:
            self._is_staged = False
            jax.clear_caches()

    def _change(self) -> None:
        if OPERATORS.get(self._qualname) is not self:
            raise AssertionError(
                f"Library object has been destroyed: {self} was defined again; register with the later definition"
            )
        self._forget()

    def register_fake(self, fn: Method, /) -> Method:
        """Register the shapes and dtypes of the results; a traced body that needs concrete values requires it.

        Args:
            fn: takes the arguments of the operator and returns arrays like its results, whose values do not matter
                (`jnp.empty_like(x)`), or `jax.ShapeDtypeStruct`s. The results of a traced body are compared with it.

        Returns:
            `fn`, so that it may be a decorator.
        """
        self._change()
        self._fake = fn
        return fn

    def register_autograd(self, backward: Method, /, *, setup_context: Method | None = None) -> None:
        """Register the derivative.

        Args:
            backward: `backward(ctx, *grads)`, with a gradient for each result; returns one for each positional
                argument, None for non-arrays, a list for a list of arrays.
            setup_context: `setup_context(ctx, inputs, output)`, called by these names, with `keyword_only_inputs`
                before `output` where the operator has keyword-only arguments.

        Raises:
            OperatorError: if the operator mutates arguments.
        """
        if self._schema_read.mutated:
            raise error(
                OperatorError,
                f"Cannot register autograd formula for non-functional operator {self} with schema "
                f"{self._qualname + self.schema}. Please create a functional operator and register an autograd formula "
                "for that.",
                "operator-autograd",
            )
        self._change()
        self._backward, self._setup_context, self._autograd = backward, setup_context, None

    def register_kernel(self, device_types: Devices, fn: Method | None = None, /) -> Any:
        """Register a body for a platform, chosen when the program is lowered (outside jit by the device of the arrays).

        Args:
            device_types: "cpu", "gpu" ("cuda", "rocm") or "tpu", several of them, or None for all others.
            fn: the body; without it, a decorator is returned.

        Raises:
            OperatorError: for an unknown platform.
            SchemaError: if the operator has neither an array nor a device among its arguments.
        """
        platforms = _read_devices(device_types)
        if platforms != [None] and not any(p.type.base in ("Tensor", "Device") for p in self._schema_read.parameters):
            raise error(
                SchemaError,
                "Functions without tensor inputs are required to have a `device: jax.Device` argument "
                f"({self._qualname})",
                "operator-schema",
                fix="leave device_types out, or add the argument",
            )
        if fn is None:
            return functools.partial(self.register_kernel, device_types)
        self._change()
        self._kernels |= dict.fromkeys(platforms, fn)
        return fn

    def register_vmap(self, func: Method | None = None) -> Any:
        """Register the batching rule; without it JAX batches a traced body and calls another once per example.

        Args:
            func: `func(info, in_dims, *args, **kwargs)`, with `info.batch_size` and `info.randomness`, and in
                `in_dims` the batch axis of each argument or None; returns (output, out_dims). Without it, a decorator
                is returned.
        """
        if func is None:
            return self.register_vmap
        self._change()
        self._vmap = func
        return func

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Enable or disable the kernel of a platform in the block; if disabled, the first body is called."""
        before = set(self._disabled)
        platforms = {p for p in _read_devices(device_type) if p is not None}
        self._disabled = before - platforms if enabled else before | platforms
        self._forget()
        try:
            yield
        finally:
            self._disabled = before
            self._forget()

    def _register_differentiated(self, fn: Method, *, composite: bool) -> None:
        """Register a body that JAX differentiates: CompositeImplicitAutograd, or Autograd."""
        self._change()
        if composite:
            self._composite = fn
        else:
            self._autograd = fn


def _mutated(schema: Schema, *args: Any, **kwargs: Any) -> Any:
    """Return the mutated arguments: the fake of an operator without other results."""
    new = tuple(a for p, a in zip(schema.positional, args, strict=True) if p.mutated)
    return new if len(new) != 1 else new[0]


def _read_devices(devices: Devices) -> list[str | None]:
    """Return JAX's names of the platforms."""
    if devices is None:
        return [None]
    found: list[str | None] = []
    for device in [devices] if isinstance(devices, str) else devices:
        if device not in PLATFORMS:
            raise error(
                OperatorError,
                f"Expected one of {', '.join(PLATFORMS)} device type at start of device string: {device}",
                "operator-kernel",
            )
        found += PLATFORMS[device]
    return found


CustomOpDef.__module__ = "fnjax"
