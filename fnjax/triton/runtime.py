"""`triton.runtime`: kernels and their configurations, the driver, and errors."""

from __future__ import annotations

import types

from fnjax.triton import driver
from fnjax.triton.driver import OutOfResources
from fnjax.triton.launch import JITFunction, KernelInterface, jit
from fnjax.triton.tuning import Autotuner, Config, Heuristics, autotune, heuristics

__all__ = [
    "Autotuner",
    "Config",
    "Heuristics",
    "JITFunction",
    "KernelInterface",
    "OutOfResources",
    "autotune",
    "driver",
    "errors",
]
__all__ += ["heuristics", "jit"]
errors = types.SimpleNamespace(OutOfResources=OutOfResources, PTXASError=OutOfResources)
