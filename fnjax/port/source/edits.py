"""New text for places in a file, each line staying a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fnjax.port.source.top_level import NAMED


class Edit(NamedTuple):
    """New text for a place in a file: its first line and column, and its last."""

    place: tuple[int, int, int, int]
    text: str


def locate_node(node: ast.AST) -> tuple[int, int, int, int]:
    """Return where a node is."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined] # it has


def iter_renamings(node: ast.AST, spelled: str, new: str) -> Iterator[Edit]:
    """Yield a new name where a node reads one, or defines or declares it, as it is spelled there."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield Edit(locate_node(node), new)
    elif isinstance(node, NAMED):
        word = (
            "class "
            if isinstance(node, ast.ClassDef)
            else "async def "
            if isinstance(node, ast.AsyncFunctionDef)
            else "def "
        )
        start = node.col_offset + len(word)
        yield Edit((node.lineno, start, node.lineno, start + len(node.name)), new)
    elif isinstance(node, ast.Global):
        others = [new if n == spelled else n for n in node.names]
        yield Edit(locate_node(node), f"global {', '.join(others)}")


def apply_edits(text: str, edits: Sequence[Edit]) -> list[str]:
    """Return the lines of a text with these edits; their number does not change."""
    lines = [line.encode() for line in text.split("\n")]  # columns of ast count bytes
    for (first, start, last, end), new in sorted(set(edits), reverse=True):
        if first == last:
            line = lines[first - 1]
            lines[first - 1] = line[:start] + new.encode() + line[end:]
            continue
        lines[first - 1] = lines[first - 1][:start] + new.encode()
        for i in range(first, last):
            lines[i] = b"" if i < last - 1 else lines[i][end:]
    return [line.decode() for line in lines]
