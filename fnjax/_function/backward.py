"""Call of the user's backward, and checks of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnjax._contexts import IN_BACKWARD
from fnjax._function.annotated_errors import annotate
from fnjax._function.arguments import Arguments
from fnjax._function.forward import Outputs
from fnjax._function.residuals import Saved
from fnjax._function.signature import refuse_torch
from fnjax._function.spec import Method, Spec
from fnjax._primitives.jax_internals import cast_to_type
from fnjax._primitives.rule import Arrays, Needs
from fnjax._primitives.sharding import make_zeros
from fnjax._primitives.tree import is_array, is_ref, is_tensor, split, to_tensor
from fnjax._primitives.types import Aval
from fnjax.errors import GradientError, describe, error, location, type_name, warn


class BackwardSpec(NamedTuple):
    """Types and static values of one run of forward, for backward and jvp; it holds no arrays.

    Attributes:
        spec: of the Function.
        arguments: those of the call, without their arrays.
        needs: for each operand whether it is being differentiated.
        operands: the types of the operands.
        form: the structure of forward's outputs.
        outputs: the types of the arrays in it.
        differentiable: which of these carry a gradient.
        saved: the contents of ctx, without arrays.
    """

    spec: Spec
    arguments: Arguments
    needs: Needs
    operands: list[Any]
    form: Outputs
    outputs: list[Any]
    differentiable: tuple[bool, ...]
    saved: Saved


def in_backward(is_backward: bool) -> AbstractContextManager[None]:
    """Mark the block as part of a backward, or of a forward that is being differentiated.

    Outside shard_map nothing is marked: only its collectives read the mark, and each operation would be compiled twice.
    """
    return IN_BACKWARD(is_backward) if jax.sharding.get_abstract_mesh().manual_axes else nullcontext()


def call_backward(backward_spec: BackwardSpec, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
    """Compute the vjp with the user's backward: residuals, cotangents → gradients of the operands; None means zero."""
    spec = backward_spec.spec
    assert spec.backward is not None
    ctx = backward_spec.saved.restore(spec, residuals)
    gradients = [
        _grad_output(backward_spec.saved, *c)
        for c in zip(cotangents, backward_spec.outputs, backward_spec.differentiable, strict=True)
    ]
    grad_outputs = backward_spec.form.gradients(gradients)
    captured: Sequence[Any] = ()
    try:
        with in_backward(True):
            if spec.codec is not None:
                returned, captured = spec.codec.backward(ctx, grad_outputs)
            else:
                returned = spec.backward(ctx, *([grad_outputs] if spec.options.boxed_grads_call else grad_outputs))
    except Exception as e:
        annotate(e, spec, backward_spec.arguments, spec.backward, (), len(backward_spec.saved.tensors))
        raise
    return _validate_gradients(backward_spec, returned, captured)


def _grad_output(saved: Saved, ct: Any, aval: Aval, differentiable: bool) -> Any:
    """Return the gradient that backward receives for an output, or None where it receives none.

    PyTorch's gradient of a complex value is the conjugate of JAX's cotangent.
    """
    if ct is not None:
        return jnp.conj(ct) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else ct
    if not saved.materialize or not (differentiable or saved.materialize_non_diff):
        return None
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a PRNG key has no zero
        return None
    return make_zeros(aval)


def _validate_gradients(backward_spec: BackwardSpec, returned: Any, captured: Sequence[Any]) -> Arrays:
    """Return the gradients of the operands from what backward returned, and those of the last arguments."""
    spec, arguments = backward_spec.spec, backward_spec.arguments
    grads = returned if isinstance(returned, tuple) else (returned,)
    n = len(arguments.each) - len(captured)
    if len(grads) < n or any(g is not None for g in grads[n:]):
        raise _wrong_number(backward_spec, n, returned)
    grads = (*grads[:n], *captured)
    # The user counts one gradient for each argument; a pytree argument is several operands, a static one none.
    result: Arrays = [None] * len(backward_spec.operands)
    for i, (gradient, argument) in enumerate(zip(grads, arguments.each, strict=False)):
        if argument.kind == "tensor":
            result[argument.start] = _as_cotangent(gradient, _Target(backward_spec, i, argument.start))
        elif argument.kind == "tree" and argument.start < argument.stop:
            result[argument.start : argument.stop] = _cotangents_of_tree(backward_spec, gradient, i)
        elif gradient is not None:
            more = "; `pytree = True` on the class gives containers a gradient" if spec.codec is None else ""
            raise gradient_for_static(spec.backward, spec.name, arguments.name(i), i, gradient, more)
    if all(g is None for g in grads) and not any(map(is_ref, backward_spec.operands)):  # a Ref may hold them
        _warn_of_no_gradients(backward_spec)
    return result


