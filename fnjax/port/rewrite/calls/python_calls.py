"""Calls of Python's own functions and of math.

What: builtins stay, `isinstance(x, torch.Tensor)` asks for jax.Array, `float(t)` and `.item()` of a tensor become the
scalar array; functions of math become those of jax.numpy where they are given tensors.
Before: `isinstance(x, torch.Tensor) and math.sqrt(x.sum().item())`
After: `isinstance(x, jax.Array) and jnp.sqrt(jnp.sum(x))`
Safety: calls without tensors stay Python's.
Limits: int() and bool() of a tensor run outside jit only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, find_names, make_answer, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import (
    LIST,
    PYTHON,
    STATIC,
    UNKNOWN,
    MemRef,
    Origin,
    Value,
    find_any_element,
    find_entry,
    join_elements,
    join_values,
    list_memrefs,
)
from fnjax.port.rewrite.memory.indexing import make_hashable
from fnjax.port.rewrite.values.binding import find_held_memref, list_entries
from fnjax.port.torch import ARRAYS, MISSING, PARAMETERS, bracket, fill, find_operation, read_literal, unparse
from fnjax.port.torch.python_functions import BY_TEXT, MATH, STATIC_BUILTINS

_IMPORTED = frozenset({"numpy", "jax", "fnjax", "builtins"})
_SOME = PARAMETERS | {"torch.FloatTensor"}  # of which some arrays are one, which nothing tells
# Of devices, and of PyTorch's own tracing: an array of JAX is all of it, wherever it lies.
_NEVER = frozenset({"torch.distributed.tensor.DTensor", "torch.distributed._tensor.DTensor"})


def list_values(ev: Evaluator, node: cst.Call) -> list[Value]:
    """Return the values of the arguments."""
    found = [ev.port(a.value).value for a in node.args]
    ev.need_entries(*found)
    return found


@call_of("builtins.super")
def port_super(ev: Evaluator, node: cst.Call, name: str) -> Expr:
    """Translate `super()` and `super().forward(ctx, x)`."""
    return Expr(node, Value("object", name="super"))


@call_of("builtins.isinstance")
def port_isinstance(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `isinstance(x, torch.Tensor)`."""
    if len(node.args) != 2:
        return None
    subject, kinds = node.args
    expr = ev.port(subject.value)
    options = [e.value for e in kinds.value.elements] if isinstance(kinds.value, cst.Tuple) else [kinds.value]
    names = [ev.find_name(o) for o in options]
    arrays = ARRAYS | _SOME | ({"numpy.ndarray"} if expr.value.origin.numpy else frozenset())
    if all(n in _NEVER or ev.program.list_meanings(unparse(o)) & _NEVER for n, o in zip(names, options, strict=True)):
        return make_answer(False)
    if not any(n in arrays for n in names):
        for option, kind in zip(options, names, strict=True):
            if kind.startswith("torch."):
                raise Stop(option, "unknown", f"nothing in JAX is an instance of {kind}")
            if "." in kind and kind.split(".")[0] not in _IMPORTED | sys.stdlib_module_names and ":" not in kind:
                raise Stop(option, "supply", f"{kind} is of another module; put a class of that name in its place")
        return Expr(
            ev.port_parts(node.with_changes(args=[subject])).with_changes(
                args=[subject.with_changes(value=expr.node), kinds]
            )
            if expr.node is not subject.value
            else node,
            Value("static", "bool"),
        )
    if not (arrays - _SOME).intersection(names):
        raise Stop(
            node, "unknown", f"JAX has one type of arrays: whether one is a {unparse(options[0])} cannot be asked"
        )
    ev.diagnostics.imports.add("jax")
    made = [parse("jax.Array") if n in arrays else o for n, o in zip(names, options, strict=True)]
    kinds_ = (
        made[0]
        if not isinstance(kinds.value, cst.Tuple)
        else kinds.value.with_changes(
            elements=[e.with_changes(value=m) for e, m in zip(kinds.value.elements, made, strict=True)]
        )
    )
    return Expr(
        node.with_changes(args=[subject.with_changes(value=expr.node), kinds.with_changes(value=kinds_)]),
        Value("static", "bool"),
    )


