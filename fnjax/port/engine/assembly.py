"""The output file: docstring, imports, support functions, and the translated statements in the order of the source."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.program import Program
from fnjax.port.result import Ported
from fnjax.port.source.naming import iter_imported
from fnjax.port.torch.specialised import specialise

_MODULES = {"fnjax.triton", "fnjax.triton.language"}
_OURS = {
    "fnjax": "import fnjax",
    "collectives": "from fnjax import collectives",
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "triton": "import fnjax.triton as triton",
    "math": "import math",
}


def assemble(
    program: Program,
    top_items: Sequence[TopItem],
    tree: cst.Module | None = None,
    brought: Mapping[str, str] | None = None,
    block: str = "",
) -> str:
    """Return the text of the port.

    Args:
        program: the file, or several.
        top_items: the statements of the port.
        tree: the part of the source that is ported; all of it by default.
        brought: the imports that bring names of other files.
        block: PyTorch source to put at the end.
    """
    tree = tree or program.source.tree
    order: dict[cst.CSTNode, int] = {node: i for i, node in enumerate(tree.body)}
    top_items = sorted(top_items, key=lambda u: order[u.origin])
    read = {n for u in top_items for n in u.list_names_read()}
    needs = {n for u in top_items for n in u.diagnostics.needs} & read
    body, helpers, modules = specialise([s for u in top_items for s in u.made], needs)
    written = cst.Module([_add_empty_lines(s) for s in body], default_indent=tree.default_indent).code.strip("\n")
    axes = list_mesh_axes(top_items)
    bound = {s.name.value for s in body if isinstance(s, (cst.FunctionDef, cst.ClassDef))} | set(helpers)
    asked = (read - bound) | modules | ({"collectives"} if axes else set())
    head = _write_imports(program, tree, top_items, asked, modules, brought or {}, block)
    parts = [*([_write_axis_constants(axes)] if axes else []), *helpers.values(), written, block.rstrip()]
    text = "\n\n\n".join(filter(None, parts))
    docstring = tree.get_docstring(clean=False)
    opening = ""
    if docstring is not None:
        opening = cst.Module([tree.body[0].with_changes(leading_lines=[])]).code.strip("\n") + "\n\n"
    header = "".join(f"{e.comment.value}\n" for e in tree.header if e.comment)
    return f"{header}{opening}{head}\n\n\n{text}\n" if head else f"{header}{opening}{text}\n"


def list_mesh_axes(top_items: Iterable[TopItem]) -> tuple[str, ...]:
    """Return the constants of a port that name mesh axes, and that its caller sets."""
    found = {n for u in top_items for n in u.diagnostics.imports & u.list_names_read() if n not in _OURS}
    return ("AXIS_NAME", *sorted(found - {"AXIS_NAME"})) if found else ()


def _write_axis_constants(axes: Sequence[str]) -> str:
    first, *others = axes
    lines = [
        "# Of the mesh: set it before the first call. It is read while JAX traces; a change after that has no effect.",
        f"{first} = None",
        *(f"{n} = None  # {first} by default" for n in others),
    ]
    return "\n".join(lines)


def share_axes(ports: Mapping[str, Ported], folder: str) -> dict[str, Ported]:
    """Return the ports of a folder with mesh axes that need to be set in one of their modules only."""
    having = [name for name, port in ports.items() if port.axes]
    if len(having) < 2:
        return dict(ports)
    mark = f"{folder}-{hashlib.sha256(' '.join(sorted(having)).encode()).hexdigest()[:6]}"
    made = dict(ports)
    for name in having:
        constants = _write_axis_constants(ports[name].axes)
        head, _, body = ports[name].code.partition(constants)
        reads = rf"(?<![\w.\"'])(?:{'|'.join(ports[name].axes)})\b"
        body = re.sub(reads, lambda found: f'collectives.modules.shared("{mark}", "{found[0]}")', body)
        joined = f'collectives.modules.join("{mark}", globals())  # set in one module, known in all'
        made[name] = replace(ports[name], code=f"{head}{constants}\n{joined}{body}")
    return made


def _add_empty_lines(node: Any) -> Any:
    """Return two empty lines in front of classes and functions."""
    if not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return node
    lines = list(node.leading_lines)
    first = next((i for i, e in enumerate(lines) if e.comment), len(lines))
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2 + lines[first:])


def _write_imports(
    program: Program,
    tree: cst.Module,
    top_items: Sequence[TopItem],
    read: set[str],
    modules: frozenset[str],
    brought: Mapping[str, str],
    block: str,
) -> str:
    """Return the imports of names that are read: the source's own, and what rules and support functions name."""
    future: list[str] = []
    standard = {f"import {n}" for n in modules - _OURS.keys()}
    third = {"import fnjax.torch as torch"} if block else set[str]()
    libraries = program.importable
    for statement in tree.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if not isinstance(small, (cst.Import, cst.ImportFrom)):
                continue
            for name, full in _iter_brought_names(program, small):
                root = full.split(".")[0]
                if root == "__future__":
                    future.append(f"from __future__ import {name}")
                elif name in read and (root in sys.stdlib_module_names or root in libraries):
                    (third if root in libraries else standard).add(_write_import_line(small, name, full))
    named = modules | {n for u in top_items for n in u.diagnostics.imports}
    for name in read:
        found = program.source.find_definition(name)
        if found is not None and found.imported.split(".")[0] in _OURS:
            named |= {name}
        if found is not None and found.imported.startswith("fnjax.triton"):
            module, _, last = found.imported.rpartition(".")
            whole = found.imported in _MODULES
            third.add(f"import {found.imported} as {name}" if whole else _write_from_import(module, last, name))
    have = {line.rpartition(" ")[2] for line in standard | third}
    for name, line in _OURS.items():
        if name in read & named and name not in have:
            (standard if name == "math" else third).add(line)
    files = {line for name, line in brought.items() if name in read}
    groups = [future, *map(_join_imports, (standard, third, files))]
    return "\n\n".join("\n".join(g) for g in groups if g)


def _iter_brought_names(program: Program, node: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, those of a star one by one."""
    for name, full in iter_imported(node):
        if name != "*":
            yield name, full
            continue
        found = program.source.definitions.items()
        yield from ((n, f"{full}.{n}") for n, d in found if d[-1].imported == f"{full}.{n}")


def _write_import_line(node: cst.Import | cst.ImportFrom, name: str, full: str) -> str:
    if isinstance(node, cst.Import):
        for alias in node.names:
            if (alias.asname is None and alias.evaluated_name.split(".")[0] == name) or alias.evaluated_alias == name:
                return f"import {alias.evaluated_name}" + (f" as {name}" if alias.asname else "")
    module, _, last = full.rpartition(".")
    return _write_from_import(module, last, name)


def _write_from_import(module: str, last: str, name: str) -> str:
    return f"from {module} import {last}" + (f" as {name}" if last != name else "")


def _join_imports(lines: Iterable[str]) -> list[str]:
    """Return imports in order, those from one module in one line as far as that is long enough."""
    made: list[str] = []
    for line in sorted(lines, key=lambda line: (line.startswith("from "), line)):
        module, _, name = line.partition(" import ")
        if made and name and made[-1].startswith(f"{module} import ") and len(made[-1]) + len(name) < 119:
            made[-1] += f", {name}"
        else:
            made.append(line)
    return made
