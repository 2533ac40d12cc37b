"""Launches outside of jax.jit: each is one compiled program, kept while what its kernel read outside stays the same."""

import collections
import threading
from typing import Any

import jax

from fnjax._jax.jax_internals import is_staged
from fnjax.triton._state import Reads, reading

KEPT = 256  # programs; the one that was not used for longest goes first
_PROGRAMS: collections.OrderedDict[Any, tuple[Reads, Any]] = collections.OrderedDict()
_LOCK = threading.Lock()


def translated(launch, operands):
    """What a launch stores, by JAX's operations: where these become part of a program, else as a program of their own.

    Operation by operation, each one would be compiled and every intermediate stored: many seconds for a large kernel.
    Outside of jax.jit JAX differentiates and batches the program as a whole.
    """
    if is_staged():
        return launch.translated(*operands)
    key = launch, tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in operands)
    with _LOCK:
        reads, program = _PROGRAMS.pop(key, (None, None))
    if program is None or not reads.hold():
        reads, program = _new(launch)
    try:
        results = program(*operands)
        if reads.waits and not _is_traced(results):
            jax.block_until_ready(results)
    except jax.errors.JaxRuntimeError:
        if not reads.waits or _is_traced(operands):
            raise
        return launch.translated(*operands)  # operation by operation the refusal is Python's own
    if any(isinstance(value, list | dict | set) for _, value in launch.parameters.values()):
        return results  # it may be another one at the next launch
    with _LOCK:
        _PROGRAMS[key] = reads, program
        while len(_PROGRAMS) > KEPT:
            _PROGRAMS.popitem(last=False)
    return results


def _is_traced(arrays):
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def _new(launch):
    reads = Reads()

    def run(*operands):
        with reading(reads):
            return launch.translated(*operands)

    return reads, jax.jit(run)
