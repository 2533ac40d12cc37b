"""Names of torch.autograd: the gradient modes (`no_grad`, `enable_grad`), `grad`, `checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch._autograd import engine
from fnjax.torch.recording.blocks import Block
from fnjax.torch.recording.gradient_mode import get_mode, set_mode, switch


class _GradMode(Block):
    """Base of torch.no_grad, enable_grad and set_grad_enabled: context managers, decorators, the last also a call."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def open(self) -> set_mode:
        """Return the context manager that sets the mode."""
        return set_mode(switch(self._enabled))


def _mode_of(enabled: bool) -> Callable[..., Any]:
    def make_mode(function: Any = None, **_: Any) -> Any:
        mode = _GradMode(enabled if not isinstance(function, bool) else enabled == function)
        return mode(function) if callable(function) else mode

    return make_mode


for _space in ("torch", "torch.autograd", "torch.autograd.grad_mode"):
    KNOWN |= {
        f"{_space}.no_grad": _mode_of(False),
        f"{_space}.inference_mode": _mode_of(False),
        f"{_space}.enable_grad": _mode_of(True),
    }


class _SetGradEnabled(_GradMode):
    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> Self:
        return self


KNOWN["torch.set_grad_enabled"] = KNOWN["torch.autograd.set_grad_enabled"] = _SetGradEnabled
KNOWN["torch.is_grad_enabled"] = lambda: get_mode().enabled
KNOWN["torch.is_inference_mode_enabled"] = lambda: False
KNOWN |= {"torch.autograd.grad": engine.grad, "torch.autograd.backward": engine.backward}


@known("torch.autograd.function.once_differentiable")
def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a backward as not differentiable a second time, and return it."""
    function.once_differentiable = True  # type: ignore[attr-defined] # read by function
    return function
