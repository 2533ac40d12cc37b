"""NumPy inside.

What: calls of NumPy and SciPy without tensors stay, as constants; a constant table is indexed by a tensor.
Before: `w = np.sqrt(n)` and `LEVELS[x.long()]`
After: `w = np.sqrt(n)` and `jnp.asarray(LEVELS)[x.astype(int)]`
Safety: of constants NumPy computes while JAX traces, in its own float64, as in PyTorch.
Limits: functions of tensors are findings (fnjax.torch calls them), as are draws of np.random.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import NUMBER, NUMPY, UNKNOWN, Origin, Value
from fnjax.port.rewrite.calls.python_calls import list_contained, list_values
from fnjax.port.torch import fill
from fnjax.port.tree.located import list_nodes

# Functions that return a scalar of NumPy's own for a Python number.
_SCALARS = frozenset(
    {"float64", "float32", "float16", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"}
    | {"tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ceil", "floor", "round", "abs", "power", "maximum"}
    | {"minimum", "square", "sign", "arctan2", "hypot", "deg2rad", "rad2deg", "cbrt", "reciprocal", "mod", "divide"}
)
_CONSTANTS = frozenset({"numpy.pi", "numpy.e", "numpy.inf", "numpy.nan", "numpy.euler_gamma"})  # Python's floats


@call_of("*.numpy")
def port_numpy_conversion(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `np.sin(x.numpy())`, which only reads: the body of an operator may, as JAX calls it back."""
    calls = (c for c in list_nodes(ev.current, cst.Call) if ev.find_name(c.func).startswith(("numpy.", "scipy.")))
    if any(a.value is node and a.keyword is None for c in calls for a in c.args):
        return None
    raise Stop(node, "numpy", "NumPy's arrays share the memory of a tensor: JAX source of this needs jax.numpy")


@call_of("numpy.", "scipy.", "random.")
def port_numpy_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `np.sqrt(n)` of constants, which stays."""
    root, short = name.partition(".")[0], name.removeprefix("numpy.")
    if root == "random" or name.startswith("numpy.random."):
        of = "Python" if root == "random" else "NumPy"
        raise Stop(node, "random", f"{name} draws from {of}'s generator, once for all calls under jit: use torch's")
    values = list_values(ev, node)
    if any(v.is_tensor for v in (*values, *list_contained(values))) or (root == "scipy" and UNKNOWN in values):
        raise Stop(node, "numpy", f"{name} of an array: write it with jax.numpy, or a jax.pure_callback")
    made = node.with_changes(args=[a.with_changes(value=ev.port(a.value).node) for a in node.args])
    if short in _SCALARS and all(v.is_number for v in values) and not any(a.keyword or a.star for a in node.args):
        return Expr(made, Value("static", "float", name=NUMBER, origin=NUMPY))
    constant = Value("static", origin=Origin(numpy=root == "numpy"))
    return Expr(made, UNKNOWN if any(v.kind == "unknown" for v in values) else constant)


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
    return Expr(table, Value("tensor", memref=ev.make_memref(node)))


@expression(cst.Attribute, only="numpy")
def port_numpy_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `np.pi`, `math.pi`."""
    name = ev.find_name(node)
    return Expr(node, Value("static", "float")) if name.replace("math.", "numpy.") in _CONSTANTS else None
