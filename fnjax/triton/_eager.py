"""Launches outside of jax.jit: each is one compiled program, kept for launches that cannot be told apart from it."""

import collections
import threading
from typing import Any

import jax

from fnjax._jax.jax_internals import is_staged
from fnjax.triton._outside import Unkept, dependencies, frozen

KEPT = 256  # programs; the one that was not used for longest goes first
_PROGRAMS: collections.OrderedDict[Any, tuple[Any, Any]] = collections.OrderedDict()  # launches and their programs
_LOCK = threading.Lock()


def translated(launch, operands):
    """What a launch stores, by JAX's operations: where these become part of a program, else as a program of their own.

    Operation by operation, each one would be compiled and every intermediate stored: many seconds for a large kernel.
    Outside of jax.jit JAX differentiates and batches the program as a whole.
    """
    if is_staged():
        return launch.translated(*operands)
    try:
        key = (
            launch.source,
            launch.grid,
            tuple((name, kind, frozen(value)) for name, (kind, value) in launch.parameters.items()),
            launch.options,
            tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in operands),
            dependencies(launch.source),
        )
    except Unkept:
        key = None
    with _LOCK:
        first, program = _PROGRAMS.pop(key, (None, None))
    if program is None:
        first, program = _new(launch)
    try:
        results = program(*operands)
        if first.waits and not _is_traced(results):
            jax.block_until_ready(results)
    except jax.errors.JaxRuntimeError:
        if not first.waits or _is_traced(operands):
            raise
        return launch.translated(*operands)  # operation by operation the refusal is Python's own
    if key is None:
        return results
    with _LOCK:
        _PROGRAMS[key] = first, program
        while len(_PROGRAMS) > KEPT:
            _PROGRAMS.popitem(last=False)
    return results


def _is_traced(arrays):
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def _new(launch):
    return launch, jax.jit(launch.translated)
