"""A call of torch becomes a JAX expression.

What: the call is bound to torch's signature, whose operation builds the expression; what it writes to takes it; what
selected elements are reduced to comes from all of them with `where=`.
Before: `y = torch.sub(x, w, alpha=2, out=buf)`
After: `buf = x - 2 * w` and `y = buf`
Safety: what does not fit torch's signature is a finding.
Limits: calls with `*args` where torch has several signatures; results whose shape depends on values run outside jit
only, and say so.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax._torch_ops.signature import NOT_PROMOTING, SHAPES
from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.expressions import Operands
from fnjax.port.known.facts import DTYPE, LIST, ROW, SIZE, STATIC, Value, may_widen
from fnjax.port.rewrite.calls.arguments import open_options, open_star, read_tensor_type_as_dtype, widen_sum
from fnjax.port.rewrite.calls.python_calls import list_contained
from fnjax.port.rewrite.calls.randomness import make_key
from fnjax.port.rewrite.calls.torch_results import describe_result
from fnjax.port.rewrite.memory.indexing import have_same_shape, port_selection
from fnjax.port.rewrite.memory.masks import spread_values
from fnjax.port.rewrite.memory.sharing import list_seeing
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.values.arithmetic import check_32_bits, make_number, narrow_result, report_overflow
from fnjax.port.rewrite.values.last_digits import must_divide_exactly, write_quotient
from fnjax.port.torch import (
    MISSING,
    Bound,
    Context,
    Operation,
    Problem,
    Rendered,
    bind_call,
    fill,
    find_operation,
    read_literal,
    unparse,
)
from fnjax.port.torch.context import Known
from fnjax.port.torch.new_arrays import NewArray


class Facts(Context):
    """Knowledge of arguments from the evaluation, for the table of operations."""

    def __init__(self, ev: Evaluator, node: cst.CSTNode) -> None:
        self.ev, self.node = ev, node
        self.differentiated, self.rounding = ev.derived, ev.program.rounding

    def know(self, node: cst.BaseExpression) -> Known:
        """Return what the evaluation knows of an argument."""
        value, literal = self.ev.port(node).value, read_literal(node)
        kind = value.kind if value.kind in {"tensor", "static"} else "unknown"
        optional = value.null.optional or value.null.left_out
        return Known(
            kind, value.dtype, value.rank, value.like, value.literal if literal is MISSING else literal, optional
        )

    def find_role(self, node: cst.BaseExpression) -> str:
        """Return the role of an argument by its value, or else by its text."""
        value = self.ev.port(node).value
        name = value.name
        if name == DTYPE:
            return "dtype"
        if name in {LIST, SIZE}:
            return "list" if name == LIST else "size"
        if value.kind == "static" and value.element is not None and value.parts is None:
            return "row" if name == ROW else "sequence"
        if value.is_number and value.dtype == "int":
            return "int"
        return "device" if name == "instance:torch.device" else super().find_role(node)

    def rewrite(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the translation of an argument."""
        return make_number(self.ev.port(node)).node

    def find_named_dtype(self, node: cst.BaseExpression) -> str:
        """Return the dtype of torch's that an expression names, by its qualified name."""
        found = find_operation(self.ev.find_name(node))
        return found.first.dtype if isinstance(found, Operation) else ""

    def find_new_array(self, node: cst.BaseExpression) -> NewArray | None:
        """Return the array that an argument makes, or None."""
        return self.ev.port(node).new_array

    def make_key(self) -> cst.BaseExpression:
        """Return a key that nothing else uses."""
        return make_key(self.ev, self.node)

    @property
    def unpacked(self) -> int | None:
        """The number of variables that the statement unpacks the call into; None if it does not."""
        current = self.ev.current
        line = current.body if isinstance(current, cst.SimpleStatementLine) else [current]
        for small in (s for s in line if isinstance(s, cst.Assign) and s.value is self.node and len(s.targets) == 1):
            target = small.targets[0].target
            if isinstance(target, cst.Tuple) and not any(isinstance(e, cst.StarredElement) for e in target.elements):
                return len(target.elements)
        return None


def port_operation(
    ev: Evaluator,
    node: cst.BaseExpression,
    operation: Operation,
    args: list[cst.Arg],
    part: int | None = None,
) -> Expr:
    """Return the translation of a call of an operation.

    Args:
        ev: the evaluation.
        node: the call.
        operation: its line of the table.
        args: the arguments, the object of a method first.
        part: the index of the one part of a pair that the source uses; None for both.
    """
    args = [a for arg in args for a in open_options(ev, arg)]
    dtypes: Operands = {}
    if operation.names == ("torch.Tensor.type",):
        args = [read_tensor_type_as_dtype(ev, a, dtypes) for a in args]
    args += widen_sum(ev, operation, args, dtypes)
    with ev.take(dtypes):
        check_32_bits(ev, node, *(ev.port(a.value) for a in args))
        return _port_operands(ev, node, operation, args, part)


