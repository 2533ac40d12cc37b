"""Results of operations: dtype, rank and shape, and the memory that PyTorch's result is in."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax._torch_ops.signature import NOT_PROMOTING
from fnjax.port.analysis.evaluator import Evaluator, find_names
from fnjax.port.known.facts import (
    DTYPE,
    HOLE,
    SIZE,
    TENSOR,
    UNKNOWN,
    MemRef,
    Step,
    Value,
    find_common_dtype,
)
from fnjax.port.torch import MISSING, Bound, Rendered
from fnjax.port.torch.context import find_dtype_class


def describe_result(ev: Evaluator, node: cst.BaseExpression, bound: Bound, rendered: Rendered) -> Value:
    """Return what is known of an operation's result."""
    overload = bound.overload
    values = [ev.port(v).value for v in bound.values.values()]
    tensors = [v for v in values if v.kind in {"tensor", "unknown"} and v.name != DTYPE]
    first = values[0] if values else UNKNOWN
    if overload.result in STATIC_RESULTS:
        return _describe_static_result(bound, first)
    if overload.result == "none":
        return Value("static", literal=None)
    if overload.result == "unknown":
        return replace(UNKNOWN, memref=ev.make_memref(node))
    dtype, exact = _find_dtype_class(ev, bound, first), _find_exact_dtype(ev, bound, tensors)
    # Sizes are not known, but often that two arrays have the same ones: `like` is a name for the shape.
    sized = [v for v in tensors if v.rank != 0]
    same = overload.each and len({v.like for v in sized}) == 1
    scalar = overload.of_data and isinstance(bound.read_literal("data"), (int, float))
    single = (overload.each and tensors and not sized) or (bound.operation.first.total and len(values) == 1) or scalar
    rank = 0 if single else sized[0].rank if same else None
    like = sized[0].like if same else _find_shape_mark(ev, bound)
    memref = _find_result_memref(ev, node, bound, rendered, first, dtype, exact)
    one = Value("tensor", dtype, rank, memref=memref, like=like or ev.mark_shape(node), exact=exact)
    one = replace(one, rows=_find_rows(bound, first, tensors))
    if overload.result == "pair":
        kinds = {"indices": "int", "exponent": "int", "mantissa": "float"}
        parts = [
            Value("tensor", kinds.get(f, first.dtype), memref=ev.make_memref(node, f" {f}")) for f in overload.fields
        ]
        parts = [p if p.dtype == "int" else replace(p, exact=exact) for p in parts]
        return Value("static", parts=tuple(parts) or None, fields=tuple(overload.fields), element=TENSOR)
    if overload.result == "list":
        element = replace(one, like="", memref=memref and memref.doubtful)
        return Value("static", element=element, memref=memref, number=ev.number_expression(node))
    return replace(one, number=ev.number_expression(node)) if dtype == "bool" else one


_WIDENING = ("complex", "float", "int", "bool")


def _find_dtype_class(ev: Evaluator, bound: Bound, first: Value) -> str:
    """Return the class of the result's dtype: what a dtype that is given says, else the result column."""
    overload = bound.overload
    target = bound.values.get("dtype") or (bound.values.get("other") if overload.converts else None)
    if target is not None:
        known, named = ev.port(target).value, bound.context.find_role(target) == "dtype"
        if named or (overload.converts and known.is_tensor):
            return known.dtype if not named or known.name == DTYPE else "unknown"
    if (
        overload.of_data
        and isinstance(number := bound.read_literal("data"), (int, float))
        and not bound.is_given("dtype")
    ):
        return type(number).__name__
    if overload.result == "same" and first.kind in {"tensor", "unknown"}:
        return "int" if first.dtype == "bool" and bound.operation.first.large else first.dtype
    if overload.result != "promoted":
        return overload.result if overload.result in _WIDENING else "unknown"
    kinds = {ev.port(v).value.dtype for n, v in bound.values.items() if n not in NOT_PROMOTING}
    if overload.quotient and bound.read_literal("rounding_mode") is None:
        kinds.add("float")
    return "unknown" if "unknown" in kinds else next((k for k in _WIDENING if k in kinds), "unknown")


