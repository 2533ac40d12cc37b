"""A Function in PyTorch and its port on the same numbers: outputs, gradients, second derivatives, eager and jit.

Only this package and `fnjax.port.verify` import PyTorch. It runs both sides, and knows nothing of the porter.
"""

from typing import TYPE_CHECKING, Any

from fnjax.port.compare.record import TOLERANCES as TOLERANCES
from fnjax.port.compare.record import Comparison as Comparison
from fnjax.port.compare.record import Entry as Entry

if TYPE_CHECKING:
    from fnjax.port.compare.comparing import Comparing as Comparing
    from fnjax.port.compare.comparing import compare as compare
    from fnjax.port.compare.modules import ModulesComparison as ModulesComparison
    from fnjax.port.compare.modules import compare_modules as compare_modules

__all__ = ["TOLERANCES", "Comparing", "Comparison", "Entry", "ModulesComparison", "compare", "compare_modules"]


def __getattr__(name: str) -> Any:
    # PyTorch is loaded when something is compared, not for every command.
    if name in {"Comparing", "compare"}:
        from fnjax.port.compare import comparing

        return getattr(comparing, name)
    if name in {"ModulesComparison", "compare_modules"}:
        from fnjax.port.compare import modules

        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
