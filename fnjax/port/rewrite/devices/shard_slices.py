"""Parts that a device chooses by its rank.

What: a slice between bounds that differ between devices has a size that the text tells, in reading and in writing; an
entry of a list at the rank is chosen among arrays of one shape.
Before: `x[rank * n : (rank + 1) * n]`, `x.chunk(size)[rank]`
After: `collectives.window(x, rank * n, n)`, `collectives.entry(chunks, rank)`
Safety: the size is the difference of the bounds, worked out with the variables that are given once.
Limits: a size that depends on the rank is a finding; lists of different shapes are an error when the port runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, make_assignment, parse
from fnjax.port.analysis.registry import expression, statement
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.torch import bracket, unparse
from fnjax.port.tree.located import find_small_statement, list_nodes

_Sum = Counter[tuple[str, ...]]  # of products of the texts of their factors


@expression(cst.Subscript, only="collective")
def port_part_by_rank(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `x[start:stop]` and `parts[rank]`."""
    if ev.find_name(node.value).startswith(("typing.", "torch.", "builtins.")):
        return None
    base = ev.port(node.value)
    if base.value.mask:
        return None
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _port_entry_by_rank(ev, node, base, node.slice[0].slice.value)
    found = _find_window(ev, node, base)
    if found is None:
        return None
    start, size, dim = found
    made = f"collectives.window({unparse(bracket(base.node, 1))}, {start}, {size}{f', {dim}' if dim else ''})"
    return Expr(parse(made), Value("tensor", base.value.dtype, base.value.rank, memref=ev.make_memref(node)))


def _find_window(ev: Evaluator, node: cst.Subscript, base: Expr) -> tuple[str, str, int] | None:
    """Return the start, size and dimension of a slice whose bounds differ between devices, the only one of its kind."""
    if base.value.kind not in {"tensor", "unknown"}:
        return None
    sliced = [
        (i, e.slice)
        for i, e in enumerate(node.slice)
        if isinstance(e.slice, cst.Slice) and _differs_between_devices(ev, e.slice)
    ]
    texts = [unparse(e).rstrip(", ") for e in node.slice]
    if len(sliced) != 1:
        return None
    index, bounds = sliced[0]
    size = _find_size(ev, bounds)
    if size is None or bounds.lower is None or any(t not in {":", "..."} for i, t in enumerate(texts) if i != index):
        return None
    dots = [i for i, t in enumerate(texts) if t == "..."]
    if len(dots) > 1:
        return None
    ev.diagnostics.imports.add("collectives")
    start = unparse(bracket(ev.port(bounds.lower).node, 1))
    dim = index - len(node.slice) if dots and dots[0] < index else index
    return start, unparse(bracket(ev.port(size).node, 1)), dim


def _port_entry_by_rank(ev: Evaluator, node: cst.Subscript, base: Expr, index: cst.BaseExpression) -> Expr | None:
    value = base.value
    several = value.kind == "static" and (value.parts is not None or value.element is not None)
    if not (several or value.kind == "unknown" or _is_list_of_parts(ev, node.value)):
        return None
    if not ev.port(index).value.is_tensor or (value.kind == "unknown" and not _is_of_rank(ev, index)):
        return None
    one = value.element or (value.parts[0] if value.parts else None)
    ev.diagnostics.imports.add("collectives")
    made = f"collectives.entry({unparse(bracket(base.node, 1))}, {unparse(bracket(ev.port(index).node, 1))})"
    known = Value("tensor", one.dtype if one else "unknown", one.rank if one else None, memref=ev.make_memref(node))
    return Expr(parse(made), known)


def _is_of_rank(ev: Evaluator, index: cst.BaseExpression) -> bool:
    """Return whether an index is an integer of rank 0, as what is computed from a rank is."""
    value = ev.port(index).value
    return value.dtype == "int" and value.rank == 0


