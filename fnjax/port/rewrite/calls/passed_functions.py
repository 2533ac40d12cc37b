"""Functions of torch that are passed on: as arguments and defaults, in tables, to functools.partial.

What: where the file calls what it was passed with one argument only, the function of JAX stands for torch's; else a
lambda with torch's own order and names of arguments.
Before: `def reduce(x, fn=torch.sum): return fn(x, 1, True)`
After: `def reduce(x, fn=lambda x, dim, keepdim: jnp.sum(x, axis=dim, keepdims=keepdim)): return fn(x, 1, True)`
Safety: the lambda takes every call in the file whose function is not known by its name.
Limits: functions that write to their argument, that draw random numbers, or whose translation depends on the values of
arguments that differ between the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.program import list_nodes
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import TENSOR, UNKNOWN, Value
from fnjax.port.rewrite.values.binding import find_held_memref
from fnjax.port.source.records import METHODS
from fnjax.port.torch import (
    MISSING,
    Bound,
    Context,
    Operation,
    Problem,
    bind_call,
    bracket,
    find_operation,
    read_literal,
    unparse,
)
from fnjax.torch._table.record import VANISH

# Who calls what it is passed, with how many arguments; 0: as many as it is passed itself.
_PASSED = {"functools.partial": 0, "functools.reduce": 2, "builtins.filter": 1, "builtins.map": 0}


@dataclass(frozen=True, slots=True)
class Shape:
    """How a call passes its arguments: so many by position, those by name, others that cannot be counted.

    Attributes:
        plain: all but the first argument are literals.
        tensors: all arguments are tensors.
    """

    positional: int
    keywords: tuple[str, ...] = ()
    counted: bool = True
    plain: bool = False
    tensors: bool = False

    @classmethod
    def read_shape(cls, args: Sequence[cst.Arg]) -> Shape:
        """Return how these arguments are passed."""
        keywords = tuple(a.keyword.value for a in args if a.keyword is not None)
        plain = all(read_literal(a.value) is not MISSING for a in args[1:])
        return cls(sum(not a.keyword and not a.star for a in args), keywords, not any(a.star for a in args), plain)

    def make_arguments(self, names: Sequence[str]) -> list[cst.Arg]:
        """Arguments of this shape, each the name of a parameter."""
        named = [cst.Arg(cst.Name(k), keyword=cst.Name(k)) for k in self.keywords]
        return [*(cst.Arg(cst.Name(n)) for n in names[: self.positional]), *named]


class _HandedContext(Context):
    """Of arguments that only the calls know: the first one is a tensor, the others may be Python values."""

    def __init__(self, first: str, plain: bool, tensors: bool, differentiated: bool) -> None:
        self.first, self.plain, self.tensors, self._differentiated = first, plain, tensors, differentiated

    @property
    def differentiated(self) -> bool:
        """As the file says, since the calls are not known."""
        return self._differentiated

    def find_kind(self, node: cst.BaseExpression) -> str:
        """As the calls say."""
        return (
            "tensor"
            if unparse(node) == self.first or self.tensors
            else "static"
            if self.plain
            else super().find_kind(node)
        )


def port_passed_function(ev: Evaluator, node: cst.CSTNode, name: str, shapes: Iterable[Shape]) -> cst.BaseExpression:
    """Return what stands for a function of torch that is called with arguments of these shapes."""
    by_hand = Stop(node, "operation", f"{name} as a value: write a lambda with its arguments")
    found = find_operation(name)
    if not isinstance(found, Operation) or found.inplace:
        raise by_hand
    shapes = list(shapes)
    only = [o for o in found.overloads if any(p.kind == "tensor" for p in o.parameters)]
    several = only if all(s.tensors for s in shapes) else []  # torch.max of two tensors
    longest = max(several or found.overloads, key=lambda o: len(o.parameters))
    params = [p for p in longest.parameters if p.name not in VANISH]
    first = "input" if any("input" in s.keywords for s in shapes) else "x"
    names = [first, *(p.name for p in params[1:] if not p.keyword)]
    whole = Shape(1, tuple(names[1:]))
    differentiated = ev.here.differentiated or ev.program.differentiates
    fits: dict[tuple[str, ...], Bound] = {}
    # Where no call tells how it is called, one argument is likeliest; where one does, that counts alone.
    for shape in [*sorted({s if s.counted else whole for s in shapes}, key=repr), Shape(1)]:
        bound = (
            bind_call(
                found, shape.make_arguments(names), _HandedContext(first, shape.plain, shape.tensors, differentiated)
            )
            if shape.positional <= len(names)
            else None
        )
        if isinstance(bound, Problem) and bound.doubtful:
            raise by_hand
        if isinstance(bound, Bound) and not (fits and shape == Shape(1)):
            fits[tuple(unparse(a.value) for a in shape.make_arguments(names))] = bound
    many = len(fits) > 1 or (len(names) > 1 and not all(s.counted for s in shapes))
    if many:  # one lambda with the defaults of torch
        same = all(b.overload is longest for b in fits.values())
        bound = bind_call(
            found,
            whole.make_arguments(names),
            _HandedContext(first, all(s.plain for s in shapes), False, differentiated),
        )
        if not same or not isinstance(longest.template, str) or not isinstance(bound, Bound):
            raise by_hand
        given = {n for f in fits for n in f}
        if given - set(names):
            raise by_hand
        fits = {tuple(names): bound}
    for given_, bound in fits.items():
        rendered = bound.render(0)
        if isinstance(rendered, Problem) or bound.overload.random or {"out", "inplace"} & bound.values.keys():
            raise by_hand
        if not bound.overload.traced:
            ev.report(node, "untraced", f"the result of {name} depends on values; this runs un-jitted only")
        ev.diagnostics.needs |= rendered.needs
        ev.diagnostics.imports |= rendered.imports
        made = rendered.expression
        if isinstance(made, cst.Call) and [unparse(a) for a in made.args] == [*given_] and (len(given_) == 1):
            return made.func
        defaults = {p.name: f"={p.default}" for p in params if many and p.default is not None}
        return parse(f"lambda {', '.join(n + defaults.get(n, '') for n in given_)}: {unparse(made)}")
    raise by_hand


def list_unnamed_calls(ev: Evaluator) -> frozenset[Shape]:
    """Return the shapes of the file's calls whose function is not known by its name."""
    if ev.program.unnamed is None:
        ev.program.unnamed = frozenset(_iter_unnamed_calls(ev))
    return ev.program.unnamed


