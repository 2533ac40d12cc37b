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
from fnjax._primitives.rule import Arrays, Needs
from fnjax._primitives.sharding import make_zeros
from fnjax._primitives.tree import Split, is_array, is_ref, is_tensor, split, to_tensor
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


def in_backward(is_one: bool) -> AbstractContextManager[None]:
    """Mark the block as part of a backward, or of a forward that is being differentiated.

    Outside shard_map nothing is marked: only its collectives read the mark, and each operation would be compiled twice.
    """
    return IN_BACKWARD(is_one) if jax.sharding.get_abstract_mesh().manual_axes else nullcontext()


def call_backward(facts: BackwardSpec, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
    """Compute the vjp with the user's backward: residuals, cotangents → gradients of the operands; None means zero."""
    spec = facts.spec
    assert spec.backward is not None
    ctx = facts.saved.restore(spec, residuals)
    given = [_grad_output(facts.saved, *c) for c in zip(cotangents, facts.outputs, facts.differentiable, strict=True)]
    grad_outputs = facts.form.gradients(given)
    try:
        with in_backward(True):
            returned = spec.backward(ctx, *([grad_outputs] if spec.options.boxed_grads_call else grad_outputs))
    except Exception as e:
        annotate(e, spec, facts.arguments, spec.backward, (), len(facts.saved.tensors))
        raise
    return _take_gradients(facts, returned)


def _grad_output(saved: Saved, ct: Any, aval: Any, differentiable: bool) -> Any:
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


def _take_gradients(facts: BackwardSpec, returned: Any) -> Arrays:
    """Return the gradients of the operands from what backward returned."""
    spec, arguments = facts.spec, facts.arguments
    grads = returned if isinstance(returned, tuple) else (returned,)
    n = len(arguments.each)
    if len(grads) < n or any(g is not None for g in grads[n:]):
        raise _wrong_number(facts, n, returned)
    # The user counts one gradient for each argument; a pytree argument is several operands, a static one none.
    result: Arrays = [None] * len(facts.operands)
    for i, argument in enumerate(arguments.each):
        grad = grads[i]
        if argument.kind == "tensor":
            result[argument.start] = _take_gradient(facts, grad, argument.start, i, "")
        elif argument.kind == "tree" and argument.split is not None and argument.split.n_arrays:
            _take_tree(facts, grad, argument.split, argument.start, i, result)
        elif grad is not None:
            raise gradient_for_static(spec.backward, spec.name, arguments.name(i), i, grad)
    if all(g is None for g in grads) and not any(map(is_ref, facts.operands)):  # a Ref may hold them
        _warn_of_no_gradients(facts)
    return result


def _wrong_number(facts: BackwardSpec, n: int, returned: Any) -> GradientError:
    """Build the error for too few or too many gradients."""
    spec, arguments = facts.spec, [facts.arguments.parameters.name(i) for i in range(n)]
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


def gradient_for_static(method: Method | None, name: str, argument: str, index: int, grad: object) -> GradientError:
    """Build the error for a gradient of an argument that holds no array; operators have it, too."""
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


def _warn_of_no_gradients(facts: BackwardSpec) -> None:
    """Warn that backward returned None for every argument.

    A missing `return` would otherwise train silently, with zero gradients.
    """
    spec, arguments = facts.spec, facts.arguments
    needed = arguments.needed(facts.needs)
    assert spec.backward is not None
    warn(
        f"{spec.name}.backward returned None for every argument, and {' and '.join(map(arguments.name, needed))} "
        f"{'needs' if len(needed) == 1 else 'need'} a gradient: it counts as zero. If a `return` is missing, add it; "
        "if the gradient is zero, return jnp.zeros_like of the argument, or jax.lax.stop_gradient of it to apply. "
        f"{location(spec.backward)}"
    )


def _take_tree(facts: BackwardSpec, grad: Any, form: Split, start: int, index: int, result: Arrays) -> None:
    """Put the gradients of a pytree argument into the result."""
    if grad is None:
        return
    leaves = form.match(grad)
    if leaves is None:
        name = facts.arguments.name(index)
        raise error(
            GradientError,
            f"{facts.spec.name}.backward returned a gradient of another structure for {name}",
            "gradient-structure",
            method=facts.spec.backward,
            expected=f"None, or {form}",
            got=str(split(grad)[1]),
            fix="return a container like the argument, None in place of whatever has no gradient",
        )
    for i, leaf in enumerate(leaves):
        result[start + i] = _take_gradient(facts, leaf, start + i, index, f", leaf {i}")


def _take_gradient(facts: BackwardSpec, grad: Any, operand: int, index: int, leaf: str) -> Any:
    """Bring one gradient to the shape and dtype of its argument, as PyTorch's engine does."""
    aval = facts.operands[operand]
    if grad is None or not facts.needs[operand]:
        if grad is not None and is_ref(aval):
            raise _ref_gradient(facts, index, grad)
        return None
    spec, backward = facts.spec, facts.spec.backward
    if not is_array(grad):
        if not is_tensor(grad) or is_ref(grad):
            name = f"{facts.arguments.name(index)}{leaf}"
            refuse_torch(grad, f"the gradient for {name} of {spec.name}")
            fix = "return an array; a number times jnp.ones_like(grad_output) is one"
            if isinstance(grad, (list, tuple)):
                fix = (
                    "return a tuple with an array or None for each argument of forward, and no list or tuple inside it"
                )
            raise error(
                GradientError,
                f"{spec.name}.backward: expected Variable or None (got {type_name(grad)}) for {name}",
                "gradient-type",
                method=backward,
                expected=f"an array of shape {aval.shape}, or None",
                got=describe(grad),
                fix=fix,
            )
        grad = to_tensor(grad)
    if grad.shape != aval.shape:
        grad = _sum_to_size(facts, grad, aval.shape, index, leaf)
    # JAX requires a cotangent of exactly the argument's type, and a weak type is a different one.
    if grad.dtype == aval.dtype and not grad.weak_type:
        return jnp.conj(grad) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else grad
    is_complex = jnp.issubdtype(aval.dtype, jnp.complexfloating)
    if jnp.issubdtype(grad.dtype, jnp.complexfloating) and not is_complex:
        raise error(
            GradientError,
            f"{spec.name}.backward returned a complex gradient for {facts.arguments.name(index)}{leaf}, which is real",
            "complex-gradient",
            method=backward,
            expected=f"dtype {aval.dtype} (PyTorch: isFloatingType(grad) || (input_is_complex == grad_is_complex))",
            got=f"dtype {grad.dtype}",
            fix="return grad.real",
        )
    grad = grad.astype(aval.dtype)
    return jnp.conj(grad) if is_complex else grad


def _ref_gradient(facts: BackwardSpec, index: int, grad: object) -> GradientError:
    return error(
        GradientError,
        f"{facts.spec.name}.backward returned a gradient different than None at position {index + 1}, but "
        f"{facts.arguments.name(index)} is a Ref, which has no gradient",
        "ref-gradient",
        method=facts.spec.backward,
        expected="None in its place",
        got=describe(grad),
        fix="write to the Ref in backward, as in ctx.ref[...] += gradient, and return None",
    )


def _sum_to_size(facts: BackwardSpec, grad: Any, shape: tuple[int, ...], index: int, leaf: str) -> Any:
    """Sum a gradient over the axes that broadcasting added, as PyTorch's sum_to_size does."""
    extra = grad.ndim - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, grad.shape[extra:], strict=True)):
        raise error(
            GradientError,
            f"{facts.spec.name}.backward returned an invalid gradient at index {index} - got "
            f"{list(grad.shape)} but expected shape compatible with {list(shape)}",
            "gradient-shape",
            method=facts.spec.backward,
            expected=f"the shape of {facts.arguments.name(index)}{leaf}, {shape}, or one that it broadcasts to",
            got=f"shape {grad.shape}",
            fix="sum over the axes that forward broadcast; jnp.broadcast_to(grad, shape) where it is smaller",
        )
    # A leading axis added by broadcasting is summed away, an expanded one is summed to size 1.
    grown = [extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1]
    return grad.sum((*range(extra), *grown), keepdims=True).reshape(shape)
