"""Effects of statements on the code around them: the variables that they bind, and all else.

They are noted where a statement is translated, and join as states do; from them control rules decide what a function of
JAX's can replace. `find_flow` reads from the source which variables come into a block from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.expr import list_else_blocks
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of statements.

    Attributes:
        binds: the variables that may be bound.
        acts: something else is done, which no function of JAX's does: ctx or a list keeps something, a branch returns.
        returns: they end with return.
        jumps: the iteration of the loop around may end here.
    """

    binds: frozenset[str] = frozenset()
    acts: bool = False
    returns: bool = False
    jumps: bool = False

    def add_effects(self, other: Effects) -> Effects:
        """Return the effects of these statements and of others after them."""
        return Effects(
            self.binds | other.binds,
            self.acts or other.acts,
            self.returns or other.returns,
            self.jumps or other.jumps,
        )

    @property
    def perhaps(self) -> Effects:
        """The effects of the same statements if they may not run."""
        return Effects(self.binds, acts=self.acts or self.returns, jumps=self.jumps)

    @property
    def repeated(self) -> Effects:
        """The effects of the same statements as a loop's body, which runs zero or more times."""
        return replace(self.perhaps, jumps=False)


NOTHING = Effects()
_ACTS = Effects(acts=True)


def join_effects(branches: Iterable[Effects]) -> Effects:
    """Return the effects of several branches, of which one runs."""
    together = NOTHING
    for effects in branches:
        together = together.add_effects(effects.perhaps)
    return together


def find_effects(made: Iterable[cst.CSTNode]) -> Effects:
    """Return the effects of statements without those of their blocks, which are noted where these are evaluated."""
    found = NOTHING
    for statement in made:
        for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]:
            found = found.add_effects(_find_effects_of_one(part))
    return found


def _find_effects_of_one(node: Any) -> Effects:
    if isinstance(node, (cst.For, cst.While)) and node.orelse is None:
        return Effects(frozenset(iter_targets(node.target) if isinstance(node, cst.For) else ()))
    if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)) and node.value is not None:
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        bound = frozenset(name for target in targets for name in iter_targets(target))
        entries = any(list_nodes(target, cst.Attribute, cst.Subscript) for target in targets)
        return Effects(bound, acts=entries)
    if isinstance(node, (cst.Break, cst.Continue, cst.Return)):
        return Effects(returns=isinstance(node, cst.Return), jumps=not isinstance(node, cst.Return))
    nothing = isinstance(node, cst.Expr) and isinstance(node.value, (cst.SimpleString, cst.Ellipsis))
    return NOTHING if nothing or isinstance(node, (cst.Pass, cst.FunctionDef, cst.If)) else _ACTS


def find_flow(block: cst.BaseSuite, given: frozenset[str] = frozenset()) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a block reads before it binds them, and those that it surely binds."""
    read = frozenset[str]()
    for row in block.body:
        for node in row.body if isinstance(row, cst.SimpleStatementLine) else [row]:
            first, bound, blocks = _split_statement(node)
            branches = [find_flow(inner, given | bound) for inner in blocks]
            read = read.union(first - given, *(inside for inside, _ in branches))
            given = given.union(bound, frozenset.intersection(*(known for _, known in branches)) if branches else ())
    return read, given


def _split_statement(node: Any) -> tuple[set[str], set[str], list[cst.BaseSuite]]:
    """Return the names that a statement reads at first, those that it binds, and its blocks, of which one runs."""
    if isinstance(node, cst.With):
        return {n for item in node.items for n in find_names(item)}, set(), [node.body]
    if isinstance(node, cst.If):
        return find_names(node.test), set(), [node.body, *(list_else_blocks(node) or [cst.IndentedBlock([])])]
    if isinstance(node, cst.For):
        return find_names(node.iter), set(iter_targets(node.target)), [node.body]
    if isinstance(node, cst.Assign):
        bound = {n for t in node.targets for n in iter_targets(t.target)}
        return find_names(node.value) | {n for t in node.targets for n in find_names(t.target)} - bound, bound, []
    return find_names(node), set(), []
