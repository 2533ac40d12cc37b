"""Messages about the results of `forward`, `backward`, `jvp` and `vmap`.

`name` is the Function's, `method` the one at fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnjax._errors import (
    BatchingError,
    GradientError,
    OnceDifferentiableError,
    OutputError,
    describe,
    error,
    type_name,
)

Method = Callable[..., Any] | None


def container_output(method: Method, where: str, member: object, count: int) -> OutputError:
    """Build the error for an output that is a list or dict of arrays."""
    return error(
        OutputError,
        f"{where} is a {type_name(member)} that holds arrays; return a tuple",
        "container-output",
        method=method,
        expected="an array, or a tuple of arrays and static values",
        got=f"{type_name(member)} with {count} array(s); PyTorch would cut their gradients in silence",
        fix="return a tuple, or set `pytree = True` on the class to have containers traversed",
    )


def number_output(method: Method, name: str, number: object) -> OutputError:
    """Build the error for an output that is a Python number: its gradient would be zero."""
    return error(
        OutputError,
        f"{name}.forward returned no array but a Python number, and it is being differentiated",
        "number-output",
        method=method,
        expected="an array, or a tuple with an array in it",
        got=describe(number),
        fix="leave out float(...) and .item(): return the array of shape ()",
    )


# --- backward


def wrong_number_of_gradients(method: Method, name: str, arguments: list[str], returned: object) -> GradientError:
    """Build the error for too few or too many gradients."""
    n, came = len(arguments), len(returned) if isinstance(returned, tuple) else 1
    fix = f"return a tuple of {n}" if n != 1 else "return the gradient by itself"
    if isinstance(returned, list) and len(returned) == n:
        fix = "return a tuple: a list counts as one gradient, as in PyTorch"
    elif n > 1 and isinstance(returned, tuple) and len(returned) == 1 and isinstance(returned[0], tuple):
        fix = f"return the tuple of {n} itself, not a tuple around it"
    elif n == 1 and isinstance(returned, tuple) and type(returned) is not tuple:
        fix = "put it into a tuple, (gradient,): a named tuple counts as several gradients"
    return error(
        GradientError,
        f"{name}.backward returned an incorrect number of gradients (expected {n}, got {came})",
        "number-of-gradients",
        method=method,
        expected=f"one gradient for each argument of forward ({', '.join(arguments)}), None where there is none",
        got=describe(returned),
        fix=fix,
    )


def gradient_for_static(method: Method, name: str, argument: str, index: int, grad: object) -> GradientError:
    """Build the error for a gradient of an argument that holds no array."""
    return error(
        GradientError,
        f"{name}.backward returned a gradient different than None at position {index + 1}, but "
        "the corresponding forward input was not a Variable",
        "gradient-for-static",
        method=method,
        expected=f"None for {argument}, which holds no array to differentiate",
        got=describe(grad),
        fix="return None there; `pytree = True` on the class gives containers a gradient",
    )


def gradient_structure(method: Method, name: str, argument: str, expected: object, got: object) -> GradientError:
    """Build the error for a gradient of another structure than its container."""
    return error(
        GradientError,
        f"{name}.backward returned a gradient of another structure for {argument}",
        "gradient-structure",
        method=method,
        expected=f"None, or {expected}",
        got=str(got),
        fix="return a container like the argument, None in place of whatever has no gradient",
    )


def gradient_type(method: Method, name: str, argument: str, shape: object, grad: object) -> GradientError:
    """Build the error for a gradient that is not an array."""
    fix = "return an array; a number times jnp.ones_like(grad_output) is one"
    if isinstance(grad, (list, tuple)):
        fix = "return a tuple with an array or None for each argument of forward, and no list or tuple inside it"
    return error(
        GradientError,
        f"{name}.backward: expected Variable or None (got {type_name(grad)}) for {argument}",
        "gradient-type",
        method=method,
        expected=f"an array of shape {shape}, or None",
        got=describe(grad),
        fix=fix,
    )


def complex_gradient(method: Method, name: str, argument: str, expected: object, got: object) -> GradientError:
    """Build the error for a complex gradient of a real argument."""
    return error(
        GradientError,
        f"{name}.backward returned a complex gradient for {argument}, which is real",
        "complex-gradient",
        method=method,
        expected=f"dtype {expected} (PyTorch: isFloatingType(grad) || (input_is_complex == grad_is_complex))",
        got=f"dtype {got}",
        fix="return grad.real",
    )


def gradient_shape(
    method: Method, name: str, argument: str, index: int, expected: tuple[int, ...], got: tuple[int, ...]
) -> GradientError:
    """Build the error for a gradient to whose shape the argument's does not broadcast."""
    return error(
        GradientError,
        f"{name}.backward returned an invalid gradient at index {index} - got "
        f"{list(got)} but expected shape compatible with {list(expected)}",
        "gradient-shape",
        method=method,
        expected=f"the shape of {argument}, {expected}, or one that it broadcasts to",
        got=f"shape {got}",
        fix="sum over the axes that forward broadcast; jnp.broadcast_to(grad, shape) where it is smaller",
    )


def no_gradients(name: str, arguments: list[str]) -> str:
    """Return the warning about a backward that returned None for every argument that needs a gradient."""
    return (
        f"{name}.backward returned None for every argument, and {' and '.join(arguments)} "
        f"{'needs' if len(arguments) == 1 else 'need'} a gradient: it counts as zero. If a `return` is missing, "
        "add it; "
        "if the gradient is zero, return jnp.zeros_like of the argument, or jax.lax.stop_gradient of it to apply."
    )


