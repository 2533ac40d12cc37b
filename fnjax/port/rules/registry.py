"""Which rule has a say on which node.

A rule is a function `(walk, node) -> Term | None` for expressions, `(walk, node) -> list of statements | None` for
statements; None means that the next one is asked. The files are asked in ORDER, the rules of a file in their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

ORDER = (
    "context",
    "groups",
    "filled",
    "exchanges",
    "collectives",
    "parts",
    "versions",
    "constants",
    "einops_calls",
    "choices",
    "passed_functions",
    "trees",
    "numpy_calls",
    "python_calls",
    "triton_launches",
    "own_functions",
    "custom_operators",
    "numbers",
    "decorators",
    "foreign",
    "grad_mode",
    "layers",
    "distributions",
    "called",
    "operators",
    "containers",
    "conditions",
    "messages",
    "indexing",
    "control",
    "attempts",
    "matches",
    "filling",
    "loops",
    "statements",
    "augmented",
    "returns",
    "definitions",
    "class_definitions",
    "others",
)
Rule = Callable[..., Any]
EXPRESSIONS: dict[type[cst.CSTNode], list[Callable[..., Any]]] = {}
STATEMENTS: dict[type[cst.CSTNode], list[Callable[..., Any]]] = {}


def expression(*types: type[cst.CSTNode]) -> Callable[[Rule], Rule]:
    """Enter a rule for expressions of these types."""
    return _into(EXPRESSIONS, types)


def statement(*types: type[cst.CSTNode]) -> Callable[[Rule], Rule]:
    """Enter a rule for statements of these types."""
    return _into(STATEMENTS, types)


def _into(
    table: dict[type[cst.CSTNode], list[Callable[..., Any]]], types: tuple[type[cst.CSTNode], ...]
) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        for kind in types:
            table.setdefault(kind, []).append(rule)
            table[kind].sort(key=lambda r: ORDER.index(r.__module__.rpartition(".")[2]))
        return rule

    return enter
