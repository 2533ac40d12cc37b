"""The places that a mask selects, with another axis put between them.

What: `nonzero` of a mask, taken apart into its columns, that only serve as an index with `torch.arange` for the second
axis: label smoothing and weighted losses leave out the ignored labels like this.
Before: `i = m.nonzero()`, `_, n = i.size()`, `a, *b = i.chunk(n, dim=1)`, `k = [a, torch.arange(y.size(1)), *b]`
After: `k = jnp.broadcast_to(jnp.expand_dims(m, 1), y.shape)`, a mask
Safety: only where nothing else reads the columns and their number.
Limits: other forms of the columns run outside jit only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, parse_line, place_at
from fnjax.port.torch import unparse

_FORM = re.compile(
    r"(?P<i>\w+) = (?P<m>\w+)\.nonzero\((as_tuple=False)?\)\n"
    r"\w+, (?P<n>\w+) = (?P=i)\.(size\(\)|shape)\n"
    r"(?P<a>\w+), \*(?P<b>\w+) = (?P=i)\.(chunk\((?P=n), (dim=)?1\)|split\(1, (dim=)?1\))\n"
    r"(?P<k>\w+) = [\[(](?P=a), torch\.arange\((?P<y>\w+)\.(size\(1\)|shape\[1\])(, device=[\w.]+)?\), \*(?P=b)[\])]\n"
)
_READS = {"n": 2, "a": 2, "b": 2}  # where each of these stands, its assignment among them


def port_places_of_mask(ev: Evaluator, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """Return the mask that stands for four statements."""
    if not _asks_where(body[index]):
        return None
    four = [s for s in body[index : index + 4] if isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1]
    found = _FORM.fullmatch("".join(f"{unparse(s.body[0])}\n" for s in four))
    if found is None or ev.look_up(found["m"]).dtype != "bool":
        return None
    reads = ev.routine.reads
    if any(len(reads.get(found[name], ())) != times for name, times in _READS.items()):
        return None
    made = parse_line(f"{found['k']} = {found['m']}.unsqueeze(1).expand_as({found['y']})")
    return ev.port_statement(place_at(ev, made.with_changes(leading_lines=four[0].leading_lines), four[0])), 4


def _asks_where(node: cst.CSTNode) -> bool:
    """Return whether a statement begins with `i = m.nonzero(`."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    asked = first.value if isinstance(first, cst.Assign) else None
    func = asked.func if isinstance(asked, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value == "nonzero"
