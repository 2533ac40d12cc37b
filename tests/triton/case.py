"""A launch that Triton's interpreter and fnjax.triton both run, described without either.

Inputs are drawn as integers over a power of two, so that no machine's mathematics library decides their bits. What
a kernel writes into begins as a number of its own, and what it leaves alone is compared too.
"""

import dataclasses
import zlib
from typing import Any

import numpy as np

FOLDER = "tests/triton"


@dataclasses.dataclass(frozen=True)
class Out:
    """An array that the kernel's source may store to."""

    array: np.ndarray


@dataclasses.dataclass(frozen=True)
class Same:
    """The very array that stands at another parameter."""

    parameter: str


@dataclasses.dataclass(frozen=True)
class Type:
    """A type of triton.language, by its name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Case:
    """One launch: `file` and `kernel` say of what; `tolerance` is relative to the largest value, 0 for equal bits."""

    name: str
    file: str
    kernel: str
    grid: Any
    arguments: dict
    tolerance: float
    # Where the interpreter has no say: what the launch gives, by parameter.
    reference: dict | None = None
    # What it gives instead where x * y + z of float16 rounds once.
    fused: dict | None = None

    @property
    def outs(self):
        """The parameters that are stored to, in their order."""
        return [name for name, value in self.arguments.items() if isinstance(value, Out)]

    def arrays(self):
        """The arrays by parameter, copied."""
        found = {k: v.array if isinstance(v, Out) else v for k, v in self.arguments.items()}
        return {k: v.copy() for k, v in found.items() if isinstance(v, np.ndarray)}

    def call(self, arrays, language):
        """The positional arguments, then those by name: all from the first constexpr on."""
        positional, named = [], {}
        for name, value in self.arguments.items():
            if isinstance(value, Same):
                argument = arrays[value.parameter]
            else:
                argument = arrays.get(name, getattr(language, value.name) if isinstance(value, Type) else value)
            if named or name.isupper():
                named[name] = argument
            else:
                positional.append(argument)
        return positional, named

    def checksum(self):
        """Of the inputs: goldens of others are no goldens."""
        total = 0
        for array in self.arrays().values():
            total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
        return np.uint32(total)


def cases_of(file):
    """A function that describes launches of the kernels of one file, and the list that they go into."""
    cases = []

    def case(name, kernel, grid, *, tolerance=0.0, reference=None, fused=None, **arguments):
        if isinstance(grid, int):
            grid = (grid,)
        cases.append(Case(f"{file}-{name}", file, f"{kernel}_kernel", grid, arguments, tolerance, reference, fused))

    return case, cases


def floats(seed, *shape, dtype=np.float32, low=-2.0, high=2.0):
    """Multiples of 1/512 from `low` to `high`: float16 holds them too, to 2."""
    numbers = np.random.default_rng(seed).integers(round(low * 512), round(high * 512), shape)
    return (numbers / 512).astype(dtype)


def integers(seed, *shape, dtype=np.int32, low=None, high=None):
    """Whole numbers of all sizes that the type holds, or of a range."""
    limits = np.iinfo(dtype)
    low, high = limits.min if low is None else low, limits.max + 1 if high is None else high
    return np.random.default_rng(seed).integers(low, high, shape, dtype=dtype)


def out(*shape, dtype=np.float32, fill=-7):
    """An array to write into, full of a number that no kernel writes by chance."""
    return Out(np.full(shape, fill, dtype))
