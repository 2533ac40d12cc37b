"""Functions whose arguments or results share memory, written out where they are called, before anything is looked at.

What: a function of the file that gives a tensor and a view of it, `return x.view(-1), x`, and what such a pair is then
given to: each of the two sees what is written to the other.
Before: `flat, x = both(x)` and `x = update(flat, x)`
After: the lines of `both` and of `update`
Safety: only functions that are lines one after the other with one return at the end, called in a line of their own;
their variables get names of their own.
Limits: other functions that are given a tensor twice, and write to it, are findings.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.torch import Operation, find_operation, unparse
from fnjax.port.tree.located import Positions, list_children, list_nodes

_METHODS = frozenset({"forward", "backward", "vjp", "jvp", "vmap", "setup_context"})


def inline_pairs_of_views(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with such functions written out."""
    straight = dict(_iter_straight_functions(tree))
    if not any(_list_sharing_results(f) for f in straight.values()):
        return tree
    made = tree.visit(_Inliner(positions, straight))
    assert isinstance(made, cst.Module)
    return made


def _iter_straight_functions(tree: cst.Module) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Yield the functions of the top level, and static methods of its classes, that have no branches."""
    for statement in tree.body:
        if isinstance(statement, cst.FunctionDef) and not statement.decorators and _is_straight(statement):
            yield statement.name.value, statement
        elif isinstance(statement, cst.ClassDef):
            for inner in statement.body.body:
                if not isinstance(inner, cst.FunctionDef) or inner.name.value in _METHODS or not _is_straight(inner):
                    continue
                if [unparse(d.decorator) for d in inner.decorators] == ["staticmethod"]:
                    yield f"{statement.name.value}.{inner.name.value}", inner


def _is_straight(node: cst.FunctionDef) -> bool:
    body, params = node.body.body, node.params
    if params.star_kwarg or params.kwonly_params or params.posonly_params or isinstance(params.star_arg, cst.Param):
        return False
    if not all(isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1 for s in body) or not body:
        return False
    if list_nodes(node.body, cst.Lambda, cst.CompFor, cst.NamedExpr, cst.Yield, cst.Global):
        return False
    returns = list_nodes(node.body, cst.Return)
    return len(returns) == 1 and body[-1].body[0] is returns[0] and returns[0].value is not None  # type: ignore[union-attr] # a line


def _list_small_statements(node: cst.FunctionDef) -> list[cst.BaseSmallStatement]:
    return [s.body[0] for s in node.body.body if isinstance(s, cst.SimpleStatementLine)]


def _name_members(node: cst.BaseExpression | None) -> list[str]:
    return [unparse(e.value) for e in node.elements] if isinstance(node, cst.Tuple) else [unparse(node)] if node else []


def _find_roots(node: cst.FunctionDef) -> dict[str, str]:
    """For each variable whose memory it lies in, as far as the text shows."""
    roots = {p.name.value: p.name.value for p in node.params.params}
    for small in _list_small_statements(node):
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        value: cst.BaseExpression = small.value
        while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and _is_view(value.func.attr.value):
            value = value.func.value
        name = unparse(small.targets[0].target)
        roots[name] = roots.get(unparse(value), unparse(value)) if isinstance(value, cst.Name) else name
    return roots


def _is_view(method: str) -> bool:
    """Return whether a method of tensors gives the same memory, if it can."""
    found = find_operation(f"torch.Tensor.{method}")
    return isinstance(found, Operation) and found.alias in {"view", "maybe"}


def _list_sharing_results(node: cst.FunctionDef) -> list[str]:
    """Return the returned variables that share memory with another that is returned."""
    last = _list_small_statements(node)[-1]
    given = _name_members(last.value) if isinstance(last, cst.Return) else []
    roots = _find_roots(node)
    found = [roots.get(g, g) for g in given]
    return [g for g in given if g in roots and found.count(roots[g]) > 1]


class _Inliner(cst.CSTTransformer):
    def __init__(self, positions: Positions, straight: dict[str, cst.FunctionDef]) -> None:
        super().__init__()
        self.positions, self.straight = positions, straight
        self.shared: list[set[str]] = []  # in the functions around, the variables that share memory
        self.taken: list[set[str]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.taken.append({n.value for n in list_nodes(node, cst.Name)})
        shared: set[str] = set()
        for call, targets in _iter_assigned_calls(node):
            callee = self.straight.get(unparse(call.func))
            if callee is not None and callee is not node and (pairs := _list_sharing_results(callee)):
                given = _name_members(_list_small_statements(callee)[-1].value)  # type: ignore[attr-defined] # a return
                if len(given) == len(targets):
                    shared |= {t for t, g in zip(targets, given, strict=True) if g in pairs}
        self.shared.append(shared)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.shared.pop()
        self.taken.pop()
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        small = original_node.body[0] if len(original_node.body) == 1 else None
        if not self.shared or not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call):
            return updated_node
        call, callee = small.value, self.straight.get(unparse(small.value.func))
        if callee is None or len(small.targets) != 1 or not self.shared[-1]:
            return updated_node
        passed = [unparse(a.value) for a in call.args if unparse(a.value) in self.shared[-1]]
        if not _list_sharing_results(callee) and len(passed) < 2:
            return updated_node
        lines = self._inline_call(small, call, callee)
        if lines is None:
            return updated_node
        lines[0] = lines[0].with_changes(leading_lines=original_node.leading_lines)
        row, column = self.positions[original_node]
        for i, made in enumerate(lines):
            self._place_in_order(made, (row, column + 1000 * (i + 1)))
        return cst.FlattenSentinel(lines)

    def _inline_call(
        self, small: cst.Assign, call: cst.Call, callee: cst.FunctionDef
    ) -> list[cst.SimpleStatementLine] | None:
        """Return the lines of a function with its caller's variables."""
        params = [p.name.value for p in callee.params.params]
        if any(a.star for a in call.args):
            return None
        given = {p.name.value: p.default for p in callee.params.params if p.default is not None}
        given |= dict(zip(params, (a.value for a in call.args if a.keyword is None), strict=False))
        given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        if set(given) != set(params):
            return None
        bound = {
            n
            for s in _list_small_statements(callee)
            if isinstance(s, cst.Assign)
            for t in s.targets
            for n in _list_bound(t.target)
        }
        others = [s.target for s in _list_small_statements(callee) if isinstance(s, (cst.AugAssign, cst.AnnAssign))]
        bound |= {n for target in others for n in _list_bound(target)}
        names: dict[str, str] = {}
        first: list[str] = []
        for name in [*params, *sorted(bound - set(params))]:
            value = given.get(name)
            if isinstance(value, cst.Name) and name not in bound:
                names[name] = value.value
                continue
            new = name
            while new in self.taken[-1]:
                new += "_"
            self.taken[-1].add(new)
            names[name] = new
            if value is not None:
                first.append(f"{new} = {unparse(value)}")
        lines = [cst.parse_statement(text) for text in first]
        for statement in _list_small_statements(callee):
            if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.SimpleString):
                continue
            if isinstance(statement, cst.Return):
                assert statement.value is not None
                returned = statement.value.visit(_LocalsRenamer(names))
                lines += _assign_one_by_one(small.targets[0].target, returned)  # type: ignore[arg-type] # an expression
                break
            renamed = statement.deep_clone().visit(_LocalsRenamer(names))
            lines.append(cst.parse_statement(unparse(renamed)))
        return lines  # type: ignore[return-value] # lines

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override] # as Located
        made = super().on_leave(original_node, updated_node)
        if isinstance(made, cst.CSTNode) and original_node in self.positions:
            self.positions.setdefault(made, self.positions[original_node])
        return made  # type: ignore[return-value] # or several lines

    def _place_in_order(self, node: cst.CSTNode, position: tuple[int, int]) -> None:
        """Place new nodes one after the other, so that it is known what is read later."""
        counter = 0
        waiting = [node]
        while waiting:
            one = waiting.pop()
            self.positions[one] = (position[0], position[1] + counter)
            counter += 1
            waiting.extend(list_children(one))


