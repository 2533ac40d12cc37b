"""PyTorch source run as it is, on JAX arrays.

    import fnjax.torch
    layers = fnjax.torch.load("layers_torch.py")
    jax.grad(lambda x: layers.Swish.apply(x).sum())(x)

In a copy of the file, `import fnjax.torch as torch` does the same.
"""

from typing import Any as _Any

from fnjax.torch import _distributions, _methods
from fnjax.torch._errors import NotSupported as NotSupported
from fnjax.torch._function import jax_view as jax_view
from fnjax.torch._function import torch_view as torch_view
from fnjax.torch._load import import_module as import_module
from fnjax.torch._load import load as load
from fnjax.torch._missing import Missing as _Missing
from fnjax.torch._namespace import find_or_stand_in as _find
from fnjax.torch._random import seed as seed
from fnjax.torch._tensor import Tensor as Tensor

_methods.install()


def __getattr__(name: str) -> _Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    value = _find(f"torch.{name}")
    if not isinstance(value, _Missing):
        globals()[name] = value
    return value
