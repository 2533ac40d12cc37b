"""Gradient mode: whether operations are recorded, and whether results are constants for JAX's derivatives."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import NamedTuple

from fnjax._contexts import NO_GRAD


class Mode(NamedTuple):
    """The gradient mode.

    Attributes:
        enabled: operations are recorded, as under torch.enable_grad.
        constant: results are constants for JAX's derivatives: the source used torch.no_grad where PyTorch would
            differentiate. In a Function's forward, which PyTorch never differentiates, no_grad changes nothing.
    """

    enabled: bool = True
    constant: bool = False


FORWARD, BACKWARD = Mode(enabled=False), Mode(enabled=False)
_DEFAULT = Mode()
_mode: ContextVar[Mode] = ContextVar("_mode", default=_DEFAULT)
get_mode = _mode.get  # the gradient mode of this thread
_in_forward: ContextVar[bool] = ContextVar("_in_forward", default=False)


class set_mode:  # noqa: N801 - a context manager, used as a function
    """Set the gradient mode for a block."""

    def __init__(self, mode: Mode, in_forward: bool | None = None) -> None:
        self._mode, self._in_forward = mode, in_forward

    def __enter__(self) -> None:
        self._token = _mode.set(self._mode)
        # A part of JAX's key: not what only says what is recorded, which would have JAX compile everything twice.
        constant = self._mode.constant
        self._key = NO_GRAD(constant) if constant is not NO_GRAD.value else contextlib.nullcontext()
        self._key.__enter__()
        self._other = None if self._in_forward is None else _in_forward.set(self._in_forward)

    def __exit__(self, *error: object) -> None:
        self._key.__exit__(*error)
        _mode.reset(self._token)
        if self._other is not None:
            _in_forward.reset(self._other)


def switch(enabled: bool) -> Mode:
    """Return the mode that torch.set_grad_enabled would set here."""
    mode = _mode.get()
    if enabled:
        return Mode(enabled=True)
    return Mode(enabled=False, constant=mode.constant or not _in_forward.get())
