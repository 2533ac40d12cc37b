"""The porter: files with torch.autograd.Function classes become JAX source with fnjax.Function classes."""

import typing as _typing

from fnjax._lazy import lazy as _lazy

_HOMES = {
    "Finding": "fnjax.port.result",
    "Ported": "fnjax.port.result",
    "PortedClass": "fnjax.port.result",
    "port_source": "fnjax.port.engine.porting",
}

if _typing.TYPE_CHECKING:
    from fnjax.port.engine.porting import port_source as port_source
    from fnjax.port.result import Finding as Finding
    from fnjax.port.result import Ported as Ported
    from fnjax.port.result import PortedClass as PortedClass
else:
    __all__ = list(_HOMES)
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
