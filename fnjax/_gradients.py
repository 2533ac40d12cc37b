"""Calling the user's backward and jvp, and checking what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._call.ctx import FunctionCtx, arrays_of, map_arrays
from fnjax._call.outputs import Outputs
from fnjax._call.signature import Arguments
from fnjax._errors import (
    GradientError,
    OnceDifferentiableError,
    describe,
    error,
    type_name,
)
from fnjax._jax.rule import Arrays, Needs
from fnjax._jax.trees import Split, flatten, is_inexact, is_tensor, refuse_torch, split, to_tensor
from fnjax._methods import Methods, explained
from fnjax._primitive import wall
from fnjax._saved import Saved

# Whether a forward or backward is being run for a derivative. Functions that are called there are part of a derivative
# rule: forward mode over it (a Hessian) may transpose their backward; forward mode on the function itself may not.
_inside_derivative = ContextVar("_inside_derivative", default=False)


def is_inside_derivative() -> bool:
    """Whether a forward or backward that is being run for a derivative is calling."""
    return _inside_derivative.get()


class inside_derivative:  # noqa: N801 - used as a function; a class costs a third of a generator
    """Mark calls in the block as part of a derivative rule, or not."""

    __slots__ = ("_is_one", "_token")

    def __init__(self, is_one: bool) -> None:
        self._is_one = is_one

    def __enter__(self) -> None:
        self._token = _inside_derivative.set(self._is_one)

    def __exit__(self, *_: object) -> None:
        _inside_derivative.reset(self._token)


class Derivative:
    """Backward and jvp of one run of forward; holds types and static values, no arrays."""

    def __init__(
        self,
        methods: Methods,
        arguments: Arguments,
        needs: Needs,
        operands: Sequence[Any],
        form: Outputs,
        outputs: Sequence[Any],
        differentiable: tuple[bool, ...],
        saved: Saved,
    ) -> None:
        self._methods, self._arguments, self._needs, self._saved = methods, arguments, needs, saved
        self._operands = [jax.typeof(x) for x in operands]
        self._outputs, self._form = [jax.typeof(x) for x in outputs], form
        self._differentiable = differentiable

    def pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        """Call the user's backward: residuals, cotangents → gradients of the operands; None stands for zero."""
        methods, form = self._methods, self._form
        assert methods.backward is not None
        ctx = self._saved.restore(methods, residuals, forward_mode=False)
        given = [self._cotangent(*c) for c in zip(cotangents, self._outputs, self._differentiable, strict=True)]
        grad_outputs = form.each(given, None)
        with explained(methods, self._arguments, methods.backward, []), inside_derivative(True):
            grads = methods.backward(ctx, *([grad_outputs] if methods.boxed else grad_outputs))
        return self._gradients(grads)

    def _cotangent(self, ct: Any, aval: Any, differentiable: bool) -> Any:
        """What backward gets for an output: PyTorch's gradient is the conjugate of JAX's cotangent."""
        if ct is not None:
            return jnp.conj(ct) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else ct
        if not self._saved.materialize or not (differentiable or self._saved.materialize_non_diff):
            return None
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a PRNG key has no zero
            return None
        return jnp.zeros(aval.shape, aval.dtype)

    def _gradients(self, returned: Any) -> Arrays:
        arguments, grads = self._arguments, returned if isinstance(returned, tuple) else (returned,)
        n, surplus = len(arguments.each), grads[len(arguments.each) :]
        if len(grads) < n or any(g is not None for g in surplus):
            names = ", ".join(arguments.parameters.name(i) for i in range(n))
            raise self._error(
                f"{self._methods.name}.backward returned an incorrect number of gradients "
                f"(expected {n}, got {len(grads)})",
                "number-of-gradients",
                expected=f"one gradient for each argument of forward ({names}), None where there is none",
                got=describe(returned),
                fix=f"return a tuple of {n}",
            )
        result: Arrays = [None] * len(self._operands)
        for i, argument in enumerate(arguments.each):
            grad = grads[i]
            if argument.kind == "tensor":
                result[argument.start] = self._gradient(grad, argument.start, i, "")
            elif argument.kind == "tree" and argument.split is not None and argument.split.holes:
                self._tree_gradients(grad, argument.split, argument.start, i, result)
            elif grad is not None:
                raise self._error(
                    f"{self._methods.name}.backward returned a gradient different than None at position {i + 1}, but "
                    "the corresponding forward input was not a Variable",
                    "gradient-for-static",
                    expected=f"None for {arguments.name(i)}, which holds no array to differentiate",
                    got=describe(grad),
                    fix="return None there; `pytree = True` on the class gives containers a gradient",
                )
        return result

    def _tree_gradients(self, grad: Any, form: Split, start: int, index: int, result: Arrays) -> None:
        if grad is None:
            return
        leaves = form.take(grad)
        if leaves is None:
            raise self._error(
                f"{self._methods.name}.backward returned a gradient of another structure for "
                f"{self._arguments.name(index)}",
                "gradient-structure",
                expected=f"None, or {form.treedef}",
                got=f"{flatten(grad)[1]}",
                fix="return a container like the argument, None in place of whatever has no gradient",
            )
        for i, leaf in enumerate(leaves):
            result[start + i] = self._gradient(leaf, start + i, index, f", leaf {i}")

    def _gradient(self, grad: Any, operand: int, index: int, leaf: str) -> Any:
        """Bring one gradient to the shape and dtype of its argument, as PyTorch's engine does."""
        if grad is None or not self._needs[operand]:
            return None
        name, aval = f"{self._arguments.name(index)}{leaf}", self._operands[operand]
        if not is_tensor(grad):
            refuse_torch(grad, f"the gradient for {name} of {self._methods.name}")
            raise self._error(
                f"{self._methods.name}.backward: expected Variable or None (got {type_name(grad)}) for {name}",
                "gradient-type",
                expected=f"an array of shape {aval.shape}, or None",
                got=describe(grad),
                fix="return an array; a number times jnp.ones_like(grad_output) is one",
            )
        grad = to_tensor(grad)
        if grad.shape != aval.shape:
            grad = self._sum_to_size(grad, aval.shape, index, name)
        is_complex = jnp.issubdtype(aval.dtype, jnp.complexfloating)
        if jnp.issubdtype(grad.dtype, jnp.complexfloating) and not is_complex:
            raise self._error(
                f"{self._methods.name}.backward returned a complex gradient for {name}, which is real",
                "complex-gradient",
                expected=f"dtype {aval.dtype} (PyTorch: isFloatingType(grad) || (input_is_complex == grad_is_complex))",
                got=f"dtype {grad.dtype}",
                fix="return grad.real",
            )
        if grad.dtype != aval.dtype or grad.weak_type:
            grad = grad.astype(aval.dtype)
        return jnp.conj(grad) if is_complex else grad

    def _sum_to_size(self, grad: Any, shape: tuple[int, ...], index: int, name: str) -> Any:
        extra = grad.ndim - len(shape)
        if extra < 0 or any(n not in (1, m) for n, m in zip(shape, grad.shape[extra:], strict=True)):
            raise self._error(
                f"{self._methods.name}.backward returned an invalid gradient at index {index} - got "
                f"{list(grad.shape)} but expected shape compatible with {list(shape)}",
                "gradient-shape",
                expected=f"the shape of {name}, {shape}, or one that it broadcasts to",
                got=f"shape {grad.shape}",
                fix="sum over the axes that forward broadcast; jnp.broadcast_to(grad, shape) where it is smaller",
            )
        grown = [extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1]
        return grad.sum((*range(extra), *grown), keepdims=True).reshape(shape)

    def _error(self, head: str, anchor: str, *, expected: str, got: str, fix: str) -> GradientError:
        return error(GradientError, head, anchor, method=self._methods.backward, expected=expected, got=got, fix=fix)

    # --- forward mode

    def push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        """Call the user's jvp: residuals, tangents (None for zero) → tangents of the outputs, None for zero."""
        methods = self._methods
        assert methods.jvp is not None
        ctx = self._saved.restore(methods, residuals, forward_mode=True)
        given = [self._tangent(t, aval) for t, aval in zip(tangents, self._operands, strict=True)]
        with explained(methods, self._arguments, methods.jvp, []), inside_derivative(True):
            returned = methods.jvp(ctx, *self._arguments.tangents(given))
        members = returned if isinstance(returned, tuple) and self._form.make is not None else (returned,)
        if len(members) != len(self._form.members):
            raise self._jvp_error(
                f"{methods.name}'s jvp returned an invalid number of forward gradients "
                f"(expected {len(self._form.members)} but got {len(members)})",
                "number-of-tangents",
                expected=f"one tangent for each output of {methods.name}.forward, None where there is none",
                got=describe(returned),
                fix="return a tuple of that length, or the one tangent by itself",
            )
        result: Arrays = []
        for i, (member, form) in enumerate(zip(members, self._form.members, strict=True)):
            leaves = [None] * form.holes if member is None else self._tangent_leaves(member, form, i)
            for leaf in leaves:
                result.append(self._output_tangent(leaf, len(result), i))
        return result

    def _tangent(self, tangent: Any, aval: Any) -> Any:
        if tangent is None and self._saved.materialize and is_inexact(aval):
            return jnp.zeros(aval.shape, aval.dtype)
        return tangent

    def _tangent_leaves(self, member: Any, form: Split, output: int) -> Arrays:
        if not form.holes:
            raise self._surplus_tangent(output, member)
        leaves = form.take(member)
        if leaves is None:
            raise self._jvp_error(
                f"{self._methods.name}.jvp returned a tangent of another structure for output {output}",
                "tangent-structure",
                expected=f"{form.treedef}",
                got=f"{flatten(member)[1]}",
                fix="return a container like the output, None in place of whatever has no tangent",
            )
        return leaves

    def _output_tangent(self, tangent: Any, leaf: int, output: int) -> Any:
        """Bring one tangent to the dtype of its output."""
        aval, name = self._outputs[leaf], self._methods.name
        if tangent is None:
            return None
        if not self._differentiable[leaf]:
            raise self._surplus_tangent(output, tangent)
        if not is_tensor(tangent):
            raise self._jvp_error(
                f"{name}.jvp: expected Variable or None (got {type_name(tangent)}) for grad output {output}.",
                "tangent-type",
                expected=f"an array of shape {aval.shape}, or None",
                got=describe(tangent),
                fix="return an array",
            )
        tangent = to_tensor(tangent)
        if tangent.shape != aval.shape:
            raise self._jvp_error(
                "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
                f"not supported. Tensor is of size {list(aval.shape)} while the given forward gradient is of size "
                f"{list(tangent.shape)}. ({name}.jvp, output {output})",
                "tangent-shape",
                expected=f"shape {aval.shape}",
                got=f"shape {tangent.shape}",
                fix="return a tangent of the output's own shape; jnp.broadcast_to(tangent, shape) makes it larger",
            )
        if jnp.issubdtype(tangent.dtype, jnp.complexfloating) > jnp.issubdtype(aval.dtype, jnp.complexfloating):
            raise self._jvp_error(
                f"{name}.jvp returned a complex tangent for output {output}, which is real",
                "tangent-type",
                expected=f"dtype {aval.dtype}",
                got=f"dtype {tangent.dtype}",
                fix="return tangent.real",
            )
        return tangent.astype(aval.dtype)

    def _surplus_tangent(self, output: int, tangent: Any) -> GradientError:
        return self._jvp_error(
            f"{self._methods.name}'s jvp returned a gradient at position {output}, but the corresponding forward "
            "output is not a differentiable Tensor. You should return None at that position instead.",
            "tangent-for-constant",
            expected="None",
            got=describe(tangent),
            fix="return None in its place",
        )

    def _jvp_error(self, head: str, anchor: str, *, expected: str, got: str, fix: str) -> GradientError:
        return error(GradientError, head, anchor, method=self._methods.jvp, expected=expected, got=got, fix=fix)


def call_once(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a backward so that a derivative of what it returns raises: PyTorch's no_grad, with an error behind it."""
    given, form = split(list(args), lambda x: isinstance(x, jax.Array | FunctionCtx))
    contexts = [x for x in given if isinstance(x, FunctionCtx)]
    arrays = [x for x in given if not isinstance(x, FunctionCtx)]
    kept = [leaf for ctx in contexts for leaf in arrays_of(ctx)]
    stopped = [
        (map_arrays(jax.lax.stop_gradient, x) if isinstance(x, FunctionCtx) else jax.lax.stop_gradient(x))
        for x in given
    ]
    grads, result = split(fn(*form.fill(stopped), **kwargs), is_tensor)

    def make_error() -> OnceDifferentiableError:
        names = [f"{type(ctx).__name__.removesuffix('Backward')}.backward" for ctx in contexts]
        return error(
            OnceDifferentiableError,
            "trying to differentiate twice a function that was marked with @once_differentiable "
            f"({', '.join(names) or fn.__qualname__})",
            "once-differentiable",
            method=fn,
            fix="remove @once_differentiable if backward is made of operations that JAX can differentiate",
        )

    return result.fill(wall([to_tensor(g) for g in grads], [*kept, *arrays], make_error) if grads else [])
