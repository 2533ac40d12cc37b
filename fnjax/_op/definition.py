"""Definition of operators: custom_op, triton_op and Library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, overload

from fnjax._op.operator import CustomOpDef, Devices
from fnjax._op.registry import OPERATORS, WAITING
from fnjax._op.schema import infer, read_schema, unreadable_schema
from fnjax.errors import MissingMethodError, OperatorError, SchemaError, error

Method = Callable[..., Any]


@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Devices = None,
    schema: str | None = None,
) -> Callable[[Method], CustomOpDef]: ...
@overload
def custom_op(
    name: str,
    fn: Method,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Devices = None,
    schema: str | None = None,
) -> CustomOpDef: ...


def custom_op(
    name: str,
    fn: Method | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Devices = None,
    schema: str | None = None,
) -> Any:
    """Make a function a custom operator, as `torch.library.custom_op` does.

    A body of JAX operations is traced like any function. One that needs concrete values (NumPy, `if` on values) runs
    directly outside `jax.jit`, and as a callback under it; `register_fake` defines the shapes of its results.

    Examples:
        >>> import jax, jax.numpy as jnp, numpy as np, fnjax
        >>> @fnjax.custom_op("readme::cube", mutates_args=())
        ... def cube(x: jax.Array) -> jax.Array:
        ...     return jnp.asarray(np.asarray(x) ** 3)
        >>> @cube.register_fake
        ... def _(x):
        ...     return jnp.empty_like(x)
        >>> cube.register_autograd(lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
        ...                        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
        >>> print(jax.jit(jax.grad(cube))(2.0), fnjax.ops.readme.cube.schema)
        12.0 (Tensor x) -> Tensor

    Args:
        name: `namespace::name`; an operator of that name is replaced.
        fn: the body, annotated; without it, a decorator is returned.
        mutates_args: the names of the arguments that PyTorch's operator would mutate, or "unknown" for all arrays. JAX
            arrays do not change: body and register_fake return their new values after the operator's own results.
        device_types: the platform, or platforms, that the body is for; all by default.
        schema: the schema, if it is not to be inferred: `(Tensor x, float eps=1e-05) -> Tensor`.

    Returns:
        The operator, a function with `register_fake`, `register_autograd`, `register_vmap` and `register_kernel`.

    Raises:
        SchemaError: (a ValueError) if no schema can be inferred from the annotations.
        OperatorError: (a RuntimeError) if the name or the schema cannot be parsed.
    """
    if fn is None:
        return lambda fn: _define(name, fn, mutates_args, device_types, schema)
    return _define(name, fn, mutates_args, device_types, schema)


def _define(
    name: str, fn: Method, mutates_args: str | Iterable[str], device_types: Devices, text: str | None
) -> CustomOpDef:
    namespace, own = name.split("::")
    if text is None:
        schema = infer(fn, mutates_args)
    else:
        schema = read_schema(text)
        mutated = {p.name for p in schema.mutated}
        if mutated != set(mutates_args):
            raise error(
                SchemaError,
                f"Attempted to create a custom op with `mutates_args={mutates_args}` and `schema={text}`. The schema "
                f"suggests that the op mutates {mutated} which is different from what was provided to us in "
                "`mutates_args`. Please make these consistent.",
                "operator-schema",
            )
    _check_name(namespace, own)
    if any(p.type.is_tensor for p in schema.keyword_only):
        raise error(
            MissingMethodError,
            f"custom_op with kwarg-only Tensor args. Please make your tensors not kwarg-only. Got: {own + schema.text}",
            "operator-schema",
        )
    before = OPERATORS.get(name)
    operator = CustomOpDef(name, schema, fn)
    try:
        operator.register_kernel(device_types, fn)
    except Exception:
        if before is None:
            del OPERATORS[name]
        else:
            OPERATORS[name] = before
        raise
    return operator


def _check_name(namespace: str, name: str) -> None:
    """Check that namespace, name and overload are identifiers."""
    for part in (namespace, *name.split(".", 1)):
        if not re.fullmatch(r"[A-Za-z_]\w*", part):
            found = re.sub(r"^[A-Za-z_]\w*", "", part)[:1] or "the end"
            qualname = f"{namespace}::{name}"
            raise error(
                OperatorError,
                f"expected ident but found {found!r} here: {qualname}",
                "operator-schema",
                expected="{namespace}::{name}, each of letters, digits and underscores",
                got=repr(qualname),
            )


def triton_op(
    name: str, fn: Method | None = None, /, *, mutates_args: str | Iterable[str], schema: str | None = None
) -> Any:
    """Define a `custom_op` whose body launches Triton kernels (`fnjax.triton`), as `torch.library.triton_op` does.

    Args:
        name: as in `custom_op`.
        fn: as in `custom_op`.
        mutates_args: as in `custom_op`.
        schema: as in `custom_op`.

    Raises:
        SchemaError: as in `custom_op`.
    """
    return custom_op(name, fn, mutates_args=mutates_args, schema=schema)


def wrap_triton(triton_kernel: Any, /) -> Any:
    """Return a kernel unchanged: a launch of `fnjax.triton` can be traced without being wrapped.

    Args:
        triton_kernel: the result of `fnjax.triton.jit` or `autotune`.

    Raises:
        RuntimeError: for anything that is not a kernel.
    """
    if not hasattr(triton_kernel, "__getitem__"):
        raise RuntimeError("wrap_triton only works on functions annotated with triton.jit or triton.autotune")
    return triton_kernel


_KEYS = {"CPU": "cpu", "CUDA": "cuda", "XLA": "tpu", "CompositeExplicitAutograd": None}


class Library:
    """Namespace in which operators are defined by their schema, as in `torch.library.Library`.

    Examples:
        >>> import jax.numpy as jnp, jax, fnjax
        >>> library = fnjax.Library("mylib", "FRAGMENT")
        >>> library.define("square(Tensor x) -> Tensor")
        'square'
        >>> library.impl("square", lambda x: x * x, "CompositeImplicitAutograd")
        >>> print(jax.grad(fnjax.ops.mylib.square)(3.0))
        6.0

    Args:
        ns: the namespace.
        kind: "DEF", "FRAGMENT" or "IMPL".
        dispatch_key: the default of `impl`.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("DEF", "FRAGMENT", "IMPL"):
            raise ValueError(f"Unsupported kind: {kind}")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Define an operator without a body.

        Args:
            schema: its name and schema: `square(Tensor x) -> Tensor`.
            alias_analysis: accepted as in PyTorch, without effect.
            tags: accepted as in PyTorch, without effect.

        Returns:
            Its name.

        Raises:
            OperatorError: (a RuntimeError) if the schema cannot be parsed.
        """
        name, bracket, rest = schema.partition("(")
        name = name.strip()
        if not name:
            raise unreadable_schema(schema, "expected ident but found '(' here")
        read = read_schema(bracket + rest)
        _check_name(self.ns, name)
        operator = CustomOpDef(f"{self.ns}::{name}", read, None)
        for give_body in WAITING.pop(f"{self.ns}::{name}", ()):
            give_body(operator)
        return name

    def impl(self, op_name: Any, fn: Method, dispatch_key: str = "") -> None:
        """Register the body of an operator; one that is defined later receives it then.

        Args:
            op_name: its name, with or without the namespace, or the operator.
            fn: the body.
            dispatch_key: "CPU", "CUDA", "XLA" (a TPU), "CompositeExplicitAutograd" (all); "Meta" for what
                `register_fake` takes; "CompositeImplicitAutograd" (so, too, without one) or "Autograd" for a body
                that is differentiated.

        Raises:
            OperatorError: (a RuntimeError) for an unknown dispatch key.
            TypeError: if the body is not a function.
        """
        if not callable(fn):
            raise TypeError(f"Input function is required to be a callable but found type {type(fn)}")
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        if key != "Meta" and key not in _KEYS and not key.startswith(("CompositeImplicitAutograd", "Autograd")):
            keys = ", ".join((*_KEYS, "Meta", "CompositeImplicitAutograd", "Autograd"))
            what = f"could not parse dispatch key: {key}"
            raise error(OperatorError, what, "operator-schema", expected=f"one of {keys}", got=repr(key))

        def give_body(operator: CustomOpDef) -> None:
            if key == "Meta":
                operator.register_fake(fn)
            elif key in _KEYS:
                operator.register_kernel(_KEYS[key], fn)
            else:
                operator._register_differentiated(fn, composite=key.startswith("Composite"))

        qualname = f"{self.ns}::{str(op_name).rpartition('::')[2]}"
        operator = op_name if isinstance(op_name, CustomOpDef) else OPERATORS.get(qualname)
        if operator is None:
            WAITING.setdefault(qualname, []).append(give_body)
        else:
            give_body(operator)

    def _register_fake(self, op_name: str, fn: Method, **_: Any) -> None:
        """Register a fake; packages that serve models call this method of `torch.library.Library`."""
        self.impl(op_name, fn, "Meta")


Library.__module__ = "fnjax"
