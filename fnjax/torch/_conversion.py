"""Arguments of `to`, of tensors and of modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._dtypes import as_dtype, dtype
from fnjax.torch._machine import Device
from fnjax.torch._tensor import Tensor

_DTYPES = dtype | np.dtype | type | type(jnp.float32)  # of torch, NumPy, Python and JAX
_FORMS = (
    "(device=None, dtype=None, non_blocking=False, copy=False, *, memory_format=None)",
    "(dtype, non_blocking=False, copy=False, *, memory_format=None)",
    "(Tensor other, non_blocking=False, copy=False, *, memory_format=None)",
)


def read_conversion(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[dtype | None, bool]:
    """Return the dtype that arguments of `to` name, None where they name none, and whether a copy is asked for.

    Raises:
        TypeError: the arguments fit none of PyTorch's three forms. NumPy's and JAX's dtypes are dtypes here.
    """
    first = args[0] if args else options.get("other")
    by_device = not isinstance(first, Tensor | _DTYPES)
    names = ["device", "dtype", "non_blocking", "copy"] if by_device else ["other", "non_blocking", "copy"]
    given = dict(zip(names, args, strict=False)) | options
    device = given.get("device")
    fits = isinstance(device, str | int | Device | jax.Device | None) and not isinstance(device, bool)
    twice = options.keys() & {*names[: len(args)]}
    if twice or not fits or len(args) > len(names) or not given.keys() <= {*names, "memory_format"}:
        got = [type(a).__name__ for a in args] + [f"{name}={type(v).__name__}" for name, v in options.items()]
        raise TypeError(
            f"to() received an invalid combination of arguments - got ({', '.join(got)}), but expected one of: "
            + ", ".join(_FORMS)
        )
    wanted = given.get("dtype") if by_device else first.dtype if isinstance(first, Tensor) else first
    return None if wanted is None else as_dtype(wanted), bool(given.get("copy"))
