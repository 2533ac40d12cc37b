"""Which program a launch becomes: on a GPU the original kernel, where jax-triton is there to run it, else JAX's."""

import dataclasses
import functools
import importlib.util
import sys
import warnings
from typing import Any

import jax

from fnjax._jax.either import run_either
from fnjax.triton import _original as original
from fnjax.triton._eager import translated
from fnjax.triton._state import KernelError

INSTALL = "pip install 'fnjax[triton]', on a machine where JAX sees a GPU"
DESCRIBED = "jax-triton takes no descriptors that are made outside of the kernel"
DEMANDED = "fnjax.triton.backend('triton')"
_CHOSEN = jax.make_user_context("auto")  # a part of the keys of jax.jit's caches


class backend:
    """Choose what launches of Triton kernels become, or ask what was chosen.

    - `"auto"`, which holds until something else is chosen: on a GPU the original kernel, where jax-triton is installed
      (`pip install 'fnjax[triton]'`); everywhere else, and where a launch is differentiated by JAX, its translation.
    - `"jax"`: the translation, on every platform.
    - `"triton"`: the original kernel; where it cannot run, that is an error.

    Called, it holds from then on; in a `with` statement until its end, for this thread. `jax.jit` traces anew where
    another one holds.

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
        which: "auto", "jax" or "triton"; without it, the one that holds is returned.

    Raises:
        ValueError: `which` is none of these.
    """

    def __new__(cls, which: str | None = None):
        return _CHOSEN.value if which is None else super().__new__(cls)

    def __init__(self, which: str | None = None):
        if which not in ("auto", "jax", "triton"):
            raise ValueError(f'fnjax.triton.backend takes "auto", "jax" or "triton", not {which!r}')
        self._which, self._before = which, _CHOSEN.get_global()
        _CHOSEN.set_global(which)

    def __enter__(self):
        _CHOSEN.set_global(self._before)  # a block is for its own thread
        self._block = _CHOSEN(self._which)
        self._block.__enter__()

    def __exit__(self, *error):
        self._block.__exit__(*error)

    def __repr__(self):
        return f"fnjax.triton.backend({self._which!r})"


def run(launch, operands):
    """What a launch stores.

    Args:
        launch: a `fnjax.triton.launch.Launch`.
        operands: its arrays, then the numbers that are being traced.
    """
    chosen = backend()
    if chosen == "jax" or not launch.stored:
        return translated(launch, operands)
    if _is_installed():
        return run_either(Choice(launch, chosen == "triton"), operands)
    if chosen == "triton":
        raise KernelError(f"kernel {launch.name}: {DEMANDED} needs jax-triton: {INSTALL}")
    return translated(launch, operands)


def _is_installed():
    return sys.modules["jax_triton"] is not None if "jax_triton" in sys.modules else _is_found()


@functools.cache
def _is_found():
    return importlib.util.find_spec("jax_triton") is not None


@dataclasses.dataclass(frozen=True)
class Choice:
    """The programs of a launch; `demanded` if it must be the original."""

    launch: Any
    demanded: bool

    outputs = property(lambda self: self.launch.stored)

    def everywhere(self, *operands):
        """The translation."""
        if self.demanded:
            raise KernelError(
                f"kernel {self.launch.name}: {DEMANDED} runs the original kernel, on a GPU only; this is for another "
                "platform: leave it out, or choose 'jax'"
            )
        return self.launch.translated(*operands)

    def differentiated(self, *operands):
        """The translation: jax-triton has no derivatives."""
        if self.demanded:
            raise KernelError(
                f"kernel {self.launch.name}: {DEMANDED} cannot be differentiated by JAX: launch it in the forward of a "
                "fnjax.Function that has a backward, or choose 'auto'"
            )
        return self.launch.translated(*operands)

    def on_gpu(self, *operands):
        """The original, unless what runs it cannot be loaded: this is the first place that imports it."""
        problem = DESCRIBED if self.launch.described else original.why_not()
        if problem is None:
            return self.launch.original(*operands)
        if self.demanded:
            raise KernelError(f"kernel {self.launch.name}: {DEMANDED} cannot run it: {problem}")
        text = f"Triton kernels run as JAX operations on this GPU, and more slowly: {problem}"
        warnings.warn(f"{text} (fnjax.triton.backend('jax') says that this is meant)", RuntimeWarning, stacklevel=2)
        return self.launch.translated(*operands)
