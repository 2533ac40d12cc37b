"""A Function in PyTorch and its port on the same values: outputs, gradients, second derivatives, eager and jit.

Only this package and `fnjax.port.verify` import PyTorch. It runs both sides, and knows nothing of the porter.
"""

import typing as _typing

from fnjax._lazy import lazy as _lazy

_HOMES = {  # PyTorch is loaded when something is compared, not for every command
    "TOLERANCES": "fnjax.port.compare.record",
    "Comparison": "fnjax.port.compare.record",
    "Entry": "fnjax.port.compare.record",
    "compare": "fnjax.port.compare.comparing",
    "compare_modules": "fnjax.port.compare.modules",
}

if _typing.TYPE_CHECKING:
    from fnjax.port.compare.comparing import compare as compare
    from fnjax.port.compare.modules import compare_modules as compare_modules
    from fnjax.port.compare.record import TOLERANCES as TOLERANCES
    from fnjax.port.compare.record import Comparison as Comparison
    from fnjax.port.compare.record import Entry as Entry
else:
    __all__ = list(_HOMES)
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
