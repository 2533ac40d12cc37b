"""PyTorch source run as it is, on JAX arrays.

Examples:
    >>> import pathlib, tempfile
    >>> import jax, jax.numpy as jnp
    >>> import fnjax.torch
    >>> source = '''
    ... import torch
    ...
    ... class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, grad_output):
    ...         (x,) = ctx.saved_tensors
    ...         return grad_output.mul(2).mul_(x)
    ... '''
    >>> path = pathlib.Path(tempfile.mkdtemp(), "layers_torch.py")
    >>> path.write_text(source) > 0
    True
    >>> layers = fnjax.torch.load(path)
    >>> print(jax.grad(lambda x: layers.Square.apply(x).sum())(jnp.arange(3.0)))
    [0. 2. 4.]
"""

from typing import Any as _Any

from fnjax.torch import _creation as _creation  # this one and the next four enter names of torch
from fnjax.torch import _distributions as _distributions
from fnjax.torch import _gradient_mode as _gradient_mode
from fnjax.torch import _machine as _machine
from fnjax.torch import _operations as _operations
from fnjax.torch import _operators
from fnjax.torch._errors import NotSupported as NotSupported
from fnjax.torch._function import jax_view as jax_view
from fnjax.torch._function import torch_view as torch_view
from fnjax.torch._load import import_module as import_module
from fnjax.torch._load import load as load
from fnjax.torch._missing import Missing as _Missing
from fnjax.torch._namespace import find_or_stand_in as _find
from fnjax.torch._random import seed as seed
from fnjax.torch._tensor import Tensor as Tensor

_operators.install()


def __getattr__(name: str) -> _Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    value = _find(f"torch.{name}")
    if not isinstance(value, _Missing):
        globals()[name] = value
    return value
