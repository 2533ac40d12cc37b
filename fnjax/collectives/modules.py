"""Names of mesh axes that the ported modules of a folder share."""

from __future__ import annotations

from typing import Any

from fnjax.collectives.axes import Axis, axis_error

_FOLDERS: dict[str, list[dict[str, Any]]] = {}


def join(folder: str, module: dict[str, Any]) -> None:
    """Register a ported module, so that the modules of its folder share the names of their mesh axes.

    Args:
        folder: the porter's name of the folder.
        module: the module's globals, with AXIS_NAME among them.
    """
    known = [m for m in _FOLDERS.get(folder, []) if m.get("__name__") != module.get("__name__")]
    _FOLDERS[folder] = [*known, module]


def shared(folder: str, name: str) -> Axis | None:
    """Return the AXIS_NAME, or another constant, that a module of a ported folder has set; None if none has.

    Args:
        folder: as for join.
        name: the name of the constant.

    Raises:
        AxisError: if two modules have set it to different axes.
    """
    found = {m[name] for m in _FOLDERS.get(folder, []) if m.get(name) is not None}
    if len(found) > 1:
        raise axis_error(
            f"{name} that two modules of a folder set", "one value", f"{sorted(map(str, found))}", "set it once"
        )
    return next(iter(found), None)
