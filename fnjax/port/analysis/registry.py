"""Which rule has a say on which node.

A rule is a function `(walk, node) -> Term | None` for expressions, `(walk, node) -> list of statements | None` for
statements; None means that the next one is asked. The files are asked in ORDER, the rules of a file in their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import libcst as cst

ORDER = (
    "values.context",
    "devices.groups",
    "devices.filled",
    "devices.exchanges",
    "devices.collectives",
    "devices.parts",
    "calls.versions",
    "memory.constants",
    "libraries.einops_calls",
    "control.choices",
    "calls.passed_functions",
    "calls.trees",
    "calls.gpu",
    "libraries.numpy_calls",
    "calls.python_calls",
    "calls.triton_launches",
    "calls.own_functions",
    "calls.custom_operators",
    "values.numbers",
    "functions.decorators",
    "calls.foreign",
    "functions.grad_mode",
    "libraries.layers",
    "libraries.distributions",
    "calls.called",
    "values.operators",
    "calls.containers",
    "values.conditions",
    "control.checks",
    "control.messages",
    "memory.indexing",
    "control.control",
    "control.attempts",
    "control.matches",
    "control.filling",
    "control.loops",
    "statements.statements",
    "statements.augmented",
    "functions.returns",
    "functions.definitions",
    "functions.class_definitions",
    "calls.others",
)
Rule = Callable[..., Any]
EXPRESSIONS: dict[type[cst.CSTNode], list[Callable[..., Any]]] = {}
STATEMENTS: dict[type[cst.CSTNode], list[Callable[..., Any]]] = {}


def enter_rules() -> None:
    """Import the files of ORDER: each enters its rules."""
    for name in ORDER:
        importlib.import_module(f"fnjax.port.rewrite.{name}")


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
            table[kind].sort(key=lambda r: ORDER.index(r.__module__.removeprefix("fnjax.port.rewrite.")))
        return rule

    return enter
