"""Stand-ins for names of Triton that fnjax.triton does not have: importing one succeeds, using it is the error."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import Any, NoReturn


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


def refuse(name: str, *modules: str) -> NoReturn:
    """Raise AttributeError for a name that modules of Triton do not have, and let `from module import name` succeed.

    Where a module has no such attribute, Python's import takes what sys.modules has under `module.name`
    (https://docs.python.org/3/reference/simple_stmts.html#import): a stand-in. `hasattr` never looks there.

    Args:
        name: the name that a module's `__getattr__` was asked for.
        modules: those that share this `__getattr__`, the one to be named first.
    """
    for module in modules if not name.startswith("__") else ():
        full, path = f"fnjax.{module}.{name}", getattr(sys.modules.get(f"fnjax.{module}"), "__path__", ())
        if full not in sys.modules and PathFinder.find_spec(full, path) is None:
            found: Any = Absent(f"{modules[0]}.{name}")
            sys.modules[full] = found
    raise AttributeError(f"fnjax.{modules[0]} has no {name}")
