"""Places that hold state: how the content of an object is read and restored, by the object's type."""

from __future__ import annotations

import array
import contextvars
import functools
import gc
import io
import itertools
import operator
import pickle
import random
import types
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fnjax._torch_ops.syntax.trees import RUNTIME
from fnjax.torch._autograd.function.captured import Stateful
from fnjax.torch._autograd.function.ctx import FunctionCtx
from fnjax.torch._autograd.handles import RemovableHandle
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.list_iterator import ListIterator
from fnjax.torch.memory.root_settings import RootSettings
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.gradient_mode import Mode, get_mode, set_mode

UNBOUND = object()  # in place of the value of a variable that has none
ATOMS = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), slice, range, types.CodeType, type(UNBOUND),
    type(NotImplemented), np.dtype,
})  # fmt: skip
_EXACT = frozenset({bool, int, str, bytes})  # equal ones are one
# Modules whose objects hold no state that a program computes with.
_OTHERS = frozenset({
    "_thread", "_weakref", "abc", "ast", "concurrent", "dis", "fnjax", "importlib", "inspect", "jax", "jaxlib",
    "logging", "multiprocessing", "numpy", "os", "pathlib", "re", "threading", "traceback", "typing", "warnings",
    "weakref",
})  # fmt: skip
# Attributes of classes that Python sets, and fnjax.
_PYTHONS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__abstractmethods__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__slotnames__", "_abc_impl", "_fnjax_apply",
})  # fmt: skip
# Types whose objects lead to nothing but what their places hold; what a cache of functools holds may stay there.
CACHE = type(functools.cache(int))
_WHOLE = frozenset({list, dict, set, deque, OrderedDict, types.CellType, CACHE})
_NOTHING = (types.ModuleType, types.FrameType, types.TracebackType, types.MappingProxyType)
# Of the classes of fnjax those whose objects the source changes.
_OWN = (Tensor, FunctionCtx, Stateful, RemovableHandle, RootSettings, ListIterator)
_SHOWN = tuple(n for n in ("memory", "layout", "dtype", "part", "_detached", "number") if n in Tensor.__slots__)


class Content(NamedTuple):
    """Content of a place: names or keys, and their values."""

    keys: Sequence[Any]
    values: Sequence[Any]

    def to_dict(self) -> dict[Any, Any]:
        """Return the values by their keys; a key that is a tensor is replaced by its id, since `==` is elementwise."""
        return dict(zip((id(k) if isinstance(k, Tensor) else k for k in self.keys), self.values, strict=True))

    def find(self, key: Any) -> Any:
        """Return the value under a key."""
        return self.values[[*self.keys].index(key)]

    def replace(self, key: Any, value: Any) -> Content:
        """Return the content with another value under a key."""
        return Content(self.keys, [value if k == key else v for k, v in zip(self.keys, self.values, strict=True)])

    def map(self, function: Callable[[Any], Any]) -> Content:
        """Return the content with a function applied to each key and value."""
        return Content([*map(function, self.keys)], [*map(function, self.values)])

    def is_same(self, other: Content) -> bool:
        """Return whether two contents hold the same objects under the same keys."""
        return _are_same(self.values, other.values) and _are_same(self.keys, other.keys)


def _are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    if len(a) != len(b):
        return False
    return all(map(operator.is_, a, b)) or all(
        x is y or (type(x) in _EXACT and type(x) is type(y) and x == y) for x, y in zip(a, b, strict=True)
    )


class Kind(NamedTuple):
    """One way in which objects of a type hold state.

    Attributes:
        read: returns the content.
        write: restores a content; None if that is not possible.
        label: a key → its text after the object's name.
        is_merged: whether contents of two branches may be merged value by value.
        is_lenient: whether a key that only one branch sets exists after both, as a variable does.
    """

    read: Callable[[Any], Content]
    write: Callable[[Any, Content], None] | None = None
    label: Callable[[Any], str] = str
    is_merged: bool = True
    is_lenient: bool = False


def _label_item(key: Any) -> str:
    return f"[{key!r}]"


def _label_attribute(name: Any) -> str:
    return f".{name}"


def _read_list(x: Any) -> Content:
    values = list.__getitem__(x, slice(None)) if isinstance(x, list) else [*deque.__iter__(x)]
    return Content(range(len(values)), values)


def _write_list(x: Any, content: Content) -> None:
    if isinstance(x, list):
        list.__setitem__(x, slice(None), content.values)
    else:
        deque.clear(x)
        deque.extend(x, content.values)


def _read_dict(x: Any) -> Content:
    base: Any = OrderedDict if isinstance(x, OrderedDict) else dict
    return Content([*base.keys(x)], [*base.values(x)])


