"""Which program a launch becomes: on a GPU the original kernel, where jax-triton is there to run it, else JAX's.

That is known when JAX lowers for a platform, not before. So a launch that may become either is one equation; what it
lowers to, its derivative and its batching stand here. `jax.lax.platform_dependent` would trace both programs
everywhere, and jax-triton can be imported on a machine with a GPU only.
"""

import dataclasses
import functools
import importlib.util
import sys
import warnings

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._jax.derivative import jvp_of_moving
from fnjax._jax.trees import is_inexact
from fnjax._jax.versions import varying
from fnjax.triton import _original as original
from fnjax.triton._state import KernelError

GPUS = ("cuda", "rocm")
INSTALL = "pip install 'fnjax[triton]', on a machine where JAX sees a GPU"
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

    def __new__(cls, which=None):
        return _CHOSEN.value if which is None else super().__new__(cls)

    def __init__(self, which):
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
    """What a launch stores: `launch.stored` says into which operands, and so the types of what comes back.

    Args:
        launch: has `translated` and `original`, functions of the operands, and `name`. It is compared and hashed.
        operands: arrays.
    """
    chosen = backend()
    if chosen == "jax" or not launch.stored:
        return launch.translated(*operands)
    if not _is_installed():
        if chosen == "triton":
            raise KernelError(f"kernel {launch.name}: {_demanded()} needs jax-triton: {INSTALL}")
        return launch.translated(*operands)
    on = frozenset().union(*(varying(jax.typeof(x)) for x in operands))
    operands = [
        lax.pcast(x, tuple(on - varying(jax.typeof(x))), to="varying") if on - varying(jax.typeof(x)) else x
        for x in operands
    ]
    return launch_p.bind(*operands, launch=launch, must=chosen == "triton")


def _demanded():
    return "fnjax.triton.backend('triton')"


def _is_installed():
    return sys.modules["jax_triton"] is not None if "jax_triton" in sys.modules else _is_found()


@functools.cache
def _is_found():
    return importlib.util.find_spec("jax_triton") is not None


launch_p = Primitive("fnjax_triton_launch")
launch_p.multiple_results = True


def _translated(*operands, launch, must):
    if must:
        raise KernelError(
            f"kernel {launch.name}: {_demanded()} runs the original kernel, on a GPU only; this is for another "
            "platform: leave it out, or choose 'jax'"
        )
    return launch.translated(*operands)


@functools.partial(jax.jit, static_argnames=("launch", "must"))
def _jitted(*operands, launch, must):
    return launch_p.bind(*operands, launch=launch, must=must)


@launch_p.def_impl
def _impl(*operands, launch, must):
    on_gpu = next(iter(operands[0].devices())).platform in ("gpu", *GPUS)
    return (_jitted if on_gpu else _translated)(*operands, launch=launch, must=must)


@launch_p.def_abstract_eval
def _types(*operands, launch, must):
    return [operands[i] for i in launch.stored]


def _jvp(primals, tangents, *, launch, must):
    if must:
        raise KernelError(
            f"kernel {launch.name}: {_demanded()} cannot be differentiated by JAX: launch it in the forward of a "
            "fnjax.Function that has a backward, or choose 'auto'"
        )
    outputs, dots = jvp_of_moving(launch.translated, primals, tangents)
    return outputs, [
        t if is_inexact(x) else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, t in zip(outputs, dots, strict=True)
    ]


ad.primitive_jvps[launch_p] = _jvp


@dataclasses.dataclass(frozen=True)
class _Batched:
    """A launch for each example of a batch: those operands have it as their first axis."""

    one: object
    which: tuple[bool, ...]

    name = property(lambda self: self.one.name)
    stored = property(lambda self: self.one.stored)

    def translated(self, *operands):
        return jax.vmap(self.one.translated, [0 if b else None for b in self.which])(*operands)

    def original(self, *operands):
        """One after the other: the grid of a kernel is the user's."""

        def launch(examples):
            given = iter(examples)
            return self.one.original(*(next(given) if b else x for x, b in zip(operands, self.which, strict=True)))

        return lax.map(launch, [x for x, b in zip(operands, self.which, strict=True) if b])


@functools.partial(batching.primitive_batchers.__setitem__, launch_p)
def _batch(operands, dims, *, launch, must):
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    which = tuple(d is not None or i in launch.stored for i, d in enumerate(dims))
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if b and d is None else x
        for x, d, b in zip(moved, dims, which, strict=True)
    ]
    results = launch_p.bind(*moved, launch=_Batched(launch, which), must=must)
    return results, [0] * len(results)


def _original(*operands, launch, must):
    return launch.original(*operands)


def _lower_on_gpu(ctx, *operands, launch, must):
    """The original kernel, unless what runs it cannot be loaded: here is the first place to import it."""
    problem = original.why_not()
    if problem is None:
        return mlir.lower_fun(_original, multiple_results=True)(ctx, *operands, launch=launch, must=must)
    if must:
        raise KernelError(f"kernel {launch.name}: {_demanded()} cannot run it: {problem}")
    text = f"Triton kernels run as JAX operations on this GPU, and more slowly: {problem}"
    warnings.warn(f"{text} (fnjax.triton.backend('jax') says that this is meant)", RuntimeWarning, stacklevel=2)
    return mlir.lower_fun(_translated, multiple_results=True)(ctx, *operands, launch=launch, must=must)


mlir.register_lowering(launch_p, mlir.lower_fun(_translated, multiple_results=True))
for _platform in GPUS:
    mlir.register_lowering(launch_p, _lower_on_gpu, platform=_platform)
