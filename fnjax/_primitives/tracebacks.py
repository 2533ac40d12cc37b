"""Tracebacks without frames of fnjax, as JAX leaves its own out of them."""

from __future__ import annotations

import os
import types
from pathlib import Path

import jax

from fnjax.errors import FnjaxError

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = (_OURS, str(Path(jax.__file__).parent) + os.sep)


def hide_frames(error: Exception) -> None:
    """Leave fnjax's frames out of the traceback of a user's error, or of a FnjaxError, before it is raised again.

    A fault of fnjax or JAX keeps all of them, and so does every error under `JAX_TRACEBACK_FILTERING=off`; the frame
    that raised the error stays, unless the message says it all.
    """
    entries, trace = [], error.__traceback__
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    own = isinstance(error, FnjaxError)
    if jax.config.values["jax_traceback_filtering"] == "off" or (
        not own and all(file.startswith(_LIBRARIES) for file in files)
    ):
        return
    for entry, file in zip(reversed(entries), reversed(files), strict=True):
        is_origin = entry is entries[-1] and not own
        if is_origin or not file.startswith(_OURS):
            trace = types.TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = trace
