"""Decorators.

What: staticmethod and classmethod stay; once_differentiable, custom_fwd and custom_bwd become fnjax's; compilers
(Numba's too), gradient modes and profilers go away, also after a name of the file's own (`jit_fuser =
torch.jit.script`), and compilers where a function is given to them (`step = torch.compile(step)`).
Before: `@torch.cuda.amp.custom_fwd(cast_inputs=torch.float16)`
After: `@fnjax.custom_fwd`
Safety: a name of the file's own is known by what it is given.
Limits: a decorator of another library is a finding.
"""

from __future__ import annotations

import builtins
import sys

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.guards import find_amp_decorator, is_guard_decorator
from fnjax.port.analysis.program import list_nodes
from fnjax.port.analysis.registry import RESULT, call_of
from fnjax.port.rewrite.calls.custom_operators import port_library_call
from fnjax.port.torch import unparse
from fnjax.port.torch.machinery import COMPILERS

_MAPPED = {
    "torch.autograd.once_differentiable": "fnjax.once_differentiable",
    "torch.amp.custom_fwd": "fnjax.custom_fwd",
    "torch.amp.custom_bwd": "fnjax.custom_bwd",
}


@call_of("torch.compile", "torch.jit.script", RESULT)
def port_compiled(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `torch.compile(f)` and `torch.no_grad()(f)` as f: what calls the Function is compiled with it."""
    plain = [a.value for a in node.args if a.keyword is None and not a.star]
    mode = ev.find_name(node.func.func) if isinstance(node.func, cst.Call) and not node.func.args else ""
    without = mode in {"torch.no_grad", "torch.inference_mode"}
    if not plain or (name == RESULT and not without):
        return None
    return ev.port(plain[0])


def is_at_hand(name: str) -> bool:
    """Return whether a port has a class or decorator: it is of the file, or of Python's own libraries."""
    root = name.split(".", maxsplit=1)[0]
    return name.startswith("file:") or root in sys.stdlib_module_names | {"builtins", "object"} or name in dir(builtins)


def _find_amp_decorator(ev: Evaluator, node: cst.BaseExpression) -> str:
    """Return the decorator of torch.amp that the file has made its own of: `fwd = wrapped(custom_fwd, deprecated)`."""
    given = ev.program.source.definitions.get(unparse(node), ())
    calls = [d.value for d in given if isinstance(d.value, cst.Call)]
    parts = [part for c in calls for part in (c.func, *(a.value for a in c.args[:1]))]
    known = {m for p in parts for m in {ev.program.resolve_name(p), *ev.program.list_meanings(unparse(p))}}
    return next((m for m in sorted(known) if m in _MAPPED), "")


def port_decorators(ev: Evaluator, decorators: list[cst.Decorator]) -> list[cst.Decorator]:
    """Return the decorators that stay, translated."""
    kept = []
    for decorator in decorators:
        node = decorator.decorator
        called = node.func if isinstance(node, cst.Call) else node
        name = ev.program.resolve_name(called) or ev.find_name(called)
        options = ev.program.list_meanings(called.value) if isinstance(called, cst.Name) else set()
        if node in ev.program.lifted:
            continue
        if (made := port_library_call(ev, node)) is not None:
            kept.append(decorator.with_changes(decorator=made))
            continue
        if any(o.startswith(COMPILERS) for o in {name, *options}):
            continue
        if ev.program.kernels and is_guard_decorator(ev.program, name.removeprefix("file:")):
            continue
        if name not in _MAPPED:
            name = _find_amp_decorator(ev, called) or find_amp_decorator(ev.program, unparse(called)) or name
        if name in _MAPPED:
            kept.append(decorator.with_changes(decorator=_port_amp_decorator(ev, node, name)))
            ev.diagnostics.imports.add("fnjax")
            continue
        if name in {"functools.cache", "functools.lru_cache"} and _makes_arrays(ev):
            ev.note(decorator, "dropped", f"{name} is dropped: it would keep arrays of a trace that has ended")
            continue
        if name and not name.startswith("fnjax.") and not is_at_hand(name):
            raise Stop(decorator, "supply", f"the decorator {name} is of another module")
        if isinstance(called, cst.Name) and not name and called.value not in ev.state.variables:
            raise Stop(decorator, "unknown", f"the file does not say what the decorator {called.value!r} is")
        if isinstance(node, cst.Call):
            kept.append(decorator.with_changes(decorator=ev.port_parts(node).with_changes(func=node.func)))
        else:
            kept.append(decorator)
        if name.startswith("file:"):
            ev.called.add(name)
    return kept


def _makes_arrays(ev: Evaluator) -> bool:
    """Return whether the function that is decorated computes with tensors."""
    inner = (n for n in list_nodes(ev.routine.node.body) if isinstance(n, (cst.Name, cst.Attribute)))
    return any(ev.program.resolve_name(n).startswith("torch.") for n in inner)


def _port_amp_decorator(ev: Evaluator, node: cst.BaseExpression, name: str) -> cst.BaseExpression:
    made = parse(_MAPPED[name])
    if not isinstance(node, cst.Call):
        return made
    if any(a.keyword and a.keyword.value == "cast_inputs" and unparse(a.value) != "None" for a in node.args):
        ev.note(
            node,
            "dropped",
            "cast_inputs is dropped: PyTorch casts inside autocast only, fnjax.custom_fwd(cast_inputs=...) would "
            "cast always",
        )
    return made
