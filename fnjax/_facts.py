"""What a call means beyond its arrays, as a key: two calls with equal facts do the same.

Only values that cannot change have facts: numbers, strings, dtypes, enum members, tuples, and functions. Numbers are
told apart as Python tells their types and signs apart: 1, True and 1.0 differ, and so do 0.0 and -0.0. Whatever can
change (lists, dicts, NumPy arrays, objects) has none, and neither have classes: a key from which its own class can be
reached would keep it alive. JAX's own functions and the modules of libraries stand for themselves.

A function is what it captures and what it reads from globals. These variables are looked at with every call, so
containers among them count by what is in them now, objects and modules by the attributes that the function names. Since
no list of what Python code may read is complete, a key with a variable in it is good for one program of JAX only.
Counters have no part in this.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
import typing
import weakref
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import numpy as np

from fnjax._jax.trees import is_tracer
from fnjax._uses import (
    CONTAINERS,
    KINDS,
    all_code,
    attributes_read,
    imports_relatively,
    is_counter,
    is_passed,
    is_read,
    is_written,
)

_BY_VALUE = (bool, int, str, bytes, type(None), type(Ellipsis), range)
_BY_IDENTITY = (np.ufunc, np.dtype)
_JITTED = type(jax.jit(lambda: None))
_WRAPPERS = (_JITTED, jax.custom_jvp, jax.custom_vjp)
_IMPORTED = (types.FunctionType, types.BuiltinFunctionType, *_BY_IDENTITY, *_WRAPPERS)
_FIXED = {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "fnjax", *sys.stdlib_module_names}  # nobody sets their names
_INSTALLED = ("site-packages", "dist-packages")
_DYNAMIC = {"eval", "exec", "getattr", "hasattr", "globals", "vars"}  # these read any name,
_DYNAMIC |= {"environ", "getenv", "__dict__", "__import__", "attrgetter", "import_module"}
# Modules that may answer otherwise each time.
_CHANGING = {"random", "time", "secrets", "uuid", "os", "datetime", "tempfile"}
_STATE = (*(f"{name}." for name in _CHANGING), "numpy.random", "scipy.stats")
_STATEFUL = {*_CHANGING, "numpy", "scipy"}
# Instances of Python's own classes that have attributes and nothing else; to log is nothing that numbers depend on.
_RECORDS = {"types.SimpleNamespace", "argparse.Namespace", "_thread._local", "logging.Logger", "builtins.module"}
# Modules without anything that programs set.
_STATELESS = {"jax", "jaxlib", "ml_dtypes", "fnjax", "math", "cmath", "functools", "itertools", "operator", "typing"}
_STATELESS |= {
    "collections",
    "dataclasses",
    "enum",
    "abc",
    "numbers",
    "contextlib",
    "types",
    "string",
    "re",
    "textwrap",
}
_DEFINING = _STATELESS | {"numpy", "scipy"}
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_ANYWHERE = {
    "__orig_bases__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__dict__",
}
_ANYWHERE |= {"__weakref__", "__doc__", "__module__", "__slots__", "__firstlineno__", "__static_attributes__"}
_HARMLESS = {*vars(dataclasses.make_dataclass("Plain", ["field"], frozen=True)), "__post_init__", *_ANYWHERE}
_OF_TUPLES = {*vars(typing.NamedTuple("Plain", [("field", int)])), *_ANYWHERE}
_OF_ENUMS = {*vars(enum.Enum("Plain", ["FIELD"])), *_ANYWHERE}
MAX_CONTENT = 1024  # entries of a container
_VARIABLE = object()  # in a key: what follows may be another the next time


class NoFactsError(Exception):
    """A value that can change."""


def lasts(key: Hashable) -> bool:
    """Whether a key is good for more than the program that JAX is tracing: no variable has been read for it."""
    return key is not _VARIABLE and (type(key) is not tuple or all(map(lasts, key)))


class _Identity:
    """An object as a key by itself; the key keeps it alive, so that no other object takes its place."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def facts(value: Any, inside: tuple[types.FunctionType, ...] = ()) -> Hashable:
    """The key of a value.

    Args:
        value: the value.
        inside: the functions that lead to it.

    Raises:
        NoFactsError: for one that can change.
    """
    kind = type(value)
    if kind is staticmethod:
        return facts(value.__func__, inside)
    if kind is types.FunctionType:
        # F.apply: what is called inside is looked at when it is called.
        return (_VARIABLE, _itself(value)) if "__self__" in value.__dict__ else _function_facts(value, inside)
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, tuple | enum.Enum) and _has_methods(kind):
        raise NoFactsError
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields") and not hasattr(value, "__dict__")):
        return kind, *map(facts, value)
    if kind is functools.partial:
        return kind, *(facts(x, inside) for x in (value.func, value.args, tuple(value.keywords.items())))
    if kind is slice:
        return kind, facts(value.start), facts(value.stop), facts(value.step)
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmMSU":
        return kind, value.dtype, value.tobytes()
    if isinstance(value, enum.Enum):
        own = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        return _Identity(value), facts(value.value), facts(tuple(own.items()))
    if isinstance(value, types.ModuleType) and _is_fixed(value.__name__):
        return _Identity(value)
    if kind is types.BuiltinFunctionType and isinstance(value.__self__, types.ModuleType):
        if value.__self__.__name__ in _CHANGING:
            raise NoFactsError
        return _Identity(value)
    if isinstance(value, _BY_IDENTITY) or _is_dtype(value) or (isinstance(value, jax.Array) and not is_tracer(value)):
        return _Identity(value)
    if isinstance(value, _WRAPPERS) and _root(value.__module__) == "jax":  # jnp.sin, jax.nn.relu
        return _Identity(value)
    raise NoFactsError


