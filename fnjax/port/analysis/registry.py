"""The rules, by the nodes that they translate.

A rule is a function `(ev, node) -> Expr | None` for expressions, `(ev, node) -> list of statements | None` for
statements; None means that the next one is tried. The order follows from how the rules are registered: first those of
files of a kind (`only`), then the others, and last the one that translates every node of its type (`general`).
Those between have no order: no two of them translate one node.

A rule for calls, `(ev, node, callee) -> Expr | None`, names the callees that it handles, and is tried for these alone:
by their names (`torch.compile`, `*.item` for a method), by what names begin with (`torch.`, `file:`, `*.` for any
method), by a pattern, or ANY. The most specific one is tried first.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import libcst as cst

RULES = "fnjax.port.rewrite"
Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A rule for nodes of a type.

    Attributes:
        rule: the rule.
        only: `collective`, `kernels`, `numpy` ..., for a rule of files that have to do with these.
        general: it translates what no other rule does.
    """

    rule: Rule
    only: str
    general: bool


NODES: dict[type[cst.CSTNode], list[NodeRule]] = {}
# Callees without a name, next to methods: a variable, an entry (`kernel[grid]`), and any other expression.
VARIABLE, ENTRY, RESULT = "=", "[]", "()"
NAMELESS = (VARIABLE, ENTRY, RESULT, "*.")
ANY = ""


@dataclass(frozen=True, slots=True)
class CallRule:
    """A rule for calls.

    Attributes:
        rule: the rule.
        handles: the names of callees; one that ends with a dot or a colon, and ANY, is for all that begin so.
        like: a pattern of names.
        only: `collective`, `kernels`, `numpy` ..., for a rule of files that have to do with these.
        general: it comes after others that are as specific.
    """

    rule: Rule
    handles: tuple[str, ...]
    like: re.Pattern[str] | None
    only: str
    general: bool

    def rate_closeness(self, callee: str) -> float:
        """Return how specific it is for a callee: most by its name; negative where it does not handle it."""
        if callee in self.handles:
            return float("inf")
        if self.like is not None and self.like.fullmatch(callee):
            return len(callee)
        return max((len(h) for h in self.handles if h[-1:] in ".:" and callee.startswith(h)), default=-1)


CALLS: list[CallRule] = []


def import_rules() -> None:
    """Import the files of the packages: each enters its rules."""
    for found in pkgutil.walk_packages(importlib.import_module(RULES).__path__, f"{RULES}."):
        importlib.import_module(found.name)


def expression(*types: type[Any], only: str = "", general: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for expressions, or statements, of these types (see NodeRule)."""

    def enter(rule: Rule) -> Rule:
        for kind in types:
            NODES.setdefault(kind, []).append(NodeRule(rule, only, general))
        return rule

    return enter


statement = expression


def call_of(*handles: str, like: str = "", only: str = "", general: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule for calls of what it handles (see CallRule)."""

    def enter(rule: Rule) -> Rule:
        CALLS.append(CallRule(rule, handles, re.compile(like) if like else None, only, general))
        return rule

    return enter


@lru_cache(1 << 14)
def find_rules(callee: str, files: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules to try for calls of a callee, in files of a kind."""
    known = [(-r.rate_closeness(callee), r.general, not r.only, r.rule) for r in CALLS if not r.only or r.only in files]
    return tuple(rule for close, *_, rule in sorted(known, key=lambda k: k[:3]) if close <= 0)


@lru_cache(1 << 10)
def find_node_rules(kind: type[cst.CSTNode], files: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules to try for a node, in files of a kind."""
    entered = (r for k in kind.__mro__ for r in NODES.get(k, ()))
    known = [r for r in entered if not r.only or r.only in files]
    return tuple(r.rule for r in sorted(known, key=lambda r: (r.general, not r.only)))
