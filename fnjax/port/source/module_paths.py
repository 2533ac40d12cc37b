"""Modules that a file calls by their path, `import pkg.util` and `pkg.util.half(x)`, under names of their own."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fnjax.port.source.edits import Edit, apply_edits, locate_node


def name_modules(text: str, tree: ast.Module, is_known: Callable[[str], bool]) -> str:
    """Return the text with `import pkg.util as pkg_util` for `import pkg.util`, and what is read of it.

    Args:
        text: the text of a file.
        tree: the same, parsed.
        is_known: returns whether a module is to have a name of its own.
    """
    nodes = list(ast.walk(tree))
    imports = [n for n in nodes if isinstance(n, ast.Import)]
    paths = {a.name for n in imports for a in n.names if "." in a.name and not a.asname and is_known(a.name)}
    if not paths:
        return text
    parameters = {n.arg for n in nodes if isinstance(n, ast.arg)}
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | parameters
    taken = {n.id for n in nodes if isinstance(n, ast.Name)} | parameters
    edits = []
    for path in sorted(paths):
        root, new = path.partition(".")[0], path.replace(".", "_")
        others = [a.name for n in imports for a in n.names if a.name.partition(".")[0] == root and a.name != path]
        reads = [n for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == path]
        roots = [n for n in nodes if isinstance(n, ast.Name) and n.id == root]
        if root in bound or new in taken or others or len(reads) != len(roots):
            continue
        edits += [Edit(locate_node(n), new) for n in reads]
        for node in imports:
            if any(a.name == path and not a.asname for a in node.names):
                names = [ast.alias(path, new) if a.name == path and not a.asname else a for a in node.names]
                edits.append(Edit(locate_node(node), ast.unparse(ast.Import(names))))
    return "\n".join(apply_edits(text, edits))
