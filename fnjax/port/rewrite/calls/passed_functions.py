"""Functions of torch that are passed on: as arguments and defaults, in tables, to map and functools.reduce.

What: the function of JAX replaces torch's of one argument; else a lambda with torch's arguments and defaults.
Before: `def change(x, fn=torch.square): return fn(x)` and `{"sum": torch.sum}`
After: `def change(x, fn=jnp.square): return fn(x)` and `{"sum": lambda x, dim=None: jnp.sum(x, axis=dim)}`
Safety: the lambda takes every call that torch's function takes, but for `out=` and its like; where the translation
depends on the values of arguments, the tensors alone, so that Python refuses others.
Limits: functions with several signatures, that write to their argument, or that draw random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fnjax._torch_ops.record import VANISH
from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.expr import EQUAL
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import TENSOR, UNKNOWN, Value
from fnjax.port.torch import Context, Operation, Problem, bind_call, bracket, find_operation, unparse
from fnjax.port.torch.context import Known

# Who calls what it is passed, with how many tensors; 0: as many as it is passed itself.
_PASSED = {"functools.partial": None, "functools.reduce": 2, "builtins.filter": 1, "builtins.map": 0}


class _PassedContext(Context):
    """Context of arguments that are not known, as the calls are elsewhere; some are tensors."""

    def __init__(self, tensors: Sequence[str], differentiated: bool) -> None:
        self.tensors, self.differentiated = tensors, differentiated

    def know(self, node: cst.BaseExpression) -> Known:
        """Return what is known of an argument: it is a tensor if it is among `tensors`."""
        known = super().know(node)
        return replace(known, kind="tensor") if unparse(node) in self.tensors else known


def port_passed_function(ev: Evaluator, node: cst.CSTNode, name: str, count: int = 0) -> cst.BaseExpression:
    """Return the replacement of a function of torch that is passed on.

    Args:
        ev: the evaluator.
        node: the function.
        name: its qualified name.
        count: the number of tensors that it is called with; 0 if that is not known.
    """
    refused = Stop(node, "operation", f"{name} as a value: write a lambda with its arguments")
    found = find_operation(name)
    if not isinstance(found, Operation) or found.inplace or (len(found.overloads) > 1 and not count):
        raise refused
    longest = [p for p in max((o.parameters for o in found.overloads), key=len) if p.name not in VANISH | {"out"}]
    whole = not count and isinstance(found.first.template, str)  # else it looks at the values of what it is given
    params = longest if whole else [p for p in longest if p.default is None or count][: count or None]
    names = ["x", "other"] if count == 2 else ["x", *(p.name for p in params[1:])]
    args = [cst.Arg(cst.Name(n), keyword=cst.Name(n) if i and whole else None) for i, n in enumerate(names)]
    bound = bind_call(found, args, _PassedContext(names if count else names[:1], ev.derived))
    if isinstance(bound, Problem) or bound.overload.random:
        raise refused
    rendered = bound.render(0)
    if isinstance(rendered, Problem):
        raise refused
    if not bound.overload.traced:
        ev.report_untraced(node, f"the result of {name} depends on values")
    ev.diagnostics.needs |= rendered.needs
    ev.diagnostics.imports |= rendered.imports
    made = rendered.expression
    if isinstance(made, cst.Call) and len(longest) == 1 and [unparse(a) for a in made.args] == ["x"]:
        return made.func
    defaults = {p.name: parse(p.default) for p in params if p.default is not None and whole}
    takes = [_make_parameter(n, defaults.get(n)) for n in names]
    return cst.Lambda(cst.Parameters(takes), made)


def _make_parameter(name: str, default: cst.BaseExpression | None) -> cst.Param:
    return cst.Param(cst.Name(name)) if default is None else cst.Param(cst.Name(name), default=default, equal=EQUAL)


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
