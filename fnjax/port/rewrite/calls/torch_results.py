"""What is known of an operation's result: its dtype, rank and shape, and which memory PyTorch's result lies in."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, find_names
from fnjax.port.known.facts import (
    COPIED,
    DTYPE,
    HOLE,
    SIZE,
    TENSOR,
    UNKNOWN,
    MemRef,
    Step,
    Value,
    find_common_dtype,
    may_touch,
)
from fnjax.port.rewrite.memory.slices import find_pieces, find_slice
from fnjax.port.torch import MISSING, Bound, Rendered
from fnjax.port.torch.context import find_dtype_class
from fnjax.torch._table.signature import NOT_PROMOTING


def describe_result(ev: Evaluator, node: cst.BaseExpression, bound: Bound, rendered: Rendered) -> Value:
    """Return what is known of an operation's result."""
    overload = bound.overload
    values = [ev.port(v).value for v in bound.values.values()]
    tensors = [v for v in values if v.kind in {"tensor", "unknown"} and v.name != DTYPE]
    first = ev.port(next(iter(bound.values.values()))).value if bound.values else UNKNOWN
    if overload.result in STATIC_RESULTS:
        return _describe_static_result(bound, first)
    if overload.result == "none":
        return Value("static", literal=None)
    if overload.result == "unknown":
        return replace(UNKNOWN, memref=ev.make_memref(node))
    dtype = overload.result if overload.result in {"float", "int", "bool", "complex"} else "unknown"
    if overload.result == "same" and first.kind in {"tensor", "unknown"}:
        dtype = "int" if first.dtype == "bool" and bound.operation.first.large else first.dtype
    elif overload.result == "promoted":
        dtype = _promote([v for n, v in zip(bound.values, values, strict=True) if n not in NOT_PROMOTING], bound)
    target = bound.values.get("dtype") or (bound.values.get("other") if overload.converts else None)
    if target is not None and bound.context.find_role(target) == "dtype":
        named = ev.port(target).value
        dtype = named.dtype if named.name == DTYPE else "unknown"
    elif target is not None and overload.converts and (other := ev.port(target).value).is_tensor:
        dtype = other.dtype
    exact = _find_exact_dtype(ev, bound, tensors)
    # Sizes are not known, but often that two arrays have the same ones: `like` is a name for the shape.
    likes = {v.like for v in tensors if v.rank != 0}
    same = bound.overload.each and len(likes) == 1
    rank = next(iter(v.rank for v in tensors if v.rank != 0), None) if same else None
    if bound.overload.each and tensors and all(v.rank == 0 for v in tensors):
        rank = 0
    if bound.operation.first.total and len(bound.values) == 1:
        rank = 0
    if overload.of_data and isinstance(bound.read_literal("data"), (int, float)):
        dtype = dtype if bound.is_given("dtype") else type(bound.read_literal("data")).__name__
        rank = 0
    memref = _find_result_place(ev, node, bound, rendered, first, dtype, exact)
    like = likes.pop() if same and likes else _find_shape_mark(ev, bound.values.get("size") or bound.values.get("data"))
    like = like or ev.mark_shape(node)
    one = Value("tensor", dtype, rank, memref=memref, like=like, exact=exact, rows=_find_rows(bound, first, tensors))
    if overload.result == "pair":
        parts = tuple(
            Value("tensor", "int", memref=ev.make_memref(node, f" {f}"))
            if f in {"indices", "exponent"}
            else Value(
                "tensor", "float" if f == "mantissa" else first.dtype, memref=ev.make_memref(node, f" {f}"), exact=exact
            )
            for f in overload.fields
        )
        return Value("static", parts=parts or None, fields=tuple(overload.fields), element=TENSOR)
    if overload.result == "list":
        doubtful = memref.doubtful if memref else None
        return Value(
            "static", element=replace(one, like="", memref=doubtful), memref=memref, number=ev.number_expression(node)
        )
    if dtype == "bool":
        one = replace(one, number=ev.number_expression(node))
    return one


_WIDENING = ("complex", "float", "int", "bool")


def _promote(values: list[Value], bound: Bound) -> str:
    """Return the class of dtype that these have together."""
    kinds = {v.dtype for v in values}
    if bound.overload.quotient and bound.read_literal("rounding_mode") is None:
        kinds |= {"float"}
    return "unknown" if "unknown" in kinds else next((k for k in _WIDENING if k in kinds), "unknown")


def _find_shape_mark(ev: Evaluator, size: cst.BaseExpression | None) -> str:
    """Return the mark of the tensor whose size is given: `torch.zeros(x.size())`."""
    name = "shape"
    if isinstance(size, cst.Call) and not size.args:
        size, name = size.func, "size"
    if not isinstance(size, cst.Attribute) or size.attr.value != name:
        return ""
    return ev.port(size.value).value.like


def _find_rows(bound: Bound, first: Value, tensors: list[Value]) -> int:
    """Return whether the result is contiguous."""
    if "memory_format" in bound.values:
        return 0
    if bound.operation.first.made:
        return 2
    if bound.operation.first.rows:
        return first.rows
    return min((v.rows for v in tensors if v.rank != 0), default=0) if bound.overload.each else 0