def _wrong_number(backward_spec: BackwardSpec, n: int, returned: Any) -> GradientError:
    """Build the error for too few or too many gradients."""
    spec, arguments = backward_spec.spec, [backward_spec.arguments.parameters.name(i) for i in range(n)]
    came = len(returned) if isinstance(returned, tuple) else 1
    fix = f"return a tuple of {n}" if n != 1 else "return the gradient by itself"
    if isinstance(returned, list) and len(returned) == n:
        fix = "return a tuple: a list counts as one gradient, as in PyTorch"
    elif n > 1 and isinstance(returned, tuple) and len(returned) == 1 and isinstance(returned[0], tuple):
        fix = f"return the tuple of {n} itself, not a tuple around it"
    elif n == 1 and isinstance(returned, tuple) and type(returned) is not tuple:
        fix = "put it into a tuple, (gradient,): a named tuple counts as several gradients"
    return error(
        GradientError,
        f"{spec.name}.backward returned an incorrect number of gradients (expected {n}, got {came})",
        "number-of-gradients",
        method=spec.backward,
        expected=f"one gradient for each argument of forward ({', '.join(arguments)}), None where there is none",
        got=describe(returned),
        fix=fix,
    )


def gradient_for_static(
    method: Method | None, name: str, argument: str, index: int, grad: object, more: str = ""
) -> GradientError:
    """Build the error for a gradient of an argument that holds no array; operators have it, too."""
    return error(
        GradientError,
        f"{name}.backward returned a gradient different than None at position {index + 1}, but "
        "the corresponding forward input was not a Variable",
        "gradient-for-static",
        method=method,
        expected=f"None for {argument}, which holds no array to differentiate",
        got=describe(grad),
        fix=f"return None there{more}",
    )


def _warn_of_no_gradients(backward_spec: BackwardSpec) -> None:
    """Warn that backward returned None for every argument.

    A missing `return` would otherwise train silently, with zero gradients.
    """
    spec, arguments = backward_spec.spec, backward_spec.arguments
    needed = arguments.needed(backward_spec.needs)
    assert spec.backward is not None
    warn(
        f"{spec.name}.backward returned None for every argument, and {' and '.join(map(arguments.name, needed))} "
        f"{'needs' if len(needed) == 1 else 'need'} a gradient: it counts as zero. If a `return` is missing, add it; "
        "if the gradient is zero, return zeros_like of the argument, or give apply the argument without its gradient "
        "(stop_gradient, detach). "
        f"{location(spec.backward)}"
    )


class _Target(NamedTuple):
    """Array to which a gradient belongs.

    Attributes:
        backward_spec: of the run of forward.
        position: that of its argument.
        operand: its position among the operands.
        leaf: its position in its argument, for messages.
    """

    backward_spec: BackwardSpec
    position: int
    operand: int
    leaf: str = ""

    @property
    def name(self) -> str:
        """The name of the argument, and where the array is in it."""
        return self.backward_spec.arguments.name(self.position) + self.leaf

    @property
    def aval(self) -> Any:
        """The type of the array."""
        return self.backward_spec.operands[self.operand]


def _cotangents_of_tree(backward_spec: BackwardSpec, gradient: Any, index: int) -> Arrays:
    """Return the cotangents of the arrays of a pytree argument."""
    argument = backward_spec.arguments.each[index]
    assert argument.split is not None
    if gradient is None:
        return [None] * argument.split.n_arrays
    leaves = argument.split.match(gradient)
    if leaves is None:
        name = backward_spec.arguments.name(index)
        raise error(
            GradientError,
            f"{backward_spec.spec.name}.backward returned a gradient of another structure for {name}",
            "gradient-structure",
            method=backward_spec.spec.backward,
            expected=f"None, or {argument.split}",
            got=str(split(gradient)[1]),
            fix="return a container like the argument, None in place of whatever has no gradient",
        )
    return [
        _as_cotangent(leaf, _Target(backward_spec, index, argument.start + i, f", leaf {i}"))
        for i, leaf in enumerate(leaves)
    ]


