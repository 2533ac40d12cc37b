"""Depth of nesting of a text, known before libcst reads it: its parser ends the process where that is too deep."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize

_BRACKETS = 200  # in brackets, as Python has it
_LINKS = 1000  # of `a and b and c`, `a < b < c` and `"a" "b" "c"`, which Python reads as one and libcst as nested


def is_too_deep(text: str) -> bool:
    """Return whether a text is nested too deeply for the porter, as far as is known without libcst."""
    try:
        tree = ast.parse(text)
    except (RecursionError, MemoryError):
        return True
    except (SyntaxError, ValueError):  # libcst reads the syntax of newer Pythons too; it counts no brackets
        changes = itertools.accumulate((c in "([{") - (c in ")]}") for c in text)
        return max(changes, default=0) > _BRACKETS
    return any(_count_links(n) > _LINKS for n in ast.walk(tree)) or _count_strings(text) > _LINKS


def _count_links(node: ast.AST) -> int:
    return len(node.values) if isinstance(node, ast.BoolOp) else len(node.ops) if isinstance(node, ast.Compare) else 0


def _count_strings(text: str) -> int:
    """Return how many adjacent strings there are at most."""
    if text.count("'") + text.count('"') <= _LINKS:
        return 0
    most = run = inside = 0  # inside strings with expressions, of which newer Pythons show the tokens
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        inside -= kind in _ENDS
        if inside == 0 and kind not in _BETWEEN:
            run = run + (kind in _ENDS) if kind in {"STRING", *_STARTS, *_ENDS} else 0
            run += kind == "STRING"
            most = max(most, run)
        inside += kind in _STARTS
    return most


_STARTS, _ENDS = ({f"{s}STRING_{side}" for s in "FT"} for side in ("START", "END"))
_BETWEEN = frozenset({"NL", "COMMENT"})
