"""Checks of the gradients that a class's backward returns: errors by the names and numbers of its own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from fnjax._primitives.linearity import returns_zeros
from fnjax._primitives.trace import trace
from fnjax.errors import GradientError
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor, make


def call_backward(name: str, call: Any, backward: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """Return `backward(*gradients)`, of arrays; JAX calls it with zeros where PyTorch does not call it.

    Args:
        name: its name.
        call: the call whose gradients it computes; None of an operator.
        backward: the function.
        gradients: the gradients.

    Raises:
        NotSupported: a traced test decides on a use of the results, and it does not return zeros for zeros.
    """
    if call is None or not call.is_conditional:
        return backward(*gradients)
    program = trace(name, backward, *gradients)
    if not returns_zeros(program.jaxpr, program.closed_over):
        raise NotSupported(
            f"{name} returns other gradients than zeros for zeros, or is not seen to return zeros, and a traced test "
            "decides on a use of the result: where it is not used, PyTorch does not call it, and JAX does",
            "use the result in both branches, or add what does not depend on the gradient to the loss",
        )
    return program(program.closed_over, *gradients)


def check_gradients(
    cls: Any,
    found: Sequence[Any],
    shapes: Sequence[tuple[int, ...] | None],
    needs: Sequence[bool],
    separate: bool,
) -> None:
    """Raise PyTorch's errors; that of a tensor which needs no gradient may be anything.

    Args:
        cls: the class.
        found: what backward returned, as a tuple.
        shapes: for each argument of apply its shape, None where it is no tensor.
        needs: for each argument whether it needs a gradient.
        separate: whether the class has setup_context, so that forward has no ctx.

    Raises:
        GradientError: there are too few or too many gradients, one of them has another shape, or is that of no tensor.
    """
    n = len(shapes)

    def name(i: int) -> str:
        return _list_names(cls.forward, separate, n)[i]

    if len(found) < n or any(f is not None for f in found[n:]):
        raise _error(
            cls,
            f"returned an incorrect number of gradients (expected {n}, got {len(found)})",
            f"return one gradient for each argument of forward ({', '.join(map(name, range(n)))}), None where there "
            "is none",
        )
    for i, (gradient, shape, need) in enumerate(zip(found, shapes, needs, strict=False)):
        if gradient is not None and shape is None:
            raise _error(
                cls,
                f"returned a gradient different than None at position {i + 1}, but the corresponding forward input "
                "was not a Variable",
                f"return None for {name(i)}",
            )
        if need and isinstance(gradient, Tensor) and not _is_expanded(gradient.layout.shape, shape):
            raise _error(
                cls,
                f"returned an invalid gradient at index {i} - got {list(gradient.layout.shape)} but expected shape "
                f"compatible with {list(shape or ())}",
                f"return a gradient of the shape of {name(i)}: sum over the axes that forward broadcast, expand it "
                "where it is smaller",
            )


def _is_expanded(found: Sequence[int], shape: Sequence[int] | None) -> bool:
    """Return whether a shape is another's after broadcasting."""
    extra = len(found) - len(shape or ())
    return extra >= 0 and all(n in {1, m} for n, m in zip(shape or (), found[extra:], strict=True))


def _list_names(forward: Any, separate: bool, n: int) -> list[str]:
    """Return the names of forward's first n arguments."""
    parameters = [*inspect.signature(forward).parameters.values()][not separate :]
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    variadic = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    first = len(names) if not variadic else [p.kind for p in parameters].index(inspect.Parameter.VAR_POSITIONAL)
    return [names[i] if i < first else f"{variadic[0]}[{i - first}]" for i in range(n)]


def _error(cls: Any, what: str, remedy: str) -> GradientError:
    code = getattr(inspect.unwrap(cls.backward), "__code__", None)
    where = f"\n  at: {code.co_filename}:{code.co_firstlineno}" if code else ""
    return GradientError(f"{cls.__qualname__}.backward {what}\n  fix: {remedy}{where}")


def resolve(gradient: Deferred, need: bool | None) -> Tensor | None:
    """Return the gradient that differs between two branches: zero where one of them returned None.

    Raises:
        NotSupported: it is needed, and has two shapes.
    """
    if isinstance(gradient, Either):
        given = next((x for x in (gradient.yes, gradient.no) if isinstance(x, Tensor)), None)
        if given is not None and (gradient.yes is None or gradient.no is None):
            zeros = make(jnp.zeros(given.shape, given.array.dtype), given.dtype)
            found: Tensor = gradient.map(lambda x: zeros if x is None else x)
            return found
    if need:
        raise gradient.refuse()
    return None
