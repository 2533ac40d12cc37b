"""Gradients where a traced test decides on a use of results, or on which gradient backward returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from fnjax._primitives.linearity import returns_zeros
from fnjax._primitives.trace import trace
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor, make


def call_checked(name: str, backward: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """Return `backward(*gradients)` where JAX calls it with zeros and PyTorch may not call it.

    Args:
        name: the name of backward, for messages.
        backward: the function, of arrays.
        gradients: the gradients.

    Raises:
        NotSupported: backward does not return zeros for zeros.
    """
    program = trace(name, backward, *gradients)
    if not returns_zeros(program.jaxpr, program.closed_over):
        raise NotSupported(
            f"{name} returns other gradients than zeros for zeros, or is not seen to return zeros, and a traced test "
            "decides on a use of the result: where it is not used, PyTorch does not call it, and JAX does",
            "use the result in both branches, or add what does not depend on the gradient to the loss",
        )
    return program(program.closed_over, *gradients)


def resolve(gradient: Deferred, need: bool | None) -> Tensor | None:
    """Return the gradient that depends on which of two branches is taken: zero where one of them returned None.

    Raises:
        NotSupported: the gradient is needed, and has another shape in each branch.
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
