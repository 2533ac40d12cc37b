"""The methods of a class, and what to say when one of them fails."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from fnjax._call.ctx import FunctionCtx
from fnjax._call.signature import Arguments, Parameters
from fnjax._errors import (
    BatchingError,
    ClosureError,
    DefinitionError,
    FnjaxError,
    GradientError,
    IntermediateError,
    MissingMethodError,
    error,
    location,
)
from fnjax._jax.rule import Trouble
from fnjax._jax.trees import has_leaf, is_tracer

Method = Callable[..., Any]


class Methods(NamedTuple):
    """The class of a Function as the lowering sees it; `Function` fills it in.

    Attributes:
        name: the name of the class.
        ctx: the class of its ctx.
        forward: the method, as looked up on the class.
        parameters: those of forward.
        setup_context: the method, or None in the style `forward(ctx, ...)`.
        backward: the method (`backward` or `vjp`), or None.
        jvp: the method, or None.
        vmap: the method, or None.
        pytree: whether containers are traversed.
        single_access: PyTorch's `clear_saved_tensors_on_access`.
        boxed: PyTorch's `boxed_grads_call`.
        generate_vmap_rule: PyTorch's flag; JAX batches without it.
        checkpoint_name: the name of what is saved, for remat policies.
        derive_jvp: whether forward mode may use the transpose of backward.
    """

    name: str
    ctx: type[FunctionCtx]
    forward: Method
    parameters: Parameters
    setup_context: Method | None
    backward: Method | None
    jvp: Method | None
    vmap: Method | None
    pytree: bool
    single_access: bool
    boxed: bool
    generate_vmap_rule: bool
    checkpoint_name: str
    derive_jvp: bool


def trouble(methods: Methods, what: Trouble) -> FnjaxError:
    """The error for what went wrong below the line, in the user's words."""
    name = methods.name
    if what == "closure":
        return error(
            ClosureError,
            f"{name} uses an array from outside that is being differentiated, or that belongs to a trace which "
            "has ended",
            "closure",
            method=methods.forward,
            expected="every array with a gradient among the arguments of apply",
            fix=f"pass the array to {name}.apply as an argument; jax.lax.stop_gradient makes it a constant; "
            "arrays on ctx must lie in attributes, lists, dicts or registered pytrees",
        )
    if what == "forward mode":
        return error(
            MissingMethodError,
            f"You must implement the jvp function for custom autograd.Function to use it with forward mode AD. "
            f"({name} has only a backward)",
            "forward-mode",
            method=methods.forward,
            got="jax.jvp, jax.jacfwd or jax.linearize on it",
            fix=f"add a static method jvp(ctx, *tangents) to {name}, or set derive_jvp = True to have it derived from "
            "backward; or use reverse mode: jax.grad, jax.vjp, jax.jacrev",
        )
    if what == "not linear":
        return error(
            MissingMethodError,
            f"{name}.backward (or its jvp) is not linear in what it is given, so its transpose, which forward mode "
            "(or reverse mode) needs here, does not exist",
            "not-linear",
            method=methods.backward,
            expected="sums, products with saved values, indexing: operations that JAX can transpose",
            fix="take the derivative in reverse mode (jax.jacrev(jax.grad(f)) for a Hessian), or write "
            f"{name}.jvp beside {name}.backward",
        )
    if what == "intermediate":
        return error(
            IntermediateError,
            f"{name} saved an intermediate value whose own derivative a second derivative needs, and JAX cannot "
            "differentiate the operations that made it",
            "intermediate",
            method=methods.forward,
            expected="a forward that JAX can differentiate, or saved values that are inputs or outputs",
            fix="return the intermediate as an extra output and save that; backward then gets its gradient",
        )
    if what == "shares and totals":
        return error(
            GradientError,
            f"{name}.backward adds, in the gradient of an argument that devices share, what comes from an output that "
            "varies over the devices and from one that does not; only the first is to be summed over them",
            "shares-and-totals",
            method=methods.backward,
            expected="inside shard_map, outputs that vary over the same mesh axes",
            fix=f"split {name} into two Functions, or make its outputs vary alike with jax.lax.pcast(y, axis, "
            "to='varying') in forward",
        )
    if what == "varying callback":
        return error(
            GradientError,
            f"{name} calls back to Python inside shard_map with what varies over the devices, and JAX takes the result "
            "for one that is the same on all of them: its gradient would be summed over the devices",
            "varying-callback",
            method=methods.forward,
            expected="a result that says over which mesh axes it varies",
            fix="write jax.lax.pcast(jax.pure_callback(...), axis, to='varying'), or shard_map(..., check_vma=False)",
        )
    if what == "vmap intermediate":
        return error(
            BatchingError,
            f"{name}.forward saves an intermediate value, and {name}.vmap does not say how to batch it",
            "vmap-intermediate",
            method=methods.vmap,
            expected="saved inputs and outputs only, beside forward(ctx, ...) with a vmap static method",
            fix="split forward into forward(...) and setup_context(ctx, inputs, output), and save there",
        )
    return error(
        DefinitionError,
        f"{name}.forward returned other outputs (number, shapes or dtypes) when its inputs were differentiated",
        "outputs-change",
        method=methods.forward,
        fix="let the outputs not depend on ctx.needs_input_grad",
    )