def differentiated_twice(method: Method, names: list[str]) -> OnceDifferentiableError:
    """Build the error for a second derivative through `once_differentiable`."""
    return error(
        OnceDifferentiableError,
        "trying to differentiate twice a function that was marked with @once_differentiable "
        f"({', '.join(names) or getattr(method, '__qualname__', repr(method))})",
        "once-differentiable",
        method=method,
        fix="remove @once_differentiable if backward is made of operations that JAX can differentiate",
    )


# --- jvp


def wrong_number_of_tangents(method: Method, name: str, n: int, returned: object) -> GradientError:
    """Build the error for too few or too many tangents."""
    got = len(returned) if isinstance(returned, tuple) else 1
    fix = "return a tuple of that length, or the one tangent by itself"
    if isinstance(returned, list):
        fix = "return a tuple: a list counts as one tangent, as in PyTorch"
    return error(
        GradientError,
        f"{name}'s jvp returned an invalid number of forward gradients (expected {n} but got {got})",
        "number-of-tangents",
        method=method,
        expected=f"one tangent for each output of {name}.forward, None where there is none",
        got=describe(returned),
        fix=fix,
    )


def tangent_structure(method: Method, name: str, output: int, expected: object, got: object) -> GradientError:
    """Build the error for a tangent of another structure than its output."""
    return error(
        GradientError,
        f"{name}.jvp returned a tangent of another structure for output {output}",
        "tangent-structure",
        method=method,
        expected=str(expected),
        got=str(got),
        fix="return a container like the output, None in place of whatever has no tangent",
    )


def surplus_tangent(method: Method, name: str, output: int, tangent: object) -> GradientError:
    """Build the error for a tangent of an output that has no derivative."""
    return error(
        GradientError,
        f"{name}'s jvp returned a gradient at position {output}, but the corresponding forward "
        "output is not a differentiable Tensor. You should return None at that position instead.",
        "tangent-for-constant",
        method=method,
        expected="None",
        got=describe(tangent),
        fix="return None in its place",
    )


def tangent_type(method: Method, name: str, output: int, shape: object, tangent: object) -> GradientError:
    """Build the error for a tangent that is not an array."""
    return error(
        GradientError,
        f"{name}.jvp: expected Variable or None (got {type_name(tangent)}) for grad output {output}.",
        "tangent-type",
        method=method,
        expected=f"an array of shape {shape}, or None",
        got=describe(tangent),
        fix="return an array",
    )


def tangent_shape(
    method: Method, name: str, output: int, expected: tuple[int, ...], got: tuple[int, ...]
) -> GradientError:
    """Build the error for a tangent of another shape than its output."""
    return error(
        GradientError,
        "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
        f"not supported. Tensor is of size {list(expected)} while the given forward gradient is of size "
        f"{list(got)}. ({name}.jvp, output {output})",
        "tangent-shape",
        method=method,
        expected=f"shape {expected}",
        got=f"shape {got}",
        fix="return a tangent of the output's own shape; jnp.broadcast_to(tangent, shape) makes it larger",
    )


def complex_tangent(method: Method, name: str, output: int, expected: object, got: object) -> GradientError:
    """Build the error for a complex tangent of a real output."""
    return error(
        GradientError,
        f"{name}.jvp returned a complex tangent for output {output}, which is real",
        "tangent-type",
        method=method,
        expected=f"dtype {expected}",
        got=f"dtype {got}",
        fix="return tangent.real",
    )


# --- vmap


def vmap_and_generate(method: Method, name: str) -> BatchingError:
    """Build the error for a class with both a vmap method and `generate_vmap_rule`."""
    return error(
        BatchingError,
        f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an overridden vmap "
        "staticmethod. Please set generate_vmap_rule=False or delete the overridden vmap staticmethod to "
        "avoid ambiguity.",
        "vmap-and-generate",
        method=method,
        fix=f"delete {name}.vmap to have JAX batch forward and backward, or generate_vmap_rule to use it",
    )


def vmap_returns(method: Method, name: str, returned: object) -> BatchingError:
    """Build the error for a vmap method that did not return a pair."""
    came = f"{len(returned)} returns" if isinstance(returned, tuple) else f"a {type(returned)}"
    return error(
        BatchingError,
        f"Expected the vmap staticmethod to have two returns, an output and out_dims with pytree structure "
        f"compatible with the output. Got {came} instead ({name}.vmap)",
        "vmap-returns",
        method=method,
        got=describe(returned),
        fix="return output, out_dims; out_dims is the batch axis (a tuple of them for several outputs) or None",
    )


def vmap_out_dims(method: Method, name: str, out_dims: object, output: str) -> BatchingError:
    """Build the error for a vmap method whose out_dims do not match its output."""
    return error(
        BatchingError,
        f"The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) tuple. Expected "
        f"out_dims={out_dims} to be compatible with the structure of `output` ({name}.vmap)",
        "vmap-out-dims",
        method=method,
        expected="for each output the axis of its batch, or None",
        got=f"out_dims={out_dims} for {output}",
        fix="return as many out_dims as outputs, each the axis on which that output is batched",
    )
