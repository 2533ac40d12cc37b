"""Objects of an installed Triton, as those of fnjax.triton: the source of its kernels has the names of its language."""

from __future__ import annotations

import functools
import importlib
import sys
import types as python
from typing import Any


def translate(value: object) -> Any:
    """Return fnjax.triton's object for one of an installed Triton; any other value as it is.

    Raises:
        AttributeError: fnjax.triton does not have it.
    """
    if isinstance(value, python.ModuleType):
        name = value.__name__
        return _module(name) if name.partition(".")[0] == "triton" and sys.modules.get(name) is value else value
    if not _is_installed(type(value)) and not _is_installed(value):
        return value
    return _translate(value)


def plain_function(value: Any) -> Any:
    """Return the function of plain Python that a kernel of an installed Triton was made of."""
    while hasattr(value, "fn"):
        value = value.fn
    return value


def _is_installed(value: object) -> bool:
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] == "triton"


def _module(name: str) -> python.ModuleType:
    """Return the module of fnjax.triton for one of Triton's; its inner modules of the language are the language."""
    inner = name.removeprefix("triton.language.")
    name = "triton.language" if inner in ("core", "standard", "random", "semantic") else name
    return importlib.import_module(f"fnjax.{name}")


@functools.cache
def _translate(value: Any) -> Any:
    from fnjax.triton.values import types  # with JAX, which the porter does without

    kind = type(value).__name__
    if kind == "constexpr":
        return types.constexpr(translate(value.value))
    if kind == "dtype":
        return types.as_type(value.name)
    if kind == "pointer_type":
        return types.pointer_type(translate(value.element_ty))
    home = getattr(plain_function(value), "__module__", "") or ""
    if home.partition(".")[0] == "triton":  # tl.sum is a kernel of Triton's own
        return getattr(_module(home), plain_function(value).__name__)
    triton = importlib.import_module("fnjax.triton")
    if kind == "Autotuner":
        configs = [triton.Config(c.kwargs, c.num_warps, c.num_stages, pre_hook=c.pre_hook) for c in value.configs]
        return triton.autotune(configs, value.keys)(_translate(value.fn))
    if kind == "Heuristics":
        return triton.heuristics(value.values)(_translate(value.fn))
    return triton.jit(plain_function(value))
