"""Custom operators.

What: what torch.library defines and registers, as a decorator, a call or by name, becomes fnjax's; operators of the
file are called by name as before. Kernels for other platforms than the CPU are left out where there is another body.
Before: `@torch.library.custom_op("mylib::scale", mutates_args=(), device_types="cpu")`
After: `@fnjax.custom_op("mylib::scale", mutates_args=())`
Safety: the body's schema is what its annotations say, as in PyTorch; one that is lost is a finding.
Limits: an operator that the file does not define is a finding.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.operators import named_operator
from fnjax.port.analysis.registry import expression
from fnjax.port.analysis.terms import Stop, Term, parse
from fnjax.port.analysis.walk import Walk
from fnjax.port.known.facts import TENSOR, Value
from fnjax.port.rewrite.calls.own_functions import call_routine
from fnjax.port.torch import Operation, code, find, literal

_SAME = {
    "torch.library.custom_op": "fnjax.custom_op",
    "torch.library.triton_op": "fnjax.triton_op",
    "torch.library.wrap_triton": "fnjax.wrap_triton",
    "torch.library.infer_schema": "fnjax.infer_schema",
    "torch.library.Library": "fnjax.Library",
}
_REGISTERING = {
    "register_fake": "register_fake",
    "impl_abstract": "register_fake",
    "register_vmap": "register_vmap",
    "register_autograd": "register_autograd",
    "register_kernel": "register_kernel",
    "impl": "register_kernel",
}


@expression(cst.Attribute)
def looked_up(walk: Walk, node: cst.Attribute) -> Term | None:
    """`torch.ops.mylib.scale`."""
    qualname = _looked_up(walk, node)
    if not qualname:
        return None
    walk.sink.imports.add("fnjax")
    walk.called.add(qualname)
    return Term(parse(f"fnjax.ops.{qualname.replace('::', '.')}"), Value("object"))


@expression(cst.Call)
def called(walk: Walk, node: cst.Call) -> Term | None:
    """A call of an operator by its name, or of what defines and registers operators."""
    qualname = _looked_up(walk, node.func)
    if qualname:
        made = walk.rebuilt(node)
        cls = walk.program.classes.get(qualname)
        if cls is None:
            message = f"the file does not define the operator {qualname}: define it with fnjax.custom_op"
            raise Stop(node, "supply", message)
        walk.called.add(qualname)
        routine = walk.program.routines.get(cls.methods["forward"])
        return call_routine(walk, node, made, routine) if routine else Term(made, TENSOR)
    made_node = translated(walk, node)
    return Term(made_node, Value("object")) if made_node is not None else None


def _looked_up(walk: Walk, node: cst.BaseExpression) -> str:
    """The qualified name of an operator of the user's in `torch.ops`."""
    if not isinstance(node, cst.Attribute):
        return ""
    name = walk.name_of(node) or walk.program.resolve(node)
    parts = name.split(".")
    if not name.startswith("torch.ops.") or len(parts) < 4 or isinstance(find(name), Operation):
        return ""
    return f"{parts[2]}::{parts[3]}" if parts[2] not in {"aten", "prim", "prims"} else ""


def translated(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """A decorator, or a call, of torch.library's; None for anything else."""
    func = node.func if isinstance(node, cst.Call) else node
    name = walk.program.resolve(func) or walk.name_of(func)
    if not name.startswith("torch.library."):
        return None
    walk.sink.imports.add("fnjax")
    args = list(node.args) if isinstance(node, cst.Call) else []
    if name in _SAME:
        kept = [a for a in args if not (a.keyword and a.keyword.value in {"device_types", "tags"})]
        return _call(walk, _SAME[name], kept) if isinstance(node, cst.Call) else parse(_SAME[name])
    method, qualname = name.rpartition(".")[2], named_operator(walk.program, args)
    if not qualname:
        return None
    namespace, _, own = qualname.partition("::")
    if method == "define" and len(args) > 1:
        return parse(f"fnjax.Library({namespace!r}, 'FRAGMENT').define({own + str(literal(args[1].value))!r})")
    if method not in _REGISTERING:
        return None
    rest = [
        a
        for a in args[2 if code(args[0].value) in walk.program.libraries else 1 :]
        if not (a.keyword and a.keyword.value == "lib")
    ]
    method = _REGISTERING[method]
    if method == "register_kernel":
        key = literal(rest[0].value) if rest else None
        if key == "Meta":
            method, rest = "register_fake", rest[1:]
        else:
            cls = walk.program.classes.get(qualname)
            alone = cls is not None and cls.methods["forward"] is walk.routine.node
            rest = [cst.Arg(parse("None" if alone or str(key).lower() != "cpu" else '"cpu"')), *rest[1:]]
    operator = f"fnjax.ops.{namespace}.{own}.{method}"
    return _call(walk, operator, rest) if rest else parse(operator)


def _call(walk: Walk, func: str, args: list[cst.Arg]) -> cst.Call:
    made = [a.with_changes(value=walk.expr(a.value).node) for a in args]
    if made:
        made[-1] = made[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return cst.Call(parse(func), made)
