"""Parts that a device chooses by its rank.

What: a slice between bounds that differ between devices has a size of its own, which the text tells; an entry of a list
at the rank is chosen among arrays of one shape.
Before: `x[rank * n : (rank + 1) * n]`, `x.chunk(size)[rank]`
After: `collectives.window(x, rank * n, n)`, `collectives.entry(chunks, rank)`
Safety: the size is the difference of the bounds, worked out with the variables that are given once.
Limits: a size that depends on the rank is a finding; lists of different shapes are an error when the port runs.
"""

from __future__ import annotations

import re
from collections import Counter

import libcst as cst

from fnjax.port.facts import LIST, Value
from fnjax.port.operations import MISSING, code, fit
from fnjax.port.rules.registry import expression, statement
from fnjax.port.walk import Statements, Term, Walk, assign, parse

_RANK = re.compile(r"(^|_)rank$")
_Sum = Counter[tuple[str, ...]]  # of products of the texts of their factors


@expression(cst.Subscript)
def by_rank(walk: Walk, node: cst.Subscript) -> Term | None:
    """`x[start:stop]` and `parts[rank]`."""
    if not walk.program.collective or walk.name_of(node.value) not in {"", LIST}:
        return None
    base = walk.expr(node.value)
    if base.value.mask:
        return None
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _entry(walk, node, base, node.slice[0].slice.value)
    if base.value.kind not in {"tensor", "unknown"}:
        return None
    sliced = [
        (i, e.slice) for i, e in enumerate(node.slice) if isinstance(e.slice, cst.Slice) and _moves(walk, e.slice)
    ]
    if len(sliced) != 1 or any(isinstance(e.slice, cst.Index) and code(e) != "..." for e in node.slice):
        return None
    index, bounds = sliced[0]
    size = _size(walk, bounds)
    if size is None or bounds.lower is None:
        return None
    dots = [i for i, e in enumerate(node.slice) if code(e).rstrip(", ") == "..."]
    dim = index - len(node.slice) if dots and dots[0] < index else index
    if dots and dots[0] > index and len(dots) > 1:
        return None
    plain = [e for i, e in enumerate(node.slice) if i != index]
    text = code(fit(base.node, 1))
    if any(code(e).rstrip(", ") not in {":", "..."} for e in plain):
        return None
    walk.sink.imports.add("collectives")
    start = code(fit(walk.expr(bounds.lower).node, 1))
    made = f"collectives.window({text}, {start}, {code(fit(walk.expr(size).node, 1))}{f', {dim}' if dim else ''})"
    return Term(parse(made), Value("tensor", base.value.dtype, base.value.rank, place=walk.fresh(node)))


def _entry(walk: Walk, node: cst.Subscript, base: Term, index: cst.BaseExpression) -> Term | None:
    value = base.value
    several = value.kind == "static" and (value.parts is not None or value.element is not None)
    if not (several or _made_of_parts(walk, node.value)) or not _is_ranked(walk, index):
        return None
    one = value.element or (value.parts[0] if value.parts else None)
    walk.sink.imports.add("collectives")
    made = f"collectives.entry({code(fit(base.node, 1))}, {code(fit(walk.expr(index).node, 1))})"
    known = Value("tensor", one.dtype if one else "unknown", one.rank if one else None, place=walk.fresh(node))
    return Term(parse(made), known)


