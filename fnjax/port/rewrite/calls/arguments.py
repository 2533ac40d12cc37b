"""The arguments of a call of torch, before they are bound to its signature.

What: `*` and `**` of what was written out become the arguments that they stand for; types of tensors that are given as
arguments name a dtype.
Before: `options = dict(dim=1, keepdim=True); y = x.sum(**options).type(torch.FloatTensor)`
After: `y = jnp.sum(x, axis=options["dim"], keepdims=options["keepdim"]).astype(jnp.float32)`
Safety: a dictionary stands for its entries while nothing has changed it.
Limits: `**options` of unknown keys is a finding.
"""

from __future__ import annotations

import re

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.expressions import Operands
from fnjax.port.known.facts import DTYPE, SIZE, Value
from fnjax.port.source.canonical_names import find_canonical_name
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import (
    TENSOR_TYPES,
    Operation,
    bracket,
    read_literal,
    unparse,
)
from fnjax.port.torch.context import find_dtype_class
from fnjax.port.tree.located import list_nodes


def open_options(ev: Evaluator, arg: cst.Arg) -> list[cst.Arg]:
    """Translate `**options` as the arguments that it stands for, where the dictionary was written out."""
    if arg.star != "**":
        return [arg]
    own = ev.routine.node.params.star_kwarg
    if own is not None and unparse(arg.value) == own.name.value and ev.routine.role == "forward":
        return []  # apply takes no keywords
    entries = ev.port(arg.value).value.entries
    if not entries:
        raise Stop(arg, "operation", f"{unparse(arg)}: its keys cannot be told; write the arguments out")
    if isinstance(arg.value, cst.Dict):
        values = [e.value for e in arg.value.elements]
    elif isinstance(arg.value, cst.Call) and ev.find_name(arg.value.func) == "builtins.dict":
        values = [a.value for a in arg.value.args]
    else:
        values = [parse(f"{unparse(bracket(arg.value))}[{key!r}]".replace("'", '"')) for key, _ in entries]
    return [cst.Arg(v, keyword=cst.Name(key)) for v, (key, _) in zip(values, entries, strict=True)]


def open_star(ev: Evaluator, arg: cst.Arg) -> list[cst.Arg]:
    """Translate `*options` as the arguments that it stands for, where their number is known."""
    if arg.star == "*" and isinstance(arg.value, (cst.Tuple, cst.List)):
        return [cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in arg.value.elements]
    if arg.star == "*" and isinstance(arg.value, cst.Subscript) and ev.port(arg.value.value).value.name == SIZE:
        prologue = re.fullmatch(r"-(\d):", unparse(arg.value.slice[0]))
        last = range(-int(prologue[1]) if prologue else 0, 0)
        return [cst.Arg(parse(f"{unparse(arg.value.value)}[{i}]")) for i in last] or [arg]
    parts = ev.port(arg.value).value.parts
    if arg.star != "*" or not parts or not isinstance(arg.value, (cst.Name, cst.Attribute)):
        return [arg]
    return [cst.Arg(parse(f"{unparse(arg.value)}[{i}]")) for i in range(len(parts))]


def read_tensor_type_as_dtype(ev: Evaluator, arg: cst.Arg, known: Operands) -> cst.Arg:
    """Translate `x.type(torch.FloatTensor)` and `x.type("torch.cuda.FloatTensor")` name a dtype."""
    said = read_literal(arg.value)
    name = find_canonical_name(said) if isinstance(said, str) else _name_tensor_type(ev, arg.value)
    if name not in TENSOR_TYPES:
        return arg
    return arg.with_changes(value=_make_dtype(TENSOR_TYPES[name], known))


def _make_dtype(text: str, known: Operands) -> cst.BaseExpression:
    """Return an expression for a dtype, and enter its meaning."""
    made, exact = parse(text), text.removeprefix("jnp.")
    value = Value("static", find_dtype_class(exact), name=DTYPE, exact=exact if exact not in {"int", "bool"} else "")
    known[id(made)] = (made, Expr(made, value))
    return made


def widen_sum(ev: Evaluator, operation: Operation, args: list[cst.Arg], known: Operands) -> list[cst.Arg]:
    """Small integers add up to large ones in PyTorch, whatever their dtype: `jnp.cumsum(m, dtype=int)`."""
    if not operation.first.large or operation.inplace or not args:
        return []
    if ev.port(args[0].value).value.exact not in {"int8", "uint8", "int16", "uint16"}:
        return []
    given = any(a.keyword and a.keyword.value == "dtype" for a in args)
    return [] if given else [cst.Arg(_make_dtype("int", known), keyword=cst.Name("dtype"))]


def _name_tensor_type(ev: Evaluator, node: cst.BaseExpression) -> str:
    """Return the type of tensors that an expression names, whichever way it goes."""
    if isinstance(node, cst.IfExp):
        names = {_name_tensor_type(ev, node.body), _name_tensor_type(ev, node.orelse)}
        return names.pop() if len(names) == 1 else ""
    name = ev.find_name(node)
    return name if name in TENSOR_TYPES else ""


def is_only_renamed(ev: Evaluator, node: cst.BaseExpression, name: str) -> bool:
    """Return whether a type of tensors is only given another name: `Tensor = torch.FloatTensor`."""
    kinds = (cst.Assign, cst.Expr) if ev.routine.role == "module" else (cst.Assign,)
    found = [n for n in list_nodes(ev.current) if isinstance(n, kinds)]
    held = [n.value for n in found if isinstance(n, cst.Expr) or _all_targets_mean(ev, n, name)]
    return any(_name_tensor_type(ev, v) == name and any(n is node for n in list_nodes(v)) for v in held)


def _all_targets_mean(ev: Evaluator, node: cst.Assign, name: str) -> bool:
    return all(only_means(ev, n, name) for t in node.targets for n in iter_targets(t.target))


_BINDING = (cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)


def only_means(ev: Evaluator, variable: str, name: str) -> bool:
    """Return whether a variable stands for this name of torch wherever the function binds it."""
    inside = list(list_nodes(ev.routine.node))
    branches = [n.target for n in inside if isinstance(n, _BINDING)]
    if any(variable in iter_targets(t) for t in branches) or any(
        p.name.value == variable for p in ev.routine.parameters
    ):
        return False
    given = [
        n.value for n in inside if isinstance(n, cst.Assign) for t in n.targets if variable in iter_targets(t.target)
    ]
    return all((_name_tensor_type(ev, v) or ev.find_name(v)) == name for v in given)
