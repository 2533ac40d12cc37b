"""Python's `math` in loaded files: its functions return traced numbers of traced numbers."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch._tensor import Tensor, is_known, number
from fnjax.torch.loading.errors import NotSupported

_OTHERS = {"pow": jnp.float_power, "fabs": jnp.abs, "fmod": jnp.fmod, "erf": jax.scipy.special.erf}
_INTEGERS = {"ceil", "floor", "trunc"}


def _wrap(name: str) -> Callable[..., Any]:
    function = getattr(math, name)
    on_arrays: Any = _OTHERS.get(name, getattr(jnp, name, None))

    def call(*args: Any) -> Any:
        if not any(isinstance(a, Tensor) and not is_known(a.array) for a in args):
            return function(*args)
        if on_arrays is None:
            raise NotSupported(f"math.{name} of a traced number", "use the function of torch")
        found = on_arrays(*(a.array if isinstance(a, Tensor) else a for a in args))
        return number(found.astype(int)) if name in _INTEGERS else number(found)

    return call


MATH = types.ModuleType("math")
vars(MATH).update({
    name: _wrap(name) if callable(value) else value for name, value in vars(math).items() if not name.startswith("_")
})  # fmt: skip
