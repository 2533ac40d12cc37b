"""Outputs of collectives: a tensor, or the tensors of a list.

What: a tensor takes the result. A list is made anew; where it holds the chunks of one tensor, that tensor takes the
result.
Before: `dist.all_gather(parts, x)`, `dist.all_gather(list(out.chunk(n)), x)`
After: `parts = collectives.all_gather(x, axis)`, `out = collectives.gather_as(out, x, axis)`
Safety: the chunks must be those of the first dimension; tensors of the list that are read elsewhere are a finding.
Limits: a list that has no name and does not hold a tensor's chunks; collectives in comprehensions, or of the tensors
that a loop goes through.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax._torch_ops.collectives import Collective
from fnjax.port.analysis.evaluator import Evaluator, Stop, make_assignment
from fnjax.port.known.facts import LIST, Value, list_memrefs
from fnjax.port.rewrite.memory.sharing import find_holders
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.torch import MISSING, make_list, read_literal, unparse

_OPERATIONS = frozenset({"sum", "max", "min", "avg", "product"})


def bind_arguments(node: cst.Call, this: Collective) -> dict[str, cst.BaseExpression]:
    """Return the arguments of a collective by the names of its parameters."""
    names = this.parameters.split()
    plain = [a.value for a in node.args if a.keyword is None]
    found = dict(zip(names, plain, strict=False)) | {a.keyword.value: a.value for a in node.args if a.keyword}
    too_many = len(plain) > len(names) or any(a.star for a in node.args)
    if too_many or not {this.output, this.input} - {""} <= found.keys() <= {*names}:
        raise Stop(node, "operation", f"{unparse(node.func)}: arguments that do not fit its signature")
    return found


def port_argument(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an argument, translated; it is read whole."""
    expr = ev.port(node)
    ev.need_entries(expr.value)
    return expr.node


def port_reduction(ev: Evaluator, node: cst.BaseExpression | None) -> cst.List:
    """Return `['max']` for the operation of a reduction, and an empty list for a sum."""
    expr = ev.port(node) if node is not None else None
    if expr is None or expr.value.literal == "sum":
        return make_list([])
    if isinstance(expr.value.literal, str) and expr.value.literal not in _OPERATIONS:
        raise Stop(node, "absent", f"a reduction with {expr.value.literal}: compute it from all_gather")  # type: ignore[arg-type] # above
    return make_list([expr.node])


def find_memory(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what is written to: `x` for `x.contiguous()` and `x.data`, which share its memory."""
    match node:
        case cst.Attribute(inner, cst.Name("data")) | cst.Call(
            cst.Attribute(inner, cst.Name("contiguous" | "detach")), []
        ):
            return find_memory(inner)
    return node


def write_tensor(ev: Evaluator, node: cst.Call, target: cst.BaseExpression, new: cst.BaseExpression) -> None:
    """Write a result to the memory of a tensor."""
    expr = ev.port(find_memory(target))
    if expr.value.kind == "static":
        message = f"{unparse(target)} is not an array that a collective could write to: give it a name first"
        raise Stop(node, "alias", message)
    check_not_owned(node, expr)
    write_memory(ev, node, expr, new, replace(expr.value, kind="tensor", number="", literal=MISSING))


def write_list(ev: Evaluator, node: cst.Call, target: cst.BaseExpression, of: Value, new: cst.BaseExpression) -> None:
    """Make a list anew whose tensors a collective fills.

    Args:
        ev: the evaluation.
        node: the call.
        target: the list.
        of: what is known of a tensor like those in the list, where the collective is given one.
        new: the new list.
    """
    if not isinstance(target, cst.Name) or target.value not in ev.state.variables:
        raise Stop(node, "alias", f"this fills the tensors of {unparse(target)}: give the list a name first")
    if ev.here.conditional:
        raise Stop(node, "alias", "a collective inside an expression that may not be evaluated")
    like = of if of.is_tensor else Value("tensor")
    for memref in list_memrefs(ev.state.variables[target.value]):
        seen = [n for n in find_holders(ev, memref) if n != target.value and ev.is_live(n, node)]
        if seen:
            message = f"this writes to {seen[0]!r}, of which the list holds views: read the list instead"
            raise Stop(node, "alias", message)
    memref = replace(ev.make_memref(node), certain=False)
    element = Value("tensor", like.dtype, like.rank, memref=memref, exact=like.exact)
    ev.bind_name(target.value, Value("static", name=LIST, element=element), node)
    ev.before.append(make_assignment(target.value, new))


def find_whole(ev: Evaluator, target: cst.BaseExpression) -> cst.Name | None:
    """Return the tensor whose chunks along its first dimension a list holds: `list(torch.split(output, sizes))`."""
    made = ev.routine.given.get(target.value, ()) if isinstance(target, cst.Name) else [target]
    call = made[0] if len(made) == 1 else None
    if isinstance(call, cst.Call) and unparse(call.func) in {"list", "tuple"} and len(call.args) == 1:
        call = call.args[0].value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    method = call.func.attr.value
    plain = [a.value for a in call.args if a.keyword is None]
    whole = plain.pop(0) if ev.find_name(call.func) and plain else call.func.value
    given = {a.keyword.value: a.value for a in call.args if a.keyword}
    dim = given.get("dim", plain[-1] if len(plain) == (1 if method == "unbind" else 2) else cst.Integer("0"))
    first = method in {"split", "chunk", "unbind", "tensor_split"} and read_literal(dim) == 0
    return whole if first and isinstance(whole, cst.Name) else None
