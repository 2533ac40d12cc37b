"""Operators stay as they are.

What: arithmetic, comparisons and `not`; only what is known of their values is worked out here.
Before: `(x > 0) & m`
After: `(x > 0) & m`
Safety: JAX's arrays have PyTorch's operators, with the same promotion of Python numbers.
Limits: chained comparisons of tensors need a Python bool, which runs outside jit only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, find_names, make_answer, parse
from fnjax.port.analysis.expressions import Operands
from fnjax.port.analysis.registry import expression
from fnjax.port.known.facts import (
    DTYPE,
    LIST,
    NUMBER,
    Origin,
    Value,
    find_common_dtype,
    join_elements,
    join_values,
    may_widen,
)
from fnjax.port.rewrite.memory.indexing import make_hashable
from fnjax.port.rewrite.memory.masks import spread_values
from fnjax.port.rewrite.values.last_digits import must_divide_exactly, must_vanish_exactly, write_quotient
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, bracket, fill, list_dtype_names, read_literal
from fnjax.port.tree.located import list_nodes


def describe_combined(ev: Evaluator, node: cst.BaseExpression, operands: list[Expr], dtype: str = "") -> Value:
    """Return what is known of the result of an elementwise operator."""
    values = [o.value for o in operands]
    tensors = [v for v in values if v.is_tensor]
    # Selected entries combine with numbers and entries that the same mask selects: others would be at other positions.
    mask = ev.find_one_mask(values)
    open_ = [v for v in values if v.kind in {"tensor", "unknown"}]
    if not tensors and not open_:
        kind = "unknown" if any(v.kind == "object" for v in values) else "static"
        known = {v.dtype for v in values}
        joint = "float" if known <= {"int", "float"} and "float" in known else "unknown"
        return Value(kind, dtype or (known.pop() if len(known) == 1 else joint))
    # A Python value in a parameter of unknown kind has no shape; an array there that would change this one is no
    # mask of it.
    likes = {v.like for v in tensors or open_ if v.rank != 0}
    like = likes.pop() if len(likes) == 1 else ev.mark_shape(node)
    big = [v for v in open_ if v.like == like]
    rank = (
        0
        if all(v.rank == 0 for v in tensors) and len(tensors) == len([v for v in values if v.kind != "static"])
        else big[0].rank
        if big
        else None
    )
    if not dtype:
        kinds = [v.dtype for v in values]
        dtype = next((d for d in ("complex", "float") if d in kinds), "") or (
            kinds[0] if len(set(kinds)) == 1 else "unknown"
        )
        if dtype == "unknown" and "unknown" not in kinds:
            dtype = "int"
    memref = ev.make_memref(node)
    kind = "tensor" if tensors else "unknown"
    exact = "" if dtype == "bool" else find_common_dtype(open_)
    mixed = not tensors and any(v.origin.mixed for v in values)
    rows = min((v.rows for v in open_ if v.rank != 0), default=0)
    python = any(v.origin.python for v in values) and all(v.origin.python or not v.is_tensor for v in values)
    origin = Origin(python=python, mixed=mixed)
    return Value(kind, dtype, rank, memref=memref, like=like, mask=mask, exact=exact, rows=rows, origin=origin)


def make_number(expr: Expr) -> Expr:
    """Return a scalar of NumPy as the Python number that it is to PyTorch; JAX would promote to its float64."""
    if expr.value.name != NUMBER:
        return expr
    return Expr(fill("float(A)", A=expr.node), replace(expr.value, name=""))


def check_32_bits(ev: Evaluator, node: cst.CSTNode, *operands: Expr) -> None:
    """Report an integer of more than 32 bits next to an array: JAX has such integers with jax_enable_x64 only."""
    numbers = (_read_integer(o.value) for o in operands)
    large = any(n is not None and not -(2**31) <= n < 2**31 for n in numbers)
    if large and any(o.value.is_tensor for o in operands):
        ev.report(
            node, "int64", "an integer of more than 32 bits next to an array: write it as a float, or as two factors"
        )


def report_overflow(ev: Evaluator, node: cst.CSTNode, left: Expr, right: Expr, shift: bool = False) -> None:
    """Report a product of 64-bit numbers that may need them all, as in a hash or a key of several indices."""
    for array, number in ((left, right), (right, left)):
        wide = array.value.is_tensor and array.value.dtype == "int" and array.value.exact in {"", "int64"}
        if wide and _find_largest(ev, number) >= (15 if shift else 2**15):
            message = "this may need more than 32 bits: JAX has integers of 64 bits with jax_enable_x64 only"
            ev.report(node, "int64", message)


def _find_largest(ev: Evaluator, expr: Expr) -> int:
    """Return the largest value that a Python number may have, in a table or over the iterations of a loop."""
    if expr.value.kind != "static":
        return 0
    if type(expr.value.literal) is int:
        return abs(expr.value.literal)
    tables: list[Value] = [ev.look_up(name) for name in find_names(expr.node)]
    for loop in ev.here.loops:
        if isinstance(loop, cst.For) and find_names(expr.node) & set(iter_targets(loop.target)):
            parts = (n for n in list_nodes(loop.iter) if isinstance(n, (cst.Name, cst.Tuple, cst.List)))
            tables += [ev.port(n).value for n in parts]
    entries = [part.literal for table in tables for part in table.parts or ()]
    return max((abs(n) for n in entries if type(n) is int), default=0)


def narrow_result(made: cst.BaseExpression, exprs: list[Expr]) -> cst.BaseExpression:
    """Cast a result to PyTorch's dtype: there a tensor without dimensions widens no other's dtype."""
    whole = [t for t in exprs if t.value.is_tensor and t.value.rank != 0]
    single = [t.value for t in exprs if t.value.is_tensor and t.value.rank == 0]
    if not whole or not single:
        return made
    widest = max(whole, key=lambda t: not any(may_widen(t.value, o.value) for o in whole))
    integers = widest.value.dtype == "int" and all(v.dtype in {"int", "bool"} for v in single)
    if not (widest.value.dtype in {"float", "complex"} or integers):  # a mask, or floats may come of it
        return made
    if not any(may_widen(widest.value, v) for v in single):
        return made
    return fill("A.astype(D)", A=made, D=_write_dtype(widest))


def _write_dtype(expr: Expr) -> cst.BaseExpression:
    exact = expr.value.exact
    if exact and not exact.startswith("?") and exact != "float":
        return cst.Attribute(cst.Name("jnp"), cst.Name(exact))
    return fill("A.dtype" if isinstance(expr.node, (cst.Name, cst.Attribute)) else "jnp.result_type(A)", A=expr.node)


@expression(cst.BinaryOperation, general=True)
def port_binary_operation(ev: Evaluator, node: cst.BinaryOperation) -> Expr:
    """Translate `a + b`."""
    with ev.take(spread_values(ev, (node.left, node.right))):
        return _port_operands(ev, node)


def _port_operands(ev: Evaluator, node: cst.BinaryOperation) -> Expr:
    """Translate `a + b` with its operands as they are known."""
    left, right = ev.port(node.left), ev.port(node.right)
    dtype = ""
    if isinstance(node.operator, cst.Divide):
        dtype = "complex" if "complex" in (left.value.dtype, right.value.dtype) else "float"
    if not left.value.kind == right.value.kind == "static":
        left, right = make_number(left), make_number(right)
        check_32_bits(ev, node, left, right)
        if isinstance(node.operator, (cst.Multiply, cst.LeftShift)):
            report_overflow(ev, node, left, right, shift=isinstance(node.operator, cst.LeftShift))
    with ev.take({id(node.left): (node.left, left), id(node.right): (node.right, right)}):
        made = ev.port_parts(node)
    if isinstance(node.operator, cst.Add) and left.value.parts is not None and right.value.parts is not None:
        return Expr(made, Value("static", name=_name_list(left.value), parts=left.value.parts + right.value.parts))
    if left.value.kind == "static" and (left.value.parts is not None or left.value.element):
        if right.value.traced:
            ev.report_untraced(node, "a list repeated by the value of a tensor")
        element = join_elements(left.value)
        if element and element.memref and isinstance(node.operator, cst.Multiply):  # one tensor at several positions
            element = replace(element, memref=element.memref.doubtful)
        elif isinstance(node.operator, cst.Add):
            other = join_elements(right.value)
            element = join_values(element, other) if element and other else element or other
        return Expr(made, Value("static", name=_name_list(left.value), element=element))
    if left.value.kind == right.value.kind == "static":
        found = read_literal(node)
        if found is MISSING:
            found = _compute_literal(node, left.value, right.value)
        known_as = describe_combined(ev, node, [left, right], dtype).dtype
        scalar = left.value.is_number and right.value.is_number
        name = NUMBER if scalar and NUMBER in (left.value.name, right.value.name) else ""
        return Expr(made, Value("static", known_as, name=name, literal=found))
    if isinstance(node.operator, cst.MatrixMultiply):
        ev.need_entries(left.value, right.value)
        known = {left.value.dtype, right.value.dtype}
        return Expr(made, Value("tensor", known.pop() if len(known) == 1 else "unknown", memref=ev.make_memref(node)))
    value = describe_combined(ev, node, [left, right], dtype)
    if isinstance(node.operator, cst.Power) and left.value.kind == "static" and right.value.origin.python:
        made = made.with_changes(left=fill("float(A)", A=left.node))  # Python's 2 ** -1 is no integer
        value = replace(value, dtype="float")
    if isinstance(node.operator, cst.Subtract) and must_vanish_exactly(ev, node):
        ev.diagnostics.needs.add("_difference")
        made = fill("_difference(A, B)", A=made.left, B=made.right)
    if isinstance(node.operator, cst.Divide) and must_divide_exactly(ev, node, left.value, right.value):
        made = write_quotient(ev, made)
    new = narrow_result(made, [left, right])
    if new is not made:
        ev.diagnostics.imports.add("jnp")
        return Expr(new, value)
    if value.dtype == "bool":
        value = replace(value, number=ev.number_expression(node))
    return Expr(made, value)


def expand_augmented(node: cst.AugAssign) -> cst.BinaryOperation:
    """Return `x + v` for `x += v`."""
    sign: cst.BaseBinaryOp = getattr(cst, type(node.operator).__name__.removesuffix("Assign"))()
    return cst.BinaryOperation(node.target, sign, bracket(node.value, 13))


def _name_list(value: Value) -> str:
    return LIST if value.name == LIST else ""


_OF_INTEGERS: dict[type[cst.CSTNode], Callable[[int, int], int]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Power: operator.pow,
    cst.LeftShift: operator.lshift,
}


def _compute_literal(node: cst.BinaryOperation, left: Value, right: Value) -> object:
    """Return the value of what is computed of known integers, as `ndim - 1` and `2**31 - 1`."""
    a, b = _read_integer(left), _read_integer(right)
    compute = _OF_INTEGERS.get(type(node.operator))
    if a is None or b is None or compute is None:
        return MISSING
    if isinstance(node.operator, (cst.Power, cst.LeftShift)) and not 0 <= b <= 64:
        return MISSING
    return compute(a, b)


def _read_integer(value: Value) -> int | None:
    """Return the integer that a value is, if it is known."""
    return value.literal if type(value.literal) is int and value.kind == "static" else None


@expression(cst.UnaryOperation, general=True)
def port_unary_operation(ev: Evaluator, node: cst.UnaryOperation) -> Expr:
    """Translate `-x`, `~m`, `not flag`; `+x` is x itself."""
    expr = ev.port(node.expression)
    if isinstance(node.operator, cst.Plus):
        return Expr(ev.port_parts(node), replace(expr.value, number=""))
    made = ev.port_parts(node)
    if isinstance(node.operator, cst.Not):
        if expr.value.is_tensor or (expr.value.origin.mixed and expr.value.dtype != "unknown"):
            value = Value("tensor", "bool", expr.value.rank, number=ev.number_expression(node))
            if expr.value.is_tensor and expr.value.dtype == "bool":
                return Expr(cst.UnaryOperation(cst.BitInvert(), bracket(expr.node)), value)
            ev.diagnostics.imports.add("jnp")
            return Expr(fill("jnp.logical_not(A)", A=expr.node), value)
        if expr.value.origin.mixed:
            ev.report_untraced(node, "`not` needs the Python bool of a tensor")
        return Expr(made, Value("unknown" if expr.value.kind == "unknown" else "static", "bool"))
    if not expr.value.is_tensor and expr.value.dtype != "bool":
        number = _read_integer(expr.value)
        opposite = MISSING if number is None or not isinstance(node.operator, cst.Minus) else -number
        value = Value(
            expr.value.kind,
            expr.value.dtype,
            name=NUMBER if expr.value.name == NUMBER else "",
            literal=found if (found := read_literal(node)) is not MISSING else opposite,
            memref=ev.make_memref(node) if expr.value.kind == "unknown" else None,
            origin=Origin(mixed=expr.value.origin.mixed),
        )
        return Expr(made, value)
    return Expr(
        made,
        replace(
            expr.value,
            memref=ev.make_memref(node),
            number=ev.number_expression(node) if expr.value.dtype == "bool" else "",
        ),
    )


_OF_64_BITS = list_dtype_names("int64")


def is_dtype(value: Value) -> bool:
    """Return whether this is a dtype."""
    return value.name == DTYPE


_EQUALITY: dict[type[cst.CSTNode], type[cst.BaseCompOp]] = {cst.Is: cst.Equal, cst.IsNot: cst.NotEqual}


def _port_dtype_comparison(ev: Evaluator, node: cst.Comparison) -> Any:
    """Translate `x.dtype is torch.int64`; dtypes are equal, not identical, and integers may have 32 bits."""
    named = [n for n in list_nodes(node) if isinstance(n, (cst.Name, cst.Attribute)) and ev.find_name(n) in _OF_64_BITS]
    ev.diagnostics.imports |= {"jnp"} if named else set()
    known: Operands = {id(n): (n, replace(ev.port(n), node=parse("jnp.result_type(int)"))) for n in named}
    for side in (node.left, *(t.comparator for t in node.comparisons)):
        if id(side) not in known and any(id(n) in known for n in list_nodes(side)):
            with ev.take(known):
                known[id(side)] = side, replace(ev.port(side), node=ev.port_parts(side))
    changed = [
        t
        if type(t.operator) not in _EQUALITY or read_literal(t.comparator) is None
        else t.with_changes(operator=_EQUALITY[type(t.operator)]())
        for t in node.comparisons
    ]
    with ev.take(known):
        return ev.port_parts(node.with_changes(comparisons=changed))


_DEVICES = frozenset({"cuda", "cpu", "hip", "xpu", "npu", "mps", "mlu", "musa", "hpu"})


@expression(cst.Comparison, general=True)
def port_comparison(ev: Evaluator, node: cst.Comparison) -> Expr:
    """Translate `x > 0`."""
    with ev.take(spread_values(ev, [node.left, *(t.comparator for t in node.comparisons)])):
        return _port_sides(ev, node)


def _port_sides(ev: Evaluator, node: cst.Comparison) -> Expr:
    """Translate `x > 0` with its operands as they are known."""
    sides = [node.left, *(t.comparator for t in node.comparisons)]
    operands = [ev.port(n) for n in sides]
    check_32_bits(ev, node, *operands)
    made = _port_dtype_comparison(ev, node) if any(is_dtype(o.value) for o in operands) else ev.port_parts(node)
    operators = [type(t.operator) for t in node.comparisons]
    # These return Python's True or False, whatever the operands; the others return arrays for arrays.
    if any(o in {cst.Is, cst.IsNot, cst.In, cst.NotIn} for o in operators):
        first = operands[0].value
        if {cst.In, cst.NotIn} & set(operators) and (first.origin.python or (first.is_tensor and first.rank == 0)):
            ev.report_untraced(node, "`in` needs the value of a tensor")
        if operators[0] in {cst.In, cst.NotIn} and not isinstance(sides[1], (cst.Tuple, cst.List)):
            made = made.with_changes(left=make_hashable(ev, Expr(made.left, operands[0].value)))
        return Expr(made, Value("static", "bool"))
    if len(operators) > 1 and any(o.value.is_tensor for o in operands):
        ev.report_untraced(node, "a chained comparison of tensors needs a Python bool")
    named = [o for o in operands if o.value.name == "instance:torch.device"]
    if (  # a device never equals a text
        named
        and len(operators) == 1
        and operators[0] in {cst.Equal, cst.NotEqual}
        and any(o not in named and isinstance(o.value.literal, str) for o in operands)
    ):
        return make_answer(operators[0] is cst.NotEqual)
    if any(is_dtype(o.value) for o in operands) and any(isinstance(o.value.literal, str) for o in operands):
        raise Stop(node, "operation", "the name of a tensor type means nothing in JAX; compare x.dtype")
    texts = [o.value.literal for o in operands]
    if any(isinstance(t, str) and t.startswith("torch.") for t in texts):
        raise Stop(node, "operation", "PyTorch's names are not JAX's: compare x.dtype with a dtype")
    two = operators[0] in {cst.Equal, cst.NotEqual} and len(texts) == 2
    asked = made is not node or (ev.program.kernels and _DEVICES.intersection(map(str, texts)))
    if asked and two and all(isinstance(t, str) for t in texts):  # x.device.type == "cuda"
        return make_answer((texts[0] == texts[1]) is (operators[0] is cst.Equal))
    value = describe_combined(ev, node, operands, "bool")
    if value.kind in {"tensor", "unknown"}:
        value = replace(value, number=ev.number_expression(node))
    return Expr(made, value)
