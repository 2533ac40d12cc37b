"""Slices that a device takes by its rank.

What: a slice between bounds that differ between devices has a size that the text shows; an item of a list at the rank
is chosen among arrays of one shape.
Before: `x[rank * n : (rank + 1) * n]`, `x.chunk(size)[rank]`
After: `collectives.varying.window(x, rank * n, n)`, `collectives.varying.entry(chunks, rank)`
Safety: the size is the difference of the bounds, worked out with the variables that are given once.
Limits: a size that depends on the rank, and a write to such a slice, are findings; lists of different shapes are an
error when the port runs.
"""

from __future__ import annotations

from collections import Counter

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, make_assignment, parse
from fnjax.port.analysis.registry import expression, statement
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.devices.outputs import port_argument
from fnjax.port.torch import fill, make_list, unparse
from fnjax.port.torch.expressions import find_names

_Sum = Counter[tuple[str, ...]]  # of products of the texts of their factors


@expression(cst.Subscript, only="collective")
def port_slice_by_rank(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `x[start:stop]` and `parts[rank]`."""
    if ev.find_name(node.value).startswith(("typing.", "torch.", "builtins.")):
        return None
    base = ev.port(node.value)
    if base.value.mask:
        return None
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _port_entry_by_rank(ev, node, base, node.slice[0].slice.value)
    window = _find_window(ev, node, base)
    if window is None:
        return None
    known = Value("tensor", base.value.dtype, base.value.rank, memref=ev.make_memref(node))
    return Expr(fill("collectives.varying.window(A, START, SIZE, *DIM)", **window), known)


def _find_window(ev: Evaluator, node: cst.Subscript, base: Expr) -> dict[str, cst.BaseExpression] | None:
    """Return the array, start, size and dimension of a slice whose bounds differ between devices, the only one."""
    if base.value.kind not in {"tensor", "unknown"} or base.value.mask:
        return None
    texts = [unparse(e).rstrip(", ") for e in node.slice]
    differing = [i for i, e in enumerate(node.slice) if _differs_between_devices(ev, e.slice)]
    others = [t for i, t in enumerate(texts) if i not in differing]
    if len(differing) != 1 or not {*others} <= {":", "..."} or others.count("...") > 1:
        return None
    index = differing[0]
    bounds = cst.ensure_type(node.slice[index].slice, cst.Slice)
    size = _find_size(ev, bounds)
    if size is None or bounds.lower is None:
        return None
    ev.diagnostics.imports.add("collectives")
    dim = index - len(texts) if "..." in texts[:index] else index
    dims = make_list([parse(str(dim))] if dim else [])
    return {"A": base.node, "START": ev.port(bounds.lower).node, "SIZE": ev.port(size).node, "DIM": dims}


def _port_entry_by_rank(ev: Evaluator, node: cst.Subscript, base: Expr, index: cst.BaseExpression) -> Expr | None:
    value, at = base.value, ev.port(index)
    of_rank = at.value.is_tensor and at.value.dtype == "int" and at.value.rank == 0
    several = value.kind == "static" and (value.parts is not None or value.element is not None)
    if not at.value.is_tensor or not (several or (value.kind == "unknown" and of_rank)):
        return None
    one = value.element or (value.parts[0] if value.parts else Value("tensor"))
    ev.diagnostics.imports.add("collectives")
    made = fill("collectives.varying.entry(A, RANK)", A=base.node, RANK=at.node)
    return Expr(made, Value("tensor", one.dtype, one.rank, memref=ev.make_memref(node)))


@statement(cst.Assign, only="collective")
def port_set_by_rank(ev: Evaluator, node: cst.Assign) -> Statements | None:
    """Translate `parts[rank] = x`."""
    target = node.targets[0].target
    if len(node.targets) > 1 or not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return None
    index, held = target.slice[0].slice, target.value
    known = ev.state.variables.get(held.value) if isinstance(held, cst.Name) else None
    if known is None or known.kind != "static" or not isinstance(index, cst.Index):
        return None
    if (known.parts is None and known.element is None) or not ev.port(index.value).value.is_tensor:
        return None
    new = ev.port(node.value)
    ev.diagnostics.imports.add("collectives")
    made = fill("collectives.varying.with_entry(L, RANK, A)", L=held, RANK=port_argument(ev, index.value), A=new.node)
    element = Value("tensor", new.value.dtype, new.value.rank, memref=ev.make_memref(node))
    ev.bind_name(unparse(held), Value("static", name=LIST, element=element), node)
    return [make_assignment(unparse(held), made)]


def _differs_between_devices(ev: Evaluator, bounds: cst.BaseSlice) -> bool:
    """Return whether this is a slice with a bound that is computed from the rank."""
    if not isinstance(bounds, cst.Slice) or bounds.step is not None:
        return False
    return any(b is not None and ev.port(b).value.is_tensor for b in (bounds.lower, bounds.upper))


def _find_size(ev: Evaluator, bounds: cst.Slice) -> cst.BaseExpression | None:
    """Return the number of elements between two bounds, if it is the same on all devices."""
    if bounds.lower is None or bounds.upper is None:
        return None
    nodes: dict[str, cst.BaseExpression] = {}
    difference = _read_sum(ev, bounds.upper, 0, nodes)
    difference.subtract(_read_sum(ev, bounds.lower, 0, nodes))
    terms = sorted((k, v) for k, v in difference.items() if v)
    names = {f: f"F{i}" for i, f in enumerate(dict.fromkeys(f for factors, _ in terms for f in factors))}
    if not terms or any(ev.port(nodes[f]).value.kind not in {"static", "unknown"} for f in names):
        return None
    products = (
        [*([str(n)] if n != 1 or not factors else []), *map(names.__getitem__, factors)] for factors, n in terms
    )
    return fill(" + ".join(map(" * ".join, products)), **{name: nodes[f] for f, name in names.items()})


def _read_sum(ev: Evaluator, node: cst.BaseExpression, depth: int, nodes: dict[str, cst.BaseExpression]) -> _Sum:
    """Return an expression as a sum of products, in which variables with one value are replaced by it.

    The factors are added to `nodes`.
    """
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract, cst.Multiply)):
        left, right = (_read_sum(ev, n, depth, nodes) for n in (node.left, node.right))
        if isinstance(node.operator, cst.Multiply):
            found: _Sum = Counter()
            for a, m in left.items():
                for b, n in right.items():
                    found[tuple(sorted((*a, *b)))] += m * n
            return found
        (left.update if isinstance(node.operator, cst.Add) else left.subtract)(right)
        return left
    if isinstance(node, cst.Integer):
        return Counter({(): int(node.value)})
    if isinstance(node, cst.Name) and depth < 8 and ev.port(node).value.is_tensor:
        latest = _find_value(ev, node.value)
        if latest is not None and not isinstance(latest, cst.Call):
            return _read_sum(ev, latest, depth + 1, nodes)
    nodes[unparse(node)] = node
    return Counter({(unparse(node),): 1})


def _find_value(ev: Evaluator, name: str) -> cst.BaseExpression | None:
    """Return the expression that a variable has the value of: its only one, or that of a line above in the block.

    Nothing that the expression reads may have changed since.
    """
    parameters = {p.name.value for p in ev.routine.parameters}
    given = ev.routine.given
    if len(given.get(name, ())) == 1:
        (only,) = given[name]
        if all(len(given.get(n, ())) + (n in parameters) <= 1 for n in find_names(only)):
            return only
    return None