def _list_bound(target: cst.BaseExpression) -> list[str]:
    """Return the variables that an assignment binds; an entry or an attribute is none."""
    names = _name_members(target) if isinstance(target, (cst.Name, cst.Tuple)) else []
    return [n.strip("*() ") for n in names if "[" not in n and "." not in n]


def _assign_one_by_one(target: cst.BaseExpression, value: cst.BaseExpression) -> list[cst.BaseStatement]:
    """Return `a, b = x, y` one by one if no target is read."""
    targets, values = _name_members(target), _name_members(value)
    read = {n.value for n in list_nodes(value, cst.Name)}
    if len(targets) != len(values) or set(targets) & read:
        return [cst.parse_statement(f"{unparse(target)} = {unparse(value)}")]
    return [cst.parse_statement(f"{t} = {v}") for t, v in zip(targets, values, strict=True)]


def _iter_assigned_calls(node: cst.FunctionDef) -> Iterator[tuple[cst.Call, list[str]]]:
    for n in list_nodes(node.body):
        if isinstance(n, cst.Assign) and isinstance(n.value, cst.Call) and len(n.targets) == 1:
            yield n.value, _name_members(n.targets[0].target)


class _LocalsRenamer(cst.CSTTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self.names.get(updated_node.value, updated_node.value))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)
