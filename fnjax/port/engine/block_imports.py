"""Imports of other files of a folder in the PyTorch source that ports keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fnjax.port.engine.as_is import OPENING, list_definitions, put_block, write_block
from fnjax.port.result import Ported
from fnjax.port.source.module_paths import Modules
from fnjax.port.source.top_level import name_alias


def bring_files(ports: Mapping[str, Ported], files: Mapping[str, str], modules: Modules) -> dict[str, Ported]:
    """Add to the ports of a folder what the source that they keep imports from its other files.

    Args:
        ports: by the name of the file.
        files: the texts of all files.
        modules: the same files as modules.

    Returns:
        The ports; with those of files that were not needed before.
    """
    made = dict(ports)
    waiting = [name for name, port in made.items() if port.as_is]
    while waiting:
        here = waiting.pop()
        for path, level, name, read in _iter_imports(made[here].code):
            other, _ = modules.find(here, ".".join(filter(None, (path, name))), level)
            wanted = read if other else {name}
            if other is None and (path or level):
                other, _ = modules.find(here, path, level)
            if other is None or other == here:
                continue
            port = made.get(other, Ported())
            found = list_definitions(files[other])
            found = found if wanted is None else found & wanted
            block = write_block(files[other], (found - port.in_jax) | {*port.as_is}, port.in_jax, everything=False)
            if block.text not in port.code:
                left = tuple(n for n in port.left_out if n not in block.names)
                made[other] = replace(port, code=put_block(port.code, block.text), as_is=block.names, left_out=left)
                waiting.append(other)
    return made


def _iter_imports(code: str) -> Iterator[tuple[str, int, str, set[str] | None]]:
    """Yield the modules that a block imports, the dots in front, the name imported from each, and what is read of it.

    The name is empty for a module itself; what is read of a module is None for all.
    """
    block = code.partition(OPENING)[2]
    nodes = list(ast.walk(ast.parse(f"{OPENING}{block}"))) if block else []
    for node in nodes:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            bound = name_alias(alias)
            read = [n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == bound]
            whole = len(read) < sum(isinstance(n, ast.Name) and n.id == bound for n in nodes)
            names = None if whole or bound == "*" else {*read}
            if isinstance(node, ast.Import):
                yield alias.name, 0, "", names
            elif isinstance(node, ast.ImportFrom):
                yield node.module or "", node.level, alias.name.strip("*"), names
