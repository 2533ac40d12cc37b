"""Pictures and tables of what reverse mode does: function → program → graph → DOT."""

from fnjax.graph.picture import Picture as Picture
from fnjax.graph.picture import make_dot as make_dot
from fnjax.graph.report import SavedArray as SavedArray
from fnjax.graph.report import SavedReport as SavedReport
from fnjax.graph.report import saved_report as saved_report
