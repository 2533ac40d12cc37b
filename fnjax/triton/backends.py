"""Backends of a launch: the original kernel on a GPU, if jax-triton can run it, else its translation to JAX."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from fnjax._contexts import TRITON_BACKEND
from fnjax.triton import original
from fnjax.triton.eager import translated
from fnjax.triton.platform_switch import run_platform_switch
from fnjax.triton.values.exceptions import KernelError

INSTALL = "pip install '.[triton]' in a checkout of fnjax, on a machine where JAX sees a GPU"
DESCRIBED = "jax-triton takes no descriptors that are made outside of the kernel"
DEMANDED = "fnjax.triton.backend('triton')"


class backend:
    """Backend of Triton launches, chosen globally or for a `with` statement; without argument, the present choice.

    - `"auto"`, the default: on a GPU the original kernel, if jax-triton is installed (`pip install '.[triton]'`);
      its translation on other platforms, and where a launch is differentiated by JAX.
    - `"jax"`: the translation, on every platform.
    - `"triton"`: the original kernel; where it cannot run, that is an error.

    A call `backend(which)` is valid from then on; in a `with` statement until its end, for this thread only. `jax.jit`
    traces anew when another backend is chosen.

    Examples:
        >>> import fnjax.triton as triton
        >>> triton.backend()
        'auto'
        >>> with triton.backend("jax"):
        ...     triton.backend()
        'jax'
        >>> triton.backend()
        'auto'

    Args:
        which: "auto", "jax" or "triton"; without it, the present choice is returned.

    Raises:
        ValueError: `which` is none of these.
    """

    def __new__(cls, which: str | None = None) -> Any:  # noqa: D102  the class says it
        return TRITON_BACKEND.value if which is None else super().__new__(cls)

    def __init__(self, which: str | None = None) -> None:
        if which not in ("auto", "jax", "triton"):
            raise ValueError(f'fnjax.triton.backend takes "auto", "jax" or "triton", not {which!r}')
        self._which, self._before = which, TRITON_BACKEND.get_global()
        TRITON_BACKEND.set_global(which)

    def __enter__(self) -> None:
        TRITON_BACKEND.set_global(self._before)  # a with statement changes its own thread only
        self._block = TRITON_BACKEND(self._which)
        self._block.__enter__()

    def __exit__(self, *error: object) -> None:
        self._block.__exit__(*error)

    def __repr__(self) -> str:
        return f"fnjax.triton.backend({self._which!r})"


def run(launch: Any, operands: Sequence[Any]) -> Any:
    """Return the arrays that a launch stores, computed by the chosen backend.

    Args:
        launch: a `fnjax.triton.launch.Launch`.
        operands: its arrays, then the traced scalars.

    Raises:
        KernelError: the backend "triton" is chosen and cannot run it.
    """
    chosen = TRITON_BACKEND.value
    if chosen == "jax" or not launch.stored:
        return translated(launch, operands)
    if _is_installed():
        return run_platform_switch(LaunchSwitch(launch, chosen == "triton"), operands)
    if chosen == "triton":
        raise KernelError(f"kernel {launch.name}: {DEMANDED} needs jax-triton: {INSTALL}")
    return translated(launch, operands)


def _is_installed() -> bool:
    """Return True where jax-triton is installed; it is not imported for that."""
    return sys.modules["jax_triton"] is not None if "jax_triton" in sys.modules else _is_found()


@functools.cache
def _is_found() -> bool:
    return importlib.util.find_spec("jax_triton") is not None


@dataclasses.dataclass(frozen=True)
class LaunchSwitch:
    """Platform switch for a launch (see `platform_switch`); `demanded` where only the original kernel is allowed."""

    launch: Any
    demanded: bool

    outputs = property(lambda self: self.launch.stored)

    def on_others(self, *operands: Any) -> Any:
        """Run the translated kernel, on platforms other than a GPU.

        Raises:
            KernelError: the original kernel is demanded.
        """
        if self.demanded:
            raise KernelError(
                f"kernel {self.launch.name}: {DEMANDED} runs the original kernel, on a GPU only; this is for another "
                "platform: leave it out, or choose 'jax'"
            )
        return self.launch.translated(*operands)

    def differentiated(self, *operands: Any) -> Any:
        """Run the translated kernel, which JAX differentiates: jax-triton has no derivatives.

        Raises:
            KernelError: the original kernel is demanded.
        """
        if self.demanded:
            raise KernelError(
                f"kernel {self.launch.name}: {DEMANDED} cannot be differentiated by JAX: launch it in the forward of a "
                "fnjax.Function that has a backward, or choose 'auto'"
            )
        return self.launch.translated(*operands)

    def on_gpu(self, *operands: Any) -> Any:
        """Run the original kernel; the translated one, with a warning, where the original cannot run.

        jax-triton is imported here first.

        Raises:
            KernelError: the original kernel is demanded and cannot run.
        """
        problem = DESCRIBED if self.launch.described else original.why_not()
        if problem is None:
            return original.call(self.launch, operands)
        if self.demanded:
            raise KernelError(f"kernel {self.launch.name}: {DEMANDED} cannot run it: {problem}")
        text = f"Triton kernels run as JAX operations on this GPU, and more slowly: {problem}"
        warnings.warn(f"{text} (fnjax.triton.backend('jax') says that this is meant)", RuntimeWarning, stacklevel=2)
        return self.launch.translated(*operands)