def missing_backward(methods: Methods) -> FnjaxError:
    """The error for a class that has no derivative at all."""
    return error(
        MissingMethodError,
        "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
        f"backward mode AD. ({methods.name})",
        "no-backward",
        method=methods.forward,
        fix=f"add a static method backward(ctx, *grad_outputs) to {methods.name}",
    )


# How code that was written for torch.Tensor fails on an array.
_TORCH_HABITS = re.compile(
    r"unexpected keyword argument '(dim|keepdim|unbiased|non_blocking)'|as a data type|must be Tensor"
    r"|'int' object is not callable|'dtype\[?.* object is not callable|'tuple' object is not callable"
)
_CONCRETE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class explained:  # noqa: N801 - used as a function; a class costs a third of a generator
    """Add to JAX's errors about tracers which Function they come from, and what to write instead."""

    __slots__ = ("_where",)

    def __init__(self, methods: Methods, arguments: Arguments, method: Method, operands: Sequence[Any]) -> None:
        self._where = methods, arguments, method, operands

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, traceback: object) -> None:
        if isinstance(e, Exception):
            explain(e, *self._where)


def explain(e: Exception, methods: Methods, arguments: Arguments, method: Method, operands: Sequence[Any]) -> None:
    """Add a note to an error that a user's method raised; raise another in its place where fnjax knows better."""
    if isinstance(e, jax.errors.UnexpectedTracerError):
        raise trouble(methods, "closure") from e
    if isinstance(e, FnjaxError) or not isinstance(e, (*_CONCRETE_ERRORS, TypeError, IndexError, AttributeError)):
        return
    text, ctx = str(e), methods.ctx.__name__
    if isinstance(e, _CONCRETE_ERRORS) or "concrete" in text or "static" in text:
        e.add_note(_hint(methods, arguments, method, operands))
    elif ctx in text:
        e.add_note(
            f"A {ctx} is the ctx of {methods.name}: the first argument of forward (unless there is a "
            f"setup_context) and of backward. {location(method)}"
        )
    elif isinstance(e, AttributeError) and hasattr(e.obj, "aval"):
        e.add_note(
            f"{method.__qualname__} gets JAX arrays, which have NumPy's methods and not PyTorch's; see "
            f"docs/coming-from-pytorch.md for what to write instead of .{e.name}. {location(method)}"
        )
    elif isinstance(e, AttributeError) and isinstance(e.obj, int | float):
        e.add_note(
            f"{method.__qualname__} gets Python numbers as they are; call {methods.name}.apply with "
            f"jnp.asarray(number) to have an array (and a gradient). {location(method)}"
        )
    elif isinstance(e, TypeError) and _TORCH_HABITS.search(text):
        e.add_note(
            f"{method.__qualname__} gets JAX arrays, which have NumPy's methods (x.size is a number, "
            "x.sum(axis=0, keepdims=True), x.reshape(-1)), and functions of torch do not take them; see "
            f"docs/coming-from-pytorch.md. {location(method)}"
        )


def _hint(methods: Methods, arguments: Arguments, method: Method, operands: Sequence[Any]) -> str:
    scalars = [  # of forward only: backward has no operands at hand
        arguments.name(i)
        for i, a in enumerate(arguments.each if operands else ())
        if a.kind == "tensor" and is_tracer(operands[a.start]) and operands[a.start].ndim == 0
    ]
    numbers = (
        f"If {' or '.join(scalars)} was a Python number, a transformation made it an array: keep it static with "
        "jax.jit(..., static_argnums=...), or close over it. "
        if scalars
        else ""
    )
    return (
        f"{method.__qualname__} needs the value of an array that is being traced (by jit, vmap, scan, remat or a "
        f"second derivative). {numbers}"
        "Choose between values with jnp.where or jax.lax.cond; call NumPy through jax.pure_callback; or call "
        f"{methods.name}.apply outside jax.jit. See docs/errors.md#traced-value.\n{location(method)}"
    )


def captures_tracers(value: Any, depth: int = 4) -> bool:
    """Whether a function has a tracer in its closure or defaults, or calls one that has."""
    function = value.__func__ if isinstance(value, types.MethodType | staticmethod | classmethod) else value
    if not isinstance(function, types.FunctionType) or not depth:
        return False
    return any(has_leaf(v, is_tracer) or captures_tracers(v, depth - 1) for v in captured(function))


def captured(function: types.FunctionType) -> list[Any]:
    """What a function finds in its closure and defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*cells, *(function.__defaults__ or ()), getattr(function, "__wrapped__", None)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the access is the question
    except ValueError:
        return False
    return True
