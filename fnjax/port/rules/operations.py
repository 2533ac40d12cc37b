"""Operations of torch become JAX expressions.

What: functions of torch and its namespaces, methods and attributes of tensors, dtypes and constants; also where a torch
function is passed on as a value.
Before: `y = torch.clamp(x, min=0).sum(1, keepdim=True)`
After: `y = jnp.sum(jnp.maximum(x, 0), axis=1, keepdims=True)`
Safety: by qualified names, so that `F.relu` is torch's only where F is torch.nn.functional. The call is bound to
torch's
signature; what does not fit it is a finding. A method that torch.Tensor does not have is the user's own and stays.
Limits: calls with `*args` for single parameters; results whose shape depends on values run outside jit only, and say
so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.facts import STATIC, TENSOR, UNKNOWN, Place, Step, Value, common_dtype, places, widens
from fnjax.port.operations import (
    MISSING,
    Absent,
    Bound,
    Context,
    Operation,
    Problem,
    Rendered,
    code,
    find,
    fit,
    literal,
)
from fnjax.port.rules.indexing import compressed, same_shape
from fnjax.port.rules.operators import narrowed
from fnjax.port.rules.randomness import fresh_key
from fnjax.port.rules.registry import expression
from fnjax.port.rules.writing import write
from fnjax.port.walk import Stop, Term, Uncompressed, Walk, names, parse

# Operations that work on each entry alone: with them shapes stay, and all entries may stand for the selected ones.
ELEMENTWISE = frozenset(
    [
        "abs",
        "absolute",
        "acos",
        "acosh",
        "add",
        "addcdiv",
        "addcmul",
        "angle",
        "arccos",
        "arcsin",
        "arctan",
        "arctan2",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "ceil",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clip",
        "clone",
        "conj",
        "contiguous",
        "copysign",
        "cos",
        "cosh",
        "deg2rad",
        "detach",
        "digamma",
        "div",
        "divide",
        "elu",
        "eq",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "fix",
        "float",
        "double",
        "half",
        "bfloat16",
        "int",
        "long",
        "bool",
        "floor",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "frac",
        "ge",
        "gelu",
        "greater",
        "greater_equal",
        "gt",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "heaviside",
        "hypot",
        "isfinite",
        "isinf",
        "isnan",
        "ldexp",
        "le",
        "leaky_relu",
        "lerp",
        "less",
        "less_equal",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logaddexp",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "logit",
        "logsigmoid",
        "lt",
        "masked_fill",
        "maximum",
        "minimum",
        "mish",
        "mul",
        "multiply",
        "nan_to_num",
        "ne",
        "neg",
        "negative",
        "nextafter",
        "not_equal",
        "positive",
        "pow",
        "rad2deg",
        "reciprocal",
        "relu",
        "relu6",
        "remainder",
        "round",
        "rsqrt",
        "selu",
        "sgn",
        "sigmoid",
        "sign",
        "signbit",
        "silu",
        "sin",
        "sinc",
        "sinh",
        "softplus",
        "softshrink",
        "softsign",
        "sqrt",
        "square",
        "sub",
        "subtract",
        "tan",
        "tanh",
        "tanhshrink",
        "threshold",
        "true_divide",
        "trunc",
        "where",
        "xlogy",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "to",
        "type",
        "type_as",
        "data",
        "real",
        "cpu",
        "cuda",
        "expit",
        "fill",
        "zero",
        "copy",
        "bernoulli",
        "normal",
        "uniform",
        "exponential",
    ]
)
_REDUCED = {
    "sum": "jnp.sum({x}, where={m})",
    "mean": "jnp.mean({x}, where={m})",
    "numel": "jnp.sum({m})",
    "any": "jnp.any({x}, where={m})",
    "all": "jnp.all({x}, where={m})",
    "max": "jnp.max({x}, where={m}, initial=-jnp.inf)",
    "min": "jnp.min({x}, where={m}, initial=jnp.inf)",
    "prod": "jnp.prod({x}, where={m})",
    "std": "jnp.std({x}, where={m}, ddof=1)",
    "var": "jnp.var({x}, where={m}, ddof=1)",
    "norm": "jnp.linalg.norm(jnp.where({m}, {x}, 0).ravel())",
}
_DTYPES = {
    "float": "float",
    "double": "float",
    "half": "float",
    "bfloat16": "float",
    "int": "int",
    "long": "int",
    "short": "int",
    "bool": "bool",
    "uint": "int",
    "complex": "complex",
    "char": "int",
    "byte": "int",
}
# Those whose arguments' shapes decide: a tensor in their place cannot be a Python number under jit.
_SHAPES = frozenset(
    {"dim", "size", "shape", "sizes", "dims", "split_size", "chunks", "length", "k", "end", "n", "repeats"}
)


class Facts(Context):
    """What the table of operations asks of the walk."""

    def __init__(self, walk: Walk, node: cst.CSTNode) -> None:
        self.walk, self.node = walk, node

    def _value(self, node: cst.BaseExpression) -> Value:
        return self.walk.expr(node).value

    def kind(self, node: cst.BaseExpression) -> str:
        """As the walk found."""
        kind = self._value(node).kind
        if kind == "static" and self._value(node).parts is None and literal(node) is MISSING:
            return "static"
        return kind if kind in {"tensor", "static"} else "unknown"

    def dtype(self, node: cst.BaseExpression) -> str:
        """As the walk found."""
        return self._value(node).dtype

    def rank(self, node: cst.BaseExpression) -> int | None:
        """As the walk found."""
        return self._value(node).rank

    def literal(self, node: cst.BaseExpression) -> object:
        """A literal, or what a variable surely holds."""
        found = literal(node)
        return found if found is not MISSING else self._value(node).literal

    def role(self, node: cst.BaseExpression) -> str:
        """A dtype and a device are known by their values."""
        name = self._value(node).name
        if name == "instance:torch.dtype":
            return "dtype"
        return "device" if name == "instance:torch.device" else super().role(node)

    def rewritten(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The translation."""
        return self.walk.expr(node).node

    def key(self) -> cst.BaseExpression:
        """A key that nothing else uses."""
        return fresh_key(self.walk, self.node)


