"""The porter: files with torch.autograd.Function classes become JAX source with fnjax.Function classes."""

from typing import TYPE_CHECKING, Any

from fnjax.port.result import Finding as Finding
from fnjax.port.result import Ported as Ported
from fnjax.port.result import PortedClass as PortedClass

if TYPE_CHECKING:
    from fnjax.port.engine import port_source as port_source

__all__ = ["Finding", "Ported", "PortedClass", "port_source"]


def __getattr__(name: str) -> Any:
    # libcst is loaded when something is ported, not for every command.
    if name == "port_source":
        from fnjax.port.engine import port_source

        return port_source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