def _port_operands(
    ev: Evaluator, node: cst.BaseExpression, operation: Operation, args: list[cst.Arg], part: int | None
) -> Expr:
    """Return the translation of a call of an operation whose arguments are known."""
    if operation.names == ("torch.Tensor.float",) and _is_number_tensor(ev, args[0].value):
        return ev.port(args[0].value)  # what is made of a number widens nothing, as in PyTorch
    bound = bind_call(operation, args, Facts(ev, node))
    if isinstance(bound, Problem) and any(a.star == "*" for a in args):
        takes = [p for p in operation.first.parameters if not p.keyword]
        one = len(operation.overloads) == len(takes) == 1 and takes[0].default is None and not takes[0].variadic
        bound = bind_call(operation, [a for arg in args for a in open_star(ev, arg, one)], Facts(ev, node))
    if isinstance(bound, Problem):
        raise Stop(node, "operation", bound.message)
    if operation.first.selects:
        base, selected = (ev.port(bound.values[n]) for n in ("input", "mask"))
        if ev.may_stand_for_selected(selected.value.number) and have_same_shape(base.value, selected.value):
            return port_selection(ev, node, base, selected)
    # An entrywise operation on all entries is right for the selected ones; any other has to leave the rest out.
    values = list(bound.values.values())
    optional = {p.name for p in bound.overload.parameters if p.default is not None}
    entries = [v for n, v in bound.values.items() if n not in optional or ev.port(v).value.is_tensor]
    with ev.take(spread_values(ev, entries) if operation.each else {}):
        mask = ev.find_one_mask([ev.port(a.value).value for a in args])
        if mask and not operation.each:
            ev.need_entries(*(ev.port(a.value).value for a in args))
        target = ev.port(values[0]) if bound.overwrites else None
        return _render_operation(ev, node, bound, mask, part, target)


def _render_operation(
    ev: Evaluator, node: cst.BaseExpression, bound: Bound, mask: str, part: int | None, overwritten: Expr | None
) -> Expr:
    """Return an operation as the table has it, with its arguments as they are known."""
    rendered = bound.render(0, "" if part is None else bound.overload.fields[part])
    if isinstance(rendered, Problem):
        raise Stop(node, "operation", rendered.message)
    ev.diagnostics.needs |= rendered.needs
    ev.diagnostics.imports |= rendered.imports
    value = replace(describe_result(ev, node, bound, rendered), mask=mask)
    _report_limits(ev, node, bound)
    if part is not None and value.parts is not None:
        value = value.parts[part]
    made = _adjust(ev, node, bound, _fill_new_array(ev, bound, rendered) or rendered.expression)
    if bound.out is not None:
        return _write_out(ev, node, bound, made, value)
    first = next(iter(bound.values.values()), None)
    if first is not None and bound.is_given("inplace") and bound.read_literal("inplace") is MISSING:
        # It is known at run time only if the input takes the result: no matter, as long as nobody reads it afterwards.
        memref, flag = ev.port(first).value.memref, unparse(bound.values["inplace"])
        if memref and (seen := list_seeing(ev, node, memref)):
            message = f"whether this writes to {min(seen)!r} is for {flag} to say: read the result instead"
            raise Stop(node, "alias", message)
    if overwritten is not None:
        return overwritten if rendered.unchanged else _overwrite(ev, node, bound, overwritten, made, value)
    answered = isinstance(bound.overload.constant, bool)
    new_array = rendered.new_array if made is rendered.expression else None
    return Expr(made, value, answered, new_array)


def _report_limits(ev: Evaluator, node: cst.BaseExpression, bound: Bound) -> None:
    """Report what of a call JAX computes otherwise, or outside jit only."""
    name, overload = bound.operation.names[0], bound.overload
    short = name.rpartition(".")[2].rstrip("_")
    if overload.note:
        ev.note(node, "check", f"{short}: {overload.note}")
    dtypes = {ev.find_name(v).removeprefix("torch.") for v in bound.values.values()} | {short}
    if dtypes & {"double", "float64", "cdouble", "complex128"}:
        ev.note(node, "float64", "without jax_enable_x64 JAX has no float64: this is computed in float32 then")
    if {"input", "other"} <= bound.values.keys() and name == "torch.mul":
        report_overflow(ev, node, ev.port(bound.values["input"]), ev.port(bound.values["other"]))
    if not overload.traced and short != "item":
        what = f"the result of {short} depends on values, in its shape or as a Python number"
        ev.report_untraced(node, what)
    for key, given in bound.values.items():
        decides = key in SHAPES or (bound.operation.first.sized and key != "out")
        if decides and not bound.operation.each and _holds_tensor(ev.port(given).value):
            what = f"{name}: {key} is the value of a tensor, which is unknown under jit"
            ev.report_untraced(node, what)


