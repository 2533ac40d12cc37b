"""NumPy and SciPy inside.

What: arrays that `x.numpy()` returns are JAX arrays with NumPy's methods: they stay as they are. Functions that
jax.numpy or jax.scipy has with the same meaning take their place.
Before: `y = torch.from_numpy(np.log1p(a) * special.erf(a))` with `a = x.detach().cpu().numpy()`
After: `y = jnp.log1p(a) * jax.scipy.special.erf(a)`
Safety: which functions have the same meaning is a table; calls without tensors stay NumPy's, as constants.
Limits: all other functions of arrays are findings (fnjax.torch calls them on the host), as are draws of np.random,
methods that write in place (`a.sort()`) and `out=`.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import DTYPE, LIST, NUMBER, NUMPY, UNKNOWN, Origin, Value
from fnjax.port.rewrite.calls.python_calls import list_contained, list_values
from fnjax.port.rewrite.calls.torch_calls import port_named_operation
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import bracket, fill, read_literal, unparse
from fnjax.port.torch.context import find_dtype_class
from fnjax.port.torch.numpy_functions import (
    CONSTANTS,
    CREATED,
    CREATING,
    DTYPES,
    JAX,
    KEYWORDS,
    LISTS,
    METHODS,
    POWERS,
    RENAMED,
    SCALARS,
    SUMS,
    UFUNCS,
)
from fnjax.port.tree.located import list_nodes


@call_of("*.numpy", "*.__array__", "torch.from_numpy")
def port_numpy_conversion(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `x.numpy()` and `torch.from_numpy(a)`: both are the array."""
    if name != "torch.from_numpy":
        expr = ev.port(node.func.value)  # type: ignore[attr-defined] # of a method
        if expr.value.kind in {"tensor", "unknown"}:
            return Expr(expr.node, replace(expr.value, kind="tensor").with_origin(numpy=True))
    elif node.args:
        expr = ev.port(node.args[0].value)
        if expr.value.is_tensor:
            return Expr(expr.node, expr.value.with_origin(numpy=False))
    return None


@call_of("numpy.", "scipy.", "random.")
def port_numpy_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `np.sqrt(a)`, `np.zeros(n)`, `special.erf(a)`."""
    root, short = name.partition(".")[0], name.removeprefix("numpy.")
    if root == "random" or name.startswith("numpy.random."):
        of = "Python" if root == "random" else "NumPy"
        raise Stop(node, "random", f"{name} draws from {of}'s generator, once for all calls under jit: use torch's")
    values = list_values(ev, node)
    tensors = [v for v in (*values, *list_contained(values)) if v.is_tensor]
    keywords = {_name_keyword(a) for a in node.args} - {""}
    known = name in JAX and not (name.startswith("scipy.special.") and keywords - {"axis", "keepdims"})
    if not tensors and short in CREATING and _is_written_to(ev):
        ev.diagnostics.imports.add("jnp")
        made = node.with_changes(func=parse(f"jnp.{short}"), args=_port_arguments(ev, node))
        return Expr(made, Value("tensor", "float", origin=NUMPY))
    # Of constants NumPy computes while JAX traces, in its own float64, as in PyTorch: nothing to translate.
    if not tensors and (root == "numpy" or all(v.kind == "static" for v in values)):
        node = node.with_changes(args=[a.with_changes(value=ev.port(a.value).node) for a in node.args])
        if short in SCALARS and all(v.is_number for v in values) and not any(a.keyword or a.star for a in node.args):
            return Expr(node, Value("static", "float", name=NUMBER, origin=NUMPY))
        constant = Value("static", origin=Origin(numpy=root == "numpy"))
        return Expr(node, UNKNOWN if any(v.kind == "unknown" for v in values) else constant)
    shaped = short in {"repeat", "tile", "full"} and values[short != "full"].traced
    if shaped or (short == "where" and len(node.args) == 1):
        ev.report_untraced(node, f"{name}: a shape that depends on a tensor's values")
        return Expr(ev.port_parts(node), UNKNOWN)
    if short in POWERS and len(node.args) == 1:
        expr = port_named_operation(ev, node, f"torch.{short}", list(node.args))
        return replace(expr, value=expr.value.with_origin(numpy=True))
    if name.startswith("scipy.signal.") and (len(node.args) > 3 or keywords - {"mode"}):
        raise Stop(node, "numpy", f"{name}: jax.scipy.signal has the argument mode only")
    if not known:
        message = f"{name} works on NumPy arrays, which are not available under jit"
        raise Stop(node, "numpy", f"{message}: wrap it in jax.pure_callback with the shape of its result")
    result, target = JAX[name]
    ev.diagnostics.imports.add(target.split(".", maxsplit=1)[0])
    made = node.with_changes(func=parse(target), args=_port_arguments(ev, node, short))
    return Expr(made, _describe_result(ev, node, result, tensors))


@call_of("*.", only="numpy")
def port_numpy_method(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `a.mean(axis=1)` of an array of NumPy."""
    if not isinstance(node.func, cst.Attribute) or ev.find_name(node.func.value):
        return None
    expr, attr = ev.port(node.func.value), node.func.attr.value
    value = expr.value
    if value.origin.numpy is None and value.is_tensor:
        raise Stop(node, "numpy", f"whether {unparse(node.func.value)} is a tensor or a NumPy array is not known")
    if not value.origin.numpy or not value.is_tensor or attr in {"item", "tolist", "numpy"}:
        return None
    list_values(ev, node)
    func = node.func.with_changes(value=bracket(expr.node))
    if attr == "astype" and node.args:
        dtype, known = _port_dtype(ev, node.args[0].value)
        made = node.with_changes(func=func, args=[cst.Arg(dtype)])
        return Expr(made, replace(_cast_value(value, known), memref=ev.make_memref(node)))
    if attr not in METHODS or (attr == "view" and node.args):
        message = f"{attr} of a NumPy array has no counterpart: use a function of jax.numpy that gives a new array"
        raise Stop(node, "numpy", message)
    made = node.with_changes(func=func, args=_port_arguments(ev, node, attr))
    return Expr(made, _describe_result(ev, node, METHODS[attr], [value]))


