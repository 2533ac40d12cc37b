"""Hooks: functions that a module calls around its forward and its state dict."""

from __future__ import annotations

import itertools
from typing import Any, Self

from fnjax._torch_ops.registry import known

_ids = itertools.count()


@known("torch.utils.hooks.RemovableHandle")
class RemovableHandle:
    """Handle of a registered hook: `remove()` removes the hook."""

    def __init__(self, hooks: dict[int, Any], *, extra_dict: Any = None) -> None:
        self.id, self._hooks = next(_ids), hooks
        self._extra = [] if extra_dict is None else extra_dict if isinstance(extra_dict, list) else [extra_dict]

    def remove(self) -> None:
        """Remove the hook."""
        for hooks in (self._hooks, *self._extra):
            hooks.pop(self.id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add_hook(hooks: dict[int, Any], hook: Any, *, prepend: bool = False) -> RemovableHandle:
    """Register a hook, as the last one or the first."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        for key in [k for k in hooks if k != handle.id]:
            hooks[key] = hooks.pop(key)
    return handle