def _is_list_of_parts(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether a list is `list(torch.split(x, sizes))`."""
    given = ev.routine.given.get(unparse(node), ())
    inner = [a.value for g in given if isinstance(g, cst.Call) and unparse(g.func) in {"list", "tuple"} for a in g.args]
    cut = [i for i in inner if isinstance(i, cst.Call) and isinstance(i.func, cst.Attribute)]
    return bool(given) and len(given) == len(cut) and all(c.func.attr.value in {"split", "chunk"} for c in cut)  # type: ignore[attr-defined] # an attribute


@statement(cst.Assign, only="collective")
def port_set_by_rank(ev: Evaluator, node: cst.Assign) -> Statements | None:
    """Translate `parts[rank] = x`."""
    target = node.targets[0].target
    if len(node.targets) > 1 or not isinstance(target, cst.Subscript):
        return None
    if not isinstance(target.value, cst.Name) or len(target.slice) != 1:
        return None
    index = target.slice[0].slice
    known = ev.state.variables.get(target.value.value)
    if known is None or not isinstance(index, cst.Index) or known.kind != "static":
        return None
    if (known.parts is None and known.element is None) or not ev.port(index.value).value.is_tensor:
        return None
    new = ev.port(node.value)
    ev.diagnostics.imports.add("collectives")
    at = unparse(bracket(ev.port(index.value).node, 1))
    name = target.value.value
    made = parse(f"collectives.with_entry({name}, {at}, {unparse(bracket(new.node, 1))})")
    element = Value("tensor", new.value.dtype, new.value.rank, memref=ev.make_memref(node))
    ev.bind_name(name, Value("static", name=LIST, element=element), node)
    return [make_assignment(name, made)]


@statement(cst.Assign, cst.AugAssign, only="collective")
def port_set_window(ev: Evaluator, node: cst.Assign | cst.AugAssign) -> Statements | None:
    """Translate `x[start:stop] = y` and `x[start:stop] += y`, with bounds that differ between devices."""
    augments = isinstance(node, cst.AugAssign)
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    if not isinstance(target, cst.Subscript) or (not augments and len(node.targets) > 1):  # type: ignore[union-attr] # an Assign
        return None
    base = ev.port(target.value)
    found = _find_window(ev, target, base) if not base.value.mask else None
    if found is None:
        return None
    start, size, dim = found
    value = node.value
    if augments:
        symbol = unparse(node.operator).strip().removesuffix("=")  # type: ignore[union-attr] # an AugAssign
        value = cst.parse_expression(f"({unparse(target)}) {symbol} ({unparse(value)})")
    new = ev.port(value)
    check_not_owned(node, base)
    given = f"{unparse(bracket(base.node, 1))}, {start}, {size}, {unparse(bracket(new.node, 1))}"
    made = parse(f"collectives.with_window({given}{f', {dim}' if dim else ''})")
    write_memory(ev, node, base, made, replace(base.value, kind="tensor", number=""))
    return []


def _differs_between_devices(ev: Evaluator, bounds: cst.Slice) -> bool:
    ends = [b for b in (bounds.lower, bounds.upper) if b is not None]
    return bounds.step is None and any(ev.port(b).value.is_tensor for b in ends)


def _find_size(ev: Evaluator, bounds: cst.Slice) -> cst.BaseExpression | None:
    """Return the number of entries between two bounds, if it is the same on all devices."""
    if bounds.lower is None or bounds.upper is None:
        return None
    difference = _read_sum(ev, bounds.upper, 0)
    difference.subtract(_read_sum(ev, bounds.lower, 0))
    exprs = {k: v for k, v in difference.items() if v}
    if not exprs:
        return None
    texts = []
    for factors, count in sorted(exprs.items()):
        if any(ev.port(parse(f)).value.kind not in {"static", "unknown"} for f in factors):
            return None
        texts.append(" * ".join([*([str(count)] if count != 1 or not factors else []), *factors]))
    return parse(" + ".join(texts))


def _read_sum(ev: Evaluator, node: cst.BaseExpression, depth: int) -> _Sum:
    """Return an expression as a sum of products, with variables that are given once written out."""
    if isinstance(node, cst.BinaryOperation):
        left, right = _read_sum(ev, node.left, depth), _read_sum(ev, node.right, depth)
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
    if isinstance(node, cst.Name) and depth < 8 and ev.port(node).value.is_tensor:
        given = ev.routine.given.get(node.value, ())
        latest = given[0] if len(given) == 1 and _is_given_once(ev, given[0]) else _find_latest_value(ev, node.value)
        if latest is not None and not isinstance(latest, cst.Call):
            return _read_sum(ev, latest, depth + 1)
    return Counter({(f"({unparse(node)})" if isinstance(node, cst.BinaryOperation) else unparse(node),): 1})


def _is_given_once(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether the variables of an expression are given once in the function."""
    parameters = {p.name.value for p in ev.routine.parameters}
    read = {n.value for n in list_nodes(node) if isinstance(n, cst.Name)}
    return all(len(ev.routine.given.get(n, ())) + (n in parameters) <= 1 for n in read)


def _find_latest_value(ev: Evaluator, name: str) -> cst.BaseExpression | None:
    """Return what a line above in the same block gives a variable, if nothing in it has changed since."""
    changed: set[str] = set()
    for line in _list_above(ev):
        small = find_small_statement(line)
        if isinstance(small, cst.Assign) and [unparse(t.target) for t in small.targets] == [name]:
            read = {n.value for n in list_nodes(small.value) if isinstance(n, cst.Name)}
            return small.value if not read & (changed | {name}) else None
        changed |= ev.program.list_bound(line)
        if name in changed:
            return None
    return None


def _list_above(ev: Evaluator) -> list[cst.CSTNode]:
    """Return the statements before the present one in its block, the nearest first."""
    found: list[cst.CSTNode] = []
    for block in list_nodes(ev.routine.node):
        if isinstance(block, cst.IndentedBlock):
            at = [i for i, s in enumerate(block.body) if any(n is ev.current for n in list_nodes(s))]
            found = list(reversed(block.body[: at[0]])) if at else found
    return found
