"""A call of torch becomes a JAX expression.

What: the call is bound to torch's signature, whose operation builds the expression; what it writes to takes it; what
selected entries are reduced to comes from all of them with `where=`.
Before: `y = torch.sub(x, w, alpha=2, out=buf)`
After: `buf = x - 2 * w` and `y = buf`
Safety: what does not fit torch's signature is a finding.
Limits: calls with `*args` where torch has several signatures; results whose shape depends on values run outside jit
only, and say so.
"""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.expressions import Operands
from fnjax.port.known.facts import DTYPE, LIST, ROW, SIZE, STATIC, Value, may_widen
from fnjax.port.rewrite.calls.arguments import open_options, open_star, read_tensor_type_as_dtype, widen_sum
from fnjax.port.rewrite.calls.randomness import make_key
from fnjax.port.rewrite.calls.torch_results import describe_result
from fnjax.port.rewrite.memory.indexing import have_same_shape, port_selection
from fnjax.port.rewrite.memory.masks import port_masked_gather, spread_values
from fnjax.port.rewrite.memory.sharing import list_seeing
from fnjax.port.rewrite.memory.singularities import avoid_singularities, guard_operands
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.values.arithmetic import make_number, narrow_result, port_64_bits, report_overflow
from fnjax.port.rewrite.values.differences import must_divide_exactly, write_quotient
from fnjax.port.torch import (
    MISSING,
    Bound,
    Context,
    Operation,
    Problem,
    Rendered,
    bind_call,
    bracket,
    fill,
    find_departure,
    find_operation,
    read_literal,
    unparse,
)
from fnjax.port.torch.new_arrays import NewArray
from fnjax.torch._table.record import VANISH
from fnjax.torch._table.signature import NOT_PROMOTING, SHAPES


