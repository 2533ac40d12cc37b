"""Python's `math` in loaded files: its functions return traced numbers of traced numbers."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch.deferred.number import Number, is_traced, number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor


def _is_close(a: Any, b: Any, *, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> Any:
    near = jnp.abs(a - b) <= jnp.maximum(rel_tol * jnp.maximum(jnp.abs(a), jnp.abs(b)), abs_tol)
    return (a == b) | (near & jnp.isfinite(a) & jnp.isfinite(b))


_OTHERS: dict[str, Any] = {
    "pow": jnp.float_power,
    "fabs": jnp.abs,
    "erf": jax.scipy.special.erf,
    "isclose": _is_close,
    "log": lambda x, base=None: jnp.log(x) if base is None else jnp.log(x) / jnp.log(base),
    "remainder": None,  # NumPy's is another one
    "modf": None,
    "frexp": None,
}
_INTEGERS = {"ceil", "floor", "trunc"}


class _Function:
    """Function of `math`. Like a builtin function, it does not become a method as an attribute of a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        name = function.__name__
        self._function, self._on_arrays = function, _OTHERS.get(name, getattr(jnp, name, None))

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self._function.__name__,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not any(map(is_traced, (*args, *kwargs.values()))):
            return self._function(*args, **kwargs)
        name = self._function.__name__
        if self._on_arrays is None:
            raise NotSupported(f"math.{name} of a traced number", "use the function of torch")
        arrays = [a.array if isinstance(a, (Tensor, Number)) else a for a in args]
        named = {k: a.array if isinstance(a, (Tensor, Number)) else a for k, a in kwargs.items()}
        found = self._on_arrays(*arrays, **named)
        return number(found.astype(int)) if name in _INTEGERS else number(found)


def _find(name: str) -> _Function:
    """Return a function by its name: copies and pickles are the function itself."""
    return vars(MATH)[name]


MATH = types.ModuleType("math")
vars(MATH).update({
    name: _Function(value) if callable(value) else value
    for name, value in vars(math).items() if not name.startswith("_")
})  # fmt: skip
