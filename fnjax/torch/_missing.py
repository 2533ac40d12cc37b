"""Stand-ins for names and modules that do not exist; using one raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fnjax.torch.loading.errors import NotSupported

_loading: ContextVar[int] = ContextVar("_loading", default=0)


@contextmanager
def loading() -> Iterator[None]:
    """Mark that a file's top level is executed: names that are not there stand in for themselves."""
    token = _loading.set(_loading.get() + 1)
    try:
        yield
    finally:
        _loading.reset(token)


def is_loading() -> bool:
    """Return whether a file's top level is executed."""
    return bool(_loading.get())


class Reason(Exception):  # noqa: N818 - it is never raised
    """Reason why fnjax.torch does not have a name of torch, and the way out."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Missing:
    """Stand-in for a value that does not exist.

    At a file's top level it may be called (a decorator returns its function), subscripted, put into annotations and
    made a base class; used later it raises.
    """

    __iter__ = None

    def __init__(self, name: str, cause: BaseException | None = None, instead: Any = None) -> None:
        """Make the stand-in of a name; `instead` is the gradient where one of two branches returned None."""
        vars(self).update(_name=name, _cause=cause, _instead=instead)

    def refuse(self) -> NotSupported:
        """Return the exception to be raised where it is used."""
        name, cause = vars(self)["_name"], vars(self)["_cause"]
        if isinstance(cause, Reason):
            return NotSupported(f"{name} {cause}", cause.remedy)
        reason = (
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
            if cause
            else "unknown to fnjax.torch"
        )
        error = NotSupported(f"{name} is not available ({reason})", "supply it, or leave out what uses it")
        error.__cause__ = cause
        return error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_loading():
            raise self.refuse()
        if len(args) == 1 and not kwargs and (callable(args[0]) or isinstance(args[0], (staticmethod, classmethod))):
            return args[0]
        return Missing(vars(self)["_name"], vars(self)["_cause"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not is_loading():
            raise self.refuse()
        return Missing(f"{vars(self)['_name']}.{name}", vars(self)["_cause"])

    def __getitem__(self, index: Any) -> Missing:
        if not is_loading():
            raise self.refuse()
        return self

    def __or__(self, other: Any) -> Missing:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type(vars(self)["_name"].rpartition(".")[2], (_MissingBase,), {"_missing": self}),)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __bool__(self) -> bool:
        if not is_loading():
            raise self.refuse()
        return False

    def __repr__(self) -> str:
        return f"<{vars(self)['_name']}, which is not available>"


class _MissingBase:
    """Stand-in for a missing base class: its subclasses can be instantiated; using what they inherit raises."""

    _missing: Missing

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._missing, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._missing(*args, **kwargs)


def _refuse(self: Missing, *_: Any) -> Any:
    raise self.refuse()


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "xor", "lshift", "rshift"]:
    setattr(Missing, f"__{_name}__", _refuse)
    setattr(Missing, f"__r{_name}__", _refuse)
for _name in ["lt", "le", "gt", "ge", "len", "int", "float", "index", "neg", "abs", "setitem"]:
    setattr(Missing, f"__{_name}__", _refuse)
