"""Annotated errors: a note says which Function a user's error comes from and what to write instead."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._function.arguments import Arguments
from fnjax._function.rule_errors import build_error
from fnjax._function.spec import Method, Spec
from fnjax._primitives.tree import is_tracer
from fnjax.errors import AxisError, FnjaxError, location

# Errors of code that was written for torch.Tensor when it receives an array.
_TORCH_HABITS = re.compile(
    r"unexpected keyword argument '(dim|keepdim|unbiased|non_blocking)'|as a data type|must be Tensor"
    r"|'int' object is not callable|'dtype\[?.* object is not callable|'tuple' object is not callable"
    r"|array\.view\(\) is not supported|for 'order' argument: -?\d|select an axis to squeeze"
)
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
_OPERATORS |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# What to write instead of a method of torch.Tensor; of others jax.numpy's function of the same name, if there is one.
_INSTEAD = {
    **{name: f"x {sign} y" for name, sign in _OPERATORS.items()},
    **dict.fromkeys(("clone", "contiguous", "cpu", "cuda"), "x"),
    **dict.fromkeys(("mm", "bmm", "matmul"), "x @ y"),
    **{name: f"jax.nn.{name}(x)" for name in ("relu", "sigmoid")},
    **{name: f"jax.nn.{name}(x, axis)" for name in ("softmax", "log_softmax", "logsumexp")},
    **{name: f"jax.lax.{name}(x)" for name in ("rsqrt", "erf")},
    "clamp": "jnp.clip(x, min, max)",
    **dict.fromkeys(("data", "detach"), "jax.lax.stop_gradient(x)"),
    "dim": "x.ndim",
    "expand": "jnp.broadcast_to(x, shape)",
    "expand_as": "jnp.broadcast_to(x, y.shape)",
    "float": "x.astype(jnp.float32)",
    "gather": "jnp.take_along_axis(x, index, axis)",
    "half": "x.astype(jnp.float16)",
    "index_select": "jnp.take(x, index, axis)",
    "int": "x.astype(jnp.int32)",
    "is_cuda": 'jax.default_backend() == "gpu"',
    "long": "x.astype(int)",
    "masked_fill": "jnp.where(mask, value, x)",
    "median": "jnp.sort(x, axis), at (n - 1) // 2,",  # jnp.median averages two
    "narrow": "jax.lax.slice_in_dim(x, start, start + length, axis=axis)",
    "neg": "-x",
    "new_zeros": "jnp.zeros(shape, x.dtype)",
    "norm": "jnp.linalg.norm(x, axis=axis)",
    "numel": "x.size",
    "numpy": "x, or np.asarray(x) outside of jax.jit,",
    "permute": "x.transpose(axes)",
    "repeat_interleave": "jnp.repeat(x, n, axis)",
    "requires_grad": "ctx.needs_input_grad[i]",
    "select": "jnp.take(x, index, axis)",
    "size": "x.shape",
    "split": "jnp.split(x, range(n, x.shape[axis], n), axis)",
    "t": "x.T",
    "to": "x.astype(dtype), or leave .to out where it names a device,",
    "topk": "jax.lax.top_k(x, k)",
    "type_as": "x.astype(y.dtype)",
    "unsqueeze": "jnp.expand_dims(x, axis)",
    "view_as": "x.reshape(y.shape)",
    "where": "jnp.where(condition, x, y)",
}
# Errors where JAX needs the values of what it traces.
CONCRETE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
# Errors that may be about tracers, ctx or habits of PyTorch.
_ANNOTATED = (*CONCRETE_ERRORS, TypeError, IndexError, ValueError, AttributeError, NotImplementedError)


@contextlib.contextmanager
def annotated(
    spec: Spec, arguments: Arguments, method: Method, operands: Sequence[Any] = (), n_saved: int | None = None
) -> Iterator[None]:
    """Annotate the errors of a user's method that is called in the block, see `annotate`."""
    try:
        yield
    except Exception as e:
        annotate(e, spec, arguments, method, operands, n_saved)
        raise