def operate(
    walk: Walk,
    node: cst.BaseExpression,
    operation: Operation,
    args: list[cst.Arg],
    root: cst.BaseExpression | None = None,
) -> Term:
    """The translation of a call of an operation.

    Args:
        walk: the walk.
        node: the call.
        operation: its line of the table.
        args: the arguments, the object of a method first.
        root: the object of a method.
    """
    context = Facts(walk, node)
    terms = {id(a.value): walk.expr(a.value) for a in args}
    bound = operation.bind(args, context)
    if isinstance(bound, Problem):
        raise Stop(node, "operation", bound.message)
    short = operation.names[0].rpartition(".")[2].rstrip("_")
    if short == "masked_select" and walk.compress:
        base, chosen = (walk.expr(bound.values[n]) for n in ("input", "mask"))
        if chosen.value.number and same_shape(base.value, chosen.value):
            return compressed(walk, node, base, chosen)
    mask = _masked(walk, node, short, list(terms.values()))
    if mask and short in _REDUCED and short not in ELEMENTWISE:
        return _reduced(walk, node, short, args)
    rendered = bound.render(0)
    if isinstance(rendered, Problem):
        raise Stop(node, "operation", rendered.message)
    walk.sink.needs |= rendered.needs
    walk.sink.imports |= rendered.imports
    if not bound.overload.traced and short != "item":
        _untraced(walk, node, short)
    for name, given in bound.values.items():
        if name in _SHAPES and short not in ELEMENTWISE and _holds_tensor(walk.expr(given).value):
            walk.report(
                node,
                "untraced",
                f"{operation.names[0]}: {name} is the value of a tensor, which is unknown under jit; this runs "
                "un-jitted only",
            )
    value = replace(_value(walk, node, bound, rendered, short), mask=mask)
    expression_ = rendered.expression
    if short in ELEMENTWISE and bound.overload.result in {"same", "promoted", "float"}:
        expression_ = narrowed(expression_, [walk.expr(v) for k, v in bound.values.items() if k not in _NOT_PROMOTING])
    if bound.out is not None:
        target = walk.expr(bound.out)
        return write(walk, node, target, expression_, value)
    if bound.overwrites:
        first = next(iter(bound.values.values()))
        target = terms.get(id(first)) or walk.expr(first)
        if code(expression_) == code(target.node):
            return target
        if not bound.operation.names[0].endswith(".copy_"):
            expression_ = kept_dtype(expression_, target, [walk.expr(v).value for v in bound.values.values()])
        return write(
            walk,
            node,
            target,
            expression_,
            replace(
                value,
                dtype=target.value.dtype,
                like=target.value.like if short in ELEMENTWISE else value.like,
                rank=target.value.rank if short in ELEMENTWISE else value.rank,
                exact=target.value.exact,
            ),
        )
    return Term(expression_, value)


