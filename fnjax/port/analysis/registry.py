"""Which rule has a say on which node.

A rule is a function `(walk, node) -> Term | None` for expressions, `(walk, node) -> list of statements | None` for
statements; None means that the next one is asked. The files are asked in ORDER, the rules of a file in their own.

A rule for calls, `(walk, node, callee) -> Term | None`, says which callees it handles, and is asked for these alone:
by their names (`torch.compile`, `*.item` for a method), by what names begin with (`torch.`, `file:`, `*.` for any
method), by a pattern, or ANY. The one that says most of a callee is asked first.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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
EXPRESSIONS: dict[type[cst.CSTNode], list[Rule]] = {}
STATEMENTS: dict[type[cst.CSTNode], list[Rule]] = {}


# Callees that have no name, beside methods: a variable, an entry (`kernel[grid]`), and what another expression gives.
VARIABLE, ENTRY, RESULT = "=", "[]", "()"
NAMELESS = (VARIABLE, ENTRY, RESULT, "*.")
ANY = ""


@dataclass(frozen=True, slots=True)
class CallRule:
    """A rule for calls.

    Attributes:
        rule: the rule.
        handles: the names of callees; one that ends with a dot or a colon, and ANY, stands for all that begin so.
        like: a pattern of names.
        only: `collective` or `kernels`, for a rule of files that have these.
    """

    rule: Rule
    handles: tuple[str, ...]
    like: re.Pattern[str] | None
    only: str

    def closeness(self, callee: str) -> float:
        """How much it says of a callee: most by its name; less than nothing where it does not handle it."""
        if callee in self.handles:
            return float("inf")
        if self.like is not None and self.like.fullmatch(callee):
            return len(callee)
        return max((len(h) for h in self.handles if h[-1:] in ".:" and callee.startswith(h)), default=-1)


CALLS: list[CallRule] = []


def enter_rules() -> None:
    """Import the files of ORDER: each enters its rules."""
    for name in ORDER:
        importlib.import_module(f"fnjax.port.rewrite.{name}")


def expression(*types: type[cst.CSTNode]) -> Callable[[Rule], Rule]:
    """Enter a rule for expressions of these types."""
    return _into(EXPRESSIONS, types)


def call_of(*handles: str, like: str = "", only: str = "") -> Callable[[Rule], Rule]:
    """Enter a rule for calls of what it handles (see CallRule)."""

    def enter(rule: Rule) -> Rule:
        CALLS.append(CallRule(rule, handles, re.compile(like) if like else None, only))
        CALLS.sort(key=lambda r: _place(r.rule))
        return rule

    return enter


@lru_cache(1 << 14)
def rules_for(callee: str, files: frozenset[str]) -> tuple[Rule, ...]:
    """The rules that are asked for calls of a callee, in files of a kind."""
    known = [(r.closeness(callee), r.rule) for r in CALLS if not r.only or r.only in files]
    return tuple(rule for close, rule in sorted(known, key=lambda k: -k[0]) if close >= 0)


def statement(*types: type[cst.CSTNode]) -> Callable[[Rule], Rule]:
    """Enter a rule for statements of these types."""
    return _into(STATEMENTS, types)


def _into(table: dict[type[cst.CSTNode], list[Rule]], types: tuple[type[cst.CSTNode], ...]) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        for kind in types:
            table.setdefault(kind, []).append(rule)
            table[kind].sort(key=_place)
        return rule

    return enter


def _place(rule: Rule) -> int:
    return ORDER.index(rule.__module__.removeprefix("fnjax.port.rewrite."))
