"""What is known of an operation's result: its dtype, rank and shape, and which memory PyTorch's result lies in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.walk import Walk, names
from fnjax.port.known.facts import COPIED, HOLE, SIZE, TENSOR, UNKNOWN, Place, Step, Value, common_dtype, touches
from fnjax.port.torch import Bound, Rendered, code, literal
from fnjax.port.torch.record import DTYPES


def result_value(walk: Walk, node: cst.BaseExpression, bound: Bound, rendered: Rendered, short: str) -> Value:
    """What is known of an operation's result."""
    overload = bound.overload
    values = [walk.expr(v).value for v in bound.values.values()]
    tensors = [v for v in values if v.kind in {"tensor", "unknown"} and v.name != "instance:torch.dtype"]
    first = walk.expr(next(iter(bound.values.values()))).value if bound.values else UNKNOWN
    if overload.result == "static":
        return _static(bound, first, rendered, short)
    if overload.result == "none":
        return Value("static", literal=None)
    if overload.result == "unknown":
        return replace(UNKNOWN, place=walk.fresh(node))
    dtype = overload.result if overload.result in {"float", "int", "bool", "complex"} else "unknown"
    known = {v.dtype for v in tensors}
    if overload.result == "same" and first.kind in {"tensor", "unknown"}:
        dtype = "int" if first.dtype == "bool" and bound.operation.first.large else first.dtype
    elif overload.result == "promoted" and len(known) == 1:
        dtype = known.pop() if all(v.dtype in known | {"int", "bool"} for v in values) else "unknown"
    if short == "where" and len(tensors) > 1:
        kinds = {v.dtype for v in values[1:]}
        dtype = kinds.pop() if len(kinds) == 1 else "float" if "float" in kinds else "unknown"
    target = bound.values.get("dtype") or (bound.values.get("other") if short == "to" else None)
    if target is not None and bound.context.role(target) == "dtype":
        last = code(walk.expr(target).node).rpartition(".")[2].rstrip("_")
        dtype = DTYPES.get(last, "float" if last.startswith("float") else "unknown")
        if last == "dtype":
            dtype = walk.expr(target.value).value.dtype if isinstance(target, cst.Attribute) else "unknown"
    exact = _exact(walk, bound, rendered, tensors, short)
    likes = {v.like for v in tensors if v.rank != 0}
    same = bound.overload.each and len(likes) == 1
    rank = next(iter(v.rank for v in tensors if v.rank != 0), None) if same else None
    if bound.overload.each and tensors and all(v.rank == 0 for v in tensors):
        rank = 0
    if bound.operation.first.total and len(bound.values) == 1:
        rank = 0
    if short in {"tensor", "as_tensor", "scalar_tensor"} and isinstance(bound.literal("data"), (int, float)):
        dtype = dtype if bound.given("dtype") else type(bound.literal("data")).__name__
        rank = 0
    place = _place(walk, node, bound, rendered, first, dtype, exact)
    like = likes.pop() if same and likes else _sized_as(walk, bound.values.get("size") or bound.values.get("data"))
    like = like or walk.mark(node)
    one = Value("tensor", dtype, rank, place=place, like=like, exact=exact, rows=_rows(bound, first, tensors))
    if overload.result == "pair":
        parts = tuple(
            Value("tensor", "int", place=walk.fresh(node, f" {f}"))
            if f in {"indices", "exponent"}
            else Value(
                "tensor", "float" if f == "mantissa" else first.dtype, place=walk.fresh(node, f" {f}"), exact=exact
            )
            for f in overload.fields
        )
        return Value("static", parts=parts or None, fields=tuple(overload.fields), element=TENSOR)
    if overload.result == "list":
        doubtful = place.doubtful if place else None
        return Value("static", element=replace(one, like="", place=doubtful), place=place, number=walk.number(node))
    if dtype == "bool":
        one = replace(one, number=walk.number(node))
    return one


def _sized_as(walk: Walk, size: cst.BaseExpression | None) -> str:
    """The mark of the tensor whose size is given: `torch.zeros(x.size())`."""
    name = "shape"
    if isinstance(size, cst.Call) and not size.args:
        size, name = size.func, "size"
    if not isinstance(size, cst.Attribute) or size.attr.value != name:
        return ""
    return walk.expr(size.value).value.like


def _rows(bound: Bound, first: Value, tensors: list[Value]) -> int:
    """Whether the result is contiguous."""
    if "memory_format" in bound.values:
        return 0
    if bound.operation.first.made:
        return 2
    if bound.operation.first.rows:
        return first.rows
    return min((v.rows for v in tensors if v.rank != 0), default=0) if bound.overload.each else 0


def _exact(walk: Walk, bound: Bound, rendered: Rendered, tensors: list[Value], short: str) -> str:
    """The dtype of the result, as far as the source names it."""
    says = bound.operation.first
    if says.casts:
        return says.casts
    for key in ("dtype", "non_blocking", "other") if short in {"to", "type"} else ("dtype",):
        target = bound.values.get(key)
        if target is None or bound.literal(key) is None:
            continue
        value = walk.expr(target).value
        if bound.context.role(target) == "dtype":
            return value.exact if value.name == "instance:torch.dtype" else f"?{walk.number(target)}"
        if key == "other" and bound.context.role(target) != "device":
            return value.exact if value.is_tensor else f"?{walk.number(target)}"
    if short == "type_as" and "other" in bound.values:
        return walk.expr(bound.values["other"]).value.exact
    if bound.overload.result in {"int", "bool", "complex"} or not tensors:
        return "float32" if says.made and says.result == "float" else ""
    if says.large and tensors[0].dtype in {"int", "bool"}:
        return ""
    if bound.overload.result in {"same", "pair", "list"} and short != "where":
        return tensors[0].exact
    floats = [v for v in tensors if v.dtype not in {"int", "bool"}]
    return common_dtype(floats) if floats else ""