def _as_cotangent(gradient: Any, target: _Target) -> Any:
    """Return a gradient in the shape, dtype and convention of the cotangent of its array; None for zero.

    The steps are those of PyTorch's `validate_outputs`.

    Raises:
        GradientError: if it cannot be one.
    """
    backward_spec = target.backward_spec
    if gradient is None or not backward_spec.needs[target.operand]:
        if gradient is not None and is_ref(target.aval):
            raise _ref_gradient(gradient, target)
        return None
    aval = backward_spec.operands[target.operand]
    if not is_array(gradient):
        gradient = _as_array(gradient, target)
    if gradient.shape != aval.shape:
        gradient = _sum_to_size(gradient, target)
    # JAX requires a cotangent of exactly the argument's type, weak where that is.
    if gradient.dtype != aval.dtype or gradient.weak_type != aval.weak_type:
        gradient = _cast(gradient, target)
    # PyTorch's gradient of a complex value is the conjugate of JAX's cotangent.
    return jnp.conj(gradient) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else gradient


def _as_array(gradient: Any, target: _Target) -> Any:
    """Return a gradient as an array of JAX's."""
    if is_tensor(gradient) and not is_ref(gradient):
        return to_tensor(gradient)
    spec = target.backward_spec.spec
    refuse_torch(gradient, f"the gradient for {target.name} of {spec.name}")
    fix = "return an array; a number times ones_like(grad_output) is one"
    if isinstance(gradient, (list, tuple)):
        fix = "return a tuple with an array or None for each argument of forward, and no list or tuple inside it"
    raise error(
        GradientError,
        f"{spec.name}.backward: expected Variable or None (got {type_name(gradient)}) for {target.name}",
        "gradient-type",
        method=spec.backward,
        expected=f"an array of shape {target.aval.shape}, or None",
        got=describe(gradient),
        fix=fix,
    )


def _sum_to_size(gradient: Any, target: _Target) -> Any:
    """Sum a gradient over the axes that broadcasting added, as PyTorch's sum_to_size does."""
    spec, shape = target.backward_spec.spec, target.aval.shape
    extra = gradient.ndim - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[extra:], strict=True)):
        raise error(
            GradientError,
            f"{spec.name}.backward returned an invalid gradient at index {target.position} - got "
            f"{list(gradient.shape)} but expected shape compatible with {list(shape)}",
            "gradient-shape",
            method=spec.backward,
            expected=f"the shape of {target.name}, {shape}, or one that it broadcasts to",
            got=f"shape {gradient.shape}",
            fix=_write_remedy(gradient.shape, shape),
        )
    # A leading axis added by broadcasting is summed away, an expanded one is summed to size 1.
    grown = [extra + i for i, n in enumerate(shape) if n == 1 and gradient.shape[extra + i] != 1]
    return gradient.sum((*range(extra), *grown), keepdims=True).reshape(shape)


def _write_remedy(found: tuple[int, ...], due: tuple[int, ...]) -> str:
    """Write how a gradient gets the shape that is due."""
    if sorted(found) == sorted(due):
        return "its axes are in another order: transpose it, or return the gradients in the order of the arguments"
    if len(found) <= len(due) and all(n in (1, m) for n, m in zip(found[::-1], due[::-1], strict=False)):
        return f"forward summed over an axis: return jnp.broadcast_to(gradient, {due})"
    return "sum over the axes that forward broadcast, and return the gradients in the order of the arguments"


def _cast(gradient: Any, target: _Target) -> Any:
    """Cast a gradient to the dtype of its array."""
    spec, aval = target.backward_spec.spec, target.aval
    if jnp.issubdtype(gradient.dtype, jnp.complexfloating) > jnp.issubdtype(aval.dtype, jnp.complexfloating):
        raise error(
            GradientError,
            f"{spec.name}.backward returned a complex gradient for {target.name}, which is real",
            "complex-gradient",
            method=spec.backward,
            expected=f"dtype {aval.dtype} (PyTorch: isFloatingType(grad) || (input_is_complex == grad_is_complex))",
            got=f"dtype {gradient.dtype}",
            fix="return grad.real",
        )
    return cast_to_type(gradient, aval)


def _ref_gradient(gradient: object, target: _Target) -> GradientError:
    spec = target.backward_spec.spec
    return error(
        GradientError,
        f"{spec.name}.backward returned a gradient different than None at position {target.position + 1}, "
        f"but {target.name} is a Ref, which has no gradient",
        "ref-gradient",
        method=spec.backward,
        expected="None in its place",
        got=describe(gradient),
        fix="write to the Ref in backward, as in ctx.ref[...] += gradient, and return None",
    )
