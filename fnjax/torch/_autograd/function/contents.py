"""Contents of objects: the objects that an object refers to."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from fnjax.torch._autograd.function.captured import Stateful
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Value

ATOMS = frozenset([bool, int, float, complex, str, bytes, type(None), type(...), types.CodeType])
_OPAQUE = ("jax", "jaxlib", "numpy", "builtins", "logging", "threading")  # packages whose objects lead to no module
CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque, tuple, frozenset)
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
METHODS = (staticmethod, classmethod)


def _read_slots(kind: Any) -> list[str]:
    """Return the names of a class's slots."""
    found: list[str] = []
    for each in kind.__mro__:
        names = vars(each).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return [n for n in found if n not in {"__dict__", "__weakref__"}]


list_slots: Callable[[type], list[str]] = functools.lru_cache(4096)(_read_slots)  # not of all: calls make classes, too


def _list_attributes(value: Any) -> list[Any]:
    """Return an object's own attributes, those in slots among them."""
    found = [getattr(value, name, None) for name in list_slots(type(value))]
    if (own := getattr(value, "__dict__", None)) is not None:
        found += [v for v in own.values() if type(v) not in ATOMS]
    return found


def _classify(kind: Any) -> Any:
    """Return the base of a class whose objects a module owns, Tensor, Stateful or a container; None for others."""
    return next((base for base in (Tensor, Stateful, *CONTAINERS) if issubclass(kind, base)), None)


find_kind: Callable[[type], Any] = functools.lru_cache(4096)(_classify)


def is_method(value: Any) -> bool:
    """Return whether an attribute of a class is a function, a property or a method of the class."""
    return isinstance(value, (types.FunctionType, property, *METHODS))


def list_referents(value: Any) -> list[Any]:
    """Return the objects that an object refers to; not those of installed packages, nor a Python module's globals."""
    kind = type(value)
    base = find_kind(kind)
    if base in CONTAINERS:
        if kind is base and not value:
            return []
        found = [v for v in base.__iter__(value) if type(v) not in ATOMS]
        if issubclass(base, dict):
            found += [v for v in base.values(value) if type(v) not in ATOMS]
        return found if kind is base else [*found, *_list_attributes(value)]
    if base is Tensor:
        return [value.grad, *vars(value).values()]
    if base is Stateful:
        return _list_attributes(value)
    if issubclass(kind, types.FunctionType):
        if value.__closure__ is None and not value.__defaults__ and not value.__kwdefaults__ and not value.__dict__:
            return []
        names = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        cells = [c.cell_contents for n, c in names if n != "__class__" and c != types.CellType()]
        return [*cells, value.__defaults__, value.__kwdefaults__, *vars(value).values()]
    if issubclass(kind, types.MethodType):
        return [value.__self__, value.__func__]
    if issubclass(kind, types.BuiltinMethodType):
        return [value.__self__]
    if issubclass(kind, functools.partial):
        return [value.func, value.args, value.keywords, *vars(value).values()]
    if issubclass(kind, METHODS):
        return [value.__func__]
    if issubclass(kind, property):
        return [value.fget, value.fset, value.fdel]
    if issubclass(kind, type):
        known = value.__module__.partition(".")[0] in (*_OPAQUE, "fnjax")
        return [] if known else [v for v in vars(value).values() if is_method(v)] + [*value.__bases__]
    if issubclass(kind, weakref.ref):
        return [value()]
    if kind in PROXIES:
        return [value.__init__.__self__]
    if issubclass(kind, (types.ModuleType, Value)) or kind.__module__.partition(".")[0] in _OPAQUE:
        return []
    return _list_attributes(value)
