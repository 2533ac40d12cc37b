"""What a collective writes to: a tensor, or the tensors of a list.

What: a tensor takes the result. A list is made anew; where it holds the parts of one tensor, that takes the whole.
Before: `dist.all_gather(parts, x)`, `dist.all_gather(list(out.chunk(n)), x)`
After: `parts = collectives.all_gather(x, axis)`, `out = collectives.gather_as(out, x, axis)`
Safety: the parts must be those of the first dimension; tensors of the list that are read elsewhere are a finding.
Limits: a list that has no name and is not a tensor's parts.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, make_assignment, parse
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import LIST, UNKNOWN, Value, list_memrefs
from fnjax.port.rewrite.devices.groups import name_distributed, write_axis
from fnjax.port.rewrite.memory.sharing import find_holders
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.torch import MISSING, bracket, read_literal, unparse

_PASSING = frozenset({"contiguous", "detach"})
SIGNATURES = {
    "all_reduce": "tensor op group async_op",
    "reduce": "tensor dst op group async_op group_dst",
    "broadcast": "tensor src group async_op group_src",
    "all_gather": "tensor_list tensor group async_op",
    "all_gather_into_tensor": "output_tensor input_tensor group async_op",
    "reduce_scatter": "output input_list op group async_op",
    "reduce_scatter_tensor": "output input op group async_op",
    "all_to_all": "output_tensor_list input_tensor_list group async_op",
    "all_to_all_single": "output input output_split_sizes input_split_sizes group async_op",
}
_RENAMED = {
    "self": "tensor",
    "input": "tensor",
    "reduceOp": "op",
    "input_": "tensor",
    "output_": "output",
    "input_tensor_list": "input_list",
    "output_tensor": "output",
    "input_tensor": "input",
}


def bind_collective_arguments(node: cst.Call, names: list[str]) -> dict[str, cst.BaseExpression]:
    """Return the arguments of a call of torch.distributed by the names of its parameters."""
    found: dict[str, cst.BaseExpression] = {}
    places_ = [a for a in node.args if a.keyword is None]
    if any(a.star for a in node.args) or len(places_) > len(names):
        raise Stop(node, "operation", f"{unparse(node.func)}: arguments that do not fit its signature")
    for name, arg in zip(names, places_, strict=False):
        found[name] = arg.value
    for arg in node.args:
        if arg.keyword is not None:
            key = arg.keyword.value
            key = key if key in names else _RENAMED.get(key, key)
            key = {"output": "output_tensor", "input": "input_tensor"}.get(key, key) if key not in names else key
            if key not in names and key not in {"tag", "async_op"}:
                raise Stop(node, "operation", f"{unparse(node.func)} has no parameter {key}")
            found[key] = arg.value
    return found


def write_argument(ev: Evaluator, node: cst.BaseExpression) -> str:
    """Return the text for an argument."""
    expr = ev.port(node)
    ev.need_entries(expr.value)
    return unparse(bracket(expr.node, 1))


def write_operation(ev: Evaluator, given: dict[str, cst.BaseExpression]) -> str:
    """Translate `, 'max'`, or nothing for a sum."""
    node = given.get("op")
    if node is None:
        return ""
    text, known = write_argument(ev, node), ev.port(node).value.literal
    if isinstance(known, str) and known not in {"sum", "max", "min", "avg", "product"}:
        raise Stop(node, "absent", f"a reduction with {known}: compute it from all_gather")
    return "" if known == "sum" else f", {text}"


def find_memory(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what is written to: `x` for `x.contiguous()` and `x.data`, which share its memory."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
            if node.func.attr.value in _PASSING:
                node = node.func.value
                continue
        elif isinstance(node, cst.Attribute) and node.attr.value == "data":
            node = node.value
            continue
        return node


def write_result(ev: Evaluator, node: cst.Call, target: cst.BaseExpression, new: str) -> None:
    """Write the result to what the source writes to."""
    inner = find_memory(target)
    expr = ev.port(inner)
    if expr.value.kind == "static":
        raise Stop(
            node, "alias", f"{unparse(target)} is no array that a collective could write to: give it a name first"
        )
    check_not_owned(node, expr)
    known = replace(expr.value, kind="tensor", number="", literal=MISSING)
    write_memory(ev, node, expr, parse(new), known)


def fill_list(
    ev: Evaluator, node: cst.Call, target: cst.BaseExpression, source: cst.BaseExpression | None, new: str, g: str
) -> Expr:
    """Return a collective that fills the tensors of a list: the list is made anew."""
    handle = Expr(parse("None"), Value("static", literal=None))
    made = ev.routine.given.get(target.value, ()) if isinstance(target, cst.Name) else [target]
    whole = _find_whole(ev, made[0]) if len(made) == 1 else None
    if whole is not None and source is not None:
        write_result(
            ev,
            node,
            whole,
            f"collectives.gather_as({write_argument(ev, whole)}, {write_argument(ev, source)}, {g})",
        )
        return handle
    if not isinstance(target, cst.Name) or target.value not in ev.state.variables:
        raise Stop(node, "alias", f"this fills the tensors of {unparse(target)}: give the list a name first")
    _report_read_elsewhere(ev, node, target.value)
    if ev.here.conditional:
        raise Stop(node, "alias", "a collective inside an expression that may not be evaluated")
    ev.before.append(make_assignment(target.value, parse(new)))
    of = ev.port(source).value if source is not None else UNKNOWN
    element = Value("tensor", of.dtype, of.rank, memref=replace(ev.make_memref(node), certain=False), exact=of.exact)
    ev.bind_name(target.value, Value("static", name=LIST, element=element), node)
    return handle


def _report_read_elsewhere(ev: Evaluator, node: cst.CSTNode, name: str) -> None:
    """Report tensors of a list that is made anew if they are read under other names."""
    for memref in list_memrefs(ev.state.variables[name]):
        seen = [n for n in find_holders(ev, memref) if n != name and ev.is_live(n, node)]
        if seen:
            message = f"this writes to {seen[0]!r}, of which the list holds views: read the list instead"
            raise Stop(node, "alias", message)


def _find_whole(ev: Evaluator, call: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the tensor of which a list holds parts along its first dimension: `list(torch.split(output, sizes))`."""
    if isinstance(call, cst.Call) and unparse(call.func) in {"list", "tuple"} and len(call.args) == 1:
        call = call.args[0].value
    if isinstance(call, cst.ListComp) and isinstance(call.elt, cst.Subscript):  # `[out[i] for i in range(n)]`
        element, loop = call.elt, call.for_in
        counts = isinstance(loop.iter, cst.Call) and unparse(loop.iter.func) == "range" and len(loop.iter.args) == 1
        by_index = counts and not loop.ifs and loop.inner_for_in is None and len(element.slice) == 1
        return element.value if by_index and unparse(element.slice[0].slice) == unparse(loop.target) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if call.func.attr.value not in {"split", "chunk", "unbind", "tensor_split"}:
        return None
    of_torch = bool(ev.find_name(call.func))
    args = list(call.args)
    whole = args.pop(0).value if of_torch and args else call.func.value
    rest = {a.keyword.value: a.value for a in args if a.keyword}
    plain = [a.value for a in args if a.keyword is None]
    dim = rest.get("dim", plain[-1] if len(plain) == (1 if call.func.attr.value == "unbind" else 2) else None)
    if dim is not None and read_literal(dim) != 0:
        return None
    return whole if isinstance(whole, cst.Name) else None