def tree_facts(tree: Any) -> Hashable:
    """The key of the structure of a pytree, the keys of its dicts and the static fields of its nodes included.

    Raises:
        NoFactsError: for a static field that can change.
    """
    node = tree.node_data()
    if node is None:
        return None
    kind, fixed = node
    own = None if fixed is kind else facts(tuple(fixed) if type(fixed) is list else fixed)
    return kind, own, *map(tree_facts, tree.children())


def _root(module: object) -> str:
    return str(module).partition(".")[0]


def _is_fixed(module: object) -> bool:
    """Whether a module of this name is one of Python's or of JAX's."""
    return _root(module) in _FIXED


def _has_methods(kind: type) -> bool:
    """Whether a named tuple or enum of the user's has more than its fields: methods may read anything."""
    own = {*getattr(kind, "_fields", ()), *getattr(kind, "__members__", ())}
    own |= _OF_ENUMS if issubclass(kind, enum.Enum) else _OF_TUPLES
    return any(name not in own for c in kind.__mro__ if not _is_fixed(c.__module__) for name in vars(c))


def _is_dtype(value: Any) -> bool:
    if not isinstance(value, type) or not _is_fixed(value.__module__):
        return False
    return issubclass(value, np.generic | int | float | complex) or isinstance(getattr(value, "dtype", None), np.dtype)


def _function_facts(function: types.FunctionType, inside: tuple[types.FunctionType, ...]) -> Hashable:
    if function in inside:
        return None
    inside = (*inside, function)
    if _root(function.__module__) in _CHANGING:
        raise NoFactsError
    code, captured = function.__code__, []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError as e:  # not filled yet
            raise NoFactsError from e
        _refuse_state(code, name, value)
        captured.append(_variable_facts(code, name, value, inside))
    defaults = None
    if function.__defaults__ or function.__kwdefaults__ or function.__dict__:
        parts = function.__defaults__, tuple((function.__kwdefaults__ or {}).items()), tuple(vars(function).items())
        defaults = facts(parts, inside)
    # Of a library's function nobody sets the globals; the user's own may be installed too, but not as a helper.
    read = [] if len(inside) > 1 and _is_library(function) else _global_facts(function, inside)
    return function, code, defaults, *captured, *read  # code: tools that reload modules replace it


def _is_library(function: types.FunctionType) -> bool:
    return _is_fixed(function.__module__) or any(name in function.__code__.co_filename for name in _INSTALLED)


