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

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, find_names, make_answer, parse, read_getattr
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import (
    DTYPE,
    LIST,
    PYTHON,
    STATIC,
    UNKNOWN,
    MemRef,
    Origin,
    Value,
    find_any_element,
    join_elements,
    join_values,
    list_memrefs,
)
from fnjax.port.rewrite.memory.indexing import make_hashable
from fnjax.port.rewrite.values.binding import find_held_memref, iterate_over, list_entries
from fnjax.port.torch import ARRAYS, MISSING, PARAMETERS, fill, find_operation, read_literal, unparse
from fnjax.port.torch.python_functions import BY_TEXT, MATH, STATIC_BUILTINS

_IMPORTED = frozenset({"numpy", "jax", "fnjax", "builtins"})
_SOME = PARAMETERS | {"torch.FloatTensor"}  # some arrays are one of these; which ones is not known
# Of devices, and of PyTorch's own tracing: an array of JAX is all of it, wherever its parts are.
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
    arrays = ARRAYS | _SOME
    if all(n in _NEVER or ev.program.list_meanings(unparse(o)) & _NEVER for n, o in zip(names, options, strict=True)):
        return make_answer(False)
    made: list[cst.BaseExpression] = options
    if any(n in arrays for n in names):
        if not (arrays - _SOME).intersection(names):
            message = f"JAX has one type of arrays: whether one is a {unparse(options[0])} cannot be asked"
            raise Stop(node, "unknown", message)
        ev.diagnostics.imports.add("jax")
        made = [parse("jax.Array") if n in arrays else o for n, o in zip(names, options, strict=True)]
    else:
        for option, kind in zip(options, names, strict=True):
            if kind.startswith("torch."):
                raise Stop(option, "unknown", f"nothing in JAX is an instance of {kind}")
            if "." in kind and kind.split(".")[0] not in _IMPORTED | sys.stdlib_module_names and ":" not in kind:
                raise Stop(option, "supply", f"{kind} is of another module; put a class of that name in its place")
    new = made[0]
    if isinstance(kinds.value, cst.Tuple):
        elements = [e.with_changes(value=m) for e, m in zip(kinds.value.elements, made, strict=True)]
        new = kinds.value.with_changes(elements=elements)
    args = [subject.with_changes(value=expr.node), kinds.with_changes(value=new)]
    return Expr(node.with_changes(args=args), Value("static", "bool"))


