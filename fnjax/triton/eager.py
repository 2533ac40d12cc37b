"""Launches outside jax.jit: each is one compiled program, cached for later launches that are equal to it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any

import jax

from fnjax._primitives.jax_internals import is_staged
from fnjax.triton.interpreter.globals import Uncacheable, dependencies, frozen

KEPT = 256  # maximum number of cached programs; the least recently used one is removed
_PROGRAMS: collections.OrderedDict[Any, tuple[Any, Any]] = collections.OrderedDict()  # by key: a launch and its program
_LOCK = threading.Lock()


def translated(launch: Any, operands: Sequence[Any]) -> Any:
    """Return what a launch stores, computed by JAX operations.

    Under a transformation they become part of the traced program. Outside jit they are compiled as one program:
    executed one by one, each operation would be compiled and every intermediate stored, which takes many seconds for a
    large kernel. JAX differentiates and batches that program as a whole.

    Args:
        launch: a `fnjax.triton.launch.Launch`.
        operands: its arrays, then the traced scalars.

    Raises:
        KernelError: a program waits for ever.
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
    except Uncacheable:
        key = None
    with _LOCK:
        first, program = _PROGRAMS.pop(key, (None, None))
    if program is None:
        first, program = _new(launch)
    results = first.refuse(*program(*operands))
    if key is None:
        return results
    with _LOCK:
        _PROGRAMS[key] = first, program
        while len(_PROGRAMS) > KEPT:
            _PROGRAMS.popitem(last=False)
    return results


def _new(launch: Any) -> Any:
    return launch, jax.jit(launch.marked)
