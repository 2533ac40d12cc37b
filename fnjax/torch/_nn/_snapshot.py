"""Snapshot of what a module holds before a call, so that the call leaves it as it was."""

from __future__ import annotations

import collections
from typing import Any

from fnjax.torch._autograd.captured import iterate
from fnjax.torch._nn._module import Module
from fnjax.torch._tensor import Tensor

_SLOTS = ("memory", "layout", "dtype", "part", "_detached", "grad")
_NUMBERS = (bool, int, float, complex)
_CONTAINERS = (list, dict, set, collections.deque)


class Snapshot:
    """Attributes of a module and its submodules: tensors, and the contents of lists, dicts, sets and deques.

    The values of tensors are not in it: a Journal undoes writes to these.
    """

    def __init__(self, model: Module) -> None:
        self._tensors: dict[int, tuple[Tensor, list[Any]]] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._names: dict[int, tuple[str, Module]] = {}
        for path, module in model.named_modules():
            self._names[id(module)] = (path, module)
        self._add(model)

    def _add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensors.setdefault(id(value), (value, [getattr(value, name) for name in _SLOTS]))
        elif isinstance(value, Module):
            if id(value) not in self._held:
                self._held[id(value)] = (value, dict(vars(value)))
                for member in [*vars(value).values()]:
                    self._add(member)
        elif isinstance(value, (*_CONTAINERS, tuple)) and id(value) not in self._held:
            self._held[id(value)] = (value, value if isinstance(value, tuple) else value.copy())
            for member in [*value.values()] if isinstance(value, dict) else iterate(value):
                self._add(member)

    def list_changed(self, written: set[int]) -> list[str]:
        """Return the names of attributes that a call has changed, registered ones left out.

        Args:
            written: ids of the storages that were written to.
        """
        found = []
        for path, module in self._names.values():
            before = self._held[id(module)][1]
            found += [
                f"{path}{'.' if path else ''}{name}"
                for name, value in vars(module).items()
                if name != "training"
                and name not in module._recomputed
                and self._is_changed(before.get(name), value, written)
            ]
        return found

    def _is_changed(self, old: Any, new: Any, written: set[int]) -> bool:
        if isinstance(old, Tensor) or isinstance(new, Tensor):
            return old is not new or id(new.memory) in written
        if isinstance(new, (list, collections.deque)) and new is old:
            return [*map(id, new)] != [*map(id, self._held[id(new)][1])]
        return isinstance(new, _NUMBERS) and isinstance(old, _NUMBERS) and (type(old) is not type(new) or old != new)

    def restore(self) -> None:
        """Restore all attributes and the contents of all containers."""
        for tensor, values in self._tensors.values():
            for name, value in zip(_SLOTS, values, strict=True):
                setattr(tensor, name, value)
            tensor._cached = None
        for holder, before in self._held.values():
            if isinstance(holder, tuple):
                continue
            target = vars(holder) if isinstance(holder, Module) else holder
            target.clear()
            (target.extend if isinstance(target, (list, collections.deque)) else target.update)(before)
