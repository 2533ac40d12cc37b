"""Entries that are known before the trace.

What: nonzero of an array that is made of Python's numbers alone is asked of NumPy, which knows it under jit too;
the product of such numbers, of Python.
Before: `torch.ones(n, n).triu().nonzero()`
After: `jnp.array(np.argwhere(np.triu(np.ones((n, n)))))`
Safety: only where no tensor is read, each function has a counterpart of the same name in NumPy, and a variable for the
array is made once and read here alone.
Limits: nonzero of any other array is a finding: its shape depends on values.
"""

from __future__ import annotations

import ast

import libcst as cst

from fnjax.port.analysis.registry import call_of
from fnjax.port.analysis.walk import Term, Walk, parse
from fnjax.port.known.facts import Value
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

_SAME = frozenset({"arange", "bool_", "eye", "float32", "int32", "ones", "tril", "triu", "zeros"})
_BINDING = (cst.AssignTarget, cst.AugAssign, cst.For)


@call_of("torch.nonzero", "*.nonzero")
def port_known_nonzero(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`index = mask.nonzero()`."""
    args = [a for a in node.args if a.keyword is None]
    if name == "torch.nonzero" and len(args) == 1:
        array = args[0].value
    elif name == "*.nonzero" and not args:
        array = node.func.value  # type: ignore[attr-defined] # an attribute
    else:
        return None
    if any(unparse(a.value) != "False" for a in node.args if a.keyword is not None) or not _is_constant(walk, array):
        return None
    walk.sink.imports |= {"jnp", "np"}
    text = unparse(walk.port(_find_made_of(walk, array)).node).replace("jnp.", "np.")
    return Term(parse(f"jnp.array(np.argwhere({text}))"), Value("tensor", "int", 2, place=walk.make_place(node)))


@call_of("builtins.int")
def port_known_product(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`int(torch.prod(torch.tensor(sizes)))`, of a list of Python's numbers."""
    if len(node.args) != 1 or not isinstance(node.args[0].value, cst.Call):
        return None
    inner = node.args[0].value
    method = isinstance(inner.func, cst.Attribute) and inner.func.attr.value == "prod" and not inner.args
    array = inner.func.value if method else inner.args[0].value if len(inner.args) == 1 else None  # type: ignore[attr-defined] # an attribute
    if not method and walk.find_name(inner.func) != "torch.prod":
        return None
    if not isinstance(array, cst.Call) or walk.find_name(array.func) != "torch.tensor" or len(array.args) != 1:
        return None
    sizes = walk.port(array.args[0].value)
    parts = sizes.value.parts or ((sizes.value.element,) if sizes.value.element else ())
    if sizes.value.kind != "static" or not parts or any(p.kind != "static" or p.dtype != "int" for p in parts):
        return None
    walk.sink.imports.add("math")
    return Term(parse(f"math.prod({unparse(sizes.node)})"), Value("static", "int"))


def _find_made_of(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a variable that is read once was made of."""
    if not isinstance(node, cst.Name) or len(walk.routine.reads.get(node.value, ())) != 2:
        return node
    return next(iter(walk.routine.given.get(node.value, ())), node)


def _is_constant(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether an array is made of variables that hold Python's numbers, and are given them once."""
    bound = [t for n in list_nodes(walk.routine.node) if isinstance(n, _BINDING) for t in iter_targets(n.target)]
    for n in ast.walk(ast.parse(unparse(walk.port(_find_made_of(walk, node)).node), mode="eval")):
        if isinstance(n, ast.Attribute):
            of_jnp = isinstance(n.value, ast.Name) and n.value.id == "jnp"
            if not (n.attr in _SAME if of_jnp else n.attr == "reshape"):
                return False
        elif (
            isinstance(n, ast.Name) and n.id != "jnp" and (walk.look_up(n.id).kind != "static" or bound.count(n.id) > 1)
        ):
            return False
    return True
