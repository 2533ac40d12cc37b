"""Checks that PyTorch has functions for.

What: `torch._check` and the like become the `if` with a `raise` that they are, `torch._assert` an `assert`.
Before: `torch._check(x.dim() == 2, lambda: f"got {x.dim()}")`
After: `if not x.ndim == 2: raise RuntimeError(f"got {x.ndim}")`
Safety: the exception is PyTorch's; of a tensor's value it is raised outside of jit only, as of any `if` with a `raise`.
Limits: hints for symbolic sizes (`torch._check_is_size`) say nothing in JAX and go away.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, place_at
from fnjax.port.analysis.registry import statement
from fnjax.port.torch import bracket

_RAISING = {
    "torch._check": "RuntimeError",
    "torch._check_value": "ValueError",
    "torch._check_type": "TypeError",
    "torch._check_index": "IndexError",
    "torch._check_not_implemented": "NotImplementedError",
}
_UNTOLD = '"Expected cond to be True, but got False."'
_HINTS = frozenset({"torch._check_is_size", "torch._constrain_as_size", "torch._constrain_as_value"})


@statement(cst.Expr)
def port_torch_check(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `torch._check(x.dim() == 2, lambda: "text")`."""
    call = node.value
    if not isinstance(call, cst.Call):
        return None
    name = ev.find_name(call.func)
    if name in _HINTS:
        return []
    args = {a.keyword.value if a.keyword else ("cond", "message")[i]: a.value for i, a in enumerate(call.args[:2])}
    condition, message = args.get("cond", args.get("condition")), args.get("message")
    if condition is None:
        return None
    if name == "torch._assert":
        return ev.port_statement(cst.SimpleStatementLine([place_at(ev, cst.Assert(condition, message), node)]))
    if name not in _RAISING:
        return None
    if isinstance(message, cst.Lambda):
        message = message.body
    elif message is not None:
        message = cst.Call(bracket(message, 18))
    error = cst.Call(cst.Name(_RAISING[name]), [cst.Arg(message or cst.SimpleString(_UNTOLD))])
    body = cst.IndentedBlock([cst.SimpleStatementLine([cst.Raise(error)])])
    made = cst.If(cst.UnaryOperation(cst.Not(), bracket(condition, 7)), body)
    return ev.port_statement(place_at(ev, made, node))
