"""All of fnjax.torch, loaded when its first name is asked for."""

from __future__ import annotations

from typing import Any

from fnjax.torch import (
    _backends,
    _creation,
    _distributed,
    _distributions,
    _library,
    _machine,
    _masked,
    _norms,
    _operations,
    _operators,
)
from fnjax.torch._autograd import checkpoint, grad_mode, transforms
from fnjax.torch._between import jax_view, torch_view
from fnjax.torch._namespace import find_known
from fnjax.torch._nn import _containers, _functional_call, _known_layers, _module, _parameter
from fnjax.torch._nn._nnx import nnx
from fnjax.torch._random import seed
from fnjax.torch._tensor import Tensor
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.loading.block import execute_block
from fnjax.torch.loading.errors import NotSupported
from fnjax.torch.loading.load import import_module, load

ENTERING = (
    _backends,
    _creation,
    _distributed,
    _distributions,
    transforms,
    grad_mode,
    checkpoint,
    _library,
    _machine,
    _masked,
    _norms,
    _operations,
    _parameter,
    _module,
    _containers,
    _known_layers,
    _functional_call,
)  # names of torch, when they are imported
_HERE = (NotSupported, execute_block, jax_view, torch_view, import_module, load, seed, Tensor, nnx)
OWN = {x.__name__: x for x in _HERE}

_operators.install()


def find_name(name: str) -> tuple[Any, bool]:
    """Return the object of `fnjax.torch.<name>`, and whether it can be cached: a stand-in for a missing name cannot."""
    if name in OWN:
        return OWN[name], True
    value = find_known(f"torch.{name}")
    return value, not isinstance(value, Missing)
