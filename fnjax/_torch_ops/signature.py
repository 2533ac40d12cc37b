"""Signatures as torch writes them."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

MISSING = object()  # the value of an expression that is not a literal, or whose value is not known

# Other names of parameters: NumPy's, which PyTorch takes as well, and those that Python code or the table has not.
ALIASES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
    "self": "input",
    "from": "from_",
    "out_dtype": "dtype",
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
# Parameters whose dtype has no say in the result's.
NOT_PROMOTING = frozenset({"condition", "mask", "attn_mask", "dtype", "out", "index", "indices", "weight_index", "n"})
NOT_PROMOTING |= {"offsets", "sorter", "repeats", "fweights", "target", "targets", "input_lengths", "target_lengths"}
NOT_PROMOTING |= {"scale", "zero_point", "pivots", "LU_pivots"}


PARSING = threading.Lock()  # ast.parse in several threads at once fails in Python 3.11


@cache
def read_literal_text(text: str) -> object:
    """Return the value of a literal, MISSING of any other expression."""
    try:
        with PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return MISSING


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of torch's signature.

    Attributes:
        name: the parameter's name.
        default: the text of the default's expression, or None for a required parameter.
        kind: `tensor` or `static` if overloads differ in it, else empty.
        variadic: takes all remaining positional arguments, or one sequence: `x.view(2, 3)`, `x.view((2, 3))`.
        keyword: is keyword-only.
    """

    name: str
    default: str | None = None
    kind: str = ""
    variadic: bool = False
    keyword: bool = False


@cache
def parse_signature(text: str) -> tuple[Parameter, ...]:
    """Return the parameters of `input, dim=None, *, dtype=None`; an annotation is the kind, `*dims` is variadic."""
    source = f"def f({text}): pass"
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    defaults = [None] * (len(args.args) - len(args.defaults)) + [_read(source, d) for d in args.defaults]
    found = [_make_parameter(a, default) for a, default in zip(args.args, defaults, strict=True)]
    if args.vararg is not None:
        found.append(Parameter(args.vararg.arg, variadic=True))
    keywords = [(a, _read(source, d) if d else None) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return (*found, *(_make_parameter(a, default, keyword=True) for a, default in keywords))


def bind_arguments(
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    named: Iterable[tuple[str, Any]],
    gather: Callable[[str, list[Any]], Any],
    find_kind: Callable[[Any], str],
    make_size: Callable[[Any], Any],
) -> dict[str, Any] | str:
    """Return the arguments of a call by parameter, or the error, as a sentence without its subject.

    Args:
        parameters: the parameters of the signature.
        args: the positional arguments, values or expressions.
        named: the keyword arguments.
        gather: returns the value of a variadic parameter, from its name and the remaining arguments.
        find_kind: returns `tensor`, `static` or `unknown` for an argument.
        make_size: returns a size, or an axis, with a tuple in place of a list.
    """
    values: dict[str, Any] = {}
    places, rest = [p for p in parameters if not p.keyword], list(args)
    for p in places[: len(args)]:
        if p.variadic:
            values[p.name], rest = gather(p.name, rest), []
            break
        values[p.name] = rest.pop(0)
    if rest:
        return f"takes {len(places)} positional arguments but {len(args)} were given"
    names = {p.name for p in parameters} | {"out"}
    for name, value in named:
        own = name if name in names else ALIASES.get(name, name)
        if own not in names:
            return f"got an unexpected keyword argument {name!r}"
        if own in values:
            return f"got multiple values for argument {name!r}"
        values[own] = value
    for p in parameters:
        if p.name not in values:
            if p.default is None and not p.variadic:
                return f"missing required argument {p.name!r}"
            continue
        if p.kind and find_kind(values[p.name]) not in {p.kind, "unknown"}:
            return f"argument {p.name!r} must be {'a Tensor' if p.kind == 'tensor' else 'a Python value'}"
        if p.name in SIZES:
            values[p.name] = make_size(values[p.name])
    return values


def _make_parameter(arg: ast.arg, default: str | None, keyword: bool = False) -> Parameter:
    return Parameter(arg.arg, default, ast.unparse(arg.annotation) if arg.annotation else "", keyword=keyword)


def _read(source: str, node: ast.expr) -> str:
    """Return the source text of a default; ast.get_source_segment leaves the parentheses of a tuple in."""
    found = ast.get_source_segment(source, node)
    assert found is not None
    return found
