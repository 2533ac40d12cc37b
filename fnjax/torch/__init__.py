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

import sys as _sys
import typing as _typing
from importlib.util import find_spec as _find_spec

if _typing.TYPE_CHECKING:
    from fnjax.torch.errors import NotSupported as NotSupported
    from fnjax.torch.interop.arrays import jax_view as jax_view
    from fnjax.torch.interop.arrays import torch_view as torch_view
    from fnjax.torch.loading.block import execute_block as execute_block
    from fnjax.torch.loading.load import import_module as import_module
    from fnjax.torch.loading.load import load as load
    from fnjax.torch.memory.tensor import Tensor as Tensor
    from fnjax.torch.recording.rng import seed as seed


class _Finder:
    """Finder of torch's modules, asked after Python's own finders: `import fnjax.torch.nn.functional as F`."""

    @staticmethod
    def find_spec(name: str, path: _typing.Any = None, target: _typing.Any = None) -> _typing.Any:
        if not name.startswith(f"{__name__}.") or name.startswith(f"{__name__}._"):
            return None
        from fnjax.torch._all_names import find_module

        return find_module(name)


_sys.meta_path.append(_Finder)


def __getattr__(name: str) -> _typing.Any:
    """Return a name of torch, or of this package. JAX is loaded then: the porter reads the table without it."""
    if name.lower().startswith(("setup", "teardown", "pytest")):  # pytest asks the modules that it collects
        raise AttributeError(name)
    ours = name.startswith("_") and name != "__version__"
    if ours and (name.startswith("__") or _find_spec(f"{__name__}.{name}")):  # a file, which is about to be imported
        raise AttributeError(name)
    from fnjax.torch._all_names import find_name

    value, lasting = find_name(name)
    if lasting:
        globals()[name] = value
    return value
