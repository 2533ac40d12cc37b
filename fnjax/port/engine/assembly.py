"""The output file: docstring, imports, support functions, and the translated statements in the order of the source."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Program
from fnjax.port.source.naming import imported
from fnjax.port.torch import support

_LIBRARIES = {"numpy", "scipy"}  # what the source imports of them stays where the output reads it
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


def assembled(
    program: Program, units: Sequence[Any], tree: cst.Module | None = None, brought: Mapping[str, str] | None = None
) -> str:
    """The text of the port.

    Args:
        program: the file, or several.
        units: what stands in the port.
        tree: the part of the source that the port stands for; all of it by default.
        brought: the imports that bring names of other files.
    """
    tree = tree or program.source.tree
    order = {node: i for i, node in enumerate(tree.body)}
    units = sorted(units, key=lambda u: order[u.origin])
    body = [s for u in units for s in u.made]
    written = cst.Module([_spaced(s) for s in body], default_indent=tree.default_indent).code.strip("\n")
    if "collectives.axis_index(" in written and "jax.lax.cond(" in written:
        written = written.replace("jax.lax.cond(", "collectives.cond(")
    helpers, _ = support({n for u in units for n in u.sink.needs} & _names(written))
    constants = _constants(written)
    text = "\n\n\n".join([*([constants] if constants else []), *helpers.values(), written])
    head = _head(program, tree, text, "\n".join(helpers.values()), brought or {})
    docstring = tree.get_docstring(clean=False)
    opening = ""
    if docstring is not None:
        opening = cst.Module([tree.body[0].with_changes(leading_lines=[])]).code.strip("\n") + "\n\n"
    header = "".join(f"{e.comment.value}\n" for e in tree.header if e.comment)
    return f"{header}{opening}{head}\n\n\n{text}\n" if head else f"{header}{opening}{text}\n"


def _constants(written: str) -> str:
    """The names of mesh axes that the text reads, which its caller sets."""
    read = _names(written)
    found = sorted(n for n in read if n.endswith("AXIS_NAME"))
    if not found:
        return ""
    lines = [
        "# Of the mesh: set it before the first call. It is read while JAX traces; a change after that has no effect."
    ]
    lines += ["AXIS_NAME = None"] + [f"{n} = None  # AXIS_NAME by default" for n in found if n != "AXIS_NAME"]
    return "\n".join(lines)


_READ = re.compile(r"(?<![\w.\"'])(?:[A-Z][A-Z0-9_]*_)?AXIS_NAME\b(?! = None)")


def with_shared_axes(codes: Mapping[str, str], folder: str) -> dict[str, str]:
    """Ports of one folder, by name, that share what their callers set as the names of mesh axes."""
    having = [name for name, text in codes.items() if "\nAXIS_NAME = None\n" in text]
    if len(having) < 2:
        return dict(codes)
    mark = f"{folder}-{hashlib.sha256(' '.join(sorted(having)).encode()).hexdigest()[:6]}"
    made = dict(codes)
    for name in having:
        head, first, rest = codes[name].partition("\nAXIS_NAME = None\n")
        more = re.match(r"(?:\w+_AXIS_NAME = None.*\n)*", rest)
        constants, body = rest[: more.end() if more else 0], rest[more.end() if more else 0 :]
        body = _READ.sub(lambda found: f'collectives.shared("{mark}", "{found[0]}")', body)
        made[name] = (
            f'{head}{first}{constants}collectives.join("{mark}", globals())  # set in one module, known in all\n{body}'
        )
        if "import collectives" not in head:
            made[name] = made[name].replace("\n# Of the mesh:", "\nfrom fnjax import collectives\n\n# Of the mesh:", 1)
    return made


def _spaced(node: Any) -> Any:
    """Two empty lines in front of classes and functions."""
    if not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return node
    lines = list(node.leading_lines)
    first = next((i for i, e in enumerate(lines) if e.comment), len(lines))
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2 + lines[first:])


def _head(program: Program, tree: cst.Module, text: str, helpers: str, brought: Mapping[str, str]) -> str:
    """The imports that the text needs."""
    made = ast.parse(text)
    read = {n.id for n in ast.walk(made) if isinstance(n, ast.Name)}
    bound = {n.name for n in made.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    future: list[str] = []
    inner = {n.arg for n in ast.walk(ast.parse(helpers)) if isinstance(n, ast.arg)}
    standard = {f"import {n}" for n in (_names(helpers) - inner) & sys.stdlib_module_names}
    third: set[str] = set()
    libraries = _LIBRARIES | program.used
    for statement in tree.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if not isinstance(small, (cst.Import, cst.ImportFrom)):
                continue
            for name, full in _brought(program, small):
                root = full.split(".")[0]
                if root == "__future__":
                    future.append(f"from __future__ import {name}")
                elif name in read and name not in bound and (root in sys.stdlib_module_names or root in libraries):
                    (third if root in libraries else standard).add(_line(small, name, full))
    for name in read - bound:
        found = program.source.last(name)
        if found is not None and found.imported.startswith("fnjax.triton"):
            module, _, last = found.imported.rpartition(".")
            whole = found.imported in _MODULES
            third.add(f"import {found.imported} as {name}" if whole else _from(module, last, name))
    have = {line.rpartition(" ")[2] for line in standard | third}
    for name, line in _OURS.items():
        if name in read and name not in have:
            (standard if name == "math" else third).add(line)
    files = {line for name, line in brought.items() if name in read}
    groups = [future, *(sorted(group, key=_sorting) for group in (standard, third, files))]
    return "\n\n".join("\n".join(g) for g in groups if g)


def _brought(program: Program, node: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import binds, those of a star one by one."""
    for name, full in imported(node):
        if name != "*":
            yield name, full
            continue
        found = program.source.definitions.items()
        yield from ((n, f"{full}.{n}") for n, d in found if d[-1].imported == f"{full}.{n}")


def _names(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _line(node: cst.Import | cst.ImportFrom, name: str, full: str) -> str:
    if isinstance(node, cst.Import):
        for alias in node.names:
            if (alias.asname is None and alias.evaluated_name.split(".")[0] == name) or alias.evaluated_alias == name:
                return f"import {alias.evaluated_name}" + (f" as {name}" if alias.asname else "")
    module, _, last = full.rpartition(".")
    return _from(module, last, name)


def _from(module: str, last: str, name: str) -> str:
    return f"from {module} import {last}" + (f" as {name}" if last != name else "")


def _sorting(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line
