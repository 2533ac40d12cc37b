"""Names of torch.

What: functions of torch and its namespaces, methods and attributes of tensors, dtypes and constants; also where a torch
function is passed on as a value.
Before: `y = torch.clamp(x, min=0).sum(1, keepdim=True)`
After: `y = jnp.sum(jnp.maximum(x, 0), axis=1, keepdims=True)`
Safety: by qualified names, so that `F.relu` is torch's only where F is torch.nn.functional. A method that torch.Tensor
does not have is the user's own and stays.
Limits: methods of tensors that are passed on as values are findings.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.calls.foreign_names import describe_foreign
from fnjax.port.rewrite.calls.torch_calls import Facts, port_operation
from fnjax.port.rewrite.memory.writing import find_owned
from fnjax.port.torch import (
    MISSING,
    TENSOR_TYPES,
    Absent,
    Operation,
    Problem,
    bind_call,
    fill,
    find_operation,
    read_literal,
)

# Names that other objects have as well.
_OF_OTHERS = frozenset({"register_hook", "backward", "values", "solve"})


def _get_operation(node: cst.BaseExpression, name: str) -> Operation:
    """Return the operation of a name of torch."""
    found = find_operation(name)
    if isinstance(found, Absent):
        other = ", or run the file by fnjax.torch" if found.runs else ""
        raise Stop(node, "absent", f"{name} {found.reason}; {found.remedy}{other}")
    if found is None:
        raise Stop(node, "unknown", f"the porter does not know {name}")
    return found


def _find_member(ev: Evaluator, node: cst.BaseExpression, value: Value, attr: str) -> Operation | None:
    """Return the operation of a method or attribute; what apply is given is a tensor rather than a dictionary."""
    found = find_operation(f"torch.Tensor.{attr}")
    storage = value.memref.storage if value.memref and ev.routine.role != "helper" else ()
    given = attr == "values" and any(s[:4] in {"arg:", "kept"} for s in storage)
    other = not value.is_tensor and attr in _OF_OTHERS and not given
    if found is None or (isinstance(found, Absent) and other):
        return None
    return _get_operation(node, f"torch.Tensor.{attr}")


def port_reference(ev: Evaluator, node: cst.BaseExpression, name: str) -> Expr:
    """Return a name of torch that is not called here: a constant, or a function that is passed on."""
    found = _get_operation(node, name)
    if not found.called:
        return port_operation(ev, node, found, [])
    if name in TENSOR_TYPES:
        raise Stop(node, "operation", f"{name} as a value: pass a dtype, and write x.to(dtype)")
    raise Stop(node, "operation", f"{name} as a value: write a lambda with its arguments")


@call_of("torch.")
def port_torch_call(ev: Evaluator, node: cst.Call, name: str) -> Expr:
    """Translate `torch.exp(x)`, under whatever names torch and exp go."""
    return port_operation(ev, node, _get_operation(node, name), list(node.args))


@call_of("*.", general=True)
def port_tensor_method(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `x.exp()`."""
    assert isinstance(node.func, cst.Attribute)
    base, attr = ev.find_name(node.func.value), node.func.attr.value
    if base and not base.startswith("instance:"):
        return None
    value = ev.port(node.func.value).value
    if value.kind in {"static", "object"} and not value.name.startswith("instance:torch.dtype"):
        return None
    if attr == "split" and not value.is_tensor and any(isinstance(a.value, cst.SimpleString) for a in node.args):
        return None  # of a string
    found = _find_member(ev, node, value, attr)
    if found is None or not found.called:
        return None
    return port_operation(ev, node, found, [cst.Arg(node.func.value), *node.args])


_FIELDS = ("values", "indices")