def _static(bound: Bound, first: Value, rendered: Rendered, short: str) -> Value:
    name = bound.operation.names[0]
    text = code(rendered.expression)
    if short in {"finfo", "iinfo"}:
        return Value("static", name=f"instance:torch.{short}")
    if name.startswith("torch.device."):
        return Value("static", literal=literal(rendered.expression))
    if short in {"dtype", "type", "promote_types", "result_type", "get_default_dtype"} or (
        text.startswith("jnp.") and "." not in text[4:] and name.startswith("torch.")
    ):
        exact = (
            first.exact if short in {"dtype", "type"} else text.removeprefix("jnp.") if text.startswith("jnp.") else "?"
        )
        return Value("static", name="instance:torch.dtype", exact={"float64": "float"}.get(exact, exact))
    if short == "device":
        return Value("static", name="instance:torch.device", literal=literal(rendered.expression))
    if short in {"ndim", "dim"} and first.rank is not None:
        return Value("static", "int", literal=first.rank)
    if short in {"shape", "size", "Size"} and "dim" not in bound.values:
        return Value(
            "static",
            "int",
            name=SIZE,
            parts=(Value("static", "int"),) * first.rank if first.rank else None,
            element=Value("static", "int"),
        )
    whole = "int" if short in {"size", "ndim", "dim", "numel", "nelement"} else "unknown"
    return Value("static", whole, literal=literal(rendered.expression))


def _place(
    walk: Walk, node: cst.BaseExpression, bound: Bound, rendered: Rendered, first: Value, dtype: str, exact: str
) -> Place | None:
    """Where the result of an operation lies; of another dtype than the source it is a copy."""
    alias = bound.overload.alias
    if alias == "new" or first.place is None:
        return walk.fresh(node)
    place = first.place
    if alias == "maybe" and place.local and not _held(walk, place):
        return walk.fresh(node)  # nobody can tell
    if alias == "maybe" and (bound.operation.first.rows and first.rows and place.local):
        taken = step(walk, node, rendered.expression, next(iter(bound.values.values())))
        return replace(place, steps=(*place.steps, replace(taken, assumed=first.rows == 1)))
    if alias == "maybe":
        other = "unknown" not in {dtype, first.dtype} and dtype != first.dtype
        half = exact != first.exact and {exact, first.exact} & {"float16", "bfloat16", "int8", "uint8", "int16"}
        if other or half:  # nobody makes half what is half already
            return walk.fresh(node)
        return _decided(walk, node, bound, place)
    if bound.operation.names[0].rpartition(".")[2] in {"detach", "data", "alias"}:
        return place
    if code(rendered.expression) == code(walk.expr(next(iter(bound.values.values()))).node):
        return place
    taken = step(walk, node, rendered.expression, next(iter(bound.values.values())))
    every, size = bound.literal("step"), bound.literal("size")
    apart = isinstance(every, int) and isinstance(size, int) and every >= size
    return replace(place, steps=(*place.steps, replace(taken, repeats=alias == "repeat" and not apart)))


def _decided(walk: Walk, node: cst.BaseExpression, bound: Bound, place: Place) -> Place:
    """The place of what is the same memory or a copy; the views of it are views of one memory in either case."""
    if not (place.certain or place.choice) or walk.here.repeated:
        return place.doubtful
    line, column = walk.program.source.position(node)
    decision = f"{COPIED} {line}:{column}{walk.here.unrolled}"
    walk.state.decide_anew(decision)
    return replace(place, certain=False, choice=f"{decision} {bound.operation.names[0].rpartition('.')[2]}()")


def _held(walk: Walk, place: Place) -> bool:
    """Whether a variable, or what one holds, shares memory with a place."""
    return any(touches(v, place.storage) for v in walk.state.variables.values())


def step(walk: Walk, node: cst.BaseExpression, made: cst.BaseExpression, viewed: cst.BaseExpression) -> Step:
    """The view that an expression takes of one in it."""
    hole = made.visit(_Hole(walk.expr(viewed).node, cst.Name(HOLE)))
    assert isinstance(hole, cst.BaseExpression)
    reads = frozenset(r for r in walk.reads(node) if r[0] in names(hole))
    return Step.of(hole, reads)


class _Hole(cst.CSTTransformer):
    """The first expression with this text becomes the hole."""

    def __init__(self, viewed: cst.BaseExpression, hole: cst.Name) -> None:
        super().__init__()
        self.text, self.hole, self.done = _inner_text(viewed), hole, False

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not self.done

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if not self.done and isinstance(original_node, cst.BaseExpression) and _inner_text(original_node) == self.text:
            self.done = True
            return self.hole
        return updated_node


def _inner_text(node: cst.BaseExpression) -> str:
    return code(node.with_changes(lpar=[], rpar=[]))