def _write_dict(x: Any, content: Content) -> None:
    base: Any = OrderedDict if isinstance(x, OrderedDict) else dict
    if not _are_same([*base.keys(x)], content.keys):
        base.clear(x)
    for key, value in zip(content.keys, content.values, strict=True):
        if value is not UNBOUND:
            base.__setitem__(x, key, value)


def _read_set(x: set[Any]) -> Content:
    values = sorted(set.__iter__(x), key=id)
    return Content(range(len(values)), values)


def _write_set(x: set[Any], content: Content) -> None:
    set.clear(x)
    set.update(x, content.values)


def _attributes(x: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    return found


def _read_attributes(x: Any) -> Content:
    found = _attributes(x)
    return Content([*found, "__class__"], [*found.values(), type(x)])


def _write_attributes(x: Any, content: Content) -> None:
    found = dict(zip(content.keys, content.values, strict=True))
    own = found.pop("__class__")
    if own is not type(x):
        if isinstance(own, Deferred):
            raise own.refuse("an object's class")
        x.__class__ = own
    _write_dict(_attributes(x), Content([*found], [*found.values()]))


def _read_cell(cell: types.CellType) -> Content:
    try:
        return Content(("",), (cell.cell_contents,))
    except ValueError:  # the variable has no value
        return Content(("",), (UNBOUND,))


def _write_cell(cell: types.CellType, content: Content) -> None:
    (value,) = content.values
    if value is not UNBOUND:
        cell.cell_contents = value
    elif _read_cell(cell).values[0] is not UNBOUND:
        del cell.cell_contents


class Globals:
    """The global variables of a Python module that functions refer to."""

    def __init__(self, space: dict[str, Any], names: Sequence[str] = ()) -> None:
        self.space, self.names = space, dict.fromkeys(names)

    def read(self) -> Content:
        """Return the names and their values in the module; UNBOUND for one that it does not define."""
        return Content([*self.names], [self.space.get(n, UNBOUND) for n in self.names])

    def write(self, content: Content) -> None:
        """Set the variables to values; delete those whose value is UNBOUND."""
        for name, value in zip(content.keys, content.values, strict=True):
            if value is UNBOUND:
                self.space.pop(name, None)
            else:
                self.space[name] = value


def _read_class(kind: type) -> Content:
    found = {k: v for k, v in vars(kind).items() if k not in _PYTHONS}
    return Content([*found], [*found.values()])


def _write_class(kind: type, content: Content) -> None:
    for name in {*_read_class(kind).keys} - {*content.keys}:
        type.__delattr__(kind, name)
    for name, value in zip(content.keys, content.values, strict=True):
        if vars(kind).get(name, UNBOUND) is not value:
            type.__setattr__(kind, name, value)


def _of_slots(members: dict[str, Any]) -> Kind:
    """Return the kind of objects with slots."""

    def read(x: Any) -> Content:
        values = []
        for member in members.values():
            try:
                values.append(member.__get__(x))
            except AttributeError:
                values.append(UNBOUND)
        return Content([*members], values)

    def write(x: Any, content: Content) -> None:
        for name, before, value in zip(members, read(x).values, content.values, strict=True):
            if value is not UNBOUND:
                members[name].__set__(x, value)
            elif before is not UNBOUND:
                members[name].__delete__(x)

    return Kind(read, write, _label_attribute)


def _read_tensor(x: Tensor) -> Content:
    names = (*_SHOWN, "grad")
    return Content(names, [getattr(x, n) for n in names])


def _write_tensor(x: Tensor, content: Content) -> None:
    is_other = any(v is not getattr(x, n) for n, v in zip(_SHOWN, content.values, strict=False))
    for name, value in zip(content.keys, content.values, strict=True):
        setattr(x, name, value)
    if is_other:
        x._cached = None


def _of_numbers(read: Callable[[Any], Any]) -> Kind:
    """Return the kind of objects that are compared by a checksum or a number, and cannot be restored."""
    return Kind(lambda x: Content(("",), (read(x),)), is_merged=False)


def _read_array(x: np.ndarray[Any, Any]) -> Any:
    return zlib.crc32(x.tobytes())


def _read_iterator(x: Any) -> Content:
    if getattr(x, "gi_running", False):
        return Content((), ())
    frame = getattr(x, "gi_frame", None)
    position = -1 if frame is None else frame.f_lasti
    text = repr(x) if isinstance(x, itertools.count) else ""
    try:
        left = operator.length_hint(x, -1)
    except TypeError:  # it has no end
        left = -1
    values = [position, text, left, *gc.get_referents(x)]
    return Content(range(len(values)), values)


def _write_variable(x: contextvars.ContextVar[Any], content: Content) -> None:
    if content.values[0] is not UNBOUND:
        x.set(content.values[0])


CELL = Kind(_read_cell, _write_cell, is_lenient=True)
GLOBALS = Kind(Globals.read, Globals.write, is_lenient=True)
CLASS = Kind(_read_class, _write_class, _label_attribute)
OF_CLASSES = (CLASS,)
ITEMS = Kind(_read_list, _write_list, _label_item)
ENTRIES = Kind(_read_dict, _write_dict, _label_item)
MEMBERS = Kind(_read_set, _write_set, is_merged=False)
ATTRIBUTES = Kind(_read_attributes, _write_attributes, _label_attribute)
TENSOR = Kind(_read_tensor, _write_tensor, lambda name: ".grad" if name == "grad" else ".data")
ITERATOR = Kind(_read_iterator, label=lambda _: "", is_merged=False)
CONTEXT_VAR = Kind(lambda x: Content(("",), (x.get(UNBOUND),)), _write_variable)
_STREAM = _of_numbers(lambda x: hash(x.getstate()))
_NUMPY_STREAM = _of_numbers(lambda x: pickle.dumps(x.bit_generator.state))
_OLD_NUMPY_STREAM = _of_numbers(
    lambda x: hash(tuple(a.tobytes() if isinstance(a, np.ndarray) else a for a in x.get_state()))
)
_GRAD_MODE = Kind(
    lambda _: Content(Mode._fields, get_mode()),
    lambda _, content: set_mode(Mode(*content.values)).__enter__(),
    is_merged=False,
)
GRAD_MODE = get_mode, _GRAD_MODE
# The random numbers that a module's functions draw.
STREAMS: dict[str, Any] = {
    "random": random.getstate.__self__,  # type: ignore[attr-defined]
    "numpy": np.random.get_state.__self__,  # type: ignore[attr-defined]
    "numpy.random": np.random.get_state.__self__,  # type: ignore[attr-defined]
}


def is_loaded(space: Any) -> bool:
    """Return whether the names of a module are those of a loaded file."""
    return RUNTIME in space


@functools.lru_cache(4096)
def list_kinds(kind: type) -> tuple[Kind, ...] | None:
    """Return the ways in which instances of a type hold state; None for types that are not inspected."""
    if kind in ATOMS or issubclass(kind, _NOTHING):
        return None
    if issubclass(kind, type):
        return OF_CLASSES
    if issubclass(kind, (Deferred, weakref.ref)):
        return ()
    if issubclass(kind, (io.StringIO, io.BytesIO)):
        return (_of_numbers(lambda x: x.getvalue()),)
    if issubclass(kind, np.ndarray):
        return (_of_numbers(_read_array),)
    if issubclass(kind, (np.random.Generator, np.random.RandomState)):
        return (_NUMPY_STREAM if issubclass(kind, np.random.Generator) else _OLD_NUMPY_STREAM,)
    if issubclass(kind, random.Random):
        return (_STREAM,)
    if issubclass(kind, (bytearray, array.array)):
        return (_of_numbers(bytes),)
    if issubclass(kind, contextvars.ContextVar):
        return (CONTEXT_VAR,)
    if issubclass(kind, types.CellType):
        return (CELL,)
    if str(kind.__module__).partition(".")[0] in _OTHERS and not issubclass(kind, _OWN):
        return None
    found = [*_list_builtin(kind)]
    if kind.__dictoffset__:
        found.append(ATTRIBUTES)
    members = {
        name: member
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base) and not str(base.__module__).startswith("fnjax.")
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }
    if members:
        found.append(_of_slots(members))
    return tuple(found)


def _list_builtin(kind: type) -> list[Kind]:
    for base, own in (((list, deque), ITEMS), (dict, ENTRIES), (set, MEMBERS), (Tensor, TENSOR)):
        if issubclass(kind, base):
            return [own]
    is_builtin = kind.__module__ in {"builtins", "itertools", "collections", "_collections"}
    return [ITERATOR] if is_builtin and hasattr(kind, "__next__") else []


def list_children(x: Any) -> Sequence[Any]:
    """Return the objects that an object refers to, other than the contents of its places."""
    kind = type(x)
    if kind in _WHOLE:
        return ()
    if kind is types.FunctionType:
        return (*(x.__closure__ or ()), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())
    if isinstance(x, type):
        return x.__mro__[1:]
    if issubclass(kind, weakref.ref):
        return (x(),)
    if issubclass(kind, Tensor):
        return (kind,)
    own = object.__getattribute__(x, "__dict__") if kind.__dictoffset__ else None
    return [found for found in gc.get_referents(x) if found is not own]


@functools.lru_cache(4096)
def list_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a function's code, and in the code of its inner functions."""
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in list_names(c)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
