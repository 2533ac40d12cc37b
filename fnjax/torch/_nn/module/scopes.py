"""Names of the modules that are being called: in programs, for profilers, and in errors."""

from __future__ import annotations

import functools
import traceback
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import jax

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch.errors import find_line, is_ours

_NOTE = "  in module: "
_current: ContextVar[Scope | None] = ContextVar("_current", default=None)


class Scope:
    """Block in which a module's forward runs.

    Operations that JAX traces there have the names of the modules in their metadata, `GPT/blocks.0/attention`, and an
    exception has a note on the innermost module.

    Args:
        module: the module.
    """

    __slots__ = ("__dict__", "_module", "_named", "_outer", "_token")

    def __init__(self, module: Any) -> None:
        self._module, self._outer = module, _current.get()
        self._named: AbstractContextManager[Any] | None = None

    @functools.cached_property
    def _root(self) -> Scope:
        """The outermost call of a module to which this one belongs."""
        outer = self._outer
        return self if outer is None or id(self._module) not in outer._root._paths else outer._root

    @functools.cached_property
    def _paths(self) -> dict[int, str]:
        return {id(module): path for path, module in self._module.named_modules()}

    @property
    def _path(self) -> str:
        return self._root._paths[id(self._module)]

    def __enter__(self) -> None:
        self._token = _current.set(self)
        if is_transformed():
            path = self._path
            if self._root is self:
                name = type(self._module).__name__
            else:
                assert self._outer is not None
                name = path.removeprefix(f"{self._outer._path}.")
            self._named = jax.named_scope(name)
            self._named.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._named is not None:
            self._named.__exit__(kind, error, trace)
        _current.reset(self._token)
        if isinstance(error, Exception) and not any(n.startswith(_NOTE) for n in getattr(error, "__notes__", ())):
            lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
            where = next((f"{file}:{line}" for file, line in reversed(lines) if not is_ours(file)), find_line())
            name, root = type(self._module).__name__, type(self._root._module).__name__
            named = f"{name} {self._path!r} of {root}" if self._path else root
            error.add_note(f"{_NOTE}{named}, {where}")