class Facts(Context):
    """What the table of operations asks of the evaluation."""

    def __init__(self, ev: Evaluator, node: cst.CSTNode) -> None:
        self.ev, self.node = ev, node

    def _find_value(self, node: cst.BaseExpression) -> Value:
        return self.ev.port(node).value

    def find_kind(self, node: cst.BaseExpression) -> str:
        """As the evaluation found."""
        kind = self._find_value(node).kind
        if kind == "static" and self._find_value(node).parts is None and read_literal(node) is MISSING:
            return "static"
        return kind if kind in {"tensor", "static"} else "unknown"

    def may_be_none(self, node: cst.BaseExpression) -> bool:
        """As the evaluation found."""
        null = self._find_value(node).null
        return null.optional or null.left_out

    def find_dtype(self, node: cst.BaseExpression) -> str:
        """As the evaluation found."""
        return self._find_value(node).dtype

    def find_rank(self, node: cst.BaseExpression) -> int | None:
        """As the evaluation found."""
        return self._find_value(node).rank

    def have_same_shape(self, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        """As the evaluation found."""
        mark = self._find_value(one).like
        return mark != "" and mark == self._find_value(other).like

    def read_literal(self, node: cst.BaseExpression) -> object:
        """Return a literal, or what a variable surely holds."""
        found = read_literal(node)
        return found if found is not MISSING else self._find_value(node).literal

    def find_role(self, node: cst.BaseExpression) -> str:
        """By the value, where its text does not tell."""
        value = self._find_value(node)
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
        """Return the translation."""
        return make_number(self.ev.port(node)).node

    def find_named_dtype(self, node: cst.BaseExpression) -> str:
        """By the qualified name."""
        found = find_operation(self.ev.find_name(node))
        return found.first.dtype if isinstance(found, Operation) else ""

    def find_new_array(self, node: cst.BaseExpression) -> NewArray | None:
        """As the evaluation found."""
        return self.ev.port(node).new_array

    def make_key(self) -> cst.BaseExpression:
        """Return a key that nothing else uses."""
        return make_key(self.ev, self.node)

    @property
    def unpacked(self) -> int | None:
        """By the statement that is evaluated."""
        current = self.ev.current
        line = current.body if isinstance(current, cst.SimpleStatementLine) else [current]
        for small in (s for s in line if isinstance(s, cst.Assign) and s.value is self.node and len(s.targets) == 1):
            target = small.targets[0].target
            if isinstance(target, cst.Tuple) and not any(isinstance(e, cst.StarredElement) for e in target.elements):
                return len(target.elements)
        return None

    @property
    def differentiated(self) -> bool:
        """In a forward that backward computes again."""
        return self.ev.here.differentiated

    @property
    def rounding(self) -> bool:
        """In a file with floor, ceil, int or their like."""
        return self.ev.program.rounding


def port_operation(
    ev: Evaluator,
    node: cst.BaseExpression,
    operation: Operation,
    args: list[cst.Arg],
    root: cst.BaseExpression | None = None,
    part: int | None = None,
) -> Expr:
    """Return the translation of a call of an operation.

    Args:
        ev: the evaluation.
        node: the call.
        operation: its line of the table.
        args: the arguments, the object of a method first.
        root: the object of a method.
        part: which part of a pair is wanted alone.
    """
    args = [a for arg in args for a in open_options(ev, arg)]
    made: Operands = {}
    if operation.names == ("torch.Tensor.type",):
        args = [read_tensor_type_as_dtype(ev, a, made) for a in args]
    args += widen_sum(ev, operation, args, made)
    with ev.take(made):
        values = [a.value for a in args]
        exprs = spread_values(ev, values) if operation.each else [ev.port(v) for v in values]
        divided = operation.first.quotient and len(args) == 2
        exprs = [port_64_bits(ev, node, expr, exprs[0], divided) for expr in exprs]
        with ev.take({id(v): (v, expr) for v, expr in zip(values, exprs, strict=True)}):
            return _port_operands(ev, node, operation, args, exprs, part)


def _port_operands(
    ev: Evaluator,
    node: cst.BaseExpression,
    operation: Operation,
    args: list[cst.Arg],
    exprs: list[Expr],
    part: int | None,
) -> Expr:
    """Return the translation of a call of an operation whose arguments are known."""
    context, short = Facts(ev, node), operation.names[0].rpartition(".")[2].rstrip("_")
    if operation.names == ("torch.Tensor.float",) and _is_number_tensor(ev, args[0].value):
        return ev.port(args[0].value)  # what is made of a number widens nothing, as in PyTorch
    bound = bind_call(operation, args, context)
    if isinstance(bound, Problem) and any(a.star == "*" for a in args):
        bound = bind_call(operation, [a for arg in args for a in open_star(ev, arg)], context)
        unpacked = _port_starred(ev, node, operation, args) if isinstance(bound, Problem) else None
        if unpacked is not None:
            return unpacked
    if isinstance(bound, Problem):
        raise Stop(node, "operation", bound.message)
    if operation.first.selects:
        base, selected = (ev.port(bound.values[n]) for n in ("input", "mask"))
        if ev.may_stand_for_selected(selected.value.number) and have_same_shape(base.value, selected.value):
            return port_selection(ev, node, base, selected)
    if (found := port_masked_gather(ev, node, bound)) is not None:
        return found
    # An entrywise operation on all entries is right for the selected ones; any other has to leave the rest out.
    mask = ev.find_one_mask([t.value for t in exprs])
    if mask and not operation.each:
        return _reduce_selected(ev, node, short, bound)
    target = ev.port(next(iter(bound.values.values()))) if bound.overwrites else None
    with ev.take(avoid_singularities(ev, short, list(bound.values.values())) | guard_operands(ev, short, bound)):
        return _render_operation(ev, node, bound, mask, part, target)


def _render_operation(
    ev: Evaluator, node: cst.BaseExpression, bound: Bound, mask: str, part: int | None, overwritten: Expr | None
) -> Expr:
    """Return an operation as the table has it, with its arguments as they are known."""
    operation, short = bound.operation, bound.operation.names[0].rpartition(".")[2].rstrip("_")
    rendered = bound.render(0, "" if part is None else bound.overload.fields[part])
    if isinstance(rendered, Problem):
        raise Stop(node, "operation", rendered.message)
    ev.diagnostics.needs |= rendered.needs
    ev.diagnostics.imports |= rendered.imports
    if ev.here.differentiated and (where := find_departure(operation.names[0])):
        ev.note(node, "derivative", f"{operation.names[0]} in a forward that backward computes again: {where}")
    if bound.overload.note:
        ev.note(node, "check", f"{short}: {bound.overload.note}")
    _note_double(ev, node, bound, short)
    if {"input", "other"} <= bound.values.keys() and operation.names[0] == "torch.mul":
        report_overflow(ev, node, ev.port(bound.values["input"]), ev.port(bound.values["other"]))
    if not bound.overload.traced and short != "item":
        _report_untraced(ev, node, short)
    for name, given in bound.values.items():
        decides = name in SHAPES or (operation.first.sized and name != "out")
        if decides and not operation.each and _holds_tensor(ev.port(given).value):
            ev.report(
                node,
                "untraced",
                f"{operation.names[0]}: {name} is the value of a tensor, which is unknown under jit; this runs "
                "un-jitted only",
            )
    value = replace(describe_result(ev, node, bound, rendered), mask=mask)
    if ev.large and bound.overload.converts and value.dtype == "int" and value.exact in {"", "int64"}:
        message = (
            "whole numbers of more than 32 bits: JAX has them with jax_enable_x64 only, and ends at 2**31 - 1 without"
        )
        ev.report(node, "int64", message, ev.large)
    if part is not None and value.parts is not None:
        value = value.parts[part]
    rendered = _fill_new_array(ev, bound, rendered)
    expression_ = rendered.expression
    if operation.first.quotient and isinstance(expression_, cst.BinaryOperation):
        over, under = (ev.port(v).value for v in list(bound.values.values())[:2])
        if must_divide_exactly(ev, node, over, under):
            expression_ = write_quotient(ev, expression_)
    if operation.each and bound.overload.result in {"same", "promoted", "float"}:
        expression_ = narrow_result(
            expression_, [ev.port(v) for k, v in bound.values.items() if k not in NOT_PROMOTING]
        )
    if operation.first.empty and _may_be_empty(ev, bound.values["tensors"]):
        expression_ = expression_.with_changes(func=cst.Name(operation.first.empty))
        ev.diagnostics.needs.add(operation.first.empty)
    data = ev.port(bound.values["data"]).value if "data" in bound.values and ev.derived else STATIC
    if _holds_tensor(data) and (operation.first.copies or not data.is_tensor):  # a copy without history
        with ev.enter_differentiated():  # for second derivatives too
            expression_ = ev.stop_gradient(expression_)
    if bound.out is not None:
        if isinstance(bound.out, cst.IfExp):
            raise Stop(node, "alias", "out= that depends on a condition: write the call out for either branch")
        target = ev.port(bound.out)
        if target.value.parts is not None:
            raise Stop(node, "operation", "out= with several arrays: give the results names")
        check_not_owned(node, target)
        inputs = [ev.port(v).value for k, v in bound.values.items() if k != "out"]
        if not any(map(_holds_tensor, inputs)) or value.dtype in {"bool", "int"} - {target.value.dtype}:
            made = target.new_array.find_attribute("dtype") if target.new_array else None
            dtype = made or fill("A.dtype", A=target.node)
            expression_ = fill("A.astype(T)", A=expression_, T=dtype)
        return write_memory(ev, node, target, expression_, replace(value, rows=target.value.rows))
    first = next(iter(bound.values.values()), None)
    # Whether the input takes the result is told at run time: no matter, as long as nobody reads it afterwards.
    if first is not None and bound.is_given("inplace") and bound.read_literal("inplace") is MISSING:
        memref = ev.port(first).value.memref
        if memref and (seen := list_seeing(ev, node, memref)):
            flag = unparse(bound.values["inplace"])
            message = f"whether this writes to {min(seen)!r} is for {flag} to say: read the result instead"
            raise Stop(node, "alias", message)
    if overwritten is not None:
        if rendered.unchanged:
            return overwritten
        check_not_owned(node, overwritten)
        if not bound.operation.names[0].endswith(".copy_"):
            others = [ev.port(v).value for v in bound.values.values() if v is not first]
            expression_ = keep_dtype(expression_, overwritten, others)
        # What is written to keeps its dtype, and its shape where the result is of all its entries.
        whole = operation.each or bound.overload.random
        return write_memory(
            ev,
            node,
            overwritten,
            expression_,
            replace(
                value,
                dtype=overwritten.value.dtype,
                like=overwritten.value.like if whole else value.like,
                rank=overwritten.value.rank if whole else value.rank,
                exact=overwritten.value.exact,
                rows=overwritten.value.rows,
            ),
        )
    answered = isinstance(bound.overload.constant, bool)
    new_array = rendered.new_array if expression_ is rendered.expression else None
    return Expr(expression_, value.with_origin(numpy=False), answered, new_array)


def _fill_new_array(ev: Evaluator, bound: Bound, rendered: Rendered) -> Rendered:
    """Translate `jnp.zeros(n)` for `jnp.zeros_like(jnp.empty(n))`: an array that is filled where it is made."""
    outer = rendered.new_array
    first = next(iter(bound.values.values()), None)
    inner = ev.port(first).new_array if first is not None and outer is not None else None
    if outer is None or inner is None or outer.dtype is not None:
        return rendered
    known = bound.read_literal(outer.value) if outer.value else MISSING
    kind = {0: "zeros", 1: "ones"}.get(known, outer.kind) if type(known) is int else outer.kind
    made = inner.fill_with(kind, bound.context.rewrite(bound.values[outer.value]) if kind == "full" else None)
    return rendered if made is None else replace(rendered, expression=made, new_array=None)


def _is_number_tensor(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether this is `torch.tensor(0.5)`."""
    if not isinstance(node, cst.Call) or len(node.args) != 1 or ev.find_name(node.func) != "torch.tensor":
        return False
    return type(read_literal(node.args[0].value)) is float


def _note_double(ev: Evaluator, node: cst.CSTNode, bound: Bound, short: str) -> None:
    """Note that the source asks for numbers of 64 bits, once for each top-level item."""
    asked = {ev.find_name(v).removeprefix("torch.") for v in bound.values.values()} | {short}
    if asked & {"double", "float64", "cdouble", "complex128"} and "float64" not in {
        f.code for f in ev.diagnostics.findings
    }:
        ev.note(node, "float64", "without jax_enable_x64 JAX has no float64: this is computed in float32 then")


def _port_starred(ev: Evaluator, node: cst.BaseExpression, operation: Operation, args: list[cst.Arg]) -> Expr | None:
    """Translate `torch.round(*xs)`, which takes one tensor, and `x.flatten(*dims)`, which takes what there is."""
    plain = [a for a in args if a.keyword is None]
    if len(operation.overloads) > 1 or not plain or not plain[-1].star or any(a.star for a in plain[:-1]):
        return None
    star = plain[-1].value
    left = [p for p in operation.overloads[0].parameters if not p.keyword][len(plain) - 1 :]
    if not isinstance(star, (cst.Name, cst.Attribute)) or not left or any(p.variadic for p in left):
        return None
    named = [a for a in args if a.keyword is not None]
    if all(p.default is None for p in left):
        entries = [cst.Arg(parse(f"{unparse(star)}[{i}]")) for i in range(len(left))]
        return port_operation(ev, node, operation, [*plain[:-1], *entries, *named])
    if operation.inplace or operation.overloads[0].random or any(p.default is None or p.name in ev.taken for p in left):
        return None
    with ev.open_scope() as variables:
        variables.update({p.name: STATIC for p in left})
        expr = port_operation(ev, node, operation, [*plain[:-1], *(cst.Arg(cst.Name(p.name)) for p in left), *named])
    takes = ", ".join(f"{p.name}={p.default}" for p in left if p.default is not None)
    made = parse(f"(lambda {takes}: {unparse(bracket(expr.node, 1))})(*{unparse(ev.port(star).node)})")
    memref = expr.value.memref
    return Expr(made, replace(expr.value, memref=memref and replace(memref, steps=(), certain=False)))


_EMPTY = re.compile(
    r"\w+\.\w*Tensor\((\[\])?\)|\w+\.tensor\(\[\].*\)|\w+\.(empty|zeros|ones)\(([([]0,?[)\]]|0)(, .*)?\)"
    r"|\w+\.new(_empty|_zeros|_tensor)?\((0|\[\]|\(0,\))?(, .*)?\)"
)


def _may_be_empty(ev: Evaluator, tensors: cst.BaseExpression) -> bool:
    """Return whether one of these may be an empty vector, which a loop begins with: PyTorch leaves it out."""
    parts = [e.value for e in tensors.elements] if isinstance(tensors, (cst.List, cst.Tuple)) else []
    given = {unparse(p) for p in parts}
    values = [unparse(v) for name in given for v in ev.routine.given.get(name, ())]
    return any(_EMPTY.fullmatch(v) for v in [*given, *values])


def _holds_tensor(value: Value) -> bool:
    return value.traced or any(_holds_tensor(v) for v in (*(value.parts or ()), value.element) if v is not None)


def keep_dtype(new: cst.BaseExpression, target: Expr, others: list[Value]) -> cst.BaseExpression:
    """Return what is written to a tensor takes its dtype."""
    if not any(may_widen(target.value, v) for v in others):
        return new
    return fill("A.astype(B.dtype)", A=new, B=target.node)


def _report_untraced(ev: Evaluator, node: cst.CSTNode, short: str) -> None:
    ev.report(
        node,
        "untraced",
        f"the result of {short} depends on values, in its shape or as a Python number; this runs un-jitted only",
    )


def _reduce_selected(ev: Evaluator, node: cst.BaseExpression, short: str, bound: Bound) -> Expr:
    """Return a reduction of selected entries, or an operation along them."""
    given = [n for n in bound.values if n not in VANISH and bound.is_given(n)]
    expr = ev.port(bound.values[given[0]])
    selection = ev.find_selection(expr.value)
    materialised = Value("tensor", expr.value.dtype, memref=ev.make_memref(node))
    if selection is None or not bound.operation.first.where:
        ev.need_entries(expr.value)
        return Expr(expr.node, materialised)
    mask = selection.condition
    dim = bound.read_literal("dim") if given[1:] == ["dim"] else MISSING
    along = selection.one_axis and any(dim == d for d in (0, -1))
    if dim == 0 and selection.base is not None and short in {"sum", "mean", "any", "all"}:
        ev.diagnostics.imports.add("jnp")
        axes = "axis=tuple(range(S.ndim))"  # those that the mask selects from
        made = fill(f"jnp.{short}(A, {axes}, where=M)", A=expr.node, M=mask, S=selection.mask)
        return Expr(made, Value("tensor", expr.value.dtype, memref=ev.make_memref(node)))
    of_each = bound.operation.first.along
    if (given[1:] and not along) or (of_each and not along) or bound.overload.result == "pair":
        ev.need_entries(expr.value)
        return Expr(expr.node, materialised)
    ev.diagnostics.imports |= {"jax", "jnp"}
    texts = {"x": unparse(bracket(expr.node, 1)), "m": unparse(bracket(mask, 1))}
    made = parse(bound.operation.first.where.format(**texts))
    if of_each:
        return Expr(made, replace(expr.value, memref=ev.make_memref(node), number=""))
    result = bound.overload.result
    dtype = {"whole": "int"}.get(result, result if result in {"int", "bool"} else expr.value.dtype)
    return Expr(made, Value("tensor", rank=0, dtype=dtype, memref=ev.make_memref(node)))