def _holds_tensor(value: Value) -> bool:
    return value.traced or any(_holds_tensor(v) for v in (*(value.parts or ()), value.element) if v is not None)


# Parameters whose dtype has no say in the result's.
_NOT_PROMOTING = frozenset({"condition", "mask", "dtype", "out"})


def kept_dtype(new: cst.BaseExpression, target: Term, others: list[Value]) -> cst.BaseExpression:
    """What is written to a tensor takes its dtype."""
    if not any(widens(target.value, v) for v in others):
        return new
    return parse(f"{code(fit(new))}.astype({code(fit(target.node))}.dtype)")


def _untraced(walk: Walk, node: cst.CSTNode, short: str) -> None:
    walk.report(
        node,
        "untraced",
        f"the result of {short} depends on values, in its shape or as a Python number; this runs un-jitted only",
    )


def _masked(walk: Walk, node: cst.CSTNode, short: str, terms: list[Term]) -> str:
    masks = {t.value.mask for t in terms if t.value.mask}
    if not masks:
        return ""
    if len(masks) > 1 or not (short in ELEMENTWISE or short in _REDUCED):
        raise Uncompressed
    if any(t.value.is_tensor and not t.value.mask and t.value.rank != 0 for t in terms):
        raise Uncompressed
    return next(iter(masks))


def _reduced(walk: Walk, node: cst.BaseExpression, short: str, args: list[cst.Arg]) -> Term:
    if len(args) > 1:
        raise Uncompressed
    term = walk.expr(args[0].value)
    mask = walk.masks.get(term.value.mask)
    if mask is None:
        raise Uncompressed
    walk.sink.imports.add("jnp")
    text = _REDUCED[short].format(x=code(fit(term.node, 1)), m=code(fit(mask, 1)))
    return Term(parse(text), Value("tensor", rank=0, dtype=term.value.dtype, place=walk.fresh(node)))


def _value(walk: Walk, node: cst.BaseExpression, bound: Bound, rendered: Rendered, short: str) -> Value:
    """What is known of an operation's result."""
    overload = bound.overload
    values = [walk.expr(v).value for v in bound.values.values()]
    tensors = [v for v in values if v.kind in {"tensor", "unknown"} and v.name != "instance:torch.dtype"]
    first = walk.expr(next(iter(bound.values.values()))).value if bound.values else UNKNOWN
    if overload.result == "static":
        return _static(bound, first, rendered, short)
    if overload.result == "none":
        return Value("static", literal=None)
    dtype = overload.result if overload.result in {"float", "int", "bool", "complex"} else "unknown"
    known = {v.dtype for v in tensors}
    if overload.result == "same" and first.kind in {"tensor", "unknown"}:
        dtype = first.dtype
    elif overload.result == "promoted" and len(known) == 1:
        dtype = known.pop() if all(v.dtype in known | {"int", "bool"} for v in values) else "unknown"
    if short == "where" and len(tensors) > 1:
        kinds = {v.dtype for v in values[1:]}
        dtype = kinds.pop() if len(kinds) == 1 else "float" if "float" in kinds else "unknown"
    target = bound.values.get("dtype") or (bound.values.get("other") if short == "to" else None)
    if target is not None and bound.context.role(target) == "dtype":
        last = code(walk.expr(target).node).rpartition(".")[2].rstrip("_")
        dtype = next((d for t, d in _DTYPES.items() if last.startswith(t)), "unknown")
        if last == "dtype":
            dtype = walk.expr(target.value).value.dtype if isinstance(target, cst.Attribute) else "unknown"
    exact = _exact(walk, bound, rendered, tensors, short)
    likes = {v.like for v in tensors if v.rank != 0}
    same = short in ELEMENTWISE and len(likes) == 1
    rank = next(iter(v.rank for v in tensors if v.rank != 0), None) if same else None
    if short in ELEMENTWISE and tensors and all(v.rank == 0 for v in tensors):
        rank = 0
    if short in {"sum", "mean", "max", "min", "norm", "prod", "all", "any"} and len(bound.values) == 1:
        rank = 0
    if short in {"tensor", "as_tensor", "scalar_tensor"} and isinstance(bound.literal("data"), (int, float)):
        rank = 0
    place = _place(walk, node, bound, rendered, first, dtype, exact)
    like = likes.pop() if same and likes else ""
    if not like:
        line, column = walk.program.source.position(node)
        like = f"@{line}:{column}"
    one = Value("tensor", dtype, rank, place=place, like=like, exact=exact)
    if overload.result == "pair":
        parts = tuple(
            Value("tensor", "int", place=walk.fresh(node, f" {f}"))
            if f == "indices"
            else Value("tensor", first.dtype, place=walk.fresh(node, f" {f}"), exact=exact)
            for f in overload.fields
        )
        return Value("static", parts=parts or None, fields=tuple(overload.fields), element=TENSOR)
    if overload.result == "list":
        doubtful = replace(place, certain=False) if place else None
        return Value("static", element=replace(one, like="", place=doubtful), place=place)
    if dtype == "bool":
        one = replace(one, number=walk.number(node))
    return one


