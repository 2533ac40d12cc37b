"""Triton kernels as JAX functions: paste a kernel, change its imports, launch it, jit and differentiate it."""

import importlib as _importlib
import typing as _typing

from fnjax._lazy import lazy as _lazy
from fnjax._machine import TRITON as _TRITON
from fnjax._machine import processor_count as processor_count
from fnjax.triton.absent import refuse as _refuse

__version__ = _TRITON  # as packages compare it

_HOMES = {
    "Config": "fnjax.triton.tuning",
    "JITFunction": "fnjax.triton.launch",
    "OutOfResources": "fnjax.triton.driver",
    "KernelInterface": "fnjax.triton.launch",
    "KernelError": "fnjax.triton.values.exceptions",
    "autotune": "fnjax.triton.tuning",
    "backend": "fnjax.triton.backends",
    "constexpr_function": "fnjax.triton.language._core",
    "heuristics": "fnjax.triton.tuning",
    "jit": "fnjax.triton.launch",
    "reinterpret": "fnjax.triton.reinterpretation",
    "set_allocator": "fnjax.triton.driver",
}


def cdiv(x: int, y: int) -> int:
    """Return x / y, rounded up to an integer."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n` (0 for `n` below 1)."""
    return 1 << (int(n) - 1).bit_length() if n > 0 else 1


if _typing.TYPE_CHECKING:
    from fnjax.triton import language as language
    from fnjax.triton import runtime as runtime
    from fnjax.triton import testing as testing
    from fnjax.triton.backends import backend as backend
    from fnjax.triton.driver import OutOfResources as OutOfResources
    from fnjax.triton.driver import set_allocator as set_allocator
    from fnjax.triton.language._core import constexpr_function as constexpr_function
    from fnjax.triton.launch import JITFunction as JITFunction
    from fnjax.triton.launch import KernelInterface as KernelInterface
    from fnjax.triton.launch import jit as jit
    from fnjax.triton.reinterpretation import reinterpret as reinterpret
    from fnjax.triton.tuning import Config as Config
    from fnjax.triton.tuning import autotune as autotune
    from fnjax.triton.tuning import heuristics as heuristics
    from fnjax.triton.values.exceptions import KernelError as KernelError
else:
    __all__ = ["Config", "JITFunction", "KernelError", "autotune", "backend", "cdiv", "heuristics", "jit", "language"]
    __all__ += ["OutOfResources", "constexpr_function", "next_power_of_2", "processor_count", "reinterpret", "runtime"]
    __all__ += ["KernelInterface", "set_allocator", "testing"]
    _attribute, _ = _lazy(__name__, _HOMES)

    def __dir__():
        return sorted({*globals(), *__all__})

    def __getattr__(name):
        """Import a public name when it is first used, so that the porter can read kernels without loading JAX."""
        if name in ("language", "runtime", "testing", "tools"):
            return _importlib.import_module(f"fnjax.triton.{name}")
        return _attribute(name) if name in _HOMES else _refuse(name, "triton")
