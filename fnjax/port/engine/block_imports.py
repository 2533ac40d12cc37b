"""Imports of other files of a folder in the PyTorch source that ports keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fnjax.port.engine.as_is import OPENING, list_definitions, put_block, write_block
from fnjax.port.result import Ported
from fnjax.port.source.linking import split_path


def bring_files(ports: Mapping[str, Ported], files: Mapping[str, str], roots: Mapping[str, str]) -> dict[str, Ported]:
    """Add to the ports of a folder what the source that they keep imports from its other files.

    Args:
        ports: by the name of the file.
        files: the texts of all files.
        roots: for each file the folder that its modules are named from.

    Returns:
        The ports; with those of files that were not needed before.
    """
    names = {(roots[name], split_path(name, roots[name])[1]): name for name in files}
    made = dict(ports)
    waiting = [name for name, port in made.items() if port.as_is]
    while waiting:
        here = waiting.pop()
        for parts, wanted in _iter_imports(made[here].code, split_path(here, roots[here])[0]):
            other, asked = names.get((roots[here], (*parts, *wanted[:1]))), None
            if other is None:
                other, asked = names.get((roots[here], parts)), wanted
            if other is None or other == here:
                continue
            port = made.get(other, Ported())
            found = list_definitions(files[other]) if not asked else frozenset(asked)
            block = write_block(files[other], (found - port.in_jax) | {*port.as_is}, port.in_jax, everything=False)
            if block.text not in port.code:
                made[other] = replace(port, code=put_block(port.code, block.text), as_is=block.names)
                waiting.append(other)
    return made


def _iter_imports(code: str, package: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the modules that a block imports, and the name that it imports from each; () for the whole module."""
    block = code.partition(OPENING)[2]
    for node in ast.walk(ast.parse(f"{OPENING}{block}")) if block else ():
        if isinstance(node, ast.Import):
            yield from ((tuple(a.name.split(".")), ()) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((parts, () if a.name == "*" else (a.name,)) for a in node.names)
