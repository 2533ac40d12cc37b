"""The findings of a speculative evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fnjax.port.analysis.expr import Diagnostics, Statements
from fnjax.port.known.facts import Value
from fnjax.port.known.state import State


@dataclass(slots=True)
class Region:
    """The findings of one evaluation; none of it holds until the evaluator commits it.

    Attributes:
        made: the translation.
        end: the variables after it.
        diagnostics: what it has found and needs.
        before: the statements in front of the one that it is in.
        returns: the values of its `return` statements.
        leaves: whether nothing after it is reached from it.
    """

    end: State
    diagnostics: Diagnostics
    made: Any = None
    before: Statements = field(default_factory=list)
    returns: list[Value] = field(default_factory=list)
    leaves: bool = False