def port_part_of_pair(ev: Evaluator, node: cst.BaseExpression, part: int) -> Expr | None:
    """Translate one part of the pair that a call returns, where JAX has an operation for that part alone."""
    if not isinstance(node, cst.Call):
        return None
    name, args = ev.find_name(node.func), list(node.args)
    if isinstance(node.func, cst.Attribute) and not name and not ev.find_name(node.func.value):
        name, args = f"torch.Tensor.{node.func.attr.value}", [cst.Arg(node.func.value), *args]
        if not ev.port(node.func.value).value.is_tensor:
            return None
    found = find_operation(name) if name.startswith("torch.") else None
    if not isinstance(found, Operation) or found.inplace or not any(o.parts for o in found.overloads):
        return None
    bound = bind_call(found, args, Facts(ev, node))
    if isinstance(bound, Problem) or bound.out is not None or bound.overload.result != "pair":
        return None
    fields = bound.overload.fields
    single = part < len(fields) and fields[part] in bound.overload.parts
    if not single or any(ev.port(a.value).value.mask for a in args):
        return None
    return port_operation(ev, node, found, args, part)


@expression(cst.Subscript)
def port_entry_of_pair(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `x.max(1)[0]`."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    part = read_literal(index.value) if isinstance(index, cst.Index) else MISSING
    return port_part_of_pair(ev, node.value, part) if type(part) is int and part in {0, 1} else None


@expression(cst.Attribute, general=True)
def port_torch_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `x.shape`, `torch.float32`."""
    name = ev.find_name(node)
    if name.startswith("torch."):
        return port_reference(ev, node, name)
    if name:
        return Expr(node, describe_foreign(ev, node, name))
    attr = node.attr.value
    if attr in _FIELDS and (alone := port_part_of_pair(ev, node.value, _FIELDS.index(attr))) is not None:
        return alone
    expr = ev.port(node.value)
    value = expr.value
    if value.name.startswith("instance:"):
        found = find_operation(f"{value.name.removeprefix('instance:')}.{attr}")
        return port_operation(ev, node, found, [cst.Arg(node.value)]) if isinstance(found, Operation) else None
    if value.fields and attr in value.fields and value.parts:
        index = value.fields.index(attr)
        return Expr(fill(f"A[{index}]", A=expr.node), value.parts[index])
    if value.kind == "object" and not value.name:
        return Expr(ev.port_parts(node), find_owned(ev, node))
    if value.kind in {"static", "object"}:
        return None
    found = _find_member(ev, node, value, attr)
    if found is not None and not found.called:
        return port_operation(ev, node, found, [cst.Arg(node.value)])
    if found is not None and value.is_tensor:  # a bound method that is passed on
        raise Stop(node, "operation", f"torch.Tensor.{attr} as a value: write a lambda that calls it")
    if found is None and value.is_tensor:
        import numpy as np  # rarely, so that most ports need not wait for it

        if not hasattr(np.ndarray, attr):
            message = f"JAX's arrays carry no attribute {attr!r}: make it an argument, or keep it on ctx"
            raise Stop(node, "unknown", message)
    return Expr(ev.port_parts(node), find_owned(ev, node)) if found is None else None


@expression(cst.Name, general=True)
def port_name(ev: Evaluator, node: cst.Name) -> Expr | None:
    """Translate a variable, a name of torch, or True, False and None."""
    if node.value in {"True", "False", "None"}:
        return Expr(node, Value("static", "unknown" if node.value == "None" else "bool", literal=read_literal(node)))
    value = ev.look_up(node.value)
    if value.name and not value.name.startswith("torch."):
        describe_foreign(ev, node, value.name)
    if value.name == "torch":
        raise Stop(node, "unknown", f"the module {node.value!r} as a value: name its functions")
    if value.name.startswith("torch.") and node.value not in ev.state.variables:
        return port_reference(ev, node, value.name)
    if value.name.startswith("torch.") and ev.state.variables[node.value].kind == "object":
        return port_reference(ev, node, value.name)
    if not value.number and node.value in ev.state.variables:
        value = replace(value, number=f"{node.value}|{node.value}:{ev.state.find_version(node.value)}|")
    return Expr(node, value)
