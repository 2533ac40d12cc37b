"""Writes of forward to its arguments, applied to the caller's tensors."""

from __future__ import annotations

from contextlib import nullcontext

import jax

from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.gradient_mode import get_mode, set_mode
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.storage import find_root


def write(argument: Tensor, value: Value, is_dirty: bool) -> None:
    """Write into an argument; the write is recorded by autograd only if the argument is marked as dirty."""
    with nullcontext() if is_dirty else set_mode(get_mode()._replace(enabled=False)):
        argument.assign(value)


def share_unmarked(argument: Tensor, result: Tensor) -> None:
    """Write a result into the argument that forward has written to and returned, but not marked as dirty.

    As in PyTorch the argument gets no history. Only one of both may be written to again, which makes reads of the other
    raise: the result, or, if the argument is a view of a part of its memory, that memory.
    """
    write(argument, Value(jax.lax.stop_gradient(result.array)), False)
    root = find_root(argument.memory)
    if root.layout is argument.layout:
        result.memory.lend(root)
    else:
        root.lend(result.memory)
