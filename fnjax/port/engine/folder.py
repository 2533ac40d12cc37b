"""Many files: those that import from each other together, the others one by one; in several processes where it pays."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Class, Program
from fnjax.port.analysis.terms import Unit
from fnjax.port.engine.assembly import assembled, mesh_axes, with_shared_axes
from fnjax.port.engine.porting import port_parsed, port_source, with_plain_ends, write_whole
from fnjax.port.result import Finding, Ported, PortedClass
from fnjax.port.source.linking import Linked, link
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
    kept = dict(ported)
    for root in {roots[name] for name in kept}:
        ports = {name: made for name, made in kept.items() if roots[name] == root}
        kept |= with_shared_axes(ports, Path(root).resolve().name)
    return {name: replace(made, code=made.code.replace("\n", plain[name][1])) for name, made in kept.items()}


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
        return _apart(linked, program, functions, units, whole)

    try:
        found = port_parsed(Source.parse(linked.text, "<linked>"), linked.text, linked.classes(classes), write=write)
    except Exception as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e
    finally:
        forget_nodes()
    if isinstance(found, Ported):
        raise ValueError(found.problem)
    return dict(found)


def _apart(
    linked: Linked, program: Program, functions: list[Class], units: dict[cst.CSTNode, Unit], whole: Ported
) -> dict[str, Ported]:
    """The port of each file."""
    source, here = program.source, next(iter(linked.starts))
    files: dict[str, list[Any]] = {}
    for statement in source.tree.body:
        if statement in source.positions:
            here, _ = linked.place(source.position(statement)[0])
        files.setdefault(here, []).append(statement)
    found = {}
    for name, body in files.items():
        own = [units[s] for s in body if s in units]
        if not own:
            continue
        header = source.tree.header  # the comments in front of the other files belong to their first statements
        if linked.starts[name]:
            header = [] if body[0] in units else getattr(body[0], "leading_lines", [])
        code = assembled(program, own, source.tree.with_changes(body=body, header=header), linked.imports[name])
        classes = []
        for cls, made in zip(functions, whole.classes, strict=True):
            if linked.place(source.position(cls.node)[0])[0] == name:
                findings = tuple(sorted(_placed(linked, name, source.position(cls.node)[0], f) for f in made.findings))
                classes.append(PortedClass(linked.respelled(name, cls.name), made.status, findings))
        found[name] = Ported(linked.respelled(name, code), tuple(classes), axes=mesh_axes(own))
    return found


def _placed(linked: Linked, name: str, line: int, finding: Finding) -> Finding:
    """A finding with its place in the file; one in another file stands at the class that needs that."""
    file, here = linked.place(finding.line)
    message = linked.respelled(file, finding.message)
    if file == name:
        return replace(finding, line=here, message=message)
    return replace(finding, line=linked.place(line)[1], col=1, message=f"{message} ({file}:{here})")
