"""torch.nn.utils on the `.grad` of parameters, and parameters as one vector."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import module
from fnjax.torch.recording.gradient_mode import set_mode, switch

torch = module("torch")


def enter_utility(file: str) -> Callable[[Any], Any]:
    """Register a function or class as `torch.nn.utils.<its name>`, and in the module of PyTorch that defines it."""

    def enter(value: Any) -> Any:
        KNOWN[f"torch.nn.utils.{value.__name__}"] = KNOWN[f"torch.nn.utils.{file}.{value.__name__}"] = value
        return value

    return enter


def _list_gradients(parameters: Any) -> list[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else [*parameters]
    for p in given:
        if not isinstance(p, Tensor):
            raise NotSupported(
                f"the gradients of parameters, clipped in place, of {type(p).__name__} objects",
                "pass parameters that have .grad, or optax.clip_by_global_norm(max_norm) for gradients of jax.grad",
            )
    return [p.grad for p in given if p.grad is not None]


@enter_utility("clip_grad")
def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the norm of the norms of tensors.

    Raises:
        RuntimeError: the norm is not finite, with `error_if_nonfinite`.
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else [*tensors]
    with set_mode(switch(False)):
        if not tensors:
            return torch.tensor(0.0)
        total = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(t, norm_type) for t in tensors]), norm_type
        )
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


@enter_utility("clip_grad")
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale the gradients of parameters so that a total norm becomes `max_norm`, if it is larger."""
    with set_mode(switch(False)):
        factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
        for gradient in _list_gradients(parameters):
            gradient.mul_(factor)


@enter_utility("clip_grad")
def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients of parameters to a total norm of at most `max_norm`; return the norm that they had."""
    parameters = [parameters] if isinstance(parameters, Tensor) else [*parameters]
    total = get_total_norm(_list_gradients(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


@enter_utility("clip_grad")
def clip_grad_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Call `clip_grad_norm_`, with PyTorch's warning."""
    message = "torch.nn.utils.clip_grad_norm is now deprecated in favor of torch.nn.utils.clip_grad_norm_."
    warnings.warn(message, FutureWarning, stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type)


@enter_utility("clip_grad")
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clip the elements of the gradients of parameters to [-clip_value, clip_value]."""
    with set_mode(switch(False)):
        for gradient in _list_gradients(parameters):
            gradient.clamp_(-float(clip_value), float(clip_value))


@enter_utility("convert_parameters")
def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of parameters as one vector."""
    return torch.cat([p.view(-1) for p in parameters])


@enter_utility("convert_parameters")
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give parameters the elements of one vector.

    Raises:
        NotSupported: the vector requires grad: PyTorch makes parameters of it that are not leaves.
        TypeError: the vector is not a tensor.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec)}")
    if vec.requires_grad:
        raise NotSupported(
            "vector_to_parameters of a vector that requires grad",
            "torch.func.functional_call with the slices of the vector by the parameters' names",
        )
    start = 0
    given: Any = parameters
    for p in given:
        p.data = vec[start : start + p.numel()].view(p.shape).clone()
        start += p.numel()
