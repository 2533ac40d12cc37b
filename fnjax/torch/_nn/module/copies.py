"""Copies of modules that share no state with them, and of the objects that refer to these: closures, hooks, methods.

A module is called with other parameters by a copy of it, since other threads may use the module itself.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from fnjax.torch._autograd.function.captured import Stateful, is_node
from fnjax.torch._autograd.function.contents import (
    ATOMS,
    CONTAINERS,
    METHODS,
    PROXIES,
    find_kind,
    is_method,
    list_referents,
    list_slots,
)
from fnjax.torch.control.state.places import UNBOUND, list_kinds
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Derived, Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.journal import next_serial
from fnjax.torch.recording.storage import Storage, find_root, replaced

_SHARED = (Storage, Stateful, Tensor, type, types.FunctionType, types.MethodType, types.BuiltinMethodType)


class Rebinding:
    """Copies of modules, and of all objects that refer to them.

    A module owns the modules, tensors and containers that are reachable from its attributes: these are copied.
    Functions, methods and other objects are copied if one of these is reachable from them, and are shared otherwise.

    Args:
        roots: the modules.
        own_leaves: whether gradients are accumulated in `.grad` of the copies, and not of the module's tensors.
    """

    def __init__(self, roots: Iterable[Any], own_leaves: bool) -> None:
        self._own_leaves = own_leaves
        self._own: dict[int, Any] = {}
        self.storages: dict[int, Any] = {}  # of the tensors among them
        self._made: dict[int, tuple[Any, Any]] = {}  # the object and its copy
        self._others: dict[int, Any] = {}  # that lead to none of them
        self._unfilled: list[Callable[[], None]] = []
        arrays: list[Any] = []
        stack = [*roots]
        while stack:
            value = stack.pop()
            kind = find_kind(type(value))
            if kind is None or id(value) in self._own:
                arrays += [value] if isinstance(value, np.ndarray) else []
                continue
            self._own[id(value)] = value
            if kind is Tensor:
                storage = find_root(value.memory)
                self.storages[id(storage)] = storage
            stack += list_referents(value)
        shown = [s.numpy[0] for s in self.storages.values() if s.numpy] if arrays else []
        if any(np.may_share_memory(a, b) for a in arrays for b in shown):
            raise NotSupported(
                "another value for a tensor whose memory a NumPy array shows, which the module keeps",
                "call numpy() in forward",
            )

    def find(self, value: Any) -> Any:
        """Return the copy of an object; the object itself if there is none."""
        return self._made.get(id(value), (None, value))[1]

    def copy(self, value: Any) -> Any:
        """Return a copy of an object from which the modules are reachable; other objects unchanged."""
        found = self._copy(value)
        while self._unfilled:  # a long chain of modules would be too deep for recursion
            self._unfilled.pop()()
        return found

    def write_back(self) -> None:
        """Apply the changes of a call to the originals of objects that no module owns: counters, lists, cells."""
        others = [(value, made) for value, made in self._made.values() if id(value) not in self._own]
        originals = {id(made): value for value, made in self._made.values()} if others else {}
        for value, made in others:
            if value is made or isinstance(value, (*_SHARED, tuple, frozenset)):
                continue
            own: type = type(value)
            for kind in list_kinds(own) or ():
                old, new = kind.read(value), kind.read(made)
                if kind.write and not old.map(self.find).is_same(new):
                    kind.write(value, new.map(lambda x: originals.get(id(x), x)))

    def _copy(self, value: Any) -> Any:
        if type(value) in ATOMS:
            return value
        found = self._made.get(id(value))
        if found is not None:
            return found[1]
        if id(value) not in self._own and not self._leads(value):
            return value
        made = {} if type(value) is dict and not value else self._start(value)
        self._made[id(value)] = value, made
        return made

    def _copy_dict(self, members: dict[str, Any]) -> dict[str, Any]:
        return {k: v if type(v) in ATOMS else self._copy(v) for k, v in members.items()}

    def _leads(self, value: Any) -> bool:
        """Return whether an object that the modules own is reachable from an object."""
        seen: dict[int, Any] = {}
        stack = [value]
        while stack:
            each = stack.pop()
            if type(each) in ATOMS or id(each) in seen or id(each) in self._others:
                continue
            if id(each) in self._own:
                return True
            if issubclass(type(each), Tensor) and id(find_root(each.memory)) in self.storages:
                return True
            seen[id(each)] = each
            stack += list_referents(each)
        self._others |= seen
        return False

    # ------------------------------------------------------------------ copies of each kind; contents follow later

    def _start(self, value: Any) -> Any:
        kind = type(value)
        if find_kind(kind) in CONTAINERS:
            return self._start_container(value)
        if issubclass(kind, (Tensor, Stateful)):
            return self._fill_later(value, object.__new__(kind))
        if issubclass(kind, types.MethodType):
            return kind(self._copy(value.__func__), self._copy(value.__self__))
        if issubclass(kind, types.BuiltinMethodType):
            return getattr(self._copy(value.__self__), value.__name__)
        if issubclass(kind, types.FunctionType):
            return self._start_function(value)
        if issubclass(kind, functools.partial):
            made = kind(self._copy(value.func), *map(self._copy, value.args), **self._copy_dict(value.keywords))
            return self._fill_later(value, made)
        if issubclass(kind, METHODS):
            return kind(self._copy(value.__func__))
        if issubclass(kind, property):
            return kind(self._copy(value.fget), self._copy(value.fset), self._copy(value.fdel), value.__doc__)
        if issubclass(kind, type):
            return self._make_subclass(value)
        if issubclass(kind, weakref.ref):
            return kind(self._copy(value()))
        if kind in PROXIES:
            return weakref.proxy(self._copy(value.__init__.__self__))
        try:
            made = (types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object).__new__(kind)
        except TypeError:  # of a class that is not Python's: whoever reads the module through it gets an error
            return value
        return self._fill_later(value, made)

    def _start_container(self, value: Any) -> Any:
        kind = type(value)
        base = find_kind(kind)
        if base is tuple or base is frozenset:
            copies = [self._copy(member) for member in base.__iter__(value)]
            if all(map(operator.is_, copies, base.__iter__(value))):
                return value
            return self._fill_later(value, base.__new__(kind, copies))
        if kind is base and not list_referents(value):
            return value.copy()
        made = base.__new__(kind)
        if base is collections.deque:
            base.__init__(made, (), value.maxlen)
        elif issubclass(kind, collections.defaultdict):
            made.default_factory = self._copy(value.default_factory)

        def fill() -> None:
            if issubclass(base, dict):
                for key, member in base.items(value):
                    base.__setitem__(made, self._copy(key), self._copy(member))
            else:
                (base.update if base is set else base.extend)(made, [self._copy(v) for v in base.__iter__(value)])

        self._unfilled.append(fill)
        return made if kind is base else self._fill_later(value, made)

    def _start_function(self, value: Any) -> Any:
        cells = [
            self._copy_cell(c, n) for n, c in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        ]
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, tuple(cells))

        def fill() -> None:
            made.__defaults__, made.__kwdefaults__ = self._copy(value.__defaults__), self._copy(value.__kwdefaults__)
            for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
                setattr(made, name, getattr(value, name))
            vars(made).update(self._copy_dict(vars(value)))

        self._unfilled.append(fill)
        return made

    def _copy_cell(self, cell: Any, name: str) -> Any:
        """Return a cell with a copy of the variable; the same cell if no module is reachable from the variable."""
        if id(cell) not in self._made:
            made = cell
            if name != "__class__" and cell != types.CellType() and self._leads(cell.cell_contents):
                made = types.CellType()
                self._unfilled.append(lambda: setattr(made, "cell_contents", self._copy(cell.cell_contents)))
            self._made[id(cell)] = cell, made
        return self._made[id(cell)][1]

    def _make_subclass(self, value: Any) -> Any:
        """Return a subclass in which the methods that refer to the modules are copies."""
        changed = {name: self._copy(v) for name, v in vars(value).items() if is_method(v) and self._leads(v)}
        return type(value)(
            value.__name__, (value,), {**changed, "__module__": value.__module__, "__qualname__": value.__qualname__}
        )

    def _fill_later(self, value: Any, made: Any) -> Any:
        def fill() -> None:
            if isinstance(made, Tensor):
                for name in list_slots(type(value)):
                    if (member := getattr(value, name, UNBOUND)) is not UNBOUND:
                        object.__setattr__(made, name, member)
                made.memory, made.grad, made._cached = self._copy_storage(value.memory), self._copy(value.grad), None
                made._made_in = Tensor.over(made.memory, made.layout, made.dtype)._made_in
            else:
                for name in list_slots(type(value)):
                    if (member := getattr(value, name, UNBOUND)) is not UNBOUND:
                        object.__setattr__(made, name, self._copy(member))
            if (own := getattr(value, "__dict__", None)) is not None:
                vars(made).update(self._copy_dict({**own, "_form": None} if isinstance(made, Stateful) else own))

        self._unfilled.append(fill)
        return made

    def _copy_storage(self, storage: Any) -> Any:
        if id(storage) in self._made:
            return self._made[id(storage)][1]
        if isinstance(storage, Derived):
            made: Any = object.__new__(type(storage))
            for name in set(list_slots(type(storage))).difference(Storage.__slots__):
                object.__setattr__(made, name, self._copy(getattr(storage, name)))
            made.layout, made.serial, made.shared, made._cached = storage.layout, next_serial(), "", (-1, None)
        else:
            value = storage.value
            if self._own_leaves and value.leaf is not None and id(value.leaf) in self._own:
                hooks, source = value.hooks, value.source
                value = Value(value.array, requires_grad=value.requires_grad, leaf=self._copy(value.leaf))
                value.hooks, value.source = hooks, source
            made = Storage(value, storage.layout)
            made.shared = storage.shared
        self._made[id(storage)] = storage, made
        return made


def call_copy(call: Callable[..., Any], args: Any, kwargs: Any, name: str, storages: Iterable[Storage]) -> Any:
    """Call a copy of a module; reads of the module's own tensors raise, except of those that are arguments.

    Args:
        call: the copy.
        args: the positional arguments, whose tensors may be read.
        kwargs: the keyword arguments, likewise.
        name: the name of the module's class, for messages.
        storages: the storages of the module's tensors.
    """
    allowed = {id(find_root(x.memory)) for x in _list_tensors((args, kwargs))}
    with setting(replaced, (replaced.get() or {}) | {id(s): name for s in storages if id(s) not in allowed}):
        result = call(*args, **kwargs)
        for tensor in _list_tensors(result):
            _ = tensor.value  # raises, if it is the module's
    return result


def _list_tensors(tree: Any) -> list[Tensor]:
    return [x for x in jax.tree.leaves(tree, is_leaf=is_node) if isinstance(x, Tensor)]
