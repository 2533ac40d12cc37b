"""Call of the user's backward, and checks of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnjax._errors import location, warn
from fnjax._function.annotated_errors import explained
from fnjax._function.arguments import Arguments
from fnjax._function.outputs import Outputs
from fnjax._function.residuals import Saved
from fnjax._function.spec import Definition
from fnjax._messages.arguments import refuse_torch
from fnjax._messages.outputs import (
    complex_gradient,
    gradient_for_static,
    gradient_shape,
    gradient_structure,
    gradient_type,
    no_gradients,
    wrong_number_of_gradients,
)
from fnjax._messages.refs import ref_gradient
from fnjax._primitives.rule import Arrays, Needs
from fnjax._primitives.sharding import in_backward, make_zeros
from fnjax._primitives.tree import Split, flatten, is_ref, is_tensor, to_tensor


class Record(NamedTuple):
    """Types and static values of one run of forward, for backward and jvp; it holds no arrays.

    Attributes:
        definition: the class.
        arguments: those of the call, without their arrays.
        needs: for each operand whether it is being differentiated.
        operands: the types of the operands.
        form: the structure of forward's outputs.
        outputs: the types of the arrays in it.
        differentiable: which of these carry a gradient.
        saved: the contents of ctx, without arrays.
    """

    definition: Definition
    arguments: Arguments
    needs: Needs
    operands: list[Any]
    form: Outputs
    outputs: list[Any]
    differentiable: tuple[bool, ...]
    saved: Saved


def pull(record: Record, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
    """Compute the vjp with the user's backward: residuals, cotangents → gradients of the operands; None means zero."""
    definition = record.definition
    assert definition.backward is not None
    ctx = record.saved.restore(definition.make_ctx, residuals)
    given = [
        _grad_output(record.saved, *c) for c in zip(cotangents, record.outputs, record.differentiable, strict=True)
    ]
    grad_outputs = record.form.each(given, None)
    with (
        explained(definition, record.arguments, definition.backward, (), len(record.saved.tensors)),
        in_backward(True),
    ):
        returned = definition.backward(ctx, *([grad_outputs] if definition.options.boxed_grads_call else grad_outputs))
    return _take_gradients(record, returned)


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


def _take_gradients(record: Record, returned: Any) -> Arrays:
    definition, arguments = record.definition, record.arguments
    grads = returned if isinstance(returned, tuple) else (returned,)
    n, surplus = len(arguments.each), grads[len(arguments.each) :]
    if len(grads) < n or any(g is not None for g in surplus):
        names = [arguments.parameters.name(i) for i in range(n)]
        raise wrong_number_of_gradients(definition.backward, definition.name, names, returned)
    # The user counts one gradient for each argument; a pytree argument is several operands, a static one none.
    result: Arrays = [None] * len(record.operands)
    for i, argument in enumerate(arguments.each):
        grad = grads[i]
        if argument.kind == "tensor":
            result[argument.start] = _take_gradient(record, grad, argument.start, i, "")
        elif argument.kind == "tree" and argument.split is not None and argument.split.holes:
            _take_tree(record, grad, argument.split, argument.start, i, result)
        elif grad is not None:
            raise gradient_for_static(definition.backward, definition.name, arguments.name(i), i, grad)
    if all(g is None for g in grads) and not any(map(is_ref, record.operands)):  # a Ref may hold them
        _warn_of_nothing(record)
    return result


def _warn_of_nothing(record: Record) -> None:
    """Warn that backward returned None for every argument.

    A missing `return` would otherwise train silently, with zero gradients.
    """
    definition, arguments = record.definition, record.arguments
    needed = [i for i, need in enumerate(arguments.needs(record.needs)) if any(jax.tree.leaves(need))]
    assert definition.backward is not None
    text = no_gradients(definition.name, [arguments.name(i) for i in needed])
    warn(f"{text} {location(definition.backward)}")


def _take_tree(record: Record, grad: Any, form: Split, start: int, index: int, result: Arrays) -> None:
    if grad is None:
        return
    leaves = form.take(grad)
    if leaves is None:
        definition, name = record.definition, record.arguments.name(index)
        raise gradient_structure(definition.backward, definition.name, name, form.treedef, flatten(grad)[1])
    for i, leaf in enumerate(leaves):
        result[start + i] = _take_gradient(record, leaf, start + i, index, f", leaf {i}")


def _take_gradient(record: Record, grad: Any, operand: int, index: int, leaf: str) -> Any:
    """Bring one gradient to the shape and dtype of its argument, as PyTorch's engine does."""
    definition, aval = record.definition, record.operands[operand]
    if grad is not None and is_ref(aval):
        raise ref_gradient(definition.backward, definition.name, record.arguments.name(index), index, grad)
    if grad is None or not record.needs[operand]:
        return None
    if not is_tensor(grad) or is_ref(grad):
        name = f"{record.arguments.name(index)}{leaf}"
        refuse_torch(grad, f"the gradient for {name} of {definition.name}")
        raise gradient_type(definition.backward, definition.name, name, aval.shape, grad)
    grad = to_tensor(grad)
    if grad.shape != aval.shape:
        grad = _sum_to_size(record, grad, aval.shape, index, leaf)
    # JAX requires a cotangent of exactly the argument's type, and a weak type is a different one.
    if grad.dtype == aval.dtype and not grad.weak_type:
        return jnp.conj(grad) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else grad
    is_complex = jnp.issubdtype(aval.dtype, jnp.complexfloating)
    if jnp.issubdtype(grad.dtype, jnp.complexfloating) and not is_complex:
        name = f"{record.arguments.name(index)}{leaf}"
        raise complex_gradient(definition.backward, definition.name, name, aval.dtype, grad.dtype)
    grad = grad.astype(aval.dtype)
    return jnp.conj(grad) if is_complex else grad


def _sum_to_size(record: Record, grad: Any, shape: tuple[int, ...], index: int, leaf: str) -> Any:
    extra = grad.ndim - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, grad.shape[extra:], strict=True)):
        definition, name = record.definition, f"{record.arguments.name(index)}{leaf}"
        raise gradient_shape(definition.backward, definition.name, name, index, shape, grad.shape)
    # PyTorch's sum_to_size: a leading axis added by broadcasting is summed away, an expanded one is summed to size 1.
    grown = [extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1]
    return grad.sum((*range(extra), *grown), keepdims=True).reshape(shape)