def _iter_unnamed_calls(ev: Evaluator) -> Iterator[Shape]:
    source = ev.program.source
    local = {n for function in list_nodes(source.tree) for n in _list_locals(ev, function)}
    for node in list_nodes(source.tree):
        if not isinstance(node, cst.Call):
            continue
        func = node.func
        if isinstance(func, cst.Name):
            last = source.find_definition(func.value)
            if func.value not in local and (last is None or last.imported or last.function or last.cls):
                continue
        elif isinstance(func, cst.Attribute):
            other = ev.program.resolve_name(func) or unparse(func).startswith("super()")
            if other or func.attr.value in METHODS or find_operation(f"torch.Tensor.{func.attr.value}"):
                continue
        yield Shape.read_shape(node.args)


def _list_locals(ev: Evaluator, node: cst.CSTNode) -> set[str]:
    if isinstance(node, (cst.FunctionDef, cst.Lambda)):
        return ev.program.list_bound(node) | {n.name.value for n in list_nodes(node.params) if isinstance(n, cst.Param)}
    return set()


@call_of(*_PASSED)
def port_higher_order_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `functools.partial(torch.clamp, min=0)`, `map(torch.exp, xs)`, `functools.reduce(torch.add, xs)`."""
    if not node.args or node.args[0].keyword or node.args[0].star:
        return None
    function = ev.find_name(node.args[0].value)
    found = find_operation(function) if function.startswith("torch.") else None
    if not isinstance(found, Operation) or not found.called:
        return None
    rest = node.args[1:]
    ev.need_entries(*(ev.port(a.value).value for a in rest))
    if name == "functools.partial":
        own = Shape.read_shape([node.args[0], *rest])
        shapes = {
            Shape(own.positional - 1 + s.positional, (*s.keywords, *own.keywords), own.counted and s.counted, own.plain)
            for s in list_unnamed_calls(ev) | {Shape(1)}
            if not set(own.keywords) & set(s.keywords)
        }
    else:
        shapes = {Shape(_PASSED[name] or len(rest), tensors=name == "functools.reduce")}
    made = bracket(port_passed_function(ev, node, function, shapes), 1)
    args = [node.args[0].with_changes(value=made), *(a.with_changes(value=ev.port(a.value).node) for a in rest)]
    value = Value("static", element=TENSOR) if name == "builtins.map" else UNKNOWN
    if name == "functools.partial" and (held := find_held_memref(ev, [a.value for a in rest])) is not None:
        value = Value("static", element=held)
    return Expr(node.with_changes(args=args), value)