def _made_of_parts(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether a list is `list(torch.split(x, sizes))`."""
    given = walk.routine.given.get(code(node), ())
    inner = [a.value for g in given if isinstance(g, cst.Call) and code(g.func) in {"list", "tuple"} for a in g.args]
    cut = [i for i in inner if isinstance(i, cst.Call) and isinstance(i.func, cst.Attribute)]
    return bool(given) and len(given) == len(cut) and all(c.func.attr.value in {"split", "chunk"} for c in cut)  # type: ignore[attr-defined] # an attribute


@statement(cst.Assign)
def set_by_rank(walk: Walk, node: cst.Assign) -> Statements | None:
    """`parts[rank] = x`."""
    target = node.targets[0].target
    if not walk.program.collective or len(node.targets) > 1 or not isinstance(target, cst.Subscript):
        return None
    if not isinstance(target.value, cst.Name) or len(target.slice) != 1:
        return None
    index = target.slice[0].slice
    known = walk.state.variables.get(target.value.value)
    if known is None or not isinstance(index, cst.Index) or known.kind != "static":
        return None
    if (known.parts is None and known.element is None) or not _is_ranked(walk, index.value):
        return None
    new = walk.expr(node.value)
    walk.sink.imports.add("collectives")
    at = code(fit(walk.expr(index.value).node, 1))
    name = target.value.value
    made = parse(f"collectives.with_entry({name}, {at}, {code(fit(new.node, 1))})")
    element = Value("tensor", new.value.dtype, new.value.rank, place=walk.fresh(node))
    walk.bind(name, Value("static", name=LIST, element=element), node)
    return [assign(name, made)]


def _moves(walk: Walk, bounds: cst.Slice) -> bool:
    ends = [b for b in (bounds.lower, bounds.upper) if b is not None]
    return bounds.step is None and any(_is_ranked(walk, b) for b in ends)


def _is_ranked(walk: Walk, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a number differs between devices: a traced one, or made of a rank that the caller passes."""
    value = walk.expr(node).value
    if value.is_tensor:
        return True
    if value.literal is not MISSING:
        return False
    if isinstance(node, cst.BinaryOperation):
        return _is_ranked(walk, node.left, depth) or _is_ranked(walk, node.right, depth)
    if isinstance(node, cst.Attribute):
        return bool(_RANK.search(node.attr.value)) and isinstance(node.value, cst.Name)
    if not isinstance(node, cst.Name) or depth > 8:
        return False
    given = walk.routine.given.get(node.value, ())
    if not given:
        return bool(_RANK.search(node.value)) and any(p.name.value == node.value for p in walk.routine.parameters)
    return len(given) == 1 and not isinstance(given[0], cst.Call) and _is_ranked(walk, given[0], depth + 1)


def _size(walk: Walk, bounds: cst.Slice) -> cst.BaseExpression | None:
    """The number of entries between two bounds, if it is the same on all devices."""
    if bounds.lower is None or bounds.upper is None:
        return None
    difference = _sum(walk, bounds.upper, 0)
    difference.subtract(_sum(walk, bounds.lower, 0))
    terms = {k: v for k, v in difference.items() if v}
    if not terms:
        return None
    texts = []
    for factors, count in sorted(terms.items()):
        if any(walk.expr(parse_here(walk, f)).value.kind != "static" for f in factors):
            return None
        texts.append(" * ".join([*([str(count)] if count != 1 or not factors else []), *factors]))
    return parse_here(walk, " + ".join(texts))


def parse_here(walk: Walk, text: str) -> cst.BaseExpression:
    """An expression from its text."""
    return parse(text)


def _sum(walk: Walk, node: cst.BaseExpression, depth: int) -> _Sum:
    """An expression as a sum of products, with variables that are given once written out."""
    if isinstance(node, cst.BinaryOperation):
        left, right = _sum(walk, node.left, depth), _sum(walk, node.right, depth)
        if isinstance(node.operator, cst.Add):
            left.update(right)
            return left
        if isinstance(node.operator, cst.Subtract):
            left.subtract(right)
            return left
        if isinstance(node.operator, cst.Multiply):
            found: _Sum = Counter()
            for a, m in left.items():
                for b, n in right.items():
                    found[tuple(sorted((*a, *b)))] += m * n
            return found
    if isinstance(node, cst.Integer):
        return Counter({(): int(node.value)})
    if isinstance(node, cst.Name) and depth < 8 and _is_ranked(walk, node):
        given = walk.routine.given.get(node.value, ())
        if len(given) == 1 and not isinstance(given[0], cst.Call):
            return _sum(walk, given[0], depth + 1)
    return Counter({(f"({code(node)})" if isinstance(node, cst.BinaryOperation) else code(node),): 1})
