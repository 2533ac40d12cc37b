"""`y.backward(g)` and reads of `x.grad`, before anything else is looked at.

What: inside a function, a call of backward on what was computed from tensors that ask for gradients.
Before: `y.backward(g)` and `return x.grad`
After: `x_grad = torch.autograd.grad(y, x, g)[0]` and `return x_grad`
Safety: only where each tensor whose `.grad` is read asks for gradients in the function, and one call of backward alone
gives it.
Limits: gradients in containers and those that several calls add up stay as they are, and are findings.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.torch import code
from fnjax.port.tree.located import Located, Positions, Rewriting, nodes


class _Functions(Located):
    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        """No function stands in a line."""
        return False

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        calls = {n: found for n in nodes(original_node.body) if (found := _backward(n)) is not None}
        reads = [n for n in nodes(original_node.body) if _is_grad(n)]
        if not calls or not reads:
            return updated_node
        wanted = self._wanted(original_node, list(calls), reads)
        if wanted is None:
            return updated_node
        taken = {n.value for n in nodes(original_node) if isinstance(n, cst.Name)}
        names = {
            x: f"{x}_grad" if f"{x}_grad" not in taken else f"gradient_of_{x}" for xs in wanted.values() for x in xs
        }
        made = original_node.visit(_Rewrite(self.positions, calls, wanted, names))
        assert isinstance(made, cst.FunctionDef)
        return made

    def _wanted(
        self, function: cst.FunctionDef, calls: list[cst.CSTNode], reads: list[cst.CSTNode]
    ) -> dict[cst.CSTNode, list[str]] | None:
        """The tensors whose gradients each call gives."""
        at = self.positions
        asked: dict[str, tuple[int, int]] = {}
        for node in nodes(function.body):
            for name in _asking(node):
                asked.setdefault(name, at[node])
        loops = [n for n in nodes(function.body) if isinstance(n, (cst.For, cst.While))]
        wanted: dict[cst.CSTNode, list[str]] = {call: [] for call in calls}
        for read in reads:
            assert isinstance(read, cst.Attribute)
            name = code(read.value)
            before = [c for c in calls if name in asked and asked[name] < at[c] < at[read]]
            if len(before) != 1:
                return None
            if any(asked[name] < at[n] and any(c is before[0] for c in nodes(n)) for n in loops):  # rounds add up
                return None
            if name not in wanted[before[0]]:
                wanted[before[0]].append(name)
        return wanted if all(wanted.values()) else None


class _Rewrite(Located):
    def __init__(
        self,
        positions: Positions,
        calls: dict[cst.CSTNode, tuple[str, str]],
        wanted: dict[cst.CSTNode, list[str]],
        names: dict[str, str],
    ) -> None:
        super().__init__(positions)
        self.calls, self.wanted, self.names = calls, wanted, names

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> cst.BaseSmallStatement:
        if original_node not in self.calls:
            return updated_node
        output, cotangent = self.calls[original_node]
        inputs = self.wanted[original_node]
        rest = f", {cotangent}" if cotangent else ""
        targets = ", ".join(self.names[x] for x in inputs)
        several = f"({', '.join(inputs)})" if len(inputs) > 1 else inputs[0]
        first = "" if len(inputs) > 1 else "[0]"
        statement = cst.parse_statement(f"{targets} = torch.autograd.grad({output}, {several}{rest}){first}")
        assert isinstance(statement, cst.SimpleStatementLine)
        return statement.body[0].with_changes(semicolon=updated_node.semicolon)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if not _is_grad(original_node):
            return updated_node
        return cst.Name(self.names[code(original_node.value)], lpar=updated_node.lpar, rpar=updated_node.rpar)


def _is_grad(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "grad" and isinstance(node.value, cst.Name)


def _backward(node: cst.CSTNode) -> tuple[str, str] | None:
    """What `y.backward(g)` and `torch.autograd.backward(y, g)` differentiate, and the gradient that they begin with."""
    if not isinstance(node, cst.Expr) or not isinstance(node.value, cst.Call):
        return None
    call = node.value
    given = [a for a in call.args if a.keyword is None or a.keyword.value in {"tensors", "gradient", "grad_tensors"}]
    texts = [code(a.value) for a in given]
    if any(a.star for a in call.args):
        return None
    if code(call.func) == "torch.autograd.backward":
        return (texts[0], texts[1] if len(texts) > 1 else "") if texts else None
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
        return code(call.func.value), texts[0] if texts else ""
    return None


def _asking(node: cst.CSTNode) -> Iterator[str]:
    """The variables that a node marks as asking for gradients."""
    if isinstance(node, cst.Assign):
        if "requires_grad" in code(node.value):
            for target in node.targets:
                elements = target.target.elements if isinstance(target.target, (cst.Tuple, cst.List)) else ()
                yield from (code(e.value) for e in elements)
                yield code(target.target)
        yield from (
            code(t.target.value)
            for t in node.targets
            if isinstance(t.target, cst.Attribute) and t.target.attr.value == "requires_grad"
        )
    elif (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "requires_grad_"
    ):
        yield code(node.func.value)


BACKWARD_CALLS = Rewriting(
    frozenset({cst.Expr}), lambda node: _backward(node) is not None, lambda made, at: made.visit(_Functions(at))
)
