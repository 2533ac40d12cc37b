"""Pictures and tables of what reverse mode does: function → program → graph → DOT."""

from fnjax.graph._picture import Picture as Picture
from fnjax.graph._picture import make_dot as make_dot
from fnjax.graph._report import SavedArray as SavedArray
from fnjax.graph._report import SavedReport as SavedReport
from fnjax.graph._report import saved_report as saved_report