def _adjust(ev: Evaluator, node: cst.BaseExpression, bound: Bound, made: cst.BaseExpression) -> cst.BaseExpression:
    """Adapt the expression of a call to what is known of its arguments: exact quotients, dtypes, constants."""
    says, values = bound.operation.first, [ev.port(v).value for v in bound.values.values()]
    if says.quotient and isinstance(made, cst.BinaryOperation) and must_divide_exactly(ev, node, *values[:2]):
        made = write_quotient(ev, made)
    if bound.operation.each and bound.overload.result in {"same", "promoted", "float"}:
        made = narrow_result(made, [ev.port(v) for k, v in bound.values.items() if k not in NOT_PROMOTING])
    if says.empty and _may_be_empty(ev, bound.values["tensors"]):
        made = made.with_changes(func=cst.Name(says.empty))
        ev.diagnostics.needs.add(says.empty)
    data = ev.port(bound.values["data"]).value if "data" in bound.values else STATIC
    if _holds_tensor(data) and (says.copies or not data.is_tensor):  # a copy without history
        made = ev.stop_gradient(made, data)
    return made


def _fill_new_array(ev: Evaluator, bound: Bound, rendered: Rendered) -> cst.BaseExpression | None:
    """Return `jnp.zeros(n)` for `jnp.zeros_like(jnp.empty(n))`: an array that is filled where it is made."""
    outer = rendered.new_array
    inner = ev.port(next(iter(bound.values.values()))).new_array if outer and bound.values else None
    if outer is None or inner is None or outer.dtype is not None:
        return None
    known = bound.read_literal(outer.value) if outer.value else MISSING
    kind = {0: "zeros", 1: "ones"}.get(known, outer.kind) if type(known) is int else outer.kind
    return inner.fill_with(kind, bound.context.rewrite(bound.values[outer.value]) if kind == "full" else None)


def _write_out(ev: Evaluator, node: cst.BaseExpression, bound: Bound, made: cst.BaseExpression, value: Value) -> Expr:
    """Write the result of a call with `out=` to that tensor."""
    assert bound.out is not None
    target = ev.port(bound.out)
    if isinstance(bound.out, cst.IfExp):
        raise Stop(node, "alias", "out= that depends on a condition: write the call out for either branch")
    if target.value.parts is not None:
        raise Stop(node, "operation", "out= with several arrays: give the results names")
    check_not_owned(node, target)
    inputs = [ev.port(v).value for k, v in bound.values.items() if k != "out"]
    if not any(map(_holds_tensor, inputs)) or value.dtype in {"bool", "int"} - {target.value.dtype}:
        dtype = target.new_array.find_attribute("dtype") if target.new_array else None
        made = fill("A.astype(T)", A=made, T=dtype or fill("A.dtype", A=target.node))
    return write_memory(ev, node, target, made, replace(value, rows=target.value.rows))


def _overwrite(
    ev: Evaluator, node: cst.BaseExpression, bound: Bound, target: Expr, made: cst.BaseExpression, value: Value
) -> Expr:
    """Return what a call writes to its first argument, which keeps its dtype, and its shape where all elements stay."""
    first, old = next(iter(bound.values.values())), target.value
    check_not_owned(node, target)
    if not bound.operation.names[0].endswith(".copy_"):
        made = keep_dtype(made, target, [ev.port(v).value for v in bound.values.values() if v is not first])
    value = replace(value, dtype=old.dtype, exact=old.exact, rows=old.rows)
    if bound.operation.each or bound.overload.random:
        value = replace(value, like=old.like, rank=old.rank)
    return write_memory(ev, node, target, made, value)


def _is_number_tensor(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether this is `torch.tensor(0.5)`."""
    made = isinstance(node, cst.Call) and len(node.args) == 1 and ev.find_name(node.func) == "torch.tensor"
    return made and type(read_literal(node.args[0].value)) is float  # type: ignore[attr-defined] # a call


def _may_be_empty(ev: Evaluator, tensors: cst.BaseExpression) -> bool:
    """Return whether one of these may be an empty vector, which a loop begins with: PyTorch leaves it out."""
    parts = [e.value for e in tensors.elements] if isinstance(tensors, (cst.List, cst.Tuple)) else []
    return any(_is_empty(n) for p in parts for n in (p, *ev.routine.given.get(unparse(p), ())))


def _is_empty(node: cst.BaseExpression) -> bool:
    """Return whether this makes an empty vector: `torch.tensor([])`, `x.new()`, `torch.zeros(0, device=d)`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    name = node.func.attr.value
    found = [find_operation(f"{space}.{name}") for space in ("torch", "torch.Tensor")]
    made = any(isinstance(o, Operation) and o.first.made for o in found) or name.endswith("Tensor")
    return made and all(read_literal(a.value) in (0, (0,), [], ()) for a in node.args if a.keyword is None)


def _holds_tensor(value: Value) -> bool:
    return value.traced or any(map(_holds_tensor, list_contained([value])))


def keep_dtype(new: cst.BaseExpression, target: Expr, others: list[Value]) -> cst.BaseExpression:
    """Return what is written to a tensor, in its dtype."""
    if not any(may_widen(target.value, v) for v in others):
        return new
    return fill("A.astype(B.dtype)", A=new, B=target.node)