_CASTS = {
    "float": "float32",
    "double": "float",
    "half": "float16",
    "bfloat16": "bfloat16",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}


def _exact(walk: Walk, bound: Bound, rendered: Rendered, tensors: list[Value], short: str) -> str:
    """The dtype of the result, as far as the source names it."""
    name = bound.operation.names[0]
    if name == f"torch.Tensor.{short}" and short in _CASTS:
        return _CASTS[short]
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
    if short in {"dtype", "type", "promote_types", "result_type", "get_default_dtype"} or (
        text.startswith("jnp.") and "." not in text[4:] and name.startswith("torch.")
    ):
        exact = (
            first.exact if short in {"dtype", "type"} else text.removeprefix("jnp.") if text.startswith("jnp.") else "?"
        )
        return Value("static", name="instance:torch.dtype", exact={"float64": "float"}.get(exact, exact))
    if short == "device":
        return Value("static", name="instance:torch.device")
    if short in {"ndim", "dim"} and first.rank is not None:
        return Value("static", "int", literal=first.rank)
    if short in {"shape", "size"} and "dim" not in bound.values:
        return Value(
            "static",
            "int",
            parts=(Value("static", "int"),) * first.rank if first.rank else None,
            element=Value("static", "int"),
        )
    value = literal(rendered.expression)
    return Value("static", literal=value)


def _place(
    walk: Walk, node: cst.BaseExpression, bound: Bound, rendered: Rendered, first: Value, dtype: str, exact: str
) -> Place | None:
    """Where the result of an operation lies; of another dtype than the source it is a copy."""
    alias = bound.overload.alias
    if alias == "new" or first.place is None:
        return walk.fresh(node)
    place = first.place
    if alias == "maybe":
        other = "unknown" not in {dtype, first.dtype} and dtype != first.dtype
        half = exact != first.exact and {exact, first.exact} & {"float16", "bfloat16", "int8", "uint8", "int16"}
        if other or half:  # nobody makes half what is half already
            return walk.fresh(node)
        return replace(place, certain=False)
    if bound.operation.names[0].rpartition(".")[2] in {"detach", "data", "alias"}:
        return place
    if code(rendered.expression) == code(walk.expr(next(iter(bound.values.values()))).node):
        return place
    return replace(
        place, steps=(*place.steps, step(walk, node, rendered.expression, next(iter(bound.values.values()))))
    )


def step(walk: Walk, node: cst.BaseExpression, made: cst.BaseExpression, viewed: cst.BaseExpression) -> Step:
    """The view that an expression takes of one in it."""
    from fnjax.port.facts import HOLE

    inner = walk.expr(viewed).node
    text = code(inner)
    hole = made.visit(_Hole(text, cst.Name(HOLE)))
    assert isinstance(hole, cst.BaseExpression)
    reads = frozenset(r for r in walk.reads(node) if r[0] in names(hole))
    return Step.of(hole, reads)


class _Hole(cst.CSTTransformer):
    """The first expression with this text becomes the hole."""

    def __init__(self, text: str, hole: cst.Name) -> None:
        super().__init__()
        self.text, self.hole, self.done = text, hole, False

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not self.done

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if (
            not self.done
            and isinstance(original_node, cst.BaseExpression)
            and code(original_node).strip("()") == self.text.strip("()")
        ):
            self.done = True
            return self.hole
        return updated_node


