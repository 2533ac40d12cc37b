"""Many files: those that import from each other together, the others one by one; in several processes where it pays."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst

from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.program import Class, Program
from fnjax.port.engine.as_is import Block, put_block, write_block
from fnjax.port.engine.assembly import assemble, list_mesh_axes, share_axes
from fnjax.port.engine.block_imports import bring_files
from fnjax.port.engine.halves import divide
from fnjax.port.engine.porting import normalize_line_ends, port_parsed, port_source, write_strictly, write_whole
from fnjax.port.result import Finding, Ported, PortedClass
from fnjax.port.source.linking import Linked, link_files
from fnjax.port.source.module_paths import Modules
from fnjax.port.source.naming import Source, iter_bindings
from fnjax.port.tree.located import forget_nodes

_WORTH = 3000  # lines; a process takes a second to start


def port_files(
    files: Mapping[str, str],
    roots: Mapping[str, str],
    classes: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    strict: bool = False,
) -> dict[str, Ported]:
    """Port files, and what their classes need of each other: the port of a file imports that of the other.

    Args:
        files: their texts by name.
        roots: for each file the folder that the files' modules are named from.
        classes: the Function classes to port, by name; all by default.
        progress: takes a text with the progress, which is empty at the end.
        strict: leave a `raise` in the place of what cannot be translated, and nothing as it is.

    Returns:
        The ports by name. A file without a Function class of which a class of another needs something has one, too.
    """
    plain = {name: normalize_line_ends(text) for name, text in files.items()}
    modules = Modules(roots)
    files = {name: modules.normalize_imports(name, text) for name, (text, _) in plain.items()}
    groups = link_files(files, roots)
    groups += [
        name for name in files if not any(name in _list_names(g) for g in groups)
    ]  # no Python: `port_source` reports it
    found: dict[str, Ported] = {}
    jobs = []
    for group in groups:
        texts = {name: files[name] for name in _list_names(group)}
        jobs.append(_Job(group, texts, _choose_classes(classes, texts.values()) if len(files) > 1 else classes, strict))
    show, done = progress or (lambda text: None), 0
    try:
        for job, made in zip(jobs, _port_each(jobs, sum(text.count("\n") for text in files.values())), strict=True):
            found.update(made)
            done += len(job.files)
            show(f"[{'#' * (20 * done // len(files)):20}] {done} of {len(files)} files")
    finally:
        show("")
    ported = ((name, found[name]) for name in files if name in found)
    kept = bring_files(dict(ported), files, modules)
    for root in {roots[name] for name in kept}:
        ports = {name: made for name, made in kept.items() if roots[name] == root}
        kept |= share_axes(ports, Path(root).resolve().name)
    return {name: replace(made, code=made.code.replace("\n", plain[name][1])) for name, made in kept.items()}


def _list_names(group: Linked | str) -> list[str]:
    return [group] if isinstance(group, str) else list(group.starts)


class _NotTogetherError(Exception):
    """Signal that files which import from each other must be ported each alone."""


class _Job(NamedTuple):
    """Files to port together, or one."""

    group: Linked | str
    files: dict[str, str]
    classes: Sequence[str] | None
    strict: bool


def _port_each(jobs: Sequence[_Job], lines: int) -> Iterator[dict[str, Ported]]:
    workers = min(os.cpu_count() or 1, len(jobs))
    if workers < 2 or lines < _WORTH:
        yield from map(_port_group, jobs)
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker) as pool:
        yield from pool.map(_port_group, jobs, chunksize=4)


def _begin_worker() -> None:
    """Let Ctrl-C, which all processes of a terminal receive, end this one silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()  # the porter itself stays: nothing looks through it for what may go


def _port_group(job: _Job) -> dict[str, Ported]:
    failure = ""
    if not isinstance(job.group, str):
        try:
            return _port_linked(job.group, job)
        except _NotTogetherError:
            pass
        except Exception as e:  # noqa: BLE001 - user code never makes the porter raise
            failure = (
                f"the porter failed for these files together ({type(e).__name__}: {str(e)[:200]}), please report them"
            )
    many = len(job.files) > 1
    found = {
        name: port_source(text, name, _choose_classes(job.classes, [text]) if many else job.classes, strict=job.strict)
        for name, text in job.files.items()
    }
    return {name: _add_failure(ported, failure) for name, ported in found.items()} if failure else found


