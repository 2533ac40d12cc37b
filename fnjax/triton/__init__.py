"""Triton kernels as JAX functions: paste a kernel, change its imports, launch it, jit and differentiate it."""

from fnjax.triton import language as language
from fnjax.triton._state import KernelError as KernelError
from fnjax.triton._tuning import Config as Config
from fnjax.triton._tuning import autotune as autotune
from fnjax.triton._tuning import heuristics as heuristics
from fnjax.triton.language import extra as extra
from fnjax.triton.language import math as math
from fnjax.triton.launch import JITFunction as JITFunction
from fnjax.triton.launch import jit as jit


def cdiv(x: int, y: int) -> int:
    """X / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (int(n) - 1).bit_length() if n > 0 else 1