@statement(cst.Assign, cst.Expr, only="collective")
def port_reductions_in_list(ev: Evaluator, node: cst.Assign | cst.Expr) -> Statements | None:
    """Translate `works = [dist.reduce(parts[i], i, async_op=True) for i in range(n)]`."""
    made = node.value
    if not isinstance(made, cst.ListComp) or not isinstance(made.elt, cst.Call):
        return None
    loop = made.for_in
    if loop.ifs or loop.inner_for_in is not None:
        return None
    done = _port_each_reduction(ev, node, made.elt, loop.target, loop.iter)
    if done is None or isinstance(node, cst.Expr):
        return done
    name = node.targets[0].target
    if len(node.targets) > 1 or not isinstance(name, cst.Name):
        raise Stop(node, "alias", "handles of collectives that are kept elsewhere than in a variable")
    ev.bind_name(name.value, Value("static", name=LIST, parts=()), node)
    return [*done, make_assignment(name.value, parse("[]"))]


@statement(cst.For, only="collective")
def port_reduction_loop(ev: Evaluator, node: cst.For) -> Statements | None:
    """Translate `for t in tensors: dist.all_reduce(t)`."""
    lines = node.body.body
    small = lines[0].body[0] if len(lines) == 1 and isinstance(lines[0], cst.SimpleStatementLine) else None
    if node.orelse or not isinstance(small, cst.Expr):
        return None
    return (
        _port_each_reduction(ev, node, small.value, node.target, node.iter)
        if isinstance(small.value, cst.Call)
        else None
    )


def _port_each_reduction(
    ev: Evaluator, node: cst.CSTNode, call: cst.Call, target: cst.BaseExpression, over: cst.BaseExpression
) -> Statements | None:
    """Return the reduction of each tensor of a list, or of some that are written out."""
    last, returning = name_distributed(ev.program, ev.find_name(call.func))
    if last not in {"all_reduce", "reduce"} or returning or not isinstance(target, cst.Name):
        return None
    given = bind_collective_arguments(call, SIGNATURES[last].split())
    tensor = find_memory(given["tensor"])
    how = f"{write_axis(ev, given.get('group'))}{write_operation(ev, given)}"
    if isinstance(over, (cst.Tuple, cst.List)) and unparse(tensor) == target.value:
        for element in over.elements:
            expr = write_argument(ev, element.value)
            write_result(ev, call, element.value, f"collectives.all_reduce({expr}, {how})")
        return []
    held = over if unparse(tensor) == target.value else None
    if isinstance(tensor, cst.Subscript) and len(tensor.slice) == 1 and unparse(tensor.slice[0].slice) == target.value:
        held = tensor.value
    known = ev.state.variables.get(held.value) if isinstance(held, cst.Name) else None
    if held is None or known is None or known.kind != "static" or ev.here.conditional:
        return None
    _report_read_elsewhere(ev, node, unparse(held))
    text = f"collectives.all_reduce({unparse(tensor)}, {how}) for {target.value} in {unparse(ev.port(over).node)}"
    each = Value("tensor", memref=replace(ev.make_memref(node), certain=False))
    ev.bind_name(unparse(held), Value("static", name=known.name, element=each), node)
    return [make_assignment(unparse(held), parse(f"[{text}]" if known.name == LIST else f"tuple({text})"))]