def _add_failure(ported: Ported, failure: str) -> Ported:
    """Return the port of a file alone, with what its classes lack since the files could not be ported together."""
    finding = Finding(1, 1, "internal", f"{failure}; each was ported alone", "note")
    return replace(ported, classes=tuple(replace(c, findings=(finding, *c.findings)) for c in ported.classes))


def _choose_classes(classes: Sequence[str] | None, texts: Iterable[str]) -> Sequence[str] | None:
    """Return the wanted classes that some of the texts name; all if they name none, so that it is reported."""
    if classes is None or len(classes) < 2:
        return classes
    named = [w for w in classes if any(re.search(rf"\b{re.escape(w.rpartition('.')[2])}\b", t) for t in texts)]
    return named or classes


def _port_linked(linked: Linked, job: _Job) -> dict[str, Ported]:
    """Port files that import from each other; by their names, without those that no class needs.

    Args:
        linked: the files.
        job: their texts, and the options.

    Raises:
        _NotTogetherError: where they cannot be ported together.
    """

    def write(program: Program, functions: list[Class], top_items: dict[cst.CSTNode, TopItem]) -> dict[str, Ported]:
        whole = (write_strictly if job.strict else write_whole)(program, functions, top_items)
        if not whole.code:
            raise _NotTogetherError
        return _split_whole(linked, job, program, functions, top_items, whole)

    try:
        found = port_parsed(
            Source.parse(linked.text, "<linked>"),
            linked.text,
            linked.rename_classes(job.classes),
            write=write,
            by_function=not job.strict,
        )
    except (cst.ParserSyntaxError, SyntaxError, RecursionError) as e:
        raise _NotTogetherError from e
    finally:
        forget_nodes()
    if isinstance(found, Ported):
        raise _NotTogetherError(found.problem)
    return dict(found)


def _split_whole(
    linked: Linked,
    job: _Job,
    program: Program,
    functions: list[Class],
    top_items: dict[cst.CSTNode, TopItem],
    whole: Ported,
) -> dict[str, Ported]:
    """Return the port of each file."""
    source, here = program.source, next(iter(linked.starts))
    files: dict[str, list[Any]] = {}
    for statement in source.tree.body:
        if statement in source.positions:
            here, _ = linked.find_place(source.locate(statement)[0])
        files.setdefault(here, []).append(statement)

    def find_file(statement: cst.CSTNode) -> str:
        return linked.find_place(source.locate(statement)[0])[0]

    halves = None if job.strict else divide(program, functions, whole.classes, top_items, find_file)
    if halves is not None:
        top_items = halves.top_items
    found = {}
    for name, body in files.items():
        own = [top_items[s] for s in body if s in top_items]
        block, in_jax = Block(), frozenset[str]()
        if halves is not None:
            names = {n: linked.restore_names(name, n) for s in body for n, _ in iter_bindings(s)}
            kept, in_jax, bound, shared = (
                frozenset(names[n] for n in half & names.keys())
                for half in (halves.kept, halves.in_jax, halves.bound, halves.shared)
            )
            block = write_block(job.files[name], kept, in_jax, bound, shared, everything=job.classes is None)
        if not own and not block.text:
            continue
        header = source.tree.header  # the comments in front of the other files belong to their first statements
        if linked.starts[name]:
            header = [] if body[0] in top_items else getattr(body[0], "leading_lines", [])
        code = assemble(program, own, source.tree.with_changes(body=body, header=header), linked.imports[name])
        code = linked.restore_names(name, code)
        if block.text:
            code = put_block(code, block.text)
        classes = []
        for cls, made in zip(functions, halves.classes if halves else whole.classes, strict=True):
            if linked.find_place(source.locate(cls.node)[0])[0] == name:
                findings = tuple(
                    sorted(_place_finding(linked, name, source.locate(cls.node)[0], f) for f in made.findings)
                )
                classes.append(PortedClass(linked.restore_names(name, cls.name), made.status, findings))
        axes = list_mesh_axes(own)
        found[name] = Ported(code, tuple(classes), "", True, axes, block.names, in_jax, block.left_out)
    return found


def _place_finding(linked: Linked, name: str, line: int, finding: Finding) -> Finding:
    """Return a finding with its place in the file; one in another file is placed at the class that needs that."""
    file, here = linked.find_place(finding.line)
    message = linked.restore_names(file, finding.message)
    if file == name:
        return replace(finding, line=here, message=message)
    return replace(finding, line=linked.find_place(line)[1], col=1, message=f"{message} ({file}:{here})")
