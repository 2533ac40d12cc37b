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

from fnjax.port.analysis.evaluator import Evaluator, Statements
from fnjax.port.analysis.expr import Expr, Stop, parse
from fnjax.port.analysis.kernels import WRAPPING
from fnjax.port.analysis.operators import FOREIGN, make_string, read_registration
from fnjax.port.analysis.registry import RESULT, call_of, expression, statement
from fnjax.port.known.facts import TENSOR, Value
from fnjax.port.rewrite.calls.own_functions import call_routine
from fnjax.port.torch import MISSING, Operation, fill, find_operation, read_literal

_SAME = {
    "torch.library.custom_op": "fnjax.custom_op",
    "torch.library.triton_op": "fnjax.triton_op",
    "torch.library.wrap_triton": "fnjax.wrap_triton",
    "torch.library.infer_schema": "fnjax.infer_schema",
    "torch.library.Library": "fnjax.Library",
}


_NO_NAMESPACES = frozenset({"aten", "prim", "prims", "load_library", "loaded_libraries", "import_module"})


@expression(cst.Attribute, only="operators")
def port_operator_name(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `torch.ops.mylib.scale`, and the namespaces by themselves: `hasattr(torch.ops.mylib, "scale")`."""
    qualname = _name_operator(ev, node)
    if not qualname:
        parts = (ev.find_name(node) or ev.program.resolve_name(node)).split(".")
        if parts[:2] != ["torch", "ops"] or len(parts) > 3 or {*parts[2:]} & _NO_NAMESPACES:
            return None
        qualname = "".join(parts[2:])
    ev.diagnostics.imports.add("fnjax")
    ev.called.add(qualname)
    return Expr(parse(f"fnjax.ops.{qualname.replace('::', '.')}".rstrip(".")), Value("object"))


@call_of("torch.ops.", "torch.library.", "*.impl", RESULT, only="operators")
def port_operator_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate a call of an operator by its name, or of what defines and registers operators."""
    qualname = _name_operator(ev, node.func)
    if qualname:
        made = ev.port_parts(node)
        cls = ev.program.classes.get(qualname)
        if cls is None or not cls.is_defined:
            message = f"the file does not define the operator {qualname}: define it with fnjax.custom_op"
            raise Stop(node, "supply", message)
        ev.called.add(qualname)
        routine = ev.program.routines.get(cls.methods["forward"])
        return call_routine(ev, node, made, routine) if routine else Expr(made, TENSOR)
    made_node = port_library_call(ev, node)
    if made_node is None and node in ev.program.for_all:  # `lib.impl("f", f, "CPU")`
        args = [a.with_changes(value=_widen_dispatch_key(a.value)) for a in node.args]
        made_node = cst.Call(node.func, _port_values(ev, args))
    return Expr(made_node, Value("kernel" if name in WRAPPING else "object")) if made_node is not None else None


def _widen_dispatch_key(key: cst.BaseExpression) -> cst.BaseExpression:
    return cst.SimpleString('"CompositeExplicitAutograd"') if read_literal(key) in FOREIGN | {"CPU"} else key


@statement(cst.Expr, only="operators")
def port_left_out_registration(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Drop a registration that the port does without."""
    return [] if node.value in ev.program.lifted else None


def _name_operator(ev: Evaluator, node: cst.BaseExpression) -> str:
    """Return the qualified name of an operator of the user's in `torch.ops`."""
    if not isinstance(node, cst.Attribute):
        return ""
    name = ev.find_name(node) or ev.program.resolve_name(node)
    parts = name.split(".")
    if not name.startswith("torch.ops.") or len(parts) < 4 or isinstance(find_operation(name), Operation):
        return ""
    return f"{parts[2]}::{parts[3]}" if parts[2] not in _NO_NAMESPACES else ""


def port_library_call(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return a decorator, or a call, of torch.library's; None for anything else."""
    func = node.func if isinstance(node, cst.Call) else node
    given: list[cst.Arg] = []
    if isinstance(node, cst.Call) and isinstance(func, cst.Call):  # `torch.library.impl(lib, "f", "CPU")(f)`
        given, node, func = list(node.args), func, func.func
    name = ev.program.resolve_name(func) or ev.find_name(func)
    if not name.startswith("torch.library."):
        return None
    ev.diagnostics.imports.add("fnjax")
    args = list(node.args) if isinstance(node, cst.Call) else []
    if name in _SAME:
        kept = [a for a in args if not (a.keyword and a.keyword.value in {"device_types", "tags"})]
        made: cst.BaseExpression = (
            _make_call(ev, _SAME[name], kept) if isinstance(node, cst.Call) else parse(_SAME[name])
        )
        return _curry(ev, made, given)
    registration = read_registration(ev.program, node, name) if isinstance(node, cst.Call) else None
    if registration is None:
        return None
    namespace, _, own = registration.qualname.partition("::")
    rest = list(registration.rest)
    if registration.method == "define":
        schema = args[1].value  # `define(lib, "f(Tensor x) -> Tensor")`, `define("ns::f", "(Tensor x) -> Tensor")`
        made = ev.port(schema).node
        if not registration.library:
            known = read_literal(schema)
            made = fill("N + S", N=make_string(own), S=made) if known is MISSING else make_string(f"{own}{known}")
        return fill("L.define(S)", L=registration.make_library(), S=made)
    if registration.is_differentiated:
        functions = [a for a in [*rest, *given] if read_literal(a.value) is MISSING]
        return registration.make_impl(ev.port(functions[0].value).node) if functions else None
    method = registration.method
    if method == "impl":
        cls = ev.program.classes.get(registration.qualname)
        alone = cls is not None and cls.methods["forward"] is ev.routine.node
        rest = [cst.Arg(parse("None" if alone or registration.key.lower() != "cpu" else '"cpu"')), *_drop_keys(rest)]
        method = "register_kernel"
    elif name.endswith((".impl", ".register_kernel")):  # for "Meta"
        rest = _drop_keys(rest)
    operator = f"fnjax.ops.{namespace}.{own}.{method}"
    return _curry(ev, _make_call(ev, operator, rest) if rest else parse(operator), given)


def _drop_keys(rest: list[cst.Arg]) -> list[cst.Arg]:
    """Return what registers a body without the keys that it is registered for, and without keywords."""
    kept = [a.value for a in rest if not isinstance(read_literal(a.value), (str, list, tuple))]
    return [cst.Arg(v) for v in kept]


def _curry(ev: Evaluator, made: cst.BaseExpression, given: list[cst.Arg]) -> cst.BaseExpression:
    return cst.Call(made, _port_values(ev, given)) if given else made


def _make_call(ev: Evaluator, func: str, args: list[cst.Arg]) -> cst.Call:
    return cst.Call(parse(func), _port_values(ev, args))


def _port_values(ev: Evaluator, args: list[cst.Arg]) -> list[cst.Arg]:
    made = [a.with_changes(value=ev.port(a.value).node) for a in args]
    if made:
        made[-1] = made[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return made
