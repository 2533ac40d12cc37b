"""All of fnjax.torch, imported at the first access to one of its names."""

from __future__ import annotations

import types
from importlib.machinery import ModuleSpec
from typing import Any

from fnjax.torch._autograd import checkpoint, grad_mode, transforms
from fnjax.torch._nn import known_layers
from fnjax.torch._nn.layers import containers
from fnjax.torch._nn.module import functional_call, module, parameter, scan
from fnjax.torch._nn.module.nnx import nnx
from fnjax.torch.deferred.missing import Missing
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions import batch_norm, composites, creation, dunders, masked_reductions
from fnjax.torch.interop import custom_operators, distributed
from fnjax.torch.interop.arrays import jax_view, torch_view
from fnjax.torch.loading.block import execute_block
from fnjax.torch.loading.load import import_module, load
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names import backends, distributions, machine
from fnjax.torch.names.registry import find, find_known
from fnjax.torch.recording.rng import seed

ENTERING = (
    backends,
    creation,
    distributed,
    distributions,
    transforms,
    grad_mode,
    checkpoint,
    custom_operators,
    machine,
    masked_reductions,
    batch_norm,
    composites,
    parameter,
    module,
    containers,
    known_layers,
    functional_call,
    scan,
)  # names of torch, when they are imported
_HERE = (NotSupported, execute_block, jax_view, torch_view, import_module, load, seed, Tensor, nnx)
OWN = {x.__name__: x for x in _HERE}

dunders.install()


def find_name(name: str) -> tuple[Any, bool]:
    """Return the object of `fnjax.torch.<name>`, and whether it can be cached: a stand-in for a missing name cannot."""
    if name in OWN:
        return OWN[name], True
    value = find_known(f"torch.{name}")
    return value, not isinstance(value, Missing)


class _Loader:
    """Loader of a module of torch that is there already."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def find_module(name: str) -> ModuleSpec | None:
    """Return the specification of `fnjax.torch.<module>`, or None.

    Raises:
        ModuleNotFoundError: fnjax.torch does not have the module, for a reason that the error says.
    """
    found = find(name.removeprefix("fnjax."))
    if isinstance(found, Missing):
        raise ModuleNotFoundError(str(found.refuse()), name=name)
    loader: Any = _Loader(found)
    return ModuleSpec(name, loader, is_package=True) if isinstance(found, types.ModuleType) else None
