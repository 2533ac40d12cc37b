"""Functions that launch a kernel that they are given, before anything else is looked at.

What: the body of such a function takes the place of its call.
Before: `launch(add, grid, (x, y), BLOCK=8)` of `def launch(kernel, grid, args, **more): kernel[grid](*args, **more)`
After: `add[grid](x, y, BLOCK=8)`
Safety: only functions without a result that give none of their parameters a new value.
Limits: calls with `*` or `**`, and calls inside expressions, stay as they are.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.torch import unparse
from fnjax.port.tree.located import Located, Positions, find_small_statement, list_nodes

_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)
_ENDS = (cst.Return, cst.Yield, cst.FunctionDef, cst.Lambda, cst.Global)


def inline_launchers(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with the bodies of launching functions in place of their calls."""
    found = {s.name.value: s for s in tree.body if isinstance(s, cst.FunctionDef) and _launches_parameter(s)}
    if not found:
        return tree
    made = tree.visit(_LauncherInliner(positions, found))
    assert isinstance(made, cst.Module)
    return made


def _launches_parameter(function: cst.FunctionDef) -> bool:
    params = {p.name.value for p in list_nodes(function.params, cst.Param)}
    inside = list(list_nodes(function.body))
    called = (n.func.value for n in inside if isinstance(n, cst.Call) and isinstance(n.func, cst.Subscript))
    plain = not function.decorators and isinstance(function.body, cst.IndentedBlock)
    bound = {unparse(n.target) for n in inside if isinstance(n, _BINDING)}
    return (
        plain
        and any(isinstance(k, cst.Name) and k.value in params for k in called)
        and not any(isinstance(n, _ENDS) for n in inside)
        and not bound & params
    )


class _LauncherInliner(Located):
    def __init__(self, positions: Positions, found: dict[str, cst.FunctionDef]) -> None:
        super().__init__(positions)
        self.found, self.around = found, list[cst.FunctionDef]()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Note the scope in which the body would be."""
        self.around.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Out again."""
        self.around.pop()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        for old, new in zip(original_node.body, updated_node.body, strict=True):
            lines = self._inline_call(new)
            if lines:
                lines[0] = lines[0].with_changes(leading_lines=old.leading_lines)  # type: ignore[attr-defined] # of a line
            body += lines or [new]
        same = len(body) == len(updated_node.body) and all(a is b for a, b in zip(body, updated_node.body, strict=True))
        return updated_node if same else updated_node.with_changes(body=body)

    def _inline_call(self, node: cst.BaseStatement) -> list[Any]:
        """Return the body for a line that calls such a function; nothing for any other."""
        small = find_small_statement(node)
        call = small.value if isinstance(small, cst.Expr) else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or not self.around:
            return []
        function = self.found.get(call.func.value)
        given = (
            _match_launch_arguments(function, call)
            if function is not None and function is not self.around[-1]
            else None
        )
        if function is None or given is None:
            return []
        here = {n.value for n in list_nodes(self.around[-1], cst.Name)}
        bound = {unparse(n.target) for n in list_nodes(function.body, *_BINDING)}
        names: dict[str, Any] = {n: cst.Name(f"{n}_") for n in bound & here}
        first: list[cst.BaseStatement] = []
        for name, value in given.items():
            reads = sum(isinstance(n, cst.Name) and n.value == name for n in list_nodes(function.body))
            simple = isinstance(value, (list, cst.Name, cst.Attribute, cst.BaseNumber, cst.SimpleString))
            if simple or reads == 1 or _is_simple_row(value):
                names[name] = value
            else:
                own = next(n for n in (name, f"{name}_", f"{name}__") if n not in here)
                first.append(cst.parse_statement(f"{own} = {unparse(value)}"))
                names[name] = cst.Name(own)
        body = function.body.deep_clone().visit(_LaunchFiller(names))
        assert isinstance(body, cst.IndentedBlock)
        return [*first, *body.body[function.get_docstring() is not None :]]


def _is_simple_row(node: Any) -> bool:
    parts = [e.value for e in node.elements] if isinstance(node, (cst.Tuple, cst.List)) else [node]
    return isinstance(node, (cst.Tuple, cst.List)) and all(isinstance(p, (cst.Name, cst.BaseNumber)) for p in parts)


def _match_launch_arguments(function: cst.FunctionDef, call: cst.Call) -> dict[str, Any] | None:
    """Return what a call gives each parameter; rows of arguments for `*args` and `**options`."""
    if any(a.star for a in call.args):
        return None
    params = function.params
    plain = [*params.posonly_params, *params.params]
    named = {p.name.value: p for p in (*plain, *params.kwonly_params)}
    found: dict[str, Any] = {n: p.default for n, p in named.items() if p.default is not None}
    rest, options = [], []
    positional = [a for a in call.args if a.keyword is None]
    for i, arg in enumerate(positional):
        if i < len(plain):
            found[plain[i].name.value] = arg.value
        else:
            rest.append(cst.Arg(arg.value))
    for arg in call.args:
        if arg.keyword is not None:
            if arg.keyword.value in named:
                found[arg.keyword.value] = arg.value
            else:
                options.append(cst.Arg(arg.value, keyword=arg.keyword, equal=arg.equal))
    if isinstance(params.star_arg, cst.Param):
        found[params.star_arg.name.value] = rest
    elif rest:
        return None
    if params.star_kwarg is not None:
        found[params.star_kwarg.name.value] = options
    elif options:
        return None
    return found if named.keys() <= found.keys() else None


class _LaunchFiller(cst.CSTTransformer):
    """The body with what a call has given."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.names = names

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """Nor is what follows a dot."""
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Keep the keyword of an argument."""
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Write out `*args` and `**options`."""
        args: list[cst.Arg] = []
        for old, new in zip(original_node.args, updated_node.args, strict=True):
            args += self._open_star(old) if old.star and isinstance(old.value, cst.Name) else [new]
        return updated_node.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in args])

    def _open_star(self, arg: cst.Arg) -> list[cst.Arg]:
        value = self.names.get(unparse(arg.value), arg.value)
        if isinstance(value, list):
            return [a.deep_clone() for a in value]
        if arg.star == "*" and isinstance(value, (cst.Tuple, cst.List)):
            pairs = [(e.value.deep_clone(), isinstance(e, cst.StarredElement)) for e in value.elements]
            return [cst.Arg(v, star="*" if starred else "") for v, starred in pairs]
        return [arg.with_changes(value=value.deep_clone())]

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replace a parameter."""
        value: cst.BaseExpression | list[cst.Arg] | None = self.names.get(updated_node.value)
        if value is None or isinstance(value, list):
            return updated_node
        made = value.deep_clone()
        plain = isinstance(made, (cst.Name, cst.Attribute, cst.BaseNumber, cst.SimpleString, cst.Call, cst.Tuple))
        return made if plain else made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
