"""Functions of torch that are passed on: as arguments and defaults, in tables, to map and functools.reduce.

What: the function of JAX stands for torch's where that takes the tensors that it must have; else a lambda of these.
Before: `def change(x, fn=torch.square): return fn(x)`
After: `def change(x, fn=jnp.square): return fn(x)`
Safety: no call in the file whose function is not known by its name passes it other arguments.
Limits: such calls, functions that write to their argument, and those that draw random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.program import list_nodes
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import TENSOR, UNKNOWN, Value
from fnjax.port.source.records import METHODS
from fnjax.port.torch import Bound, Context, Operation, Problem, bind_call, bracket, find_operation, unparse

# Who calls what it is passed, with how many arguments; 0: as many as it is passed itself.
_PASSED = {"functools.partial": None, "functools.reduce": 2, "builtins.filter": 1, "builtins.map": 0}
_Shape = tuple[int, tuple[str, ...], bool]  # so many arguments by position, those by name, and others with a star


class _PassedContext(Context):
    """What is known of arguments that only the calls know: the first ones are tensors."""

    def __init__(self, tensors: Sequence[str], differentiated: bool) -> None:
        self.tensors, self._differentiated = tensors, differentiated

    @property
    def differentiated(self) -> bool:
        """As the file says, since the calls are not known."""
        return self._differentiated

    def find_kind(self, node: cst.BaseExpression) -> str:
        """As the calls say."""
        return "tensor" if unparse(node) in self.tensors else super().find_kind(node)


def port_passed_function(ev: Evaluator, node: cst.CSTNode, name: str, count: int = 0) -> cst.BaseExpression:
    """Return what stands for a function of torch that is called with so many tensors, or with those it must have."""
    refused = Stop(node, "operation", f"{name} as a value: write a lambda with its arguments")
    found = find_operation(name)
    if not isinstance(found, Operation) or found.inplace:
        raise refused
    counts = [sum(p.default is None and not p.keyword for p in o.parameters) for o in found.overloads]
    required = count or min(counts)
    overload = found.overloads[counts.index(required)] if required in counts else found.overloads[0]
    names = ["x", *(p.name for p in overload.parameters[1:required])]
    context = _PassedContext(names if count else names[:1], ev.here.differentiated or ev.program.differentiates)
    bound = bind_call(found, [cst.Arg(cst.Name(n)) for n in names], context)
    if (
        isinstance(bound, Problem)
        or len(names) < required
        or (not count and any(_may_take(found, s, required) for s in _list_shapes(ev)))
    ):
        raise refused
    rendered = bound.render(0)
    if isinstance(rendered, Problem) or bound.overload.random:
        raise refused
    if not bound.overload.traced:
        ev.report(node, "untraced", f"the result of {name} depends on values; this runs outside jit only")
    ev.diagnostics.needs |= rendered.needs
    ev.diagnostics.imports |= rendered.imports
    made = rendered.expression
    if isinstance(made, cst.Call) and [unparse(a) for a in made.args] == names and len(names) == 1:
        return made.func
    return cst.Lambda(cst.Parameters([cst.Param(cst.Name(n)) for n in names]), made)


def _may_take(operation: Operation, shape: _Shape, required: int) -> bool:
    """Return whether a call of this shape may be one of an operation, with other arguments than those it must have."""
    positional, keywords, starred = shape
    if starred:
        return any(o.may_take(required + 1) for o in operation.overloads)
    args = [cst.Arg(cst.Name(f"x{i}")) for i in range(positional)]
    args += [cst.Arg(cst.Name(k), keyword=cst.Name(k)) for k in keywords]
    bound = bind_call(operation, args, _PassedContext(("x0",), False))
    return (positional, keywords) != (required, ()) and (isinstance(bound, Bound) or bound.doubtful)


def _list_shapes(ev: Evaluator) -> frozenset[_Shape]:
    """Return how the file's calls whose function is not known by its name pass their arguments."""
    if ev.program.unnamed is None:
        ev.program.unnamed = frozenset(_read_shape(n.args) for n in _iter_unnamed_calls(ev))
    return ev.program.unnamed


def _read_shape(args: Sequence[cst.Arg]) -> _Shape:
    keywords = tuple(a.keyword.value for a in args if a.keyword is not None)
    return sum(not a.keyword and not a.star for a in args), keywords, any(a.star for a in args)


def _iter_unnamed_calls(ev: Evaluator) -> Iterator[cst.Call]:
    source = ev.program.source
    functions = list_nodes(source.tree, cst.FunctionDef, cst.Lambda)
    local = {
        n
        for f in functions
        for n in (*ev.program.list_bound(f), *(p.name.value for p in list_nodes(f.params, cst.Param)))
    }
    for node in list_nodes(source.tree, cst.Call):
        func = node.func
        if isinstance(func, cst.Name):
            last = source.find_definition(func.value)
            if func.value not in local and (last is None or last.imported or last.function or last.cls):
                continue
        elif isinstance(func, cst.Attribute):
            other = ev.program.resolve_name(func) or unparse(func).startswith("super()")
            if other or func.attr.value in METHODS or find_operation(f"torch.Tensor.{func.attr.value}"):
                continue
        yield node


@call_of(*_PASSED)
def port_higher_order_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `map(torch.exp, xs)` and `functools.reduce(torch.add, xs)`."""
    if not node.args or node.args[0].keyword or node.args[0].star:
        return None
    function = ev.find_name(node.args[0].value)
    found = find_operation(function) if function.startswith("torch.") else None
    if not isinstance(found, Operation) or not found.called:
        return None
    rest, count = node.args[1:], _PASSED[name]
    if count is None:
        raise Stop(node, "operation", f"functools.partial of {function}: write a lambda")
    ev.need_entries(*(ev.port(a.value).value for a in rest))
    made = bracket(port_passed_function(ev, node, function, count or len(rest)), 1)
    args = [node.args[0].with_changes(value=made), *(a.with_changes(value=ev.port(a.value).node) for a in rest)]
    return Expr(node.with_changes(args=args), Value("static", element=TENSOR) if name == "builtins.map" else UNKNOWN)
