"""Stand-ins for names of Triton that fnjax.triton does not have: importing one succeeds, using it is the error."""

from __future__ import annotations

import dis
import sys
from typing import Any

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class Absent:
    """Name that fnjax.triton does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: Any, **named: Any) -> Any:
        raise AttributeError(f"{self._name} is not available in fnjax.triton")

    __call__ = __getitem__ = __add__ = __mul__ = __eq__ = __bool__ = __iter__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def __repr__(self) -> str:
        return f"<{self._name}, which is not available in fnjax.triton>"


def stand_in(module: str, name: str, depth: int = 2) -> Absent:
    """Return a stand-in where a module's `__getattr__` serves `from module import name`.

    Args:
        module: of Triton.
        name: the name.
        depth: the number of frames between this function and the import.

    Raises:
        AttributeError: the name is asked for in another way, as by `hasattr`.
    """
    frame = sys._getframe(depth)
    if frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti] != _IMPORT_FROM or name.startswith("__"):
        raise AttributeError(f"fnjax.{module} has no {name}")
    return Absent(f"{module}.{name}")