def _global_facts(function: types.FunctionType, inside: tuple[types.FunctionType, ...]) -> list[Hashable]:
    """The facts of the globals that a function names, and of those among their attributes that it names."""
    code, own = function.__code__, function.__globals__
    names = dict.fromkeys(name for c in all_code(code) for name in c.co_names)
    imports = any(type(c) is tuple and c and type(c[0]) is str for c in code.co_consts)
    if not _DYNAMIC.isdisjoint(names) or (imports and imports_relatively(code)):
        raise NoFactsError
    found: list[Hashable] = []
    seen: list[Any] = []
    spaces: list[Any] = [own, {name: sys.modules[name] for name in names if name in sys.modules and name not in own}]
    for space in spaces:
        for name in names:
            if name not in space:
                continue
            value = space[name]
            if type(value) is types.ModuleType and value.__name__.partition(".")[0] in _STATELESS:  # the usual case
                found += name, value.__name__
                continue
            _refuse_state(code, name, value)
            if not _is_definition(value):
                found.append(_VARIABLE)
            try:
                found += name, _variable_facts(code, name, value, inside)
            except NoFactsError:
                known = _attributes(value, names)
                if known is None and (space is not own or is_read(code, name)):
                    raise
                if is_passed(code, name) and not _is_inert(value):  # and then others may read of it what they like
                    raise
                if known and not any(value is x for x in seen):
                    seen.append(value)
                    spaces += known
                found += name, _itself(value)
    return found


def _is_definition(value: Any) -> bool:
    """Whether a global is what files define and import, and not what programs set."""
    if isinstance(value, types.ModuleType):
        return _root(value.__name__) in _DEFINING
    return isinstance(value, _IMPORTED) or _is_dtype(value)


def _is_inert(value: Any) -> bool:
    """Whether an object that code calls or passes on has nothing else to be read."""
    if isinstance(value, type):
        return issubclass(value, BaseException) or (issubclass(value, tuple) and not _has_methods(value))
    return isinstance(value, _JITTED)


def _attributes(value: Any, names: Iterable[str]) -> list[Any] | None:
    """Where the attributes of an object stand that a function with these names may read; None if that is unknown."""
    is_class = isinstance(value, type)
    classes = value.__mro__ if is_class else type(value).__mro__
    spaces = [vars(c) for c in classes if not _is_fixed(c.__module__)]
    if is_class:
        # Code of its own may run where the class is called, or where an attribute is looked up.
        runs = any(name in space for space in spaces for name in _CONSTRUCTORS) and not _is_generated(value)
        runs = runs and not issubclass(value, BaseException)
        return spaces if _is_fixed(type(value).__module__) and not runs else None
    if isinstance(value, _JITTED):
        return []  # JAX itself does not look again
    kind = type(value)
    if is_tracer(value) or (_is_fixed(kind.__module__) and f"{kind.__module__}.{kind.__qualname__}" not in _RECORDS):
        return None
    # Where code of the object itself may run, any of its attributes may be read.
    if callable(value) or any(hasattr(kind, name) for name in ("__get__", "__iter__", "__getitem__")):
        return None
    for name, member in (item for space in spaces for item in space.items()):
        if name not in _HARMLESS if name[:2] == "__" else name in names and hasattr(type(member), "__get__"):
            return None
    return [vars(value), *spaces] if hasattr(value, "__dict__") else None


def _is_generated(kind: type) -> bool:
    """Whether the constructors of a class are those that Python wrote for it."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, tuple) or (
        parameters is not None and parameters.init and not hasattr(kind, "__post_init__")
    )


def _refuse_state(code: types.CodeType, name: str, value: Any) -> None:
    """Raises NoFactsError where a function writes to a variable, or reads a clock or random numbers from a module."""
    if isinstance(value, types.ModuleType):
        read = (f"{value.__name__}.{attribute}" for attribute in attributes_read(code, name))
        stateful = _root(value.__name__) in _STATEFUL
        if stateful and (is_passed(code, name) or any(path.startswith(_STATE) for path in read)):
            raise NoFactsError
    elif type(value) is not types.FunctionType and is_written(code, name):
        raise NoFactsError


def _variable_facts(code: types.CodeType, name: str, value: Any, inside: tuple[types.FunctionType, ...]) -> Hashable:
    if type(value) in KINDS and is_counter([code], name):
        return name
    return _content(value, inside)


def _content(value: Any, inside: tuple[types.FunctionType, ...]) -> Hashable:
    """The facts of a value as it is now."""
    kind = type(value)
    if kind in CONTAINERS and len(value) <= MAX_CONTENT:
        items = (x for item in value.items() for x in item) if isinstance(value, dict) else value
        return kind, _VARIABLE, *(_content(x, inside) for x in items)
    return facts(value, inside)


def _itself(value: object) -> Hashable:
    try:
        return _Identity(weakref.ref(value))  # Python has one for each object
    except TypeError:
        return _Identity(value)
