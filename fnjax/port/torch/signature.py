"""Signatures as torch writes them, and the binding of a call's arguments to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import libcst as cst

from fnjax.port.torch.expressions import make_tuple

# NumPy's names, which PyTorch takes as well.
ALIASES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
    "self": "input",
}
# Parameters of sizes and axes: a list in their place becomes a tuple, which JAX can hash.
SIZES = frozenset(
    {"dim", "dims", "size", "shape", "sizes", "repeats", "shifts", "output_size", "s", "normalized_shape"}
) | {"kernel_size", "stride", "padding", "dilation", "source", "destination"}
# Parameters that decide shapes: a tensor in their place cannot be a Python number under jit.
SHAPES = (
    SIZES - {"shifts", "s", "normalized_shape", "source", "destination"}
    | {
        "split_size",
        "chunks",
        "length",
        "k",
        "end",
        "n",
        "split_size_or_sections",
        "split_sizes",
        "indices_or_sections",
    }
    | {
        "sections",
        "steps",
        "num_classes",
        "pad",
        "minlength",
        "bins",
        "groups",
        "diagonal",
        "dimension",
        "dim0",
        "dim1",
    }
    | {"axis0", "axis1", "upscale_factor", "downscale_factor", "num_samples"}
)
NOT_PROMOTING = frozenset({"condition", "mask", "dtype", "out"})  # whose dtype has no say in the result's


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of torch's signature.

    Attributes:
        name: as users write it.
        default: the expression, or None for one that must be given.
        kind: `tensor` or `static` where that tells overloads apart, else empty.
        variadic: takes all positional arguments that are left, or one sequence: `x.view(2, 3)`, `x.view((2, 3))`.
        keyword: can only be given by its name.
    """

    name: str
    default: cst.BaseExpression | None = None
    kind: str = ""
    variadic: bool = False
    keyword: bool = False


@cache
def parse_signature(text: str) -> tuple[Parameter, ...]:
    """The parameters of `input, dim=None, *, dtype=None`; an annotation gives the kind, `*dims` is variadic."""
    function = cst.parse_statement(f"def f({text}): pass")
    assert isinstance(function, cst.FunctionDef)
    params = function.params
    found = [_parse_parameter(p) for p in params.params]
    if isinstance(params.star_arg, cst.Param):
        found.append(_parse_parameter(params.star_arg, variadic=True))
    return (*found, *(_parse_parameter(p, keyword=True) for p in params.kwonly_params))


def _parse_parameter(param: cst.Param, variadic: bool = False, keyword: bool = False) -> Parameter:
    kind = param.annotation.annotation.value if param.annotation else ""  # type: ignore[attr-defined] # a bare name
    return Parameter(param.name.value, param.default, kind, variadic, keyword)


def bind_to_signature(
    parameters: Sequence[Parameter], args: Sequence[cst.Arg], kind: Callable[[cst.BaseExpression], str]
) -> Mapping[str, cst.BaseExpression] | str:
    """The arguments by parameter, or what is wrong, as a sentence without its subject."""
    values: dict[str, cst.BaseExpression] = {}
    names = {p.name: p for p in parameters}
    waiting = [p for p in parameters if not p.keyword]
    rest = [a for a in args if a.keyword is None]
    while rest and waiting:
        parameter = waiting.pop(0)
        if parameter.variadic:
            gathered = _gather_variadic(parameter.name, rest, kind)
            if gathered is None:
                return "has one argument of which it cannot be told whether it is a tensor or a sequence of them"
            values[parameter.name], rest = gathered, []
            break
        if rest[0].star:
            return "is called with *args or **kwargs, whose number cannot be told"
        values[parameter.name] = rest.pop(0).value
    if rest:
        return f"takes at most {len([p for p in parameters if not p.keyword])} positional arguments here"
    for arg in args:
        if arg.keyword is None:
            continue
        name = arg.keyword.value
        if name not in names and name != "out":
            name = ALIASES.get(name, name)
        if name not in names and name != "out":
            return f"has no argument {arg.keyword.value!r}"
        if name in values:
            return f"is given {name!r} twice"
        values[name] = arg.value
    for p in parameters:
        if p.name not in values:
            if p.default is None and not p.variadic:
                return f"lacks its argument {p.name!r}"
            continue
        if p.kind and kind(values[p.name]) not in {p.kind, "unknown"}:
            return f"takes a {p.kind} value for {p.name!r}"
        if p.name in SIZES:
            values[p.name] = make_tuple(values[p.name])
    return values


def _gather_variadic(
    name: str, args: Sequence[cst.Arg], kind: Callable[[cst.BaseExpression], str]
) -> cst.BaseExpression | None:
    """Variadic arguments as one expression: their tuple, or the one sequence (or number) that was given."""
    if len(args) == 1 and not args[0].star:
        value = args[0].value
        if name in SIZES:
            return make_tuple(value)
        if name == "data" or isinstance(value, (cst.List, cst.Tuple, cst.ListComp)):
            return cst.List(value.elements) if isinstance(value, cst.Tuple) else value
        if kind(value) != "tensor":
            return None
        return cst.Tuple([cst.Element(value, comma=cst.Comma())], lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    if len(args) == 1 and args[0].star == "*" and (name != "data" or kind(args[0].value) != "static"):
        return args[0].value
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elements: list[cst.BaseElement] = []
    for i, arg in enumerate(args):
        end = comma if i < len(args) - 1 else cst.MaybeSentinel.DEFAULT
        elements.append(cst.StarredElement(arg.value, comma=end) if arg.star else cst.Element(arg.value, comma=end))
    return cst.Tuple(elements, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
