"""Stand-ins for names and modules that do not exist; using one raises."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from fnjax.torch.deferred.base import Deferred
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.blocks import setting

_state: ContextVar[str] = ContextVar("_state", default="")


def loading(*, feature_test: bool = False) -> AbstractContextManager[str]:
    """Mark a block in which a file's top level is executed: missing names become stand-ins.

    Args:
        feature_test: whether the block is a `try` statement that tests whether a name exists: missing names raise.
    """
    return setting(_state, "feature test" if feature_test else "loading")


def is_loading() -> bool:
    """Return whether a file's top level is being executed, so that stand-ins may be made."""
    return _state.get() == "loading"


def is_feature_test() -> bool:
    """Return whether a `try` statement of a file's top level is being executed, which may test for names."""
    return _state.get() == "feature test"


class Reason(Exception):  # noqa: N818 - it is never raised
    """Reason why fnjax.torch does not have a name of torch, and the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def _home(value: object) -> str:
    return str(getattr(value, "__module__", ""))


class Missing(Deferred):
    """Stand-in for a name of torch, or of the file, that does not exist.

    While a file's top level is executed, it may be called, subscripted, put into annotations and made a base class. All
    other uses raise, and so do these later.
    """

    def __init__(self, name: str, cause: BaseException | None = None) -> None:
        vars(self).update(_name=name, _cause=cause)

    def refuse(self, use: str = "") -> NotSupported:
        """Return the exception for any use."""
        name, cause = vars(self)["_name"], vars(self)["_cause"]
        if isinstance(cause, Reason):
            return NotSupported(f"{name} {cause}", cause.remedy)
        reason = (
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
            if cause
            else "unknown to fnjax.torch"
        )
        _, _, remedy = str(cause).partition("\n  fix: ")  # a cause of ours knows better
        remedy = remedy.partition("\n")[0] or "supply it, or leave out what uses it"
        error = NotSupported(f"{name} is not available ({reason})", remedy)
        error.__cause__ = cause
        return error

    def _check_loading(self) -> None:
        if not is_loading():
            raise self.refuse()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a stand-in at a file's top level, for decorators and settings; raise elsewhere."""
        self._check_loading()
        return Missing(vars(self)["_name"], vars(self)["_cause"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._check_loading()
        return Missing(f"{vars(self)['_name']}.{name}", vars(self)["_cause"])

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_loading()

    def __getitem__(self, index: Any) -> Missing:
        self._check_loading()
        return self

    def __or__(self, other: Any) -> Missing:
        self._check_loading()
        return self

    __ror__ = __or__
    __reduce_ex__ = object.__reduce_ex__  # it may be copied with what it belongs to

    def __hash__(self) -> int:
        self._check_loading()
        return id(self)

    def __eq__(self, other: object) -> bool:
        if is_loading() and (other is type(None) or "typing" in {type(other).__module__, _home(other)}):
            return False  # typing.Optional[...] compares its argument
        raise self.refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type(vars(self)["_name"].rpartition(".")[2], (_MissingBase,), {"_missing": self}),)

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


def decorator(value: Any) -> Any:
    """Return a decorator at a file's top level; for a stand-in, the identity."""
    return (lambda decorated: decorated) if isinstance(value, Missing) and is_loading() else value
