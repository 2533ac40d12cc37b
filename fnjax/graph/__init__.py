"""Pictures and tables of reverse mode: function → program → graph → DOT."""

import typing as _typing

from fnjax._lazy import lazy as _lazy

_HOMES = {
    "Picture": "fnjax.graph.picture",
    "make_dot": "fnjax.graph.picture",
    "SavedArray": "fnjax.graph.report",
    "SavedReport": "fnjax.graph.report",
    "saved_report": "fnjax.graph.report",
}

if _typing.TYPE_CHECKING:
    from fnjax.graph.picture import Picture as Picture
    from fnjax.graph.picture import make_dot as make_dot
    from fnjax.graph.report import SavedArray as SavedArray
    from fnjax.graph.report import SavedReport as SavedReport
    from fnjax.graph.report import saved_report as saved_report
else:
    __all__ = list(_HOMES)
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
