"""PyTorch's custom autograd Functions for JAX."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from fnjax._call.ctx import FunctionCtx as FunctionCtx
from fnjax._call.hooks import saved_tensors_hooks as saved_tensors_hooks
from fnjax._check.gradcheck import gradcheck as gradcheck
from fnjax._check.gradgradcheck import gradgradcheck as gradgradcheck
from fnjax._check.opcheck import OpcheckError as OpcheckError
from fnjax._check.opcheck import OpcheckResults as OpcheckResults
from fnjax._check.opcheck import opcheck as opcheck
from fnjax._check.report import GradcheckError as GradcheckError
from fnjax._class.amp import custom_bwd as custom_bwd
from fnjax._class.amp import custom_fwd as custom_fwd
from fnjax._class.function import Function as Function
from fnjax._class.function import once_differentiable as once_differentiable
from fnjax._errors import ArgumentError as ArgumentError
from fnjax._errors import BatchingError as BatchingError
from fnjax._errors import ClosureError as ClosureError
from fnjax._errors import ContextError as ContextError
from fnjax._errors import DefinitionError as DefinitionError
from fnjax._errors import FnjaxError as FnjaxError
from fnjax._errors import GradientError as GradientError
from fnjax._errors import IntermediateError as IntermediateError
from fnjax._errors import MissingMethodError as MissingMethodError
from fnjax._errors import OnceDifferentiableError as OnceDifferentiableError
from fnjax._errors import OutputError as OutputError

__version__ = "0.1.0"

if _TYPE_CHECKING:
    from fnjax.graph import SavedReport as SavedReport
    from fnjax.graph import make_dot as make_dot
    from fnjax.graph import saved_report as saved_report

_PICTURES = ("SavedReport", "make_dot", "saved_report")


def __getattr__(name: str) -> _Any:
    if name not in _PICTURES:  # imported when they are asked for: few programs draw
        raise AttributeError(f"module 'fnjax' has no attribute {name!r}")
    from fnjax import graph

    return getattr(graph, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PICTURES])
