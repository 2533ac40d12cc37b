"""`match` on what Python knows.

What: the blocks of the cases are translated; one of them runs.
Before: `case "relu": return x.relu()`
After: `case "relu": return jax.nn.relu(x)`
Safety: what a pattern binds is unknown.
Limits: a tensor as the subject runs outside jit only; torch's names in patterns are findings.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, Stop
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import UNKNOWN
from fnjax.port.rewrite.control.loops import BRANCHES
from fnjax.port.torch import bracket, unparse
from fnjax.port.tree.located import list_nodes


@statement(cst.Match, general=True)
def port_match(ev: Evaluator, node: cst.Match) -> Statements | None:
    """Translate `match mode: case "a": ...`."""
    subject = ev.port(node.subject)
    if ev.is_traced(subject.value):
        ev.report_untraced(node.subject, f"this `match` {BRANCHES}")
    for part in (n for case in node.cases for n in list_nodes(case.pattern)):
        if isinstance(part, (cst.Name, cst.Attribute)) and ev.find_name(part).startswith("torch."):
            raise Stop(part, "unknown", f"{unparse(part)} in a pattern: ask for it with `if`")
        bound = getattr(part, "rest" if isinstance(part, cst.MatchMapping) else "name", None)
        if isinstance(part, (cst.MatchAs, cst.MatchStar, cst.MatchMapping)) and isinstance(bound, cst.Name):
            ev.bind_name(bound.value, UNKNOWN, node)
    last = node.cases[-1]
    always = isinstance(last.pattern, cst.MatchAs) and last.pattern.pattern is None and last.guard is None
    guards: list[Any] = [case.guard and ev.port(case.guard).node for case in node.cases]
    bodies = ev.evaluate_branches([*(case.body for case in node.cases), *([] if always else [None])])
    cases = [c.with_changes(body=b, guard=g) for c, b, g in zip(node.cases, bodies, guards, strict=False)]
    return [node.with_changes(subject=bracket(subject.node, 1), cases=cases)]
