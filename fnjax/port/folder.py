"""Many files: those that import from each other together, the others one by one; in several processes where it pays."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from fnjax.port.engine import port_linked, port_source, with_plain_ends
from fnjax.port.linking import Linked, link
from fnjax.port.result import Ported

_WORTH = 3000  # lines; a process takes a second to start


def port_files(
    files: Mapping[str, str],
    roots: Mapping[str, str],
    classes: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Ported]:
    """Port files, and what their classes need of each other: the port of a file imports that of the other.

    Args:
        files: their texts by name.
        roots: for each file the folder that the files' modules are named from.
        classes: the Function classes to port, by name; all by default.
        progress: is told what is done.

    Returns:
        The ports by name. A file without a Function class of which a class of another needs something has one, too.
    """
    plain = {name: with_plain_ends(text) for name, text in files.items()}
    files = {name: text for name, (text, _) in plain.items()}
    groups = link(files, roots)
    groups += [name for name in files if not any(name in _names(g) for g in groups)]  # no Python: it is said there
    found: dict[str, Ported] = {}
    jobs = [(group, {name: files[name] for name in _names(group)}, classes) for group in groups]
    for made in _each(jobs, sum(text.count("\n") for text in files.values())):
        found.update(made)
        if progress is not None:
            progress(f"{len(found)} of {len(files)} files")
    ported = ((name, found[name]) for name in files if name in found)
    return {name: replace(made, code=made.code.replace("\n", plain[name][1])) for name, made in ported}


def _names(group: Linked | str) -> list[str]:
    return [group] if isinstance(group, str) else list(group.starts)


_Job = tuple[Linked | str, dict[str, str], Sequence[str] | None]  # files, their texts, the classes


def _each(jobs: Sequence[_Job], lines: int) -> Iterator[dict[str, Ported]]:
    workers = min(os.cpu_count() or 1, len(jobs))
    if workers < 2 or lines < _WORTH:
        yield from map(_port, jobs)
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        yield from pool.map(_port, jobs, chunksize=4)


def _port(job: _Job) -> dict[str, Ported]:
    group, files, classes = job
    if not isinstance(group, str):
        with contextlib.suppress(ValueError):  # each by itself, then
            return port_linked(group, classes)
    return {name: port_source(text, name, classes) for name, text in files.items()}
