"""Functions that return a decorator which makes an operator, before anything else is looked at.

What: the decorator becomes what it does, as calls of torch.library's.
Before: `@my_op("f", fake)` over `def f(x)`, with `def my_op(name, fake)` that returns `def decorate(fn)`
After: `@torch.library.custom_op(f"ns::f", mutates_args=())` over it, and the line `f.register_fake(fake)` after it
Safety: only where the decorator hands its function straight to custom_op or triton_op; what else it does (tables that
it fills) stays after, as nothing that is ported reads it.
Limits: a decorator that branches or loops stays as it is; a register_fake that is given the body itself goes, as a body
of JAX operations has its own shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from fnjax.port.torch import unparse
from fnjax.port.torch.expressions import read_text
from fnjax.port.tree.located import Located, Positions, list_nodes

_REGISTERING = frozenset({"register_fake", "register_autograd", "register_kernel", "register_vmap"})


@dataclass(frozen=True)
class _DecoratorMaker:
    """A function that returns a decorator.

    Attributes:
        params: its parameters, with their defaults.
        given: the name that the decorator has for its function; empty where it returns torch.library's own.
        lines: what it and the decorator do, one after another.
    """

    params: tuple[cst.Param, ...]
    given: str
    lines: tuple[cst.BaseSmallStatement, ...]


def expand_decorating(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with what such decorators do in their place."""
    found = {
        s.name.value: m
        for s in tree.body
        if isinstance(s, cst.FunctionDef) and (m := _read_decorator_maker(s)) is not None
    }
    for s in tree.body:  # `my_op = helpers.my_op`
        small = s.body[0] if isinstance(s, cst.SimpleStatementLine) else None
        if isinstance(small, cst.Assign) and unparse(small.value) in found:
            found |= {unparse(t.target): found[unparse(small.value)] for t in small.targets}
    if not found:
        return tree
    located = Located(positions)
    body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
    for s in tree.body:
        made = _expand_decorators(s, found) if isinstance(s, cst.FunctionDef) else [s]
        for new in made if made[0] is not s else ():
            located._place_inside(new, positions[s])
        body += made
    return tree.with_changes(body=body)


def _read_decorator_maker(function: cst.FunctionDef) -> _DecoratorMaker | None:
    inner = [s for s in function.body.body if isinstance(s, cst.FunctionDef)]
    params = (*function.params.params, *function.params.kwonly_params)
    last = function.body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    if not inner and isinstance(small, cst.Return) and isinstance(small.value, cst.Call):
        own = unparse(small.value.func).rpartition(".")[2] in {"custom_op", "triton_op", "impl"}
        plain = all(isinstance(s, cst.SimpleStatementLine) for s in function.body.body)
        return _DecoratorMaker(params, "", (small,)) if own and plain else None
    if len(inner) != 1 or len(inner[0].params.params) != 1:
        return None
    statements = [s for s in (*function.body.body, *inner[0].body.body) if s is not inner[0]]
    lines = [small for s in statements if isinstance(s, cst.SimpleStatementLine) for small in s.body]
    if not all(isinstance(s, cst.SimpleStatementLine) for s in statements):
        return None
    given = inner[0].params.params[0].name.value
    if not any(_makes_operator(n, given) for small in lines for n in list_nodes(small)):
        return None
    return _DecoratorMaker(params, given, tuple(lines))


def _makes_operator(node: cst.CSTNode, given: str) -> bool:
    """Return whether this is `torch.library.custom_op(name, ...)(fn)`."""
    curried = isinstance(node, cst.Call) and isinstance(node.func, cst.Call) and [unparse(a.value) for a in node.args]
    return curried == [given] and unparse(node.func.func).rpartition(".")[2] in {"custom_op", "triton_op"}  # type: ignore[attr-defined] # a call


def _expand_decorators(
    function: cst.FunctionDef, found: Mapping[str, _DecoratorMaker]
) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    call = function.decorators[0].decorator if len(function.decorators) == 1 else None
    maker = found.get(unparse(call.func)) if isinstance(call, cst.Call) else None
    if maker is None or not isinstance(call, cst.Call) or any(a.star for a in call.args):
        return [function]
    values = {p.name.value: p.default for p in maker.params if p.default is not None}
    values |= {p.name.value: a.value for p, a in zip(maker.params, call.args, strict=False) if a.keyword is None}
    values |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    values[maker.given] = function.name
    decorator: cst.BaseExpression | None = None
    after: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
    for small in maker.lines:
        value = getattr(small, "value", None)
        if not isinstance(value, cst.BaseExpression):
            continue
        is_operator = not maker.given or _makes_operator(value, maker.given)
        if isinstance(small, cst.Return) and not is_operator:
            continue
        made = value.visit(_DecoratorFiller(values))
        assert isinstance(made, cst.BaseExpression)
        if is_operator and isinstance(made, cst.Call):
            decorator = made.func if maker.given else made
        if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name):
            values[small.targets[0].target.value] = function.name if is_operator else made
        elif isinstance(small, cst.Expr) and not is_operator and _registers_more(value, maker.given):
            after.append(cst.SimpleStatementLine([cst.Expr(made)]))
    if decorator is None:
        return [function]
    return [function.with_changes(decorators=[function.decorators[0].with_changes(decorator=decorator)]), *after]


def _registers_more(call: cst.BaseExpression, given: str) -> bool:
    """Return whether a line registers something but the body itself."""
    func = call.func if isinstance(call, cst.Call) else call
    func = func.func if isinstance(func, cst.Call) else func
    args = [unparse(a.value) for a in call.args] if isinstance(call, cst.Call) else [given]
    return unparse(func).rpartition(".")[2] in _REGISTERING and given not in args


class _DecoratorFiller(cst.CSTTransformer):
    """Puts values in the place of names, and joins the text that f-strings make of them."""

    def __init__(self, values: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.values = values

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Only what an attribute is of."""
        return False

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """Rename `op.register_fake`."""
        value = updated_node.value.visit(self)
        assert isinstance(value, cst.BaseExpression)
        return updated_node.with_changes(value=value)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Keep the keyword of an argument."""
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replace a parameter."""
        value = self.values.get(original_node.value)
        return value.deep_clone() if value is not None else updated_node

    def leave_FormattedString(
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.BaseExpression:
        """Replace a text if all in it is known."""
        text = read_text(updated_node)
        return updated_node if text is None else cst.SimpleString(f'"{text}"')
