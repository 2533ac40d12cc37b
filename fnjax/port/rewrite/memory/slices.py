"""Views of a part along one axis are slices, where they are written to.

What: what `select` and `narrow` show, and the pieces of `unbind`, of `split` and of `chunk` into two, as an index.
Before: `a, b = y.split(2, 1)` and `b.mul_(2)`
After: `a, b = _split(y, 2, axis=1)`, `b = b * 2` and `y = y.at[:, 2:4].set(b)`
Safety: only where the axis is a literal and no bound is negative; a slice ends where the axis ends, as the last piece
does.
Limits: more chunks than two, starts that may be negative, and views of views go through `_write`, which takes the view
of an array of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, parse
from fnjax.port.known.facts import HOLE
from fnjax.port.torch import Bound, bracket, read_literal
from fnjax.port.torch.expressions import add_up, multiply


def find_slice(ev: Evaluator, bound: Bound) -> cst.BaseExpression | None:
    """Return the view that `select` and `narrow` take as a subscript of HOLE, which stands for the array."""
    name, axis = bound.operation.names[0].rpartition(".")[2], bound.read_literal("dim")
    if type(axis) is not int:
        return None
    if name == "select":
        return _take_along(axis, cst.Index(bracket(ev.port(bound.values["index"]).node, 1)))
    if name != "narrow":
        return None
    start, length = (ev.port(bound.values[n]).node for n in ("start", "length"))
    low = read_literal(start)
    if type(low) is not int or low < 0:
        return None
    return _take_along(axis, cst.Slice(start if low else None, parse(add_up([start, length]))))


def find_pieces(ev: Evaluator, bound: Bound) -> Callable[[int], cst.BaseExpression] | None:
    """Return a function: index → that piece of `unbind`, `split` or `chunk`, as a subscript of HOLE."""
    name, axis = bound.operation.names[0].rpartition(".")[2], bound.read_literal("dim")
    if type(axis) is not int or name not in {"unbind", "split", "chunk"}:
        return None
    if name == "unbind":
        return lambda i: _take_along(axis, cst.Index(cst.Integer(str(i))))
    if name == "chunk":
        size, count = cst.parse_expression(f"-(-{HOLE}.shape[{axis}] // 2)"), bound.read_literal("chunks")
        return (lambda i: _take_between(axis, [size], i, i == 1)) if count == 2 else None
    given = next(value for key, value in bound.values.items() if key.startswith("split"))
    made = ev.port(given)
    if isinstance(made.node, (cst.List, cst.Tuple)):
        sizes = [e.value for e in made.node.elements]
        return lambda i: _take_between(axis, sizes, i, i == len(sizes) - 1)
    equal = made.value.is_number and made.value.dtype == "int"
    return (lambda i: _take_between(axis, [made.node] * (i + 1), i)) if equal else None


def _take_between(axis: int, sizes: Sequence[cst.BaseExpression], index: int, last: bool = False) -> cst.Subscript:
    """Return the piece of this index, where pieces have these sizes."""
    equal = all(s is sizes[0] for s in sizes)
    low, high = (parse(multiply(sizes[0], i) if equal else add_up(sizes[:i])) for i in (index, index + 1))
    return _take_along(axis, cst.Slice(low if index else None, None if last else high))


def _take_along(axis: int, index: cst.BaseSlice) -> cst.Subscript:
    """Return HOLE with an index for one axis."""
    whole = cst.Slice(None, None)
    before = [whole] * axis if axis >= 0 else [cst.Index(cst.Ellipsis())]
    after = [whole] * (-axis - 1)
    return cst.Subscript(cst.Name(HOLE), [cst.SubscriptElement(s) for s in (*before, index, *after)])
