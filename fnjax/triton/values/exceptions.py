"""The exceptions of kernels: the one that users see, and the four that restart the interpretation.

A kernel is interpreted once, vectorised: all programs of the grid, and all iterations of a loop where that is possible,
are leading axes of its values. Whether this is valid is found out on the way. Four internal exceptions say that it is
not; users never see them:

- `NeedsGridSplit`: an address is not affine in a program number but becomes so when axes of the grid are split into a
  mixed radix. `launch._at_once` catches it and interprets the kernel again with these splits.
- `NeedsSequence`: the old value of an atomic is used, or a `while` waits for memory. `launch.Launch.translated` catches
  it and interprets the kernel as a `lax.fori_loop` over its programs instead.
- `NotVectorizable`: the iterations of a loop depend on each other. `vectorize.vectorize` catches it, restores names
  and memory, and the loop is traced sequentially instead.
- `EndsProgram`: only when `debug.execution` executes programs one by one on NumPy arrays (`kernel.check`,
  `kernel.draw`): a `while` makes no progress. `Execution.run` catches it, reports the wait, and goes on with the next
  program.

`interpreter.call` lets all four pass and wraps other exceptions in `KernelError` with the kernel's name and line.
"""

from __future__ import annotations

from fnjax.errors import FnjaxError


class KernelError(FnjaxError, RuntimeError):
    """Error in a kernel or in how it was launched; the message names the kernel, the line and a remedy."""

    __module__ = "fnjax.triton"  # tracebacks show the public name


class NeedsSequence(Exception):  # noqa: N818  a signal, never seen by users
    """Signal that programs must run one after the other (see the module's docstring)."""


class EndsProgram(Exception):  # noqa: N818  a signal, never seen by users
    """Signal that a program stays in a `while` (see the module's docstring); its argument is a `Waiting`."""


class NeedsGridSplit(Exception):  # noqa: N818  a signal, never seen by users
    """Signal that axes of the grid must be split (see the module's docstring); its argument: the sizes, by axis."""


class NotVectorizable(Exception):  # noqa: N818  a signal, never seen by users
    """Signal that the iterations of a loop cannot be vectorised (see the module's docstring)."""