@expression(cst.Subscript, only="numpy")
def port_numpy_lookup(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `table[indices]` of a constant array of NumPy."""
    base = ev.port(node.value)
    if base.value.kind != "static" or not base.value.origin.numpy:
        return None
    made = ev.port_parts(node)
    if not any(ev.port(e.slice.value).value.traced for e in node.slice if isinstance(e.slice, cst.Index)):
        return Expr(made, Value("static", origin=NUMPY))
    ev.diagnostics.imports.add("jnp")
    table = made.with_changes(value=fill("jnp.asarray(A)", A=base.node))
    return Expr(table, Value("tensor", memref=ev.make_memref(node), origin=NUMPY))


@expression(cst.Attribute, only="numpy")
def port_numpy_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `np.pi`, `math.pi`, and of an array of NumPy `a.size`, a number, and `a.T`, with its axes reversed."""
    name = ev.find_name(node)
    if name.replace("math.", "numpy.") in CONSTANTS:
        return Expr(node, Value("static", "float"))
    if node.attr.value not in {"size", "T", "itemsize", "nbytes"} or name:
        return None
    expr = ev.port(node.value)
    if not expr.value.origin.numpy or not expr.value.is_tensor:
        return None
    memref = expr.value.memref and expr.value.memref.doubtful
    reversed_ = replace(expr.value, memref=memref, number="", like="", rows=0)
    made = node.with_changes(value=bracket(expr.node))
    return Expr(made, reversed_ if node.attr.value == "T" else Value("static", "int"))


def _name_keyword(arg: cst.Arg) -> str:
    return arg.keyword.value if arg.keyword else ""


def _port_arguments(ev: Evaluator, node: cst.Call, short: str = "") -> list[cst.Arg]:
    """Return the arguments, translated; dtypes are JAX's, and lists one array where the function does not join them."""
    made = []
    entrywise = JAX.get(f"numpy.{short}", ("",))[0] == "entry" and short not in CREATED
    for arg in node.args:
        keyword = _name_keyword(arg)
        if (keyword and keyword not in KEYWORDS) or arg.star == "**" or (entrywise and keyword in UFUNCS):
            raise Stop(node, "numpy", f"the argument {unparse(arg)} has no counterpart in jax.numpy; leave it out")
        expr = ev.port(arg.value)
        new = _port_dtype(ev, arg.value)[0] if keyword == "dtype" else expr.node
        holds = any(v.is_tensor for v in list_contained([expr.value]))
        listed = expr.value.name == LIST or isinstance(arg.value, cst.List) or holds
        if listed and not (keyword or arg.star or short.rpartition(".")[2] in LISTS):
            ev.diagnostics.imports.add("jnp")
            new = fill("jnp.asarray(A)", A=new)
        name = cst.Name(RENAMED[keyword]) if keyword in RENAMED else arg.keyword
        made.append(arg.with_changes(value=new, keyword=name))
    return made


def _describe_result(ev: Evaluator, node: cst.Call, result: str, tensors: list[Value]) -> Value:
    """Return what is known of a function's result."""
    new = Value("tensor", memref=ev.make_memref(node), origin=NUMPY)
    first = tensors[0] if tensors else replace(new, memref=None)
    shared = first.memref and first.memref.doubtful
    if result == "list":
        return Value("static", element=replace(new, dtype=first.dtype, memref=shared), memref=new.memref)
    if result.startswith("parts="):
        if any(_name_keyword(a) in {"mode", "compute_uv"} for a in node.args):
            raise Stop(node, "numpy", "the number of results depends on an argument; use jax.numpy's function")
        memrefs = [ev.make_memref(node, f" {i}") for i in range(int(result[6:]))]
        return Value("static", parts=tuple(replace(new, memref=m) for m in memrefs))
    dtype = next((_port_dtype(ev, a.value)[1] for a in node.args if _name_keyword(a) == "dtype"), None)
    short = (ev.find_name(node.func) or unparse(node.func)).rpartition(".")[2]
    if short == "asarray":
        value = replace(first, memref=first.memref if dtype is None else shared, number="").with_origin(numpy=True)
    elif result == "view":
        value = replace(first, memref=shared, number="", rank=None, like="", rows=0).with_origin(numpy=True)
    elif result == "entry":
        likes, ranks, kinds = ({getattr(v, name) for v in tensors} for name in ("like", "rank", "dtype"))
        keeps = kinds == {"float"} or short in {"copy", "clip", "conj", "conjugate", "zeros_like", "ones_like"}
        rank, like = ranks.pop() if len(ranks) == 1 else None, likes.pop() if len(likes) == 1 else ""
        value = replace(new, dtype=first.dtype if keeps else "unknown", rank=rank, like=like)
    else:
        kind = first.dtype if result == "same" else result
        value = replace(new, dtype="int" if kind == "bool" and short in SUMS else kind)
    return value if dtype is None else _cast_value(value, dtype)


def _is_written_to(ev: Evaluator) -> bool:
    """Return whether the array that this statement makes is written to at indices."""
    bound = {t for n in list_nodes(ev.current) if isinstance(n, cst.AssignTarget) for t in iter_targets(n.target)}
    written = [n.target for n in list_nodes(ev.routine.node) if isinstance(n, (cst.AugAssign, cst.AssignTarget))]
    return any(isinstance(t, cst.Subscript) and unparse(t.value) in bound for t in written)


def _port_dtype(ev: Evaluator, node: cst.BaseExpression) -> tuple[cst.BaseExpression, Value]:
    """Return JAX's name of a dtype of NumPy, and what is known of it."""
    name = ev.find_name(node).removeprefix("numpy.").removeprefix("builtins.")
    text = read_literal(node)
    found = DTYPES.get(text if isinstance(text, str) else name)
    if found is None:
        expr = ev.port(node)
        return expr.node, expr.value if expr.value.name == DTYPE else Value("static", name=DTYPE, exact="?")
    ev.diagnostics.imports |= {"jnp"} & {found.split(".")[0]}
    exact = found.removeprefix("jnp.")
    known = "" if found in {"int", "bool", "complex"} else exact
    return parse(found), Value("static", find_dtype_class(exact), name=DTYPE, exact=known)


def _cast_value(value: Value, dtype: Value) -> Value:
    """Return what is known of the value as this dtype."""
    exact = "?" if dtype.dtype == "unknown" else dtype.exact
    return replace(value, dtype=dtype.dtype, exact=exact, number="").with_origin(numpy=True)