def reference(walk: Walk, node: cst.BaseExpression, name: str) -> Term:
    """A name of torch that is not called here: a constant, or a function that is passed on."""
    found = find(name)
    if isinstance(found, Absent):
        raise Stop(node, "absent", f"{name} {found.reason}; {found.remedy}")
    if found is None:
        raise Stop(node, "unknown", f"the porter does not know {name}")
    if not found.called:
        return operate(walk, node, found, [])
    bound = found.bind([cst.Arg(cst.Name("x"))], Context())
    rendered = bound.render(0) if isinstance(bound, Bound) else bound
    if isinstance(rendered, Problem) or not isinstance(bound, Bound) or bound.overload.random:
        raise Stop(node, "operation", f"{name} as a value: write a lambda with its arguments")
    walk.sink.needs |= rendered.needs
    walk.sink.imports |= rendered.imports
    made = rendered.expression
    if isinstance(made, cst.Call) and len(made.args) == 1 and code(made.args[0]) == "x":
        return Term(made.func, Value("object", name=name))
    return Term(parse(f"lambda x: {code(made)}"), Value("object", name=name))


@expression(cst.Call)
def function(walk: Walk, node: cst.Call) -> Term | None:
    """`torch.exp(x)`, under whatever names torch and exp go."""
    name = walk.name_of(node.func)
    if not name.startswith("torch."):
        return None
    found = find(name)
    if isinstance(found, Absent):
        raise Stop(node, "absent", f"{name} {found.reason}; {found.remedy}")
    if found is None:
        raise Stop(node, "unknown", f"the porter does not know {name}")
    return operate(walk, node, found, list(node.args))


@expression(cst.Call)
def method(walk: Walk, node: cst.Call) -> Term | None:
    """`x.exp()`."""
    if not isinstance(node.func, cst.Attribute):
        return None
    base = walk.name_of(node.func.value)
    if base and not base.startswith("instance:"):
        return None
    term = walk.expr(node.func.value)
    attr = node.func.attr.value
    if term.value.kind in {"static", "object"} and not term.value.name.startswith("instance:torch.dtype"):
        return None
    found = find(f"torch.Tensor.{attr}")
    if isinstance(found, Absent) and (term.value.is_tensor or attr not in {"register_hook", "backward"}):
        raise Stop(node, "absent", f"torch.Tensor.{attr} {found.reason}; {found.remedy}")
    if not isinstance(found, Operation):
        return None
    if not found.called:
        return None
    return operate(walk, node, found, [cst.Arg(node.func.value), *node.args], node.func.value)


@expression(cst.Attribute)
def attribute(walk: Walk, node: cst.Attribute) -> Term | None:
    """`x.shape`, `torch.float32`."""
    name = walk.name_of(node)
    if name.startswith("torch."):
        return reference(walk, node, name)
    if name:
        return None
    term = walk.expr(node.value)
    attr = node.attr.value
    value = term.value
    if value.name.startswith("instance:"):
        found = find(f"{value.name.removeprefix('instance:')}.{attr}")
        return operate(walk, node, found, [cst.Arg(node.value)]) if isinstance(found, Operation) else None
    if value.fields and attr in value.fields and value.parts:
        index = value.fields.index(attr)
        return Term(parse(f"{code(fit(term.node))}[{index}]"), value.parts[index])
    if value.kind in {"static", "object"}:
        return None
    found = find(f"torch.Tensor.{attr}")
    if isinstance(found, Absent):
        raise Stop(node, "absent", f"torch.Tensor.{attr} {found.reason}; {found.remedy}")
    if isinstance(found, Operation) and not found.called:
        return operate(walk, node, found, [cst.Arg(node.value)])
    if isinstance(found, Operation) and value.is_tensor:  # a bound method that is passed on
        raise Stop(node, "operation", f"torch.Tensor.{attr} as a value: write a lambda that calls it")
    return None


@expression(cst.Name)
def name(walk: Walk, node: cst.Name) -> Term | None:
    """A variable, a name of torch, or True, False and None."""
    if node.value in {"True", "False", "None"}:
        return Term(node, Value("static", "unknown" if node.value == "None" else "bool", literal=literal(node)))
    value = walk.lookup(node.value)
    if value.name.startswith("torch.") and node.value not in walk.state.variables:
        return reference(walk, node, value.name)
    if value.name.startswith("torch.") and walk.state.variables[node.value].kind == "object":
        return reference(walk, node, value.name)
    if not value.number and node.value in walk.state.variables:
        value = replace(value, number=f"{node.value}|{node.value}:{walk.state.version(node.value)}|")
    return Term(node, value)


__all__ = ["ELEMENTWISE", "STATIC", "Facts", "operate", "places", "reference", "step"]