def annotate(
    e: Exception,
    spec: Spec,
    arguments: Arguments,
    method: Method,
    operands: Sequence[Any] = (),
    n_saved: int | None = None,
) -> None:
    """Add a note to an error of a user's method, or raise a clearer one in its place.

    Args:
        e: the error.
        spec: of the Function.
        arguments: those of the call.
        method: the user's method that raised it.
        operands: those of forward, if available.
        n_saved: how many tensors `ctx.saved_tensors` holds, if the method reads them.

    Raises:
        FnjaxError: for a tracer that has leaked out of its transformation.
    """
    if isinstance(e, jax.errors.UnexpectedTracerError):
        raise build_error("closure", spec) from e
    if isinstance(e, AxisError) and not e.method:  # the innermost Function is named
        e.method = f"{spec.name}.{getattr(method, '__name__', 'forward')}"
        e.args = (f"{e.method}: {e}",)
    if not isinstance(e, FnjaxError) and isinstance(e, _ANNOTATED):
        scalars = [
            arguments.name(i)
            for i, a in enumerate(arguments.each if operands else ())
            if a.kind == "tensor" and is_tracer(operands[a.start]) and operands[a.start].ndim == 0
        ]
        if text := _write_note(e, spec, method, scalars, n_saved):
            e.add_note(text)
        lists = [arguments.name(i) for i, a in enumerate(arguments.each) if isinstance(a.static, list)]
        if lists and isinstance(e, TypeError):
            e.add_note(
                f"{' and '.join(lists)} of {spec.name}.apply is a list, which reaches forward as it is: where an array "
                f"is meant, pass jnp.asarray(...). {location(method)}"
            )


def _write_note(e: Exception, spec: Spec, method: Method, scalars: Sequence[str], n_saved: int | None) -> str:
    """Return the note to add to an error, or the empty string; `scalars` are the traced arguments without axes."""
    text, name, ctx = str(e), spec.name, spec.ctx.__name__
    unhashable = "not hashable" in text and "Tracer" in text  # a parameter of a JAX operation, such as jnp.tile's reps
    if isinstance(e, CONCRETE_ERRORS) or unhashable or "concrete" in text or "static" in text:
        numbers = (
            f"If {' or '.join(scalars)} was a Python number, a transformation made it an array: keep it static with "
            "jax.jit(..., static_argnums=...), or close over it. "
            if scalars
            else ""
        )
        return (
            f"{method.__qualname__} needs the value of an array that is being traced (by jit, vmap, scan, remat or a "
            f"second derivative). {numbers}"
            "Leave float(), int() and .item() out where an array will do; choose between values with jnp.where or "
            "jax.lax.cond; call NumPy through jax.pure_callback; or call "
            f"{name}.apply outside jax.jit. See `fnjax explain traced-value`.\n{location(method)}"
        )
    if ctx in text:
        return (
            f"{ctx} is the ctx of {name}: the first argument of forward (unless there is a "
            f"setup_context) and of backward. {location(method)}"
        )
    of_shape = isinstance(e, AttributeError) and isinstance(e.obj, tuple) and e.name == "numel"
    if isinstance(e, AttributeError) and (of_shape or hasattr(e.obj, "aval")):
        used = e.name or ""
        function = getattr(jnp, used, None)
        further = ", ..." if callable(function) and len(inspect.signature(function).parameters) > 1 else ""
        instead = _INSTEAD.get(used, f"jnp.{used}(x{further})" if function else "")
        if used.endswith("_") and not used.startswith("_"):
            instead = "an assignment, x = ..., since arrays do not change,"
        write = f"write {instead} for x.{used}; " if instead else ""
        return (
            f"{method.__qualname__} gets JAX arrays, which have NumPy's methods and not PyTorch's; "
            f"{write}see `fnjax explain torch-habits`. {location(method)}"
        )
    if isinstance(e, AttributeError) and isinstance(e.obj, int | float):
        return (
            f"{method.__qualname__} gets Python numbers as they are; call {name}.apply with "
            f"jnp.asarray(number) to have an array (and a gradient). {location(method)}"
        )
    if isinstance(e, TypeError | ValueError | NotImplementedError) and _TORCH_HABITS.search(text):
        return (
            f"{method.__qualname__} gets JAX arrays, which have NumPy's methods (x.size is a number, "
            "x.sum(axis=0, keepdims=True), x.reshape(3, 1) for view and flatten, x.squeeze(0) only where that axis has "
            "size 1), and functions of torch do not take them; see "
            f"`fnjax explain torch-habits`. {location(method)}"
        )
    if n_saved is not None and ("tuple index out of range" in text or "values to unpack" in text):
        return (
            f"If this is ctx.saved_tensors: it holds {n_saved} value{'s' * (n_saved != 1)}, what {name}.forward last "
            "gave to ctx.save_for_backward (for jvp: to ctx.save_for_forward). If this is ctx.needs_input_grad: it has "
            f"an entry for each argument of {name}.apply. {location(method)}"
        )
    if n_saved is not None and isinstance(e, TypeError) and "'tuple'" in text and "operand" in text:
        return (
            "ctx.saved_tensors is a tuple, also of one array: unpack it, `(x,) = ctx.saved_tensors`. "
            f"{location(method)}"
        )
    return ""