def _find_shape_mark(ev: Evaluator, bound: Bound) -> str:
    """Return the mark of the tensor whose shape the result takes: `torch.zeros(x.size())`, `y.view_as(x)`."""
    if str(bound.overload.template).endswith("other.shape)"):
        return ev.port(bound.values["other"]).value.like
    names = ("size", "shape") if bound.overload.of_data else ("size", "shape", "data")  # torch.Tensor(x.shape)
    size, name = next((bound.values[n] for n in names if n in bound.values), None), "shape"
    if isinstance(size, cst.Call) and not size.args:
        size, name = size.func, "size"
    named = isinstance(size, cst.Attribute) and size.attr.value == name
    return ev.port(size.value).value.like if named else ""  # type: ignore[union-attr] # an attribute


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


def _find_result_memref(
    ev: Evaluator, node: cst.BaseExpression, bound: Bound, rendered: Rendered, first: Value, dtype: str, exact: str
) -> MemRef | None:
    """Return the memory that the result of an operation is in; of another dtype than the source it is a copy."""
    alias, says = bound.overload.alias, bound.operation.first
    if alias == "new" or first.memref is None:
        return ev.make_memref(node)
    memref = first.memref
    if alias == "maybe" and memref.local and not _is_held(ev, memref):
        return ev.make_memref(node)  # no variable shares it
    if alias == "maybe" and (bound.operation.first.rows and first.rows and memref.local):
        taken = _make_view_step(ev, node, bound)
        return replace(memref, steps=(*memref.steps, replace(taken, assumed=first.rows == 1)))
    if alias == "maybe":
        other = "unknown" not in {dtype, first.dtype} and dtype != first.dtype
        half = exact != first.exact and {exact, first.exact} & {"float16", "bfloat16", "int8", "uint8", "int16"}
        if other or half:  # assume that a cast to such a dtype changes it, so that it copies
            return ev.make_memref(node)
        return _mark_choice(ev, node, memref)
    if rendered.unchanged or (bound.overload.each and not bound.overload.recoded):
        return memref
    taken = _make_view_step(ev, node, bound)
    every, size = bound.read_literal("step"), bound.read_literal("size")
    disjoint = isinstance(every, int) and isinstance(size, int) and every >= size
    repeats = alias == "repeat" and not disjoint
    return replace(memref, steps=(*memref.steps, replace(taken, repeats=repeats, gaps=says.gaps or alias == "repeat")))


def _mark_choice(ev: Evaluator, node: cst.BaseExpression, memref: MemRef) -> MemRef:
    """Return the memory reference of the same memory or a copy; all its views are views of one memory either way."""
    if not (memref.certain or memref.choice) or ev.here.repeated:
        return memref.doubtful
    line, column = ev.program.source.locate(node)
    decision = f"copied {line}:{column}{ev.here.unrolled}"
    ev.state.decide_anew(decision)
    return replace(memref, certain=False, choice=f"{decision} ")


def _is_held(ev: Evaluator, memref: MemRef) -> bool:
    """Return whether a variable, or what one holds, shares this memory."""
    return any(not v.storages.isdisjoint(memref.storage) for v in ev.state.variables.values())


def _make_view_step(ev: Evaluator, node: cst.BaseExpression, bound: Bound) -> Step:
    """Return the view that an operation takes of its first argument, as a step of an access path."""
    made = bound.render(0, first=cst.Name(HOLE))
    assert isinstance(made, Rendered)
    reads = frozenset(r for r in ev.list_reads(node) if r[0] in find_names(made.expression))
    recoded = bound.overload.recoded or bound.find_role("size") == "dtype"  # `x.view(torch.int32)`
    return replace(Step.make_step(made.expression, reads), recoded=recoded)