@call_of("builtins.hasattr")
def port_hasattr(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `hasattr(x, "dim")` asks whether x is a tensor, where arrays have no such attribute."""
    if len(node.args) != 2:
        return None
    subject, attr = ev.port(node.args[0].value), read_literal(node.args[1].value)
    if subject.value.kind in {"static", "object"} or not isinstance(attr, str):
        return None
    import numpy as np  # rarely, so that most ports need not wait for it

    if hasattr(np.ndarray, attr):
        return None
    if find_operation(f"torch.Tensor.{attr}") is None:  # of a subclass, or set by somebody: arrays carry none
        return make_answer(False) if subject.value.is_tensor else None
    ev.diagnostics.imports.add("jax")
    return Expr(fill("isinstance(A, jax.Array)", A=subject.node), Value("static", "bool"))


@call_of("typing.cast", "typing_extensions.cast")
def port_typing_cast(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `typing.cast(torch.Tensor, x)` is x: typed code has it around what a type checker cannot tell."""
    return ev.port(node.args[1].value) if len(node.args) == 2 else None


@expression(cst.Comparison)
def port_type_comparison(ev: Evaluator, node: cst.Comparison) -> Expr | None:
    """Translate `type(x) is torch.Tensor`."""
    target, left = node.comparisons[0], node.left
    sign = {cst.Is: "", cst.Equal: "", cst.IsNot: "not ", cst.NotEqual: "not "}.get(type(target.operator))
    asked = isinstance(left, cst.Call) and len(left.args) == 1 and ev.find_name(left.func) == "builtins.type"
    if sign is None or not asked or ev.find_name(target.comparator) != "torch.Tensor" or len(node.comparisons) > 1:
        return None
    ev.diagnostics.imports.add("jax")
    subject = unparse(bracket(ev.port(left.args[0].value).node, 1))  # type: ignore[attr-defined] # a call
    return Expr(parse(f"{sign}isinstance({subject}, jax.Array)"), Value("static", "bool"))


def _port_starred_choice(ev: Evaluator, name: str, made: cst.Call, values: list[Value]) -> Expr | None:
    """Translate `max(*numbers, 1.0)`, where they are the values of tensors."""
    items = [find_any_element(v) if a.star else v for a, v in zip(made.args, values, strict=True)]
    dtypes = [i.dtype for i in items if i.traced]
    if not dtypes or not any(a.star for a in made.args) or any(a.keyword for a in made.args):
        return None
    ev.diagnostics.imports.add("jnp")
    together = ", ".join(a.star + unparse(bracket(a.value, 1)) for a in made.args)
    return Expr(parse(f"jnp.{name}(jnp.array([{together}]))"), Value("tensor", dtypes[0], 0))


@call_of("builtins.")
def port_builtin(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `len(x)`, `range(n)`, `float(t)`, `max(a, b)`."""
    name = name.removeprefix("builtins.")
    if name in BY_TEXT:
        raise Stop(node, "unknown", f"{name}() finds names by their text, which the porter does not follow: name them")
    of = ev.find_name(node.args[0].value) if name == "getattr" and node.args else ""
    if of.split(".")[0] == "torch" and not ev.find_name(node):
        raise Stop(node, "unknown", f"which function of {of} this is cannot be told: choose one with `if`")
    values = list_values(ev, node)
    made = ev.port_parts(node)
    made = made if unparse(node.func) == name else made.with_changes(func=cst.Name(name))
    first = values[0] if values else UNKNOWN
    tensors = [v for v in values if v.traced]
    # jit has no value to make a number of: the scalar array stands for it. `python` says that it widens no dtype.
    if name in {"float", "complex"} and first.traced:
        number = ev.stop_gradient(ev.port(node.args[0].value).node)
        if name == "float" and first.dtype in {"int", "bool"}:
            number, first = fill("A.astype(float)", A=number), replace(first, dtype="float", exact="")
        return Expr(number, replace(first, kind="tensor", rank=0).with_origin(python=True))
    if name in {"int", "bool"} and first.traced:
        return _port_number_call(ev, node, name, first)
    if (name == "range" and tensors) or (name == "slice" and tensors):
        ev.report(node, "untraced", f"{name}() of a tensor's value is unknown under jit; this runs un-jitted only")
    if name == "len":
        known = len(first.parts) if first.parts is not None else MISSING
        return Expr(made, Value("static", "int", literal=known))
    if name in {"max", "min"} and (largest := _port_starred_choice(ev, name, made, values)) is not None:
        return largest
    # Python's own would ask bool() of a comparison, which a traced array does not answer.
    if name in {"max", "min"} and tensors and len(values) > 1:
        ev.diagnostics.imports.add("jnp")
        args = [unparse(bracket(ev.port(a.value).node, 1)) for a in node.args]
        text = args[0]
        for other in args[1:]:
            text = f"jnp.{name}imum({text}, {other})"
        return Expr(
            parse(text),
            Value(
                "tensor",
                tensors[0].dtype,
                0 if all(v.rank == 0 or v.kind == "static" for v in values) else None,
                origin=Origin(python=all(v.origin.python or v.kind == "static" for v in values)),
            ),
        )
    if name in {"abs", "round", "pow"} and tensors:
        if name == "abs" and ev.here.differentiated:
            ev.diagnostics.needs.add("_abs")
            made = made.with_changes(func=cst.Name("_abs"))
        if name == "round":
            ev.diagnostics.imports.add("jnp")
            made = made.with_changes(func=parse("jnp.round"))
        return Expr(made, replace(first, memref=ev.make_memref(node), number=""))
    if name in {"sum", "max", "min"}:
        element = first.element or (first.parts[0] if first.parts else None)
        return Expr(
            made,
            replace(element, literal=MISSING, number="", memref=ev.make_memref(node))
            if element
            else replace(first, literal=MISSING, parts=None, number="")
            if first.is_tensor
            else STATIC
            if all(v.kind == "static" for v in values)
            else UNKNOWN,
        )
    if name == "next" and len(values) == 1:
        return Expr(made, find_any_element(first))
    if name in {"set", "frozenset", "dict"}:
        made = hash_keys(ev, node, made)
    if name in {"tuple", "list", "reversed", "sorted", "set", "frozenset", "iter"}:
        keeps = name in {"tuple", "list", "iter"}
        return Expr(
            made,
            Value(
                "static",
                name=LIST if name in {"list", "sorted"} else "",
                parts=first.parts if keeps else None,
                element=find_any_element(first)
                if first.is_tensor
                else first.element or (None if keeps else join_elements(first)),
                literal=first.literal if name == "tuple" and isinstance(first.literal, tuple) else MISSING,
            ),
        )
    if name == "zip":
        elements = tuple(find_any_element(v) for v in values)
        return Expr(made, Value("static", element=Value("static", parts=elements), number=ev.number_expression(node)))
    if name == "enumerate":
        return Expr(
            made, Value("static", element=Value("static", parts=(Value("static", "int"), find_any_element(first))))
        )
    if name == "range":
        return Expr(made, Value("static", name=LIST, element=Value("static", "int")))
    if name == "dict" and all(a.keyword for a in node.args):
        known = list_entries(ev, [(a.keyword and a.keyword.value, a.value) for a in node.args])
        return Expr(
            made, Value("static", element=find_held_memref(ev, [a.value for a in node.args]) or UNKNOWN, entries=known)
        )
    if name in {"map", "filter"}:  # what they give may be views of what the function reads
        lying = [p for n in find_names(node) if n in ev.state.variables for p in list_memrefs(ev.state.variables[n])]
        return Expr(made, Value("static", element=Value(memref=MemRef.join_all(*lying) if lying else None)))
    if name == "getattr" and len(node.args) == 2 and first.is_tensor and read_literal(node.args[1].value) is MISSING:
        raise Stop(node, "unknown", "which method of the tensor this is cannot be told: choose a function with `if`")
    if name == "getattr" and len(node.args) >= 2 and isinstance(read_literal(node.args[1].value), str):
        from fnjax.port.rewrite.values.context import is_ctx

        if is_ctx(ev, node.args[0].value):
            return Expr(made, ev.state.variables.get(f"ctx.{read_literal(node.args[1].value)}", UNKNOWN))
        return None if first.is_tensor or ev.find_name(node).startswith("torch.") else Expr(made, UNKNOWN)
    if name in STATIC_BUILTINS:
        return Expr(made, STATIC)
    if name in {"int", "float", "bool", "complex"}:
        return Expr(made, Value("static", name if name != "bool" else "bool"))
    return Expr(made, STATIC if values and all(v.kind == "static" for v in values) else UNKNOWN)


def _port_number_call(ev: Evaluator, node: cst.Call, name: str, first: Value) -> Expr:
    expr = ev.port(node.args[0].value)
    if first.kind != "tensor":
        ev.report(node, "untraced", f"{name}() of a tensor's value is unknown under jit; this runs un-jitted only")
        return Expr(node.with_changes(args=[node.args[0].with_changes(value=expr.node)]), Value("static", name))
    if name == "bool":
        made = (
            unparse(bracket(expr.node, 0 if first.rank == 0 else 15))
            if first.dtype == "bool"
            else f"({unparse(bracket(expr.node, 7))} != 0)"
        )
        shape = "" if first.rank == 0 else ".reshape(())"
        return Expr(parse(f"{made}{shape}"), Value("tensor", "bool", 0, origin=PYTHON, memref=ev.make_memref(node)))
    ev.diagnostics.imports.add("jnp")
    made = f"jnp.asarray({unparse(bracket(expr.node, 1))}).astype(int)"
    if expr.value.memref is not None:  # an array, and no number made by Python
        made = f"{unparse(bracket(expr.node))}.astype(int)"
    return Expr(parse(made), Value("tensor", "int", 0, origin=PYTHON, memref=ev.make_memref(node)))


@call_of("math.", "cmath.")
def port_math_call(ev: Evaluator, node: cst.Call, name: str) -> Expr:
    """Translate `math.sqrt(x)`."""
    root, _, last = name.rpartition(".")
    values = list_values(ev, node)
    made = ev.port_parts(node)
    if not any(v.is_tensor for v in (*values, *list_contained(values))):
        return Expr(made, Value("static", "float"))
    if root == "cmath" or last not in MATH:
        raise Stop(node, "numpy", f"{root}.{last} of a tensor's value: jax.numpy has no function of that name")
    ev.diagnostics.imports |= {"jnp", "jax"}
    return Expr(made.with_changes(func=parse(MATH[last])), Value("tensor", "float", 0, memref=ev.make_memref(node)))


def list_contained(values: Iterable[Value]) -> list[Value]:
    """Return what lists and tuples among these hold."""
    return [p for v in values for p in (*(v.parts or ()), v.element) if p is not None]


def hash_keys(ev: Evaluator, node: cst.Call, made: cst.Call) -> cst.Call:
    """Return a call with a dtype as a key, or with a list of keys, or of pairs of keys and values."""
    if not node.args:
        return made
    expr = ev.port(node.args[0].value)
    first: Any = make_hashable(ev, expr)
    if isinstance(node.args[0].value, (cst.List, cst.Tuple)):
        keys = [_hash_key(ev, e, v) for e, v in zip(first.elements, expr.value.parts or (), strict=False)]
        if len(keys) == len(first.elements) and any(k is not e for k, e in zip(keys, first.elements, strict=True)):
            first = first.with_changes(elements=keys)
    return (
        made if first is expr.node else made.with_changes(args=[made.args[0].with_changes(value=first), *made.args[1:]])
    )


def _hash_key(ev: Evaluator, element: cst.BaseElement, value: Value) -> cst.BaseElement:
    inner = element.value
    if isinstance(inner, cst.Tuple) and value.parts and len(inner.elements) == 2:
        first = inner.elements[0]
        made = _hash_key(ev, first, value.parts[0])
        return (
            element
            if made is first
            else element.with_changes(value=inner.with_changes(elements=[made, inner.elements[1]]))
        )
    key = make_hashable(ev, Expr(inner, value))
    return element if key is inner else element.with_changes(value=key)


@call_of("*.")
def port_container_method(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `found.append(x)`."""
    if not isinstance(node.func, cst.Attribute):
        return None
    attr, owner = node.func.attr.value, node.func.value
    if isinstance(owner, (cst.Dict, cst.Call)) and attr in {"values", "items"}:
        held = ev.port(owner).value
        known = held.kind == "static" and held.element is not None and held.name != LIST
        return Expr(ev.port_parts(node), _describe_listed(held, attr)) if known else None
    key = ev.name_variable(owner)
    value = ev.state.variables.get(key)
    if not key or (key.startswith("ctx.") and value is None):
        return None
    if value is None and attr in {"get", "pop", "fromkeys"} and node.args:
        made = ev.port_parts(node)
        keyed = hash_keys(ev, node, made)
        return None if keyed is made else Expr(keyed, UNKNOWN)
    if value is None or value.kind != "static":
        return None
    if attr in {"append", "insert", "extend", "add"} and node.args:
        new = list_values(ev, node)[-1]
        new = find_any_element(new) if attr == "extend" else new
        old = value.element or (find_any_element(value) if value.parts else None)
        # How often a loop appends is not known, so all elements are known as one.
        listed = value.name == LIST or attr in {"append", "extend"}
        ev.state.variables[key] = Value(
            "static", name=LIST if listed else "", element=new if old is None else join_values(old, new)
        )
        return Expr(ev.port_parts(node).with_changes(func=node.func), Value("static", literal=None))
    list_values(ev, node)
    made = ev.port_parts(node)
    wanted = read_literal(node.args[0].value) if node.args else MISSING
    if attr in {"get", "pop"} and node.args:
        made = hash_keys(ev, node, made)
        if ev.port(node.args[0].value).value.is_tensor:
            ev.report(node, "untraced", "an entry of a container at the value of a tensor; this runs un-jitted only")
    if attr == "get" and isinstance(wanted, str) and wanted in dict(value.entries):
        return Expr(made, find_entry(value, wanted))
    if attr not in {"get", "values", "items", "keys", "copy"}:  # the dictionary may change
        element = find_held_memref(ev, [owner, *(a.value for a in node.args)])
        ev.state.variables[key] = value = replace(value, entries=(), element=element or value.element)
    if attr in {"pop", "get", "index"}:
        return Expr(made, value.element or UNKNOWN)
    if attr in {"values", "items", "keys"}:
        return Expr(made, _describe_listed(value, attr))
    return None


def _describe_listed(value: Value, attr: str) -> Value:
    """Return what a dictionary's `values`, `items` or `keys` give."""
    element = value.element or UNKNOWN
    found = {"items": Value("static", parts=(STATIC, element)), "keys": STATIC}.get(attr, element)
    return Value("static", element=found)
