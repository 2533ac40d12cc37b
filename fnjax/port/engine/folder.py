"""Many files: those that import from each other together, the others one by one; in several processes where it pays."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Class, Program
from fnjax.port.analysis.terms import Unit
from fnjax.port.engine.assembly import assemble, list_mesh_axes, share_axes
from fnjax.port.engine.porting import normalize_line_ends, port_parsed, port_source, write_whole
from fnjax.port.result import Finding, Ported, PortedClass
from fnjax.port.source.linking import Linked, link_files
from fnjax.port.source.naming import Source
from fnjax.port.tree.located import forget_nodes

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
        progress: is told what is done; nothing at the end.

    Returns:
        The ports by name. A file without a Function class of which a class of another needs something has one, too.
    """
    plain = {name: normalize_line_ends(text) for name, text in files.items()}
    files = {name: text for name, (text, _) in plain.items()}
    groups = link_files(files, roots)
    groups += [name for name in files if not any(name in _list_names(g) for g in groups)]  # no Python: it is said there
    found: dict[str, Ported] = {}
    jobs = [(group, {name: files[name] for name in _list_names(group)}, classes) for group in groups]
    show, done = progress or (lambda text: None), 0
    try:
        for job, made in zip(jobs, _port_each(jobs, sum(text.count("\n") for text in files.values())), strict=True):
            found.update(made)
            done += len(job[1])
            show(f"[{'#' * (20 * done // len(files)):20}] {done} of {len(files)} files")
    finally:
        show("")
    ported = ((name, found[name]) for name in files if name in found)
    kept = dict(ported)
    for root in {roots[name] for name in kept}:
        ports = {name: made for name, made in kept.items() if roots[name] == root}
        kept |= share_axes(ports, Path(root).resolve().name)
    return {name: replace(made, code=made.code.replace("\n", plain[name][1])) for name, made in kept.items()}


def _list_names(group: Linked | str) -> list[str]:
    return [group] if isinstance(group, str) else list(group.starts)


_Job = tuple[Linked | str, dict[str, str], Sequence[str] | None]  # files, their texts, the classes


def _port_each(jobs: Sequence[_Job], lines: int) -> Iterator[dict[str, Ported]]:
    workers = min(os.cpu_count() or 1, len(jobs))
    if workers < 2 or lines < _WORTH:
        yield from map(_port_group, jobs)
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker) as pool:
        yield from pool.map(_port_group, jobs, chunksize=4)


def _begin_worker() -> None:
    """Ctrl-C, which all processes of a terminal hear, ends this one without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()  # the porter itself stays: nothing looks through it for what may go


def _port_group(job: _Job) -> dict[str, Ported]:
    group, files, classes = job
    if not isinstance(group, str):
        with contextlib.suppress(ValueError):  # each by itself, then
            return _port_linked(group, classes)
    return {name: port_source(text, name, classes) for name, text in files.items()}


def _port_linked(linked: Linked, classes: Sequence[str] | None = None) -> dict[str, Ported]:
    """Port files that import from each other; by their names, without those that no class needs.

    Args:
        linked: the files.
        classes: the Function classes to port, by name; all by default.

    Raises:
        ValueError: where they cannot be ported together.
    """

    def write(program: Program, functions: list[Class], units: dict[cst.CSTNode, Unit]) -> dict[str, Ported]:
        whole = write_whole(program, functions, units)
        if not whole.code:
            raise ValueError
        return _split_whole(linked, program, functions, units, whole)

    try:
        found = port_parsed(
            Source.parse(linked.text, "<linked>"), linked.text, linked.rename_classes(classes), write=write
        )
    except Exception as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e
    finally:
        forget_nodes()
    if isinstance(found, Ported):
        raise ValueError(found.problem)
    return dict(found)


def _split_whole(
    linked: Linked, program: Program, functions: list[Class], units: dict[cst.CSTNode, Unit], whole: Ported
) -> dict[str, Ported]:
    """The port of each file."""
    source, here = program.source, next(iter(linked.starts))
    files: dict[str, list[Any]] = {}
    for statement in source.tree.body:
        if statement in source.positions:
            here, _ = linked.find_place(source.locate(statement)[0])
        files.setdefault(here, []).append(statement)
    found = {}
    for name, body in files.items():
        own = [units[s] for s in body if s in units]
        if not own:
            continue
        header = source.tree.header  # the comments in front of the other files belong to their first statements
        if linked.starts[name]:
            header = [] if body[0] in units else getattr(body[0], "leading_lines", [])
        code = assemble(program, own, source.tree.with_changes(body=body, header=header), linked.imports[name])
        classes = []
        for cls, made in zip(functions, whole.classes, strict=True):
            if linked.find_place(source.locate(cls.node)[0])[0] == name:
                findings = tuple(
                    sorted(_place_finding(linked, name, source.locate(cls.node)[0], f) for f in made.findings)
                )
                classes.append(PortedClass(linked.restore_names(name, cls.name), made.status, findings))
        found[name] = Ported(linked.restore_names(name, code), tuple(classes), axes=list_mesh_axes(own))
    return found


def _place_finding(linked: Linked, name: str, line: int, finding: Finding) -> Finding:
    """A finding with its place in the file; one in another file stands at the class that needs that."""
    file, here = linked.find_place(finding.line)
    message = linked.restore_names(file, finding.message)
    if file == name:
        return replace(finding, line=here, message=message)
    return replace(finding, line=linked.find_place(line)[1], col=1, message=f"{message} ({file}:{here})")
