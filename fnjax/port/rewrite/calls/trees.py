"""Trees of tensors.

What: the functions of torch.utils._pytree walk lists, tuples and dictionaries in PyTorch's order; named tuples are
trees to JAX without being registered; torch.Tensor that is passed on for isinstance becomes jax.Array.
Before: `flat, spec = tree_flatten(args)`
After: `flat, spec = _tree_flatten(args)`
Safety: jax.tree_util takes None for no leaf and sorts dictionaries, so small functions with PyTorch's order stand in
the output. A type becomes jax.Array only where every use of it in the file is that of isinstance.
Limits: classes that are registered with functions of their own, treespecs' attributes, and `is_leaf` are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import STATIC, UNKNOWN, Value
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.source.records import Routine, list_decorators
from fnjax.port.torch import ARRAYS, ATOM, PARAMETERS, bracket, unparse
from fnjax.port.tree.located import list_children, list_nodes

_HOME = ("torch.utils._pytree.", "torch.utils.pytree.", "torch.utils._cxx_pytree.")
_FIELDS = ["_namedtuple_flatten", "_namedtuple_unflatten"]
_LEAVES = Value("static", element=UNKNOWN)
# The arguments by position, what is made of them, and what is known of the result.
_FUNCTIONS = {
    "tree_flatten": (("tree",), "_tree_flatten({tree})", Value("static", parts=(_LEAVES, STATIC))),
    "tree_unflatten": (("leaves", "treespec"), "_tree_unflatten({leaves}, {treespec})", UNKNOWN),
    "tree_leaves": (("tree",), "_tree_flatten({tree})[0]", _LEAVES),
    "tree_structure": (("tree",), "_tree_flatten({tree})[1]", STATIC),
    "tree_map": (("func", "tree"), "_tree_map({func}, {tree})", UNKNOWN),
    "tree_map_only": (
        ("type_or_types_or_pred", "func", "tree"),
        "_tree_map(lambda {x}: {func}({x}) if isinstance({x}, {type_or_types_or_pred}) else {x}, {tree})",
        UNKNOWN,
    ),
}  # fmt: skip


def _shorten(name: str) -> str:
    return next((name.removeprefix(h) for h in _HOME if name.startswith(h)), "")


@call_of(*_HOME)
def port_tree_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `tree_map(f, tree)`."""
    short = _shorten(name)
    if short.endswith("register_pytree_node") and [_shorten(ev.find_name(a.value)) for a in node.args[1:3]] == _FIELDS:
        ev.port(node.args[0].value)
        return Expr(cst.Name("None"), Value("static", literal=None))
    if short not in _FUNCTIONS:
        return None
    names, template, value = _FUNCTIONS[short]
    given = {a.keyword.value if a.keyword else n: a for a, n in zip(node.args, names, strict=False)}
    if set(given) != set(names) or len(node.args) != len(names) or any(a.star for a in node.args):
        raise Stop(node, "operation", f"{short} with other arguments than {', '.join(names)}: write the loop out")
    list_values(ev, node)
    ev.diagnostics.needs.add("_tree_map" if "_map(" in template else template.partition("(")[0])
    texts = {n: ev.port(a.value).node for n, a in given.items()}
    filled = {n: unparse(bracket(t, ATOM if n == "func" else 1)) for n, t in texts.items()}
    return Expr(parse(template.format(**filled, x=ev.make_unused_name("leaf"))), value)


@expression(cst.Name, cst.Attribute)
def port_passed_type(ev: Evaluator, node: cst.Name | cst.Attribute) -> Expr | None:
    """Translate `torch.Tensor` where it is passed to a function of the file that only asks isinstance for it."""
    if (isinstance(node, cst.Name) and node.value in ev.state.variables) or ev.find_name(
        node
    ) not in ARRAYS | PARAMETERS:
        return None
    calls = [n for n in list_nodes(ev.current) if isinstance(n, cst.Call) and any(a.value is node for a in n.args)]
    if not calls or not _is_passed_as_type(ev, calls[0], node, frozenset()):
        return None
    ev.diagnostics.imports.add("jax")
    return Expr(parse("jax.Array"), Value("object"))


def _is_passed_as_type(
    ev: Evaluator, call: cst.Call, node: cst.BaseExpression, seen: frozenset[tuple[int, str]]
) -> bool:
    """Return whether a call only asks whether something is an instance of this argument."""
    index = next(i for i, a in enumerate(call.args) if a.value is node or node in _list_elements(a.value))
    name = ev.find_name(call.func)
    if name == "builtins.isinstance" or _shorten(name) == "tree_map_only":
        return index == (name == "builtins.isinstance")
    routine = ev.program.find_routine(name) if name.startswith("file:") and not any(a.star for a in call.args) else None
    if routine is None:
        return False
    said = call.args[index].keyword
    bound = routine.owner is not None and "classmethod" in list_decorators(routine.node)
    names = [p.name.value for p in routine.parameters][bound:]
    parameter = said.value if said else names[index] if index < len(names) else ""
    return bool(parameter) and _is_only_asked(ev, routine, parameter, seen)


def _is_only_asked(ev: Evaluator, routine: Routine, name: str, seen: frozenset[tuple[int, str]]) -> bool:
    """Whether all that a function does with a parameter is to ask isinstance for it, or to pass it on for that."""
    key = (id(routine.node), name)
    if key in seen:
        return True
    params = [p.name.value for n in list_nodes(routine.node.body) if isinstance(n, cst.Parameters) for p in n.params]
    if name in ev.program.list_bound(routine.node) or name in params:
        return False
    calls = [n for n in list_nodes(routine.node.body) if isinstance(n, cst.Call)]
    fine: set[int] = set()
    for call in calls:
        for arg in call.args:
            for value in (arg.value, *_list_elements(arg.value)):
                known = isinstance(value, cst.Name) and value.value == name
                if known and _is_passed_as_type(ev, call, value, seen | {key}):
                    fine.add(id(value))
    return all(id(n) in fine for n in _list_reads(routine.node.body, name))


def _list_elements(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [e.value for e in node.elements] if isinstance(node, cst.Tuple) else []


def _list_reads(node: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    """Return the reads of a variable, annotations left out."""
    if isinstance(node, cst.Name):
        return [node] if node.value == name else []
    skipped = node.attr if isinstance(node, cst.Attribute) else node.keyword if isinstance(node, cst.Arg) else None
    found = [c for c in reversed(list_children(node)) if c is not skipped and not isinstance(c, cst.Annotation)]
    return [n for c in found for n in _list_reads(c, name)]
