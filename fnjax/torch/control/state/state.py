"""State that functions reach: the changes of a traced branch are found by comparison, and undone.

All state that a closure can change is reachable from it: the variables that it closes over, the globals that its code
names, the objects in these, and their classes. So writes need not be intercepted.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fnjax.torch.control.state.places import (
    ATOMS,
    CACHE,
    GLOBALS,
    GRAD_MODE,
    ITERATOR,
    OF_CLASSES,
    STREAMS,
    TENSOR,
    UNBOUND,
    Content,
    Globals,
    Kind,
    is_loaded,
    list_children,
    list_kinds,
    list_names,
)
from fnjax.torch.deferred.either import Either
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.root_settings import NAME
from fnjax.torch.recording.raises import find_handlers


class Place(NamedTuple):
    """A place, and its content when it was first read.

    Attributes:
        owner: the object.
        kind: the way in which it holds state.
        content: the content.
    """

    owner: Any
    kind: Kind
    content: Content


class State:
    """State that functions reach.

    Args:
        roots: the functions.
        items: an iterator that may advance.

    Attributes:
        places: the places that hold the state.

    Raises:
        NotSupported: the iterator leads to a generator that acts when it is closed.
    """

    def __init__(self, roots: Iterable[Any], items: Any = None) -> None:
        self.places: list[Place] = []
        self._seen: dict[int, Any] = {}
        self._parents: dict[int, Any] = {}
        self._spaces: dict[int, Globals] = {}
        owner, kind = GRAD_MODE
        self.places.append(Place(owner, kind, kind.read(owner)))
        self._variables = {id(x): f"the random numbers of {name}" for name, x in STREAMS.items()}
        self._variables[id(owner)] = "the gradient mode (torch.set_grad_enabled)"
        free = set[int]()
        if items is not None:
            self.add(items)
            free = {id(p.owner) for p in self.places if p.kind is ITERATOR}
            for x in self._seen.values():
                frame = x.gi_frame if type(x) is types.GeneratorType else None
                if frame is not None and find_handlers(frame.f_code, frame.f_globals):
                    with contextlib.suppress(Exception):
                        x.close()  # here, not when it is garbage and something else is traced
                    raise NotSupported(
                        f"{x.__name__}(), a generator with `try` or `with`, that a traced test may end",
                        "read all of it: list(...)",
                    )
        self.add(*roots)
        self.places = [p for p in self.places if p.kind is not ITERATOR or id(p.owner) not in free]

    def __contains__(self, x: Any) -> bool:
        return id(x) in self._seen

    def add(self, *values: Any) -> None:
        """Add the objects that are reachable from values and were not added before."""
        spaces, self._spaces = self._spaces, {}
        self._add(values)
        for key, space in self._spaces.items():
            known = spaces.setdefault(key, Globals(space.space))
            new = Globals(space.space, [n for n in space.names if n not in known.names])
            known.names |= new.names
            self.places.append(Place(new, GLOBALS, new.read()))
        self._spaces = spaces

    def _add(self, values: Iterable[Any]) -> None:
        seen, parents, waiting = self._seen, self._parents, [*values]
        while waiting:
            x = waiting.pop()
            if id(x) in seen:
                continue
            kind: Any = type(x)
            kinds = list_kinds(kind)
            children: list[Any]
            if kinds is None:
                if kind is not types.ModuleType or not is_loaded(vars(x)):
                    continue
                children = self._name(vars(x), [n for n in vars(x) if not n.startswith("__")])
            elif kinds is OF_CLASSES and not is_loaded(vars(sys.modules.get(x.__module__, types))):
                continue
            elif kind is types.FunctionType:
                children = [*list_children(x), *self._enter(x)]
            else:
                children = [*list_children(x)]
            seen[id(x)] = x
            for own in kinds or ():
                content = own.read(x)
                self.places.append(Place(x, own, content))
                children += content.values
            for child in children:
                key = id(child)
                if type(child) not in ATOMS and key not in parents:
                    parents[key] = x
                    waiting.append(child)

    def _enter(self, function: types.FunctionType) -> list[Any]:
        """Record the names of a function's variables; return the values of the globals that it names."""
        space = function.__globals__
        if not is_loaded(space):
            return []
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            self._variables.setdefault(id(cell), name)
        names = list_names(function.__code__)
        whole = [space] if "globals" in names else []
        return [space.get(NAME), *self._name(space, names), *whole]

    def _name(self, space: dict[str, Any], names: Sequence[str]) -> list[Any]:
        """Add the variables of a module that a function names; return their values."""
        known = self._spaces.setdefault(id(space), Globals(space))
        found = []
        for name in names:
            value = space.get(name, UNBOUND)
            known.names[name] = None
            if isinstance(value, types.ModuleType) and is_loaded(vars(value)):
                found += self._name(vars(value), [n for n in names if n in vars(value)])
            elif isinstance(value, types.ModuleType):
                found.append(STREAMS.get(value.__name__))
            elif value is not UNBOUND:
                found.append(value)
        return found

    def note(self, tensor: Any) -> None:
        """Add a tensor that is about to change, and that may not be reachable from the functions."""
        if id(tensor) not in self._seen:
            self._seen[id(tensor)] = tensor
            self.places.append(Place(tensor, TENSOR, TENSOR.read(tensor)))

    def list_changes(self) -> dict[int, Content]:
        """Return the present contents of the places that have changed, by their indices."""
        found = {}
        for i, place in enumerate(self.places):
            now = place.kind.read(place.owner)
            if not now.is_same(place.content):
                found[i] = now
        return found

    def put(self, contents: Mapping[int, Content]) -> None:
        """Write contents into places, by their indices, where that is possible."""
        for i, content in contents.items():
            owner, kind, _ = self.places[i]
            if kind.write is not None:
                kind.write(owner, content)

    def restore(self, changed: Iterable[int]) -> None:
        """Restore the first contents of places."""
        self.put({i: self.places[i].content for i in changed})

    def list_caches(self) -> list[Any]:
        """Return the functions whose results functools caches."""
        return [x for x in self._seen.values() if type(x) is CACHE]

    def find_new(self, value: Any, is_wanted: Callable[[Any], bool]) -> bool:
        """Return whether a wanted object is reachable from a value, over objects that are not part of this state."""
        waiting, seen = [value], set[int]()
        while waiting:
            x = waiting.pop()
            if is_wanted(x):
                return True
            if type(x) in ATOMS or id(x) in seen or x in self or isinstance(x, type):
                continue
            seen.add(id(x))
            kind: Any = type(x)
            kinds = list_kinds(kind)
            if kinds is not None:
                waiting += list_children(x)
                waiting += [v for own in kinds for v in own.read(x).values]
        return False

    def name(self, x: Any, depth: int = 20) -> str:
        """Return the text of an expression for an object, as `self.counts[0]`."""
        known = self._variables.get(id(x))
        if known is not None:
            return "what a function returns" if "__fnjax_" in known else known
        parent = self._parents.get(id(x))
        if type(x) is Either:
            return x.name
        if isinstance(x, type):
            return x.__qualname__
        if isinstance(x, Globals) or parent is None or not depth:
            return "" if isinstance(x, Globals) else f"a {type(x).__name__}"
        above: Any = type(parent)
        for kind in list_kinds(above) or ():
            content = kind.read(parent)
            for key, value in zip(content.keys, content.values, strict=True):
                if value is x:
                    return self.name(parent, depth - 1) + kind.label(key)
        if isinstance(parent, types.FunctionType):
            names = [n for n in list_names(parent.__code__) if parent.__globals__.get(n) is x]
            given = inspect.signature(parent, follow_wrapped=False).parameters.values()
            names += [p.name for p in given if p.default is x]
            return names[0] if names else f"a {type(x).__name__}"
        return self.name(parent, depth - 1)