@call_of("builtins.hasattr")
def port_hasattr(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `hasattr(x, "dim")` of a tensor; arrays of JAX have no such attribute."""
    if len(node.args) != 2:
        return None
    subject, attr = ev.port(node.args[0].value).value, read_literal(node.args[1].value)
    if subject.kind in {"static", "object"} or not isinstance(attr, str):
        return None
    known = find_operation(f"torch.Tensor.{attr}") is not None
    if subject.is_tensor:
        return make_answer(known)
    import numpy as np  # rarely, so that most ports need not wait for it

    if known and not hasattr(np.ndarray, attr):
        asked = unparse(node.args[0].value)
        raise Stop(node, "unknown", f"whether {asked} is a tensor, which has {attr!r}, is not known")
    return None


@call_of("typing.cast", "typing_extensions.cast")
def port_typing_cast(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `typing.cast(torch.Tensor, x)` as x: typed code has it where a type checker needs a hint."""
    return ev.port(node.args[1].value) if len(node.args) == 2 else None


_CHOOSING = frozenset({"max", "min", "sorted", "any", "all"})


@call_of("builtins.")
def port_builtin(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `len(x)`, `range(n)`, `float(t)`, `max(a, b)`."""
    name = name.removeprefix("builtins.")
    if name in BY_TEXT:
        raise Stop(node, "unknown", f"{name}() finds names by their text, which the porter does not follow: name them")
    of = ev.find_name(node.args[0].value) if name == "getattr" and node.args else ""
    if of.split(".")[0] == "torch" and not ev.find_name(node):
        raise Stop(node, "unknown", f"which function of {of} this is, is not known: choose one with `if`")
    values = list_values(ev, node)
    made = ev.port_parts(node)
    made = made if unparse(node.func) == name else made.with_changes(func=cst.Name(name))
    first = values[0] if values else UNKNOWN
    traced = any(v.traced for v in values)
    if name in {"float", "complex", "int", "bool"}:
        return _port_number_call(ev, node, made, name, first)
    if name in {"range", "slice"} and traced:
        ev.report_untraced(node, f"{name}() of a tensor's value is unknown under jit")
    starred = any(a.star and find_any_element(v).traced for a, v in zip(node.args, values, strict=True))
    one = sum(a.keyword is None for a in node.args) == 1 and not node.args[0].star
    if name in _CHOOSING and one and iterate_over(ev, node.args[0].value, values[0]).traced:
        ev.report_untraced(node, f"{name}() needs the values of tensors, which are unknown under jit")
    if name in {"max", "min"} and (starred or (traced and len(values) > 1)):
        return _port_choice(ev, node, name, values)
    if name in {"abs", "round", "pow"} and traced:
        if name == "round":
            ev.diagnostics.imports.add("jnp")
            made = made.with_changes(func=parse("jnp.round"))
        return Expr(made, replace(first, memref=ev.make_memref(node), number=""))
    if name in {"set", "frozenset", "dict"}:
        made = hash_keys(ev, node, made)
    if name == "getattr" and len(node.args) >= 2 and isinstance(read_literal(node.args[1].value), str):
        attribute = read_getattr(node)
        if attribute is not None and (first.is_tensor or ev.find_name(node).startswith("torch.")):
            return ev.port(attribute)
        known = ev.state.variables.get(f"ctx.{read_literal(node.args[1].value)}", UNKNOWN)
        return Expr(made, known if ev.find_name(node.args[0].value) == "ctx" else UNKNOWN)
    if name == "getattr" and len(node.args) == 2 and first.is_tensor:
        raise Stop(node, "unknown", "which method of the tensor this is, is not known: choose a function with `if`")
    return Expr(made, _describe_builtin(ev, node, name, values))


def _describe_builtin(ev: Evaluator, node: cst.Call, name: str, values: list[Value]) -> Value:
    """Return what is known of the result of a builtin that stays."""
    first = values[0] if values else UNKNOWN
    known = STATIC if values and all(v.kind == "static" for v in values) else UNKNOWN
    number = Value("static", "int")
    match name:
        case "len":
            return replace(number, literal=len(first.parts) if first.parts is not None else MISSING)
        case "sum" | "max" | "min":
            element = first.element or (first.parts[0] if first.parts else None)
            if element:
                return replace(element, literal=MISSING, number="", memref=ev.make_memref(node))
            return replace(first, literal=MISSING, parts=None, number="") if first.is_tensor else known
        case "next" if len(values) == 1:
            return find_any_element(first)
        case "tuple" | "list" | "reversed" | "sorted" | "set" | "frozenset" | "iter":
            keeps = name in {"tuple", "list", "iter"}
            element = first.element or (None if keeps else join_elements(first))
            return Value(
                "static",
                name=LIST if name in {"list", "sorted"} else "",
                parts=first.parts if keeps else None,
                element=find_any_element(first) if first.is_tensor else element,
                literal=first.literal if name == "tuple" and isinstance(first.literal, tuple) else MISSING,
            )
        case "zip":
            parts = tuple(find_any_element(v) for v in values)
            return Value("static", element=Value("static", parts=parts), number=ev.number_expression(node))
        case "enumerate":
            return Value("static", element=Value("static", parts=(number, find_any_element(first))))
        case "range":
            return Value("static", name=LIST, element=number)
        case "dict" if all(a.keyword for a in node.args):
            entries = list_entries(ev, [(a.keyword and a.keyword.value, a.value) for a in node.args])
            held = find_held_memref(ev, [a.value for a in node.args])
            return Value("static", element=held or UNKNOWN, entries=entries)
        case "map" | "filter":  # what they give may be views of what the function reads
            read = [ev.state.variables[n] for n in sorted(find_names(node)) if n in ev.state.variables]
            seen = [m for v in read for m in list_memrefs(v)]
            return Value("static", element=Value(memref=MemRef.join_all(*seen) if seen else None))
    return STATIC if name in STATIC_BUILTINS else known


def _port_choice(ev: Evaluator, node: cst.Call, name: str, values: list[Value]) -> Expr:
    """Translate `max(a, b)` of tensors: Python's own would ask a comparison for its bool."""
    if any(a.star or a.keyword for a in node.args):
        raise Stop(node, "unknown", f"{name}() of a list of tensors and more: write jnp.{name} of one array")
    ev.diagnostics.imports.add("jnp")
    first, *others = (ev.port(a.value).node for a in node.args)
    for other in others:
        first = fill(f"jnp.{name}imum(A, B)", A=first, B=other)
    dtype = next(v.dtype for v in values if v.traced)
    rank = 0 if all(v.rank == 0 or v.kind == "static" for v in values) else None
    python = all(v.origin.python or v.kind == "static" for v in values)
    return Expr(first, Value("tensor", dtype, rank, origin=Origin(python=python)))


def _port_number_call(ev: Evaluator, node: cst.Call, made: cst.Call, name: str, first: Value) -> Expr:
    """Translate `float(t)`, `int(t)`, `bool(t)`: under jit the scalar array is taken for it, and widens no dtype."""
    if not first.traced:
        return Expr(made, Value("static", name))
    expr = ev.port(node.args[0].value)
    if name in {"float", "complex"}:
        number = ev.stop_gradient(expr.node, first)
        if name == "float" and first.dtype in {"int", "bool"}:
            number, first = fill("A.astype(float)", A=number), replace(first, dtype="float", exact="")
        return Expr(number, replace(first, kind="tensor", rank=0).with_origin(python=True))
    if first.kind != "tensor":
        ev.report_untraced(node, f"{name}() of a tensor's value is unknown under jit")
        return Expr(made, Value("static", name))
    known = Value("tensor", name, 0, origin=PYTHON, memref=ev.make_memref(node))
    if name == "int" and expr.value.memref is None:  # a number made by Python
        ev.diagnostics.imports.add("jnp")
        return Expr(fill("jnp.asarray(A).astype(int)", A=expr.node), known)
    if name == "int":
        return Expr(fill("A.astype(int)", A=expr.node), known)
    asked = expr.node if first.dtype == "bool" else fill("(A != 0)", A=expr.node)
    return Expr(asked if first.rank == 0 else fill("A.reshape(())", A=asked), known)


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
    """Return a call whose first argument, if it is a dtype, gets the hash that dtypes of arrays have."""
    if not node.args:
        return made
    expr = ev.port(node.args[0].value)
    if any(v.name == DTYPE for part in expr.value.parts or () for v in (part, *(part.parts or ())[:1])):
        raise Stop(node, "unknown", "dtypes as keys, of a list: write them in braces")
    first = make_hashable(ev, expr)
    if first is expr.node:
        return made
    return made.with_changes(args=[made.args[0].with_changes(value=first), *made.args[1:]])


@call_of("*.")
def port_container_method(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `found.append(x)`."""
    if not isinstance(node.func, cst.Attribute):
        return None
    attr, owner = node.func.attr.value, node.func.value
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
    if attr in {"get", "pop"} and node.args:
        made = hash_keys(ev, node, made)
        if ev.port(node.args[0].value).value.is_tensor:
            ev.report_untraced(node, "an item of a container at the value of a tensor")
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
