"""Descriptors that launches are given, before anything else is looked at.

What: a variable that holds a descriptor goes away, and what made it is written where a launch is given it, so that it
describes what the array is then.
Before: `c_desc = TensorDescriptor.from_tensor(c, [1, 1])` and `kernel[grid](a_desc, c_desc)`
After: `kernel[grid](a_desc, TensorDescriptor.from_tensor(c, [1, 1]))`
Safety: only variables that are bound once and read as arguments of launches alone, where nothing in between binds what
the descriptor is made of.
Limits: a descriptor that a function returns, or that a branch chooses, stays, and is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.torch import unparse
from fnjax.port.tree.located import Located, Positions, find_small_statement, list_nodes

MAKES = "TensorDescriptor"
_TARGETS = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)


def move_descriptors(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with such descriptors where launches are given them."""
    if not any(isinstance(n, cst.Name) and n.value == MAKES for n in list_nodes(tree)):
        return tree
    made = tree.visit(_DescriptorMover(positions))
    assert isinstance(made, cst.Module)
    return made


def is_descriptor(node: cst.CSTNode | None) -> bool:
    """Return whether this is `TensorDescriptor(x, ...)` or its `from_tensor(x, ...)`, whatever its module."""
    if not isinstance(node, cst.Call):
        return False
    words = unparse(node.func).removesuffix(".from_tensor").split(".")
    return words[-1] == MAKES


class _DescriptorMover(Located):
    def __init__(self, positions: Positions) -> None:
        super().__init__(positions)
        self.around: list[dict[str, cst.BaseExpression]] = [{}]

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Collect the descriptors of a function."""
        self.around.append(dict(_iter_descriptors(node)))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Out again."""
        self.around.pop()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Without the variables that held them."""
        body = [s for s in updated_node.body if _read_assignment(s)[0] not in self.around[-1]]
        if len(body) == len(updated_node.body):
            return updated_node
        return updated_node.with_changes(body=body or [cst.parse_statement("pass")])

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Replace a launch by one with what made its descriptors."""
        if not isinstance(original_node.func, cst.Subscript):
            return updated_node
        here = self.around[-1]
        args = [
            new.with_changes(value=here[old.value.value].deep_clone())
            if isinstance(old.value, cst.Name) and old.value.value in here
            else new
            for old, new in zip(original_node.args, updated_node.args, strict=True)
        ]
        return updated_node.with_changes(args=args)


def _read_assignment(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression | None]:
    """Return the variable of `name = value`, and its value."""
    small = find_small_statement(statement)
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        return small.targets[0].target.value, small.value
    return "", None


def _iter_descriptors(function: cst.FunctionDef) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the variables that hold descriptors for launches, and what makes these."""
    inside = list(list_nodes(function.body))
    place = {node: i for i, node in enumerate(inside)}
    binding: dict[str, list[int]] = {}
    for node in inside:
        if isinstance(node, _TARGETS):
            for name in (n.value for n in list_nodes(node.target) if isinstance(n, cst.Name)):
                binding.setdefault(name, []).append(place[node])
    launched = [n for n in inside if isinstance(n, cst.Call) and isinstance(n.func, cst.Subscript)]
    given = {id(a.value): place[c] for c in launched for a in c.args if not a.star}
    for statement in inside:
        name, value = _read_assignment(statement)
        if value is None or not is_descriptor(value) or len(binding[name]) != 1:
            continue
        uses = [n for n in inside if isinstance(n, cst.Name) and n.value == name and place[n] > place[value]]
        if not all(id(n) in given for n in uses):
            continue
        last = max([place[statement], *(given[id(n)] for n in uses)])
        made_of = {n.value for n in list_nodes(value) if isinstance(n, cst.Name)}
        if not any(place[statement] < i < last for n in made_of for i in binding.get(n, ())):
            yield name, value