def _find_exact_dtype(ev: Evaluator, bound: Bound, tensors: list[Value]) -> str:
    """Return the dtype of the result, as far as the source names it."""
    says = bound.operation.first
    if says.casts:
        return says.casts
    for key in ("dtype", "non_blocking", "other") if bound.overload.converts else ("dtype",):
        target = bound.values.get(key)
        if target is None or bound.read_literal(key) is None:
            continue
        value = ev.port(target).value
        if bound.context.find_role(target) == "dtype":
            return value.exact if value.name == DTYPE else f"?{ev.number_expression(target)}"
        if key == "other" and bound.context.find_role(target) != "device":
            return value.exact if value.is_tensor else f"?{ev.number_expression(target)}"
    if bound.overload.result in {"int", "bool", "complex"} or not tensors:
        return "float32" if says.made and says.result == "float" else ""
    if says.large and tensors[0].dtype in {"int", "bool"}:
        return ""
    if bound.overload.result in {"same", "pair", "list"}:
        return tensors[0].exact
    floats = [v for v in tensors if v.dtype not in {"int", "bool"}]
    return find_common_dtype(floats) if floats else ""


STATIC_RESULTS = frozenset({"static", "dtype", "device", "size", "rank", "whole", "finfo", "iinfo"})


def _describe_static_result(bound: Bound, first: Value) -> Value:
    """Return what is known of a Python value."""
    match bound.overload.result:
        case "dtype":
            name = bound.overload.dtype
            if name:
                exact = {"float64": "float"}.get(name, name)
                return Value("static", find_dtype_class(name), name=DTYPE, exact=exact)
            alone = len(bound.values) == 1
            return Value("static", first.dtype if alone else "unknown", name=DTYPE, exact=first.exact if alone else "?")
        case "device":
            return Value("static", name="instance:torch.device", literal=bound.known)
        case "finfo" | "iinfo" as kind:
            return Value("static", name=f"instance:torch.{kind}")
        case "rank":
            return Value("static", "int", literal=MISSING if first.rank is None else first.rank)
        case "size":
            one = Value("static", "int")
            return Value("static", "int", name=SIZE, parts=(one,) * first.rank if first.rank else None, element=one)
        case "whole":
            return Value("static", "int", literal=bound.known)
    return Value("static", literal=bound.known)


def _find_result_place(
    ev: Evaluator, node: cst.BaseExpression, bound: Bound, rendered: Rendered, first: Value, dtype: str, exact: str
) -> MemRef | None:
    """Return where the result of an operation lies; of another dtype than the source it is a copy."""
    alias, says = bound.overload.alias, bound.operation.first
    if alias == "new" or first.memref is None:
        return ev.make_memref(node)
    memref = first.memref
    if alias == "maybe" and memref.local and not _is_held(ev, memref):
        return ev.make_memref(node)  # nobody can tell
    if alias == "maybe" and (bound.operation.first.rows and first.rows and memref.local):
        taken = _make_view_step(ev, node, bound)
        return replace(memref, steps=(*memref.steps, replace(taken, assumed=first.rows == 1)))
    if alias == "maybe":
        other = "unknown" not in {dtype, first.dtype} and dtype != first.dtype
        half = exact != first.exact and {exact, first.exact} & {"float16", "bfloat16", "int8", "uint8", "int16"}
        if other or half:  # nobody makes half what is half already
            return ev.make_memref(node)
        return _mark_place_choice(ev, node, bound, memref)
    if bound.operation.names[0].rpartition(".")[2] in {"detach", "data", "alias"}:
        return memref
    if rendered.unchanged:
        return memref
    taken = _make_view_step(ev, node, bound)
    every, size = bound.read_literal("step"), bound.read_literal("size")
    disjoint = isinstance(every, int) and isinstance(size, int) and every >= size
    repeats = alias == "repeat" and not disjoint
    return replace(memref, steps=(*memref.steps, replace(taken, repeats=repeats, gaps=says.gaps or alias == "repeat")))


def _mark_place_choice(ev: Evaluator, node: cst.BaseExpression, bound: Bound, memref: MemRef) -> MemRef:
    """Return the place of what is the same memory or a copy; the views of it are views of one memory in either case."""
    if not (memref.certain or memref.choice) or ev.here.repeated:
        return memref.doubtful
    line, column = ev.program.source.locate(node)
    decision = f"{COPIED} {line}:{column}{ev.here.unrolled}"
    ev.state.decide_anew(decision)
    return replace(memref, certain=False, choice=f"{decision} {bound.operation.names[0].rpartition('.')[2]}()")


def _is_held(ev: Evaluator, memref: MemRef) -> bool:
    """Return whether a variable, or what one holds, shares memory with a place."""
    return any(may_touch(v, memref.storage) for v in ev.state.variables.values())


def _make_view_step(ev: Evaluator, node: cst.BaseExpression, bound: Bound) -> Step:
    """Return the view that an operation takes of its first argument."""
    made = bound.render(0, first=cst.Name(HOLE))
    assert isinstance(made, Rendered)
    shown = find_slice(ev, bound) or made.expression
    reads = frozenset(r for r in ev.list_reads(node) if r[0] in find_names(shown))
    return replace(Step.make_step(shown, reads), pieces=find_pieces(ev, bound))
