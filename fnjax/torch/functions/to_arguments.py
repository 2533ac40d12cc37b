"""Parsing of the arguments of Tensor.to and Module.to."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.memory.dtypes import as_dtype, dtype
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.machine import Device

_DTYPES = dtype | np.dtype | type | type(jnp.float32)  # of torch, NumPy, Python and JAX
_BY_DEVICE = inspect.signature(
    lambda device=None, dtype=None, non_blocking=False, copy=False, *, memory_format=None: None
)
_BY_DTYPE = inspect.signature(lambda other, non_blocking=False, copy=False, *, memory_format=None: None)


def read_conversion(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[dtype | None, bool, Any]:
    """Return the dtype that arguments of `to` name, or None, whether a copy is asked for, and the memory format.

    Raises:
        TypeError: the arguments fit none of PyTorch's three forms. NumPy's and JAX's dtypes are dtypes here.
    """
    first = args[0] if args else options.get("other")
    by_device = not isinstance(first, Tensor | _DTYPES)
    try:
        given = (_BY_DEVICE if by_device else _BY_DTYPE).bind(*args, **options).arguments
        device = given.get("device")
        if isinstance(device, bool) or not isinstance(device, str | int | Device | jax.Device | None):
            raise TypeError
    except TypeError:
        got = [type(a).__name__ for a in args] + [f"{name}={type(v).__name__}" for name, v in options.items()]
        raise TypeError(
            f"to() received an invalid combination of arguments - got ({', '.join(got)}), but expected one of: "
            f"{_BY_DEVICE}, {_BY_DTYPE} of a dtype or a tensor"
        ) from None
    wanted = given.get("dtype") if by_device else first.dtype if isinstance(first, Tensor) else first
    return None if wanted is None else as_dtype(wanted), bool(given.get("copy")), given.get("memory_format")
